//! The parameters of a kernel: bytes in which addresses and tensor maps are written once for the buffers of a launch,
//! and numbers at every launch.

use std::ffi::{c_int, c_void};

use qkvault_graph::DType;
use qkvault_kernels::recipe::{LaunchValue, Limits, Param, Patch, TENSOR_MAP_BYTES, TensorMap};

use crate::raw::launch::{DeviceBuffer, LaunchTable};

/// Every parameter begins at a multiple of this, which a tensor map needs.
const ALIGNMENT: usize = 64;

/// The most that parameters take, each aligned.
const MOST: usize = Limits::PARAMS + Limits::COUNT * ALIGNMENT;

/// Why nothing is written for an operand that has no room for one of what an open map counts.
pub(super) const NO_PAGE: &str = "an operand has no room for a page";

/// The parameters of a kernel in order, with operands by their place in a launch.
#[derive(Debug)]
pub(super) struct Filled {
    /// All parameters, each aligned.
    bytes: Vec<u8>,
    /// Where each begins.
    begins: Vec<u16>,
    /// What follows from the buffers of a launch.
    written: Vec<(usize, Overwrite)>,
    /// What follows from its numbers.
    numbers: Vec<(usize, Overwrite)>,
}

/// What is written over bytes of the parameters.
#[derive(Debug)]
enum Overwrite {
    /// The address of a tensor.
    Address(usize),
    /// An address in the scratch memory.
    Scratch(u64),
    /// An address in the constant data of the plan.
    Constant(u64),
    /// A scalar, of so many bytes.
    Number(usize, usize),
    /// A scalar in f32 times a constant.
    Product(usize, f32),
    /// The tensor map of a tensor.
    Map(Box<FilledMap>),
    /// The last extent of an open map of a tensor.
    Fitting(usize, Box<TensorMap>),
}

/// A tensor map as the driver takes it.
#[derive(Debug)]
pub(super) struct FilledMap {
    /// The tensor's place.
    pub(super) tensor: usize,
    /// `CUtensorMapDataType`.
    pub(super) dtype: c_int,
    /// Number of dims.
    pub(super) rank: u32,
    pub(super) dims: [u64; 5],
    pub(super) strides: [u64; 5],
    pub(super) tile: [u32; 5],
    /// `CUtensorMapSwizzle`.
    pub(super) swizzle: c_int,
    /// `CUtensorMapL2promotion`.
    pub(super) promotion: c_int,
    /// The map whose last extent follows from the operand.
    open: Option<TensorMap>,
}

/// The parameters of a kernel for the buffers of one launch.
#[derive(Debug, Default)]
pub(super) struct ReadyParams {
    room: Vec<Aligned>,
    /// The address of each parameter in `room`.
    pointers: Vec<usize>,
}

#[repr(C, align(64))]
#[derive(Clone, Copy, Debug)]
struct Aligned([u8; ALIGNMENT]);

impl Filled {
    /// The parameters of a launch of a plan whose constant data is at an address; `None` if one refers to an operand
    /// that is not in the table, which a check would have refused.
    pub(super) fn new(params: &[Param], table: &LaunchTable, constants: u64) -> Option<Filled> {
        let (bytes, begins, written, numbers) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let mut filled = Filled { bytes, begins, written, numbers };
        for Param { bytes, patches } in params {
            let begin = filled.bytes.len().next_multiple_of(ALIGNMENT);
            filled.bytes.resize(begin, 0);
            filled.bytes.extend(bytes);
            filled.begins.push(u16::try_from(begin).ok()?);
            for Patch { at, value } in patches {
                let at = begin + *at as usize;
                let (written, size) = Overwrite::from_value(value, table)?;
                if at + size > filled.bytes.len() {
                    return None;
                }
                match written {
                    Overwrite::Constant(offset) => {
                        filled.bytes[at..at + size].copy_from_slice(&(constants + offset).to_ne_bytes());
                    }
                    number @ (Overwrite::Number(..) | Overwrite::Product(..)) => filled.numbers.push((at, number)),
                    other => filled.written.push((at, other)),
                }
            }
        }
        (filled.bytes.len() <= MOST).then_some(filled)
    }

    /// Writes the parameters for these buffers, in the memory of `ready`.
    pub(super) fn prepare(
        &self,
        ready: &mut ReadyParams,
        tensors: &[DeviceBuffer],
        scratch: u64,
        encode: impl Fn(&FilledMap, DeviceBuffer, *mut u8) -> Result<(), String>,
    ) -> Result<(), String> {
        let ReadyParams { room, pointers } = ready;
        room.clear();
        room.resize(self.bytes.len().div_ceil(ALIGNMENT), Aligned([0; ALIGNMENT]));
        let start = room.as_mut_ptr().cast::<u8>();
        // SAFETY: the room was made for these bytes.
        unsafe { start.copy_from_nonoverlapping(self.bytes.as_ptr(), self.bytes.len()) };
        for (at, written) in &self.written {
            // SAFETY: `new` compared the end of every value with the bytes.
            let place = unsafe { start.add(*at) };
            let value = match written {
                Overwrite::Address(tensor) => tensors[*tensor].address,
                Overwrite::Scratch(offset) => scratch + offset,
                Overwrite::Map(map) => {
                    encode(map, tensors[map.tensor], place)?;
                    continue;
                }
                Overwrite::Fitting(tensor, map) => {
                    let count = map.fitting_count(tensors[*tensor].bytes).ok_or(NO_PAGE)?.to_ne_bytes();
                    // SAFETY: as above; a count has four bytes.
                    unsafe { place.copy_from_nonoverlapping(count.as_ptr(), count.len()) };
                    continue;
                }
                // `new` keeps these apart.
                Overwrite::Number(..) | Overwrite::Product(..) | Overwrite::Constant(_) => continue,
            };
            // SAFETY: as above; an address has eight bytes.
            unsafe { place.copy_from_nonoverlapping(value.to_ne_bytes().as_ptr(), 8) };
        }
        pointers.clear();
        // SAFETY: each parameter begins within the room.
        pointers.extend(self.begins.iter().map(|begin| unsafe { start.add(usize::from(*begin)) } as usize));
        Ok(())
    }

    /// Writes the numbers of a launch into parameters that [`Filled::prepare`] made, and returns the address of each
    /// parameter.
    pub(super) fn number(&self, ready: &mut ReadyParams, number: impl Fn(usize) -> u64) -> *mut *mut c_void {
        let start = ready.room.as_mut_ptr().cast::<u8>();
        for (at, written) in &self.numbers {
            let (value, size) = match written {
                Overwrite::Number(scalar, size) => (number(*scalar), *size),
                Overwrite::Product(scalar, by) => {
                    // The four bytes of the scalar, which a check found to be f32.
                    let number = f32::from_bits(number(*scalar) as u32);
                    (u64::from((number * by).to_bits()), 4)
                }
                // `new` keeps these apart.
                Overwrite::Address(_)
                | Overwrite::Scratch(_)
                | Overwrite::Map(_)
                | Overwrite::Fitting(..)
                | Overwrite::Constant(_) => continue,
            };
            // SAFETY: `new` compared the end of every value with the bytes, for which the room was made; a number has
            // at most eight.
            unsafe { start.add(*at).copy_from_nonoverlapping(value.to_ne_bytes().as_ptr(), size) };
        }
        ready.pointers.as_mut_ptr().cast()
    }
}

impl Overwrite {
    /// The value with operands by place, and its bytes.
    fn from_value(value: &LaunchValue, table: &LaunchTable) -> Option<(Overwrite, usize)> {
        let tensor = |role| table.tensors().iter().position(|tensor| tensor.role == role);
        Some(match value {
            LaunchValue::Address(role) => (Overwrite::Address(tensor(*role)?), 8),
            LaunchValue::Scratch(at) => (Overwrite::Scratch(*at), 8),
            LaunchValue::Constant(at) => (Overwrite::Constant(*at), 8),
            LaunchValue::Number(role) => {
                let at = table.scalars().iter().position(|scalar| scalar.role == *role)?;
                let size = table.scalars()[at].dtype.size();
                (Overwrite::Number(at, size), size)
            }
            LaunchValue::Product(role, by) => {
                let at = table.scalars().iter().position(|scalar| scalar.role == *role)?;
                (Overwrite::Product(at, f32::from_bits(*by)), 4)
            }
            LaunchValue::Map(map) => {
                (Overwrite::Map(Box::new(FilledMap::from_recipe(map, tensor(map.role)?)?)), TENSOR_MAP_BYTES)
            }
            LaunchValue::Fitting(map) => (Overwrite::Fitting(tensor(map.role)?, Box::new(map.clone())), 4),
        })
    }
}

impl FilledMap {
    fn from_recipe(map: &TensorMap, tensor: usize) -> Option<FilledMap> {
        let TensorMap { role: _, dtype, dims, strides, tile, swizzle } = map;
        let dtype = match dtype {
            DType::U8 | DType::E4M3 | DType::E5M2 | DType::E8M0 => 0,
            DType::I32 => 3,
            DType::I64 => 5,
            DType::F16 => 6,
            DType::F32 => 7,
            DType::BF16 => 9,
            DType::Bool => return None,
        };
        let swizzle = [0, 32, 64, 128].iter().position(|known| known == swizzle)?;
        // What the copy engine reads of a row at a time: the rest of a longer line may be of other heads, which nobody
        // needs now. `CU_TENSOR_MAP_L2_PROMOTION_L2_64B` is 1, that of 128 bytes 2.
        let row = dims.first()?.min(&u64::from(*tile.first()?)) * map.dtype.size() as u64;
        let promotion = if row <= 64 { 1 } else { 2 };
        Some(FilledMap {
            promotion,
            tensor,
            dtype,
            rank: u32::try_from(dims.len()).ok()?,
            dims: five(dims)?,
            strides: five(strides)?,
            tile: five(tile)?,
            swizzle: c_int::try_from(swizzle).ok()?,
            open: map.is_open().then(|| map.clone()),
        })
    }

    /// The extents over an operand; `None` where it has no room for one of what an open map counts.
    pub(super) fn dims_over(&self, operand: DeviceBuffer) -> Option<[u64; 5]> {
        let mut dims = self.dims;
        if let Some(open) = &self.open {
            dims[open.dims.len() - 1] = open.fitting(operand.bytes)?;
        }
        Some(dims)
    }
}

/// A list of at most five numbers, with zeros after it.
fn five<T: Copy + Default>(list: &[T]) -> Option<[T; 5]> {
    let mut all = [T::default(); 5];
    all.get_mut(..list.len())?.copy_from_slice(list);
    Some(all)
}

#[cfg(test)]
mod tests;
