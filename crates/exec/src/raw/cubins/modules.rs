//! Loaded cubins, which the plans of a session share: one kernel serves every shape of its family, so a further shape
//! loads nothing.

use std::collections::HashMap;
use std::ffi::{CString, c_int, c_void};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use qkvault_kernels::recipe::Launch;

use crate::raw::cubins::driver::{self, DriverFunctions};
use crate::raw::primary::checked;

/// The cubins that are loaded in one context, by the hashes of their bytes. A cubin is unloaded with the last plan that
/// uses it.
#[derive(Debug, Default)]
pub(crate) struct Modules {
    loaded: Mutex<HashMap<[u8; 32], Weak<Module>>>,
}

/// Time that loading took, by what the driver was asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct AskedOfDriver {
    /// To load cubins.
    pub(crate) modules: Duration,
    /// To find kernels, tell the sizes of their parameters, and bring their code.
    pub(crate) kernels: Duration,
    /// To give kernels their shared memory.
    pub(crate) attributes: Duration,
}

/// A loaded cubin, by its handle.
#[derive(Debug)]
pub(super) struct Module {
    handle: usize,
    functions: &'static DriverFunctions,
    kernels: Mutex<Vec<LoadedKernel>>,
}

/// A kernel of a cubin, whose code is on the GPU.
#[derive(Debug)]
struct LoadedKernel {
    name: String,
    handle: usize,
    /// Sizes of its parameters.
    params: Vec<usize>,
    /// Bytes of dynamic shared memory that a launch may take. The driver keeps one number for a kernel, so it only
    /// grows: other plans launch the same one.
    shared: c_int,
}

fn held<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Modules {
    /// The module of a cubin, loaded if it is not. `image` is an ELF file.
    pub(super) fn module(
        &self,
        functions: &'static DriverFunctions,
        image: &[u8],
        asked: &mut AskedOfDriver,
    ) -> Result<Arc<Module>, String> {
        let hash = *blake3::hash(image).as_bytes();
        // Held while one is loaded, so that threads do not load the same one.
        let mut loaded = held(&self.loaded);
        if let Some(module) = loaded.get(&hash).and_then(Weak::upgrade) {
            return Ok(module);
        }
        let (mut handle, started) = (std::ptr::null_mut(), Instant::now());
        // SAFETY: `handle` is writable. The driver reads an ELF file to the end that its header tells; the vault's hash
        // protects it as it does cuDNN's plans.
        let status = unsafe { (functions.load)(&raw mut handle, image.as_ptr().cast()) };
        checked("load a cubin", status)?;
        asked.modules += started.elapsed();
        let module = Arc::new(Module { handle: handle as usize, functions, kernels: Mutex::default() });
        loaded.retain(|_, module| module.strong_count() > 0);
        loaded.insert(hash, Arc::downgrade(&module));
        Ok(module)
    }
}

impl Module {
    /// The kernel of a launch, if its parameters have the sizes of the recipe, with at least so much shared memory.
    /// Its code is on the GPU afterwards.
    pub(super) fn kernel(&self, launch: &Launch, shared: c_int, asked: &mut AskedOfDriver) -> Result<usize, String> {
        let mut kernels = held(&self.kernels);
        let at = match kernels.iter().position(|kernel| kernel.name == launch.function) {
            Some(at) => at,
            None => {
                let started = Instant::now();
                let kernel = self.found(&launch.function)?;
                asked.kernels += started.elapsed();
                kernels.push(kernel);
                kernels.len() - 1
            }
        };
        let kernel = &mut kernels[at];
        kernel.check(launch)?;
        if shared > kernel.shared {
            let started = Instant::now();
            // SAFETY: a function of the current context.
            let status =
                unsafe { (self.functions.set_attribute)(kernel.handle as *mut c_void, driver::SHARED, shared) };
            checked("give a kernel its shared memory", status)?;
            asked.attributes += started.elapsed();
            kernel.shared = shared;
        }
        Ok(kernel.handle)
    }

    fn found(&self, name: &str) -> Result<LoadedKernel, String> {
        let functions = self.functions;
        let text = CString::new(name).map_err(|error| error.to_string())?;
        let mut function = std::ptr::null_mut();
        // SAFETY: `function` is writable, the module is loaded, and the name ends in 0.
        let status = unsafe { (functions.get)(&raw mut function, self.handle as *mut c_void, text.as_ptr()) };
        checked(&format!("find the kernel {name}"), status)?;
        let size = |at: usize| -> Option<usize> {
            let (mut offset, mut size) = (0, 0);
            // SAFETY: both numbers are writable; the driver refuses a parameter that is not there.
            let status = unsafe { (functions.param)(function, at, &raw mut offset, &raw mut size) };
            (status == 0).then_some(size)
        };
        let params = (0..).map_while(size).collect();
        // SAFETY: a function of the current context.
        checked("load a kernel", unsafe { (functions.load_function)(function) })?;
        Ok(LoadedKernel { name: name.to_owned(), handle: function as usize, params, shared: 0 })
    }
}

impl LoadedKernel {
    /// The driver reads as many bytes of a parameter as the cubin says.
    fn check(&self, launch: &Launch) -> Result<(), String> {
        let (name, given) = (&self.name, launch.params.len());
        for (at, param) in launch.params.iter().enumerate() {
            let (has, bytes) = (self.params.get(at), param.bytes.len());
            if has != Some(&bytes) {
                let has = has.map_or("there is none".to_owned(), |size| format!("it has {size}"));
                return Err(format!("the recipe gives parameter {at} of the kernel {name} {bytes} bytes, and {has}"));
            }
        }
        if self.params.len() > given {
            return Err(format!("the recipe gives the kernel {name} {given} parameters, and it has more"));
        }
        Ok(())
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        // SAFETY: loaded once and unloaded once. Whoever drops a plan has its context current, and launches none.
        let status = unsafe { (self.functions.unload)(self.handle as *mut c_void) };
        if let Err(detail) = checked("unload a cubin", status) {
            tracing::warn!(detail, "a plan of kernels is dropped");
        }
    }
}
