//! Plans of kernels on a GPU: cubins are loaded by the driver, and a launch queues the steps of a recipe by it alone.

mod driver;
mod filled;
mod modules;
#[cfg(test)]
mod tests;

use std::ffi::{c_int, c_uint, c_void};
use std::sync::Arc;

use qkvault_kernels::recipe::{Checked, Launch, LaunchRecipe, RecipeStep};

use crate::raw::cubins::driver::{Attribute, DriverFunctions, LaunchConfig, functions};
use crate::raw::cubins::filled::{Filled, ReadyParams};
use crate::raw::cubins::modules::Module;
pub(crate) use crate::raw::cubins::modules::{AskedOfDriver, Modules};
use crate::raw::kept::{KeptLaunches, Taken};
use crate::raw::launch::{DeviceBuffer, LaunchTable};
use crate::raw::primary::checked;

/// The code of a plan on a GPU, ready to launch.
#[derive(Debug)]
pub(crate) struct Cubins {
    functions: &'static DriverFunctions,
    #[expect(dead_code, reason = "they stay loaded as long as the plan, and nothing reads them")]
    modules: Vec<Arc<Module>>,
    #[expect(dead_code, reason = "parameters have its address, and it stays as long as the plan")]
    constants: Option<UploadedData>,
    steps: Vec<Queued>,
    kept: KeptLaunches<FilledBuffers>,
}

/// The parameters of all steps for the buffers of one launch.
#[derive(Debug, Default)]
struct FilledBuffers {
    tensors: Vec<DeviceBuffer>,
    scratch: u64,
    /// For each step that launches.
    steps: Vec<ReadyParams>,
}

/// The constant data of a plan on the GPU, freed with it.
#[derive(Debug)]
struct UploadedData {
    buffer: DeviceBuffer,
    functions: &'static DriverFunctions,
}

impl UploadedData {
    /// The constant data among the bytes of a plan; `None` if there is none.
    fn of_plan(
        functions: &'static DriverFunctions,
        recipe: &Checked,
        code: &[u8],
    ) -> Result<Option<UploadedData>, String> {
        let (at, bytes) = recipe.constants();
        if bytes == 0 {
            return Ok(None);
        }
        let data = slice(code, at, bytes).ok_or("the constant data of the plan is not in its bytes")?;
        Ok(Some(UploadedData { buffer: (functions.upload)(data)?, functions }))
    }
}

impl Drop for UploadedData {
    fn drop(&mut self) {
        // Whoever drops a plan has its context current.
        if let Err(detail) = (self.functions.free)(self.buffer) {
            tracing::warn!(detail, "a plan of kernels is dropped");
        }
    }
}

/// So many bytes of a plan from a place on.
fn slice(code: &[u8], at: u64, bytes: u64) -> Option<&[u8]> {
    let (at, end) = (usize::try_from(at).ok()?, usize::try_from(at.checked_add(bytes)?).ok()?);
    code.get(at..end)
}

/// A step that a launch queues.
#[derive(Debug)]
enum Queued {
    Clear { at: u64, bytes: usize, value: u8 },
    Launch { function: usize, grid: [u32; 3], block: [u32; 3], shared: u32, attributes: Vec<Attribute>, params: Filled },
}

impl Cubins {
    /// Loads the cubins of a plan into the current context, less those that `modules` has, and finds the kernels of its
    /// recipe. The size of every parameter must be the one that the cubin has, because the driver reads as many bytes.
    /// Also returns where the time went.
    pub(crate) fn load(
        recipe: &Checked,
        code: &[u8],
        table: &LaunchTable,
        modules: &Modules,
    ) -> Result<(Cubins, AskedOfDriver), String> {
        Cubins::load_with(functions().ok_or("the driver lacks functions of CUDA 12.4")?, recipe, code, table, modules)
    }

    fn load_with(
        functions: &'static DriverFunctions,
        recipe: &Checked,
        code: &[u8],
        table: &LaunchTable,
        shared: &Modules,
    ) -> Result<(Cubins, AskedOfDriver), String> {
        let (mut modules, mut asked) = (Vec::new(), AskedOfDriver::default());
        for (at, bytes) in recipe.modules() {
            // The check compared all lengths with the plan's bytes.
            let image = slice(code, at, bytes).filter(|image| image.starts_with(b"\x7fELF"));
            let image = image.ok_or("a cubin of the plan is no ELF file")?;
            modules.push(shared.module(functions, image, &mut asked)?);
        }
        let constants = UploadedData::of_plan(functions, recipe, code)?;
        let address = constants.as_ref().map_or(0, |data| data.buffer.address);
        let mut steps = Vec::with_capacity(recipe.steps.len());
        for step in &recipe.steps {
            steps.push(match step {
                RecipeStep::Clear { at, bytes, value } => {
                    let bytes = usize::try_from(*bytes).map_err(|_| "a buffer is larger than memory".to_owned())?;
                    Queued::Clear { at: *at, bytes, value: *value }
                }
                RecipeStep::Launch(launch) => {
                    let module = &modules[launch.module as usize];
                    let function = module.kernel(launch, most_shared(recipe, launch), &mut asked)?;
                    let Launch { grid, block, shared, cluster, overlap, .. } = *launch;
                    let cluster = cluster.map(Attribute::cluster);
                    let attributes = cluster.into_iter().chain(overlap.then(Attribute::overlap)).collect();
                    let params =
                        Filled::new(&launch.params, table, address).ok_or("a parameter refers to no operand")?;
                    Queued::Launch { function, grid, block, shared, attributes, params }
                }
            });
        }
        Ok((Cubins { functions, modules, constants, steps, kept: KeptLaunches::default() }, asked))
    }

    /// Queues the steps on a stream, in order. It keeps the parameters of its last launches by their buffers, so that a
    /// launch on the same ones writes only numbers and asks the driver for the steps alone.
    ///
    /// # Safety
    ///
    /// The stream must be of the GPU whose context is current. Until the launch is finished, the addresses must be
    /// valid for what the kernels do with them, and nothing else may use the scratch memory.
    pub(crate) unsafe fn launch(
        &self,
        tensors: &[DeviceBuffer],
        number: impl Fn(usize) -> u64,
        scratch: u64,
        stream: *mut c_void,
    ) -> Result<(), String> {
        let is_for = |kept: &FilledBuffers| kept.scratch == scratch && kept.tensors == tensors;
        let mut buffers = match self.kept.take(is_for) {
            Taken::Found(buffers) => buffers,
            Taken::New(oldest) => self.prepared(oldest.unwrap_or_default(), tensors, scratch)?,
        };
        // SAFETY: the caller's promise; the parameters are those of these buffers.
        let queued = unsafe { self.queue(&mut buffers, number, stream) };
        self.kept.give_back(buffers);
        queued
    }

    /// The parameters of all steps for these buffers, in the memory of others.
    fn prepared(&self, mut of: FilledBuffers, tensors: &[DeviceBuffer], scratch: u64) -> Result<FilledBuffers, String> {
        let encode = |map: &_, operand, at: *mut u8| self.functions.encode(map, operand, at);
        let launches = self.steps.iter().filter_map(|step| match step {
            Queued::Launch { params, .. } => Some(params),
            Queued::Clear { .. } => None,
        });
        of.steps.resize_with(launches.clone().count(), ReadyParams::default);
        for (params, ready) in launches.zip(&mut of.steps) {
            params.prepare(ready, tensors, scratch, encode)?;
        }
        of.tensors.clear();
        of.tensors.extend_from_slice(tensors);
        of.scratch = scratch;
        Ok(of)
    }

    /// # Safety
    ///
    /// As [`Cubins::launch`], for the buffers that the parameters are of.
    unsafe fn queue(
        &self,
        buffers: &mut FilledBuffers,
        number: impl Fn(usize) -> u64,
        stream: *mut c_void,
    ) -> Result<(), String> {
        let (scratch, mut ready) = (buffers.scratch, buffers.steps.iter_mut());
        for step in &self.steps {
            match step {
                Queued::Clear { at, bytes, value } => {
                    // SAFETY: a part of the scratch memory, as the check of the recipe found.
                    let status = unsafe { (self.functions.set)(scratch + at, *value, *bytes, stream) };
                    checked("clear a buffer of the kernels", status)?;
                }
                Queued::Launch { function, grid, block, shared, attributes, params } => {
                    let Some(ready) = ready.next() else { continue };
                    let pointers = params.number(ready, &number);
                    let config = LaunchConfig {
                        grid: *grid,
                        block: *block,
                        shared: *shared,
                        stream,
                        attributes: attributes.as_ptr(),
                        count: attributes.len() as c_uint,
                    };
                    let function = *function as *mut c_void;
                    let none = std::ptr::null_mut();
                    // SAFETY: the function is of the current context; as many parameters of the sizes that it has are
                    // in the memory of `ready`; config and attributes outlive the call, which copies everything.
                    let status = unsafe { (self.functions.launch)(&raw const config, function, pointers, none) };
                    checked("launch a kernel", status)?;
                }
            }
        }
        Ok(())
    }
}

/// The most shared memory that a launch of the same kernel takes: the driver keeps one number for each.
fn most_shared(recipe: &LaunchRecipe, of: &Launch) -> c_int {
    let same = recipe.steps.iter().filter_map(|step| match step {
        RecipeStep::Launch(launch) if (launch.module, &launch.function) == (of.module, &of.function) => {
            Some(launch.shared)
        }
        RecipeStep::Launch(_) | RecipeStep::Clear { .. } => None,
    });
    same.max().and_then(|bytes| c_int::try_from(bytes).ok()).unwrap_or(0)
}
