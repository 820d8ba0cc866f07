//! The handle: cuDNN's tie to a GPU and a stream, and the launch of a plan on it.

use std::ffi::c_void;
use std::sync::Arc;

use crate::bindings::{Status, cudaStream_t, cudnnHandle_t};
use crate::descriptor::Descriptor;
use crate::error::Error;
use crate::library::{Library, function};

/// A handle, for the device that is current on the thread that creates it.
///
/// # Threads
///
/// `Send`: a handle may move between threads. Not `Sync`: NVIDIA's documentation forbids two threads to use one handle
/// at the same time, and the stream set on it is state that one thread would change under the other.
#[derive(Debug)]
pub struct Handle {
    raw: Arc<RawHandle>,
    _not_sync: std::marker::PhantomData<std::cell::Cell<()>>,
}

/// cuDNN's object; descriptors that hold it keep it alive.
#[derive(Debug)]
pub(crate) struct RawHandle {
    library: Arc<Library>,
    pointer: cudnnHandle_t,
}

// SAFETY: used only through `Handle`, which is not `Sync`, and by `Drop` when nobody else has it.
unsafe impl Send for RawHandle {}
// SAFETY: as above.
unsafe impl Sync for RawHandle {}

impl RawHandle {
    pub(crate) fn pointer(&self) -> cudnnHandle_t {
        self.pointer
    }
}

impl Drop for RawHandle {
    fn drop(&mut self) {
        if let Ok(destroy) = &self.library.table().cudnnDestroy {
            // SAFETY: made by cuDNN, destroyed once, by the last of those who hold it.
            unsafe { destroy(self.pointer) };
        }
    }
}

impl Handle {
    /// A handle on the current device.
    ///
    /// # Errors
    ///
    /// [`Error::NoDevice`] without a GPU, [`Error::Load`] if a library that cuDNN needs is missing, else
    /// [`Error::Call`].
    pub fn create(library: &Arc<Library>) -> Result<Self, Error> {
        library.check_engines()?;
        let create = function!(library, cudnnCreate)?;
        let mut pointer = std::ptr::null_mut();
        // SAFETY: one valid place to write to.
        let status = unsafe { create(&mut pointer) };
        library.check("cudnnCreate", status, None, None).map_err(|refusal| {
            if refusal.status == Status::NOT_INITIALIZED { Error::NoDevice { refusal } } else { Error::Call(refusal) }
        })?;
        let raw = Arc::new(RawHandle { library: Arc::clone(library), pointer });
        Ok(Self { raw, _not_sync: std::marker::PhantomData })
    }

    /// The library it is of.
    #[must_use]
    pub fn library(&self) -> &Arc<Library> {
        &self.raw.library
    }

    /// Makes everything launched with this handle from now on go to `stream` (a `cudaStream_t` or `CUstream`; null is
    /// the default one).
    ///
    /// # Safety
    ///
    /// The stream must belong to the device of the handle and outlive its use by the handle.
    ///
    /// # Errors
    ///
    /// [`Error::Call`] with the status of cuDNN.
    pub unsafe fn set_stream(&mut self, stream: *mut c_void) -> Result<(), Error> {
        let set = function!(self.raw.library, cudnnSetStream)?;
        // SAFETY: a live handle, and the caller's promise on the stream.
        let status = unsafe { set(self.raw.pointer, stream.cast()) };
        Ok(self.raw.library.check("cudnnSetStream", status, None, None)?)
    }

    /// The stream that launches go to.
    ///
    /// # Errors
    ///
    /// [`Error::Call`] with the status of cuDNN.
    pub fn stream(&self) -> Result<*mut c_void, Error> {
        let get = function!(self.raw.library, cudnnGetStream)?;
        let mut stream: cudaStream_t = std::ptr::null_mut();
        // SAFETY: a live handle and one valid place to write to.
        let status = unsafe { get(self.raw.pointer, &mut stream) };
        self.raw.library.check("cudnnGetStream", status, None, None)?;
        Ok(stream.cast())
    }

    /// cuDNN's pointer, for calls that this crate does not wrap. Valid as long as this value.
    #[must_use]
    pub fn as_ptr(&self) -> *mut c_void {
        self.raw.pointer.cast()
    }

    pub(crate) fn raw(&self) -> &Arc<RawHandle> {
        &self.raw
    }

    /// Launches a plan with the tensors of a variant pack, on the handle's stream; returns when it is queued.
    ///
    /// # Safety
    ///
    /// Every address in the variant pack must be valid for what the plan does with that tensor, with its dims, strides,
    /// data type and alignment, until the launch is finished on the stream (host addresses of by-value scalars: until
    /// this returns); the workspace must have the plan's size and serve no other launch meanwhile; and the plan must be
    /// for this handle's device.
    ///
    /// # Errors
    ///
    /// [`Error::Call`] with the status of cuDNN and its reason; nothing was queued then.
    pub unsafe fn execute(&self, plan: &Descriptor, variant_pack: &Descriptor) -> Result<(), Error> {
        let execute = function!(self.raw.library, cudnnBackendExecute)?;
        // SAFETY: live objects, and the caller's promise on what they point to.
        let status = unsafe { execute(self.raw.pointer, plan.pointer(), variant_pack.pointer()) };
        Ok(self.raw.library.check("cudnnBackendExecute", status, Some(plan.kind()), None)?)
    }
}
