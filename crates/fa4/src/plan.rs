//! A program and its compiled kernels become a recipe and the bytes of its cubins.

use qkvault_graph::Binding;
use qkvault_kernels::KnownLists;
use qkvault_kernels::recipe::{
    self, BadCubin, BadRecipe, CubinKernel, Launch, LaunchRecipe, Limits, Param, RECIPE_FORMAT,
};

use crate::args::{ParameterMismatch, params};
use crate::compiler::CompiledKernel;
use crate::program::{Fa4Program, ProgramStep};
use crate::request::Kernel;
use crate::takes::SM;
use crate::told::Told;
use crate::toolchain::DRIVER;

/// A launch recipe and what it names: cubins, one after the other, and constant data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CubinPlan {
    /// The recipe.
    pub recipe: LaunchRecipe,
    /// The cubins and the constant data.
    pub code: Vec<u8>,
}

/// Why compiled kernels make no plan.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CubinPlanError {
    /// A launch does not fit a kernel.
    #[error("FlashAttention-4's kernel {name} is not launched: {mismatch}; report this with the description")]
    Mismatch {
        /// The kernel.
        name: String,
        /// What does not fit.
        mismatch: ParameterMismatch,
    },
    /// The code is none.
    #[error("FlashAttention-4's kernels are not launched: {0}")]
    Code(BadCubin),
    /// The lists of a mask are none.
    #[error("{0} bytes behind the cubins are no lists of the mask's tiles; the plan is damaged: compile it again")]
    Lists(usize),
    /// The recipe is not right.
    #[error(transparent)]
    Recipe(#[from] BadRecipe),
}

/// A compiled kernel, as a launch recipe needs it.
#[derive(Clone, Copy, Debug)]
struct KernelPart<'a> {
    cubin: &'a [u8],
    kernel: &'a CubinKernel,
    told: &'a Told,
}

impl Fa4Program {
    /// The plan, with the kernels of the program in order, behind theirs the cubin of [`Fa4Program::own`], and then the
    /// lists of [`Fa4Program::known`].
    ///
    /// Every parameter is compared with its printed type, with its size and place in the cubin, and the recipe is
    /// checked as one from a disk is.
    ///
    /// # Errors
    ///
    /// [`CubinPlanError`] with the first difference.
    pub fn plan(
        &self,
        compiled: &[CompiledKernel],
        own: Option<&[u8]>,
        bindings: &[Binding],
    ) -> Result<CubinPlan, CubinPlanError> {
        let parts =
            compiled.iter().map(|CompiledKernel { cubin, kernel, told, host: _ }| KernelPart { cubin, kernel, told });
        let parts: Vec<KernelPart<'_>> = parts.collect();
        let recipe = self.recipe(&parts, own, bindings)?;
        let known = self.known.as_ref().map(KnownLists::bytes);
        let cubins = parts.iter().map(|part| part.cubin).chain(own);
        let code = cubins.chain(known.as_deref()).collect::<Vec<_>>().concat();
        Ok(CubinPlan { recipe, code })
    }

    /// The recipe of a stored plan, written again from its cubins (of these lengths, one after the other, that of
    /// [`Fa4Program::own`] last) and from what the compiler told of their launches.
    ///
    /// # Errors
    ///
    /// [`CubinPlanError`] with the first difference: cubins that are none, other counts, parameters that do not fit,
    /// lists of tiles that are none.
    pub fn recipe_again(
        &self,
        code: &[u8],
        lengths: &[u64],
        told: &[Told],
        bindings: &[Binding],
    ) -> Result<LaunchRecipe, CubinPlanError> {
        let counts = |has, given| CubinPlanError::Mismatch {
            name: "list".to_owned(),
            mismatch: ParameterMismatch::Count { has, given },
        };
        let modules = self.kernels.len() + usize::from(self.own.is_some());
        if lengths.len() != modules || told.len() != self.kernels.len() || !told.iter().all(Told::is_bounded) {
            return Err(counts(modules, lengths.len()));
        }
        let (mut rest, mut cubins) = (code, Vec::with_capacity(modules));
        for &length in lengths {
            let length = usize::try_from(length).ok().filter(|length| *length <= rest.len());
            let (cubin, behind) = rest.split_at(length.ok_or_else(|| counts(code.len(), usize::MAX))?);
            cubins.push(cubin);
            rest = behind;
        }
        let may_be = self.known.as_ref().map_or(rest.is_empty(), |known| known.may_be(rest));
        if !may_be {
            return Err(CubinPlanError::Lists(rest.len()));
        }
        let own = self.own.as_ref().and_then(|_| cubins.pop());
        let kernels: Vec<CubinKernel> = cubins
            .iter()
            .map(|cubin| CubinKernel::only(cubin))
            .collect::<Result<_, _>>()
            .map_err(CubinPlanError::Code)?;
        let parts = cubins.into_iter().zip(&kernels).zip(told).map(|((cubin, kernel), told)| KernelPart {
            cubin,
            kernel,
            told,
        });
        self.recipe(&parts.collect::<Vec<_>>(), own, bindings)
    }

    fn recipe(
        &self,
        parts: &[KernelPart<'_>],
        own: Option<&[u8]>,
        bindings: &[Binding],
    ) -> Result<LaunchRecipe, CubinPlanError> {
        let modules: Vec<u64> =
            parts.iter().map(|part| part.cubin).chain(own).map(|cubin| cubin.len() as u64).collect();
        let steps = self.steps.iter().map(|step| match step {
            ProgramStep::Own(launch) => {
                let module = u32::try_from(parts.len()).unwrap_or(u32::MAX);
                Ok(recipe::RecipeStep::Launch(Launch { module, ..Launch::clone(launch) }))
            }
            ProgramStep::Clear { at, bytes } => Ok(recipe::RecipeStep::Clear { at: *at, bytes: *bytes, value: 0 }),
            ProgramStep::Launch { kernel, args, grid, threads } => {
                let Some(part) = parts.get(*kernel) else {
                    let mismatch = ParameterMismatch::Count { has: parts.len(), given: self.kernels.len() };
                    return Err(CubinPlanError::Mismatch { name: format!("number {kernel}"), mismatch });
                };
                let name = part.kernel.name.clone();
                let failed = |mismatch| CubinPlanError::Mismatch { name: name.clone(), mismatch };
                let Told { params: types, boxes, block, shared, overlap } = part.told;
                let params = params(args, types, boxes).map_err(failed)?;
                same_places(part, &params).map_err(failed)?;
                let grid = same_launch(part, *grid, *threads).map_err(failed)?;
                Ok(recipe::RecipeStep::Launch(Launch {
                    module: u32::try_from(*kernel).unwrap_or(u32::MAX),
                    function: name,
                    grid,
                    block: *block,
                    shared: *shared,
                    cluster: None,
                    overlap: *overlap && !reads_before_it_waits(&self.kernels[*kernel]),
                    params,
                }))
            }
        });
        let recipe = LaunchRecipe {
            format: RECIPE_FORMAT,
            sm: SM,
            driver: DRIVER,
            scratch: self.scratch,
            steps: steps.collect::<Result<_, CubinPlanError>>()?,
            modules,
            constants: self.known.as_ref().map_or(0, |known| known.layout.end),
        };
        let length = recipe.bytes().unwrap_or(u64::MAX);
        Ok(recipe.check(bindings, length)?.into_inner())
    }
}

/// Whether a kernel that may begin early reads lists of sequences before it waits for the kernel that makes them.
fn reads_before_it_waits(kernel: &Kernel) -> bool {
    matches!(kernel, Kernel::Preprocess(preprocess) if preprocess.common.packed)
}

/// Compares the places of parameters in the cubin with those of the types that were printed.
fn same_places(part: &KernelPart<'_>, params: &[Param]) -> Result<(), ParameterMismatch> {
    let KernelPart { kernel, told: Told { params: types, .. }, cubin: _ } = part;
    if kernel.params.len() != params.len() {
        return Err(ParameterMismatch::Count { has: kernel.params.len(), given: params.len() });
    }
    let mut end = 0_u32;
    for (at, ((&(offset, size), kind), param)) in kernel.params.iter().zip(types).zip(params).enumerate() {
        let (printed, align) = kind.layout();
        // Tensor maps are aligned as `CUtensorMap` is.
        let align = if printed as usize == recipe::TENSOR_MAP_BYTES { 64 } else { align };
        let expected = (kernel.base + end).next_multiple_of(align) - kernel.base;
        if (offset, size) != (expected, printed) || param.bytes.len() != size as usize {
            return Err(ParameterMismatch::Place { at, size, offset, printed, expected });
        }
        end = offset + size;
    }
    if kernel.bytes == end {
        Ok(())
    } else {
        let (has, given) = (kernel.bytes.to_string(), end.to_string());
        Err(ParameterMismatch::Launch { what: "the number of bytes of all parameters", has, given })
    }
}

/// Compares block and architecture, and gives the grid as the driver takes it.
fn same_launch(part: &KernelPart<'_>, grid: [i64; 3], threads: i64) -> Result<[u32; 3], ParameterMismatch> {
    let KernelPart { kernel, told: Told { block, .. }, cubin: _ } = part;
    let differs = |what, has: String, given: String| Err(ParameterMismatch::Launch { what, has, given });
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
