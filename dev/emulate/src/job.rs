//! A job as bytes: buffers, then steps, each with its parameters. `machine/job.h` reads it. All numbers have 64 bits,
//! the lowest byte first.

use std::collections::BTreeMap;

use qkvault_graph::Role;
use qkvault_kernels::recipe::{Launch, LaunchRecipe, LaunchValue, Param, RecipeStep, TensorMap};

use crate::EmulateError;

struct JobWriter<'a> {
    bytes: Vec<u8>,
    /// The number of each buffer, and its bytes.
    places: BTreeMap<Role, (u64, u64)>,
    /// The number of the scratch memory.
    scratch: u64,
    numbers: &'a BTreeMap<Role, Vec<u8>>,
}

/// The buffers in the order of their roles, the scratch memory behind them, and the recipe's steps.
pub(crate) fn write(
    recipe: &LaunchRecipe,
    buffers: &BTreeMap<Role, Vec<u8>>,
    numbers: &BTreeMap<Role, Vec<u8>>,
    shared: &[(Role, Role)],
    seed: u64,
    poison: u8,
) -> Result<Vec<u8>, EmulateError> {
    let mut places: BTreeMap<_, _> =
        buffers.iter().zip(0..).map(|((role, buffer), n)| (*role, (n, buffer.len() as u64))).collect();
    for (role, of) in shared {
        places.insert(*role, *places.get(of).ok_or(EmulateError::Missing(*of))?);
    }
    let mut job = JobWriter { bytes: Vec::new(), places, scratch: buffers.len() as u64, numbers };
    job.numbers([seed, buffers.len() as u64 + 1]);
    for buffer in buffers.values() {
        job.numbers([buffer.len() as u64]);
        job.bytes.extend(buffer);
    }
    job.numbers([recipe.scratch]);
    job.bytes.resize(job.bytes.len() + recipe.scratch as usize, poison);
    job.numbers([recipe.steps.len() as u64]);
    for step in &recipe.steps {
        match step {
            RecipeStep::Clear { at, bytes, value } => {
                job.numbers([0, job.scratch, *at, *bytes, u64::from(*value)]);
            }
            RecipeStep::Launch(launch) => job.launch(launch)?,
        }
    }
    Ok(job.bytes)
}

impl JobWriter<'_> {
    fn numbers(&mut self, list: impl IntoIterator<Item = u64>) {
        self.bytes.extend(list.into_iter().flat_map(u64::to_le_bytes));
    }

    fn place(&self, role: Role) -> Result<u64, EmulateError> {
        self.places.get(&role).map(|(n, _)| *n).ok_or(EmulateError::Missing(role))
    }

    fn launch(&mut self, launch: &Launch) -> Result<(), EmulateError> {
        let Launch { module: _, function, grid, block, shared, cluster: _, overlap: _, params } = launch;
        self.numbers([1, function.len() as u64]);
        self.bytes.extend(function.as_bytes());
        self.numbers(grid.iter().chain(block).map(|&n| n.into()));
        self.numbers([(*shared).into(), params.len() as u64]);
        params.iter().try_for_each(|param| self.param(param))
    }

    fn param(&mut self, param: &Param) -> Result<(), EmulateError> {
        let mut bytes = param.bytes.clone();
        let mut patches = Vec::new();
        for patch in &param.patches {
            match &patch.value {
                LaunchValue::Number(role) => {
                    let number = self.numbers.get(role).ok_or(EmulateError::Missing(*role))?;
                    bytes[patch.at as usize..][..number.len()].copy_from_slice(number);
                }
                LaunchValue::Product(role, by) => {
                    let number = self.numbers.get(role).ok_or(EmulateError::Missing(*role))?;
                    let number: [u8; 4] = number[..].try_into().map_err(|_| EmulateError::Missing(*role))?;
                    let product = f32::from_ne_bytes(number) * f32::from_bits(*by);
                    bytes[patch.at as usize..][..4].copy_from_slice(&product.to_ne_bytes());
                }
                LaunchValue::Fitting(map) => {
                    let (_, room) = *self.places.get(&map.role).ok_or(EmulateError::Missing(map.role))?;
                    let count = map.fitting_count(room).ok_or(EmulateError::Missing(map.role))?;
                    bytes[patch.at as usize..][..4].copy_from_slice(&count.to_ne_bytes());
                }
                value => patches.push((u64::from(patch.at), value)),
            }
        }
        self.numbers([bytes.len() as u64]);
        self.bytes.extend(bytes);
        self.numbers([patches.len() as u64]);
        for (at, value) in patches {
            match value {
                LaunchValue::Address(role) => {
                    let place = self.place(*role)?;
                    self.numbers([at, 0, place, 0]);
                }
                LaunchValue::Scratch(offset) => {
                    self.numbers([at, 0, self.scratch, *offset]);
                }
                LaunchValue::Constant(_) => return Err(EmulateError::Constants),
                LaunchValue::Map(map) => self.map(at, map)?,
                LaunchValue::Number(_) | LaunchValue::Product(..) | LaunchValue::Fitting(_) => {}
            }
        }
        Ok(())
    }

    fn map(&mut self, at: u64, map: &TensorMap) -> Result<(), EmulateError> {
        let TensorMap { role, dtype, dims, strides, tile, swizzle } = map;
        let place = self.place(*role)?;
        let mut dims = dims.clone();
        if map.is_open() {
            // As many as the buffer has room for, as a launch on a GPU makes them.
            let bytes = self.places.get(role).map_or(0, |(_, bytes)| *bytes);
            let fitting = map.fitting(bytes).ok_or(EmulateError::Missing(*role))?;
            dims.last_mut().into_iter().for_each(|last| *last = fitting);
        }
        self.numbers([at, 1, place, 0, dtype.size() as u64, u64::from(*swizzle), dims.len() as u64]);
        self.numbers(dims.iter().chain(strides).copied());
        self.numbers(tile.iter().map(|&n| n.into()));
        Ok(())
    }
}
