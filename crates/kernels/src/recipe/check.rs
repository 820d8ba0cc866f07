//! The check of a recipe: nothing in it refers to what is not there.

use qkvault_graph::Binding;
use qkvault_graph::{DType, Role};

use super::{
    Checked, CubinKernel, Launch, LaunchRecipe, LaunchValue, Param, RECIPE_FORMAT, RecipeStep, TENSOR_MAP_BYTES,
    TensorMap,
};

/// Limits of launches that hold on every GPU of compute capability 9.0 and later, from the CUDA programming guide
/// (technical specifications per compute capability).
#[derive(Clone, Copy, Debug)]
pub struct Limits;

impl Limits {
    /// Threads of a block.
    pub const THREADS: u64 = 1024;
    /// Threads of a block along z.
    pub const THREADS_Z: u32 = 64;
    /// Blocks along y and along z.
    pub const GRID_YZ: u32 = 65_535;
    /// Blocks along x.
    pub const GRID_X: u32 = i32::MAX as u32;
    /// Bytes of shared memory of a block: 227 KiB.
    pub const SHARED: u32 = 227 * 1024;
    /// Blocks of a cluster that every GPU takes.
    pub const CLUSTER: u64 = 8;
    /// Bytes of all parameters of a kernel.
    pub const PARAMS: usize = 4096;
    /// Steps, cubins and parameters that a recipe may have: far more than any has.
    pub const COUNT: usize = 64;
    /// Bytes of scratch memory: far more than any GPU has, and no sum with an offset overflows.
    pub const SCRATCH: u64 = 1 << 40;
    /// Bytes of constant data: lists for more tiles than FlashAttention-4's kernels of a long prompt have.
    pub const CONSTANTS: u64 = 1 << 20;
    /// Elements of a tensor map's box along a dim.
    pub const TILE: u32 = 256;
    /// Elements of a tensor map along a dim.
    pub const MAP_DIM: u64 = 1 << 32;
    /// Bytes that a stride of a tensor map may have.
    pub const MAP_STRIDE: u64 = 1 << 40;
}

/// Why a recipe is not launched.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadRecipe {
    /// Another version of qkvault wrote it.
    #[error("the recipe has format {found}, and this version of qkvault reads {RECIPE_FORMAT}; compile the plan again")]
    Format {
        /// The format found.
        found: u32,
    },
    /// Something in it is not as a launch needs it.
    #[error("{place} is {given}, and {needed}; the plan is damaged or not qkvault's: compile it again")]
    Wrong {
        /// Which part of the recipe.
        place: String,
        /// What it is.
        given: String,
        /// What it must be.
        needed: String,
    },
}

fn wrong(place: impl Into<String>, given: impl ToString, needed: impl Into<String>) -> BadRecipe {
    BadRecipe::Wrong { place: place.into(), given: given.to_string(), needed: needed.into() }
}

fn within(place: &str, given: u64, most: u64) -> Result<(), BadRecipe> {
    if given <= most { Ok(()) } else { Err(wrong(place, given, format!("at most {most} is possible"))) }
}

impl LaunchRecipe {
    /// Compares everything in the recipe with what it refers to: the operands that a launch binds, and the bytes of the
    /// plan, its cubins with the constant data behind them.
    ///
    /// # Errors
    ///
    /// [`BadRecipe`], with the first part that is wrong.
    pub fn check(self, bindings: &[Binding], code: u64) -> Result<Checked, BadRecipe> {
        if self.format != RECIPE_FORMAT {
            return Err(BadRecipe::Format { found: self.format });
        }
        for (place, count) in [("the number of steps", self.steps.len()), ("the number of cubins", self.modules.len())]
        {
            within(place, count as u64, Limits::COUNT as u64)?;
        }
        within("scratch memory in bytes", self.scratch, Limits::SCRATCH)?;
        within("constant data in bytes", self.constants, Limits::CONSTANTS)?;
        let sum = self.bytes();
        if sum != Some(code) {
            let given = sum.map_or("more than 64 bits".to_owned(), |sum| format!("{sum} bytes"));
            return Err(wrong("the length of all cubins and constants", given, format!("the plan has {code} bytes")));
        }
        if self.steps.is_empty() {
            return Err(wrong("the number of steps", 0, "a launch has at least one"));
        }
        for (i, step) in self.steps.iter().enumerate() {
            match step {
                RecipeStep::Clear { at, bytes, value: _ } => {
                    let end = at.checked_add(*bytes).unwrap_or(u64::MAX);
                    within(&format!("the end of what step {i} clears"), end, self.scratch)?;
                }
                RecipeStep::Launch(launch) => self.check_launch(i, launch, bindings)?,
            }
        }
        Ok(Checked(self))
    }

    /// Compares the recipe with what its cubins tell: each is code for the recipe's architecture, and has the kernels
    /// that steps launch, with parameters of the same sizes and the required threads of a block.
    ///
    /// # Errors
    ///
    /// [`BadRecipe`], with the first part that is wrong.
    pub fn check_code(&self, code: &[u8]) -> Result<(), BadRecipe> {
        let (mut rest, mut modules) = (code, Vec::with_capacity(self.modules.len()));
        for (n, &bytes) in self.modules.iter().enumerate() {
            let place = format!("cubin {n}");
            let length = usize::try_from(bytes).ok().filter(|length| *length <= rest.len());
            let length = length.ok_or_else(|| wrong(&*place, bytes, format!("{} bytes are left", rest.len())))?;
            let (cubin, behind) = rest.split_at(length);
            rest = behind;
            let kernels = CubinKernel::all(cubin).map_err(|bad| wrong(&*place, bad.why, "it must be a cubin"))?;
            if let Some(other) = kernels.iter().find(|kernel| kernel.sm != self.sm) {
                return Err(wrong(place, format!("for sm {}", other.sm), format!("the recipe is for {}", self.sm)));
            }
            modules.push(kernels);
        }
        if rest.len() as u64 != self.constants {
            let needed = format!("{} bytes of constant data follow them", self.constants);
            return Err(wrong("what is behind the cubins", format!("{} bytes", rest.len()), needed));
        }
        let launches = self.steps.iter().enumerate().filter_map(|(i, step)| match step {
            RecipeStep::Launch(launch) => Some((i, launch)),
            RecipeStep::Clear { .. } => None,
        });
        for (i, Launch { module, function, block, params, .. }) in launches {
            let kernels = modules.get(*module as usize).map_or(&[][..], Vec::as_slice);
            let kernel = kernels.iter().find(|kernel| kernel.name == *function).ok_or_else(|| {
                let given = format!("'{}'", function.chars().take(40).collect::<String>().escape_debug());
                wrong(format!("the kernel of step {i}"), given, "its cubin has no such kernel")
            })?;
            let sizes: Vec<u32> = kernel.params.iter().map(|&(_, size)| size).collect();
            if !params.iter().map(|param| param.bytes.len()).eq(sizes.iter().map(|&size| size as usize)) {
                let given: Vec<usize> = params.iter().map(|param| param.bytes.len()).collect();
                let place = format!("the bytes of the parameters of step {i}");
                return Err(wrong(place, format!("{given:?}"), format!("the kernel has {sizes:?}")));
            }
            if kernel.block.is_some_and(|required| required != *block) {
                let needed = format!("the kernel requires {:?}", kernel.block.unwrap_or_default());
                return Err(wrong(format!("the block of step {i}"), format!("{block:?}"), needed));
            }
        }
        Ok(())
    }

    fn check_launch(&self, i: usize, launch: &Launch, bindings: &[Binding]) -> Result<(), BadRecipe> {
        let Launch { module, function, grid, block, shared, cluster, overlap: _, params } = launch;
        let place = |what: &str| format!("{what} of step {i}");
        if *module as usize >= self.modules.len() {
            return Err(wrong(place("the cubin"), module, format!("there are {}", self.modules.len())));
        }
        if function.is_empty() || function.len() > 255 || function.contains('\0') {
            let given =
                format!("{} bytes, '{}'", function.len(), function.chars().take(40).collect::<String>().escape_debug());
            return Err(wrong(place("the kernel's name"), given, "it has 1 to 255 bytes, none of them 0"));
        }
        let extents = |what: &str, given: [u32; 3], most: [u32; 3]| {
            let good = given.iter().zip(most).all(|(&n, most)| (1..=most).contains(&n));
            if good {
                Ok(())
            } else {
                Err(wrong(place(what), format!("{given:?}"), format!("1 to {most:?} are possible")))
            }
        };
        extents("the grid", *grid, [Limits::GRID_X, Limits::GRID_YZ, Limits::GRID_YZ])?;
        extents("the block", *block, [Limits::THREADS as u32, Limits::THREADS as u32, Limits::THREADS_Z])?;
        let volume = |of: [u32; 3]| of.iter().map(|&n| u64::from(n)).product::<u64>();
        within(&place("the number of threads"), volume(*block), Limits::THREADS)?;
        within(&place("shared memory"), u64::from(*shared), u64::from(Limits::SHARED))?;
        if let Some(cluster) = cluster {
            extents("the cluster", *cluster, *grid)?;
            within(&place("the number of blocks of the cluster"), volume(*cluster), Limits::CLUSTER)?;
            if grid.iter().zip(cluster).any(|(grid, cluster)| grid % cluster != 0) {
                return Err(wrong(
                    place("the grid"),
                    format!("{grid:?}"),
                    format!("clusters of {cluster:?} must divide it"),
                ));
            }
        }
        within(&place("the number of parameters"), params.len() as u64, Limits::COUNT as u64)?;
        let bytes: usize = params.iter().map(|param| param.bytes.len()).sum();
        within(&place("the number of bytes of the parameters"), bytes as u64, Limits::PARAMS as u64)?;
        params
            .iter()
            .enumerate()
            .try_for_each(|(p, param)| self.check_param(&format!("parameter {p} of step {i}"), param, bindings))
    }

    fn check_param(&self, place: &str, param: &Param, bindings: &[Binding]) -> Result<(), BadRecipe> {
        if param.bytes.is_empty() {
            return Err(wrong(place, "empty", "a parameter has at least a byte"));
        }
        let mut written: Vec<(u64, u64)> = Vec::new();
        let find = |role: Role, scalar: bool| bindings.iter().find(|b| b.role == role && b.scalar == scalar);
        for patch in &param.patches {
            let of = |what: &str| format!("{what} at byte {} of {place}", patch.at);
            let missing = |role: Role, kind: &str| {
                wrong(of("the operand"), role.name(), format!("the plan binds no such {kind}"))
            };
            let size = match &patch.value {
                LaunchValue::Address(role) => find(*role, false).map(|_| 8).ok_or_else(|| missing(*role, "tensor"))?,
                LaunchValue::Number(role) => {
                    find(*role, true).map(|b| b.dtype.size()).ok_or_else(|| missing(*role, "number"))?
                }
                LaunchValue::Product(role, by) => {
                    let number = find(*role, true).ok_or_else(|| missing(*role, "number"))?;
                    let by = f32::from_bits(*by);
                    if number.dtype != DType::F32 || !by.is_finite() {
                        let given = format!("{} in {} times {by}", role.name(), number.dtype);
                        return Err(wrong(of("the product"), given, "it is a number in f32 times a finite one"));
                    }
                    number.dtype.size()
                }
                LaunchValue::Scratch(at) => {
                    within(&of("the offset in the scratch memory"), *at, self.scratch)?;
                    8
                }
                LaunchValue::Constant(at) if *at >= self.constants => {
                    let needed = format!("the plan has {} bytes of constant data", self.constants);
                    return Err(wrong(of("the offset in the constant data"), at, needed));
                }
                LaunchValue::Constant(_) => 8,
                LaunchValue::Fitting(map) => {
                    let binding = find(map.role, false).ok_or_else(|| missing(map.role, "tensor"))?;
                    check_map(&of("the tensor map"), map, binding)?;
                    if !map.is_open() {
                        let given = format!("over dims {:?}", map.dims);
                        return Err(wrong(of("the tensor map"), given, "its last extent must be open"));
                    }
                    4
                }
                LaunchValue::Map(map) => {
                    let binding = find(map.role, false).ok_or_else(|| missing(map.role, "tensor"))?;
                    check_map(&of("the tensor map"), map, binding)?;
                    if patch.at % 64 != 0 {
                        return Err(wrong(of("the tensor map"), patch.at, "its place must be a multiple of 64"));
                    }
                    TENSOR_MAP_BYTES
                }
            };
            let (begin, end) = (u64::from(patch.at), u64::from(patch.at) + size as u64);
            within(&of("the end of what is written"), end, param.bytes.len() as u64)?;
            if written.iter().any(|(b, e)| begin < *e && *b < end) {
                return Err(wrong(of("what is written"), format!("up to byte {end}"), "no two values share a byte"));
            }
            written.push((begin, end));
        }
        Ok(())
    }
}

fn check_map(place: &str, map: &TensorMap, binding: &Binding) -> Result<(), BadRecipe> {
    let TensorMap { role: _, dtype, dims, strides, tile, swizzle } = map;
    let rank = dims.len();
    if !(1..=5).contains(&rank) || strides.len() + 1 != rank || tile.len() != rank {
        let given = format!("of {rank} dims, {} strides and a box of {}", strides.len(), tile.len());
        return Err(wrong(place, given, "it needs 1 to 5 dims, a stride less, and as many extents of the box"));
    }
    if !binding.alignment.is_multiple_of(16) {
        let given = format!("over an operand at multiples of {} bytes", binding.alignment);
        return Err(wrong(place, given, "it needs an operand at multiples of 16 bytes"));
    }
    if *dtype != binding.dtype || *dtype == DType::Bool {
        return Err(wrong(place, dtype, format!("the operand is {}", binding.dtype)));
    }
    let fixed = &dims[..rank - usize::from(map.is_open())];
    if fixed.iter().any(|n| !(1..=Limits::MAP_DIM).contains(n)) {
        return Err(wrong(place, format!("over dims {dims:?}"), format!("1 to {} are possible", Limits::MAP_DIM)));
    }
    if strides.iter().any(|step| step % 16 != 0 || !(16..Limits::MAP_STRIDE).contains(step)) {
        return Err(wrong(
            place,
            format!("with strides of {strides:?} bytes"),
            "they must be multiples of 16 below 2^40",
        ));
    }
    if tile.iter().any(|n| !(1..=Limits::TILE).contains(n)) {
        return Err(wrong(place, format!("with a box of {tile:?}"), format!("1 to {} are possible", Limits::TILE)));
    }
    let row = u64::from(tile[0]) * dtype.size() as u64;
    if !row.is_multiple_of(16) || ![0, 32, 64, 128].contains(swizzle) || (*swizzle > 0 && row > u64::from(*swizzle)) {
        let given = format!("with rows of {row} bytes and a swizzle of {swizzle}");
        return Err(wrong(
            place,
            given,
            "rows are multiples of 16 bytes, and not longer than a swizzle of 32, 64 or 128",
        ));
    }
    match map.reach() {
        Some(reach) if reach <= binding.bytes => Ok(()),
        reach => {
            let given = reach.map_or("over more than 64 bits".to_owned(), |bytes| format!("over {bytes} bytes"));
            Err(wrong(place, given, format!("the operand has {}", binding.bytes)))
        }
    }
}
