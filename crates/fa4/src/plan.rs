//! A program and its compiled kernels become a recipe and the bytes of its cubins.

use qkvault_graph::op::Binding;
use qkvault_kernels::recipe::{self, BadRecipe, Launch, Limits, Param, RECIPE_FORMAT, Recipe};

use crate::args::{Mismatch, params};
use crate::compiler::Compiled;
use crate::program::{Program, Step};
use crate::request::Kernel;
use crate::takes::SM;
use crate::toolchain::DRIVER;

/// A launch recipe and the cubins that it names, one after the other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The recipe.
    pub recipe: Recipe,
    /// The cubins.
    pub code: Vec<u8>,
}

/// Why compiled kernels make no plan.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// A launch does not fit a kernel.
    #[error("FlashAttention-4's kernel {name} is not launched: {mismatch}; report this with the description")]
    Mismatch {
        /// The kernel.
        name: String,
        /// What does not fit.
        mismatch: Mismatch,
    },
    /// The recipe is not right.
    #[error(transparent)]
    Recipe(#[from] BadRecipe),
}

impl Program {
    /// The plan, with the kernels of the program in order, and the cubin of [`Program::own`] behind theirs.
    ///
    /// Every parameter is compared with its printed type, with its size and place in the cubin, and the recipe is
    /// checked as one from a disk is.
    ///
    /// # Errors
    ///
    /// [`PlanError`] with the first difference.
    pub fn plan(&self, compiled: &[Compiled], own: Option<&[u8]>, bindings: &[Binding]) -> Result<Plan, PlanError> {
        let modules: Vec<&[u8]> = compiled.iter().map(|one| one.cubin.as_slice()).chain(own).collect();
        let steps = self.steps.iter().map(|step| match step {
            Step::Own(launch) => {
                let module = u32::try_from(compiled.len()).unwrap_or(u32::MAX);
                Ok(recipe::Step::Launch(Launch { module, ..Launch::clone(launch) }))
            }
            Step::Clear { at, bytes } => Ok(recipe::Step::Clear { at: *at, bytes: *bytes, value: 0 }),
            Step::Launch { kernel, args, grid, threads } => {
                let Some(compiled) = compiled.get(*kernel) else {
                    let mismatch = Mismatch::Count { has: compiled.len(), given: self.kernels.len() };
                    return Err(PlanError::Mismatch { name: format!("number {kernel}"), mismatch });
                };
                let name = compiled.kernel.name.clone();
                let failed = |mismatch| PlanError::Mismatch { name: name.clone(), mismatch };
                let params = params(args, &compiled.params, &compiled.boxes).map_err(failed)?;
                same_places(compiled, &params).map_err(failed)?;
                let grid = same_launch(compiled, *grid, *threads).map_err(failed)?;
                Ok(recipe::Step::Launch(Launch {
                    module: u32::try_from(*kernel).unwrap_or(u32::MAX),
                    function: name,
                    grid,
                    block: compiled.block,
                    shared: compiled.shared,
                    cluster: None,
                    overlap: compiled.overlap && !reads_before_it_waits(&self.kernels[*kernel]),
                    params,
                }))
            }
        });
        let recipe = Recipe {
            format: RECIPE_FORMAT,
            sm: SM,
            driver: DRIVER,
            scratch: self.scratch,
            modules: modules.iter().map(|cubin| cubin.len() as u64).collect(),
            steps: steps.collect::<Result<_, PlanError>>()?,
        };
        let code = modules.concat();
        recipe.clone().check(bindings, code.len() as u64)?;
        Ok(Plan { recipe, code })
    }
}

/// Whether a kernel that may begin early reads lists of sequences before it waits for the kernel that makes them.
fn reads_before_it_waits(kernel: &Kernel) -> bool {
    matches!(kernel, Kernel::Preprocess(preprocess) if preprocess.common.packed)
}

/// Compares the places of parameters in the cubin with those of the types that were printed.
fn same_places(compiled: &Compiled, params: &[Param]) -> Result<(), Mismatch> {
    let Compiled { kernel, params: types, .. } = compiled;
    if kernel.params.len() != params.len() {
        return Err(Mismatch::Count { has: kernel.params.len(), given: params.len() });
    }
    let mut end = 0_u32;
    for (at, ((&(offset, size), kind), param)) in kernel.params.iter().zip(types).zip(params).enumerate() {
        let (printed, align) = kind.layout();
        // Tensor maps are aligned as `CUtensorMap` is.
        let align = if printed as usize == recipe::TENSOR_MAP_BYTES { 64 } else { align };
        let expected = (kernel.base + end).next_multiple_of(align) - kernel.base;
        if (offset, size) != (expected, printed) || param.bytes.len() != size as usize {
            return Err(Mismatch::Place { at, size, offset, printed, expected });
        }
        end = offset + size;
    }
    if kernel.bytes == end {
        Ok(())
    } else {
        let (has, given) = (kernel.bytes.to_string(), end.to_string());
        Err(Mismatch::Launch { what: "the number of bytes of all parameters", has, given })
    }
}

/// Compares block and architecture, and gives the grid as the driver takes it.
fn same_launch(compiled: &Compiled, grid: [i64; 3], threads: i64) -> Result<[u32; 3], Mismatch> {
    let Compiled { kernel, block, .. } = compiled;
    let differs = |what, has: String, given: String| Err(Mismatch::Launch { what, has, given });
    if kernel.sm != SM {
        return differs("the compute capability", kernel.sm.to_string(), SM.to_string());
    }
    if kernel.block.is_some_and(|required| required != *block) || block.map(i64::from) != [threads, 1, 1] {
        return differs("the block", format!("{block:?}, required {:?}", kernel.block), threads.to_string());
    }
    let most = [Limits::GRID_X, Limits::GRID_YZ, Limits::GRID_YZ];
    let mut extents = [0; 3];
    for ((extent, n), most) in extents.iter_mut().zip(grid).zip(most) {
        match u32::try_from(n) {
            Ok(n) if (1..=most).contains(&n) => *extent = n,
            _ => return differs("the largest grid", format!("{most}"), format!("{grid:?}")),
        }
    }
    Ok(extents)
}
