//! The handle: cuDNN's binding to a GPU and a stream, and the launch of a plan on it.

use std::ffi::c_void;
use std::sync::Arc;

use crate::bindings::{Status, cudaStream_t, cudnnHandle_t};
use crate::busy::Busy;
use crate::error::Error;
use crate::library::{Library, function};

/// A handle for the device that was current on the thread which created it.
///
/// # Threads
///
/// `Send`: a handle may move between threads. Not `Sync`: NVIDIA's documentation forbids two threads to use one handle
/// at the same time, and the stream of a handle is state that one thread could change while another launches.
///
/// Descriptors that refer to a handle ([`Descriptor::set_handle`](crate::Descriptor::set_handle)) can be on another
/// thread. Their calls and those of the handle wait for each other, so that no two use it at one time.
#[derive(Debug)]
pub struct CudnnHandle {
    raw: Arc<RawHandle>,
    _not_sync: std::marker::PhantomData<std::cell::Cell<()>>,
}

/// cuDNN's object. Descriptors that refer to it keep it alive.
#[derive(Debug)]
pub(crate) struct RawHandle {
    library: Arc<Library>,
    pointer: cudnnHandle_t,
    busy: Arc<Busy>,
}

// SAFETY: whoever uses the object holds its lock, `busy`: `CudnnHandle`, and descriptors that refer to it. `Drop` runs
// when no other reference is left.
unsafe impl Send for RawHandle {}
// SAFETY: for the same reasons as `Send`.
unsafe impl Sync for RawHandle {}

impl RawHandle {
    pub(crate) fn pointer(&self) -> cudnnHandle_t {
        self.pointer
    }

    pub(crate) fn busy(&self) -> &Arc<Busy> {
        &self.busy
    }
}

impl Drop for RawHandle {
    fn drop(&mut self) {
        if let Ok(destroy) = &self.library.table().cudnnDestroy {
            // SAFETY: cuDNN created the object, and the last reference destroys it once.
            unsafe { destroy(self.pointer) };
        }
    }
}

impl CudnnHandle {
    /// Creates a handle on the current device.
    ///
    /// # Errors
    ///
    /// [`Error::NoDevice`] without a GPU; [`Error::Load`] if a library that cuDNN needs is missing; otherwise
    /// [`Error::Call`].
    pub fn create(library: &Arc<Library>) -> Result<Self, Error> {
        library.check_engines()?;
        let create = function!(library, cudnnCreate)?;
        let mut pointer = std::ptr::null_mut();
        // SAFETY: `pointer` is writable.
        let status = unsafe { create(&mut pointer) };
        library.check("cudnnCreate", status, None, None).map_err(|refusal| {
            if refusal.status == Status::NOT_INITIALIZED { Error::NoDevice { refusal } } else { Error::Call(refusal) }
        })?;
        let raw = Arc::new(RawHandle { library: Arc::clone(library), pointer, busy: Arc::default() });
        Ok(Self { raw, _not_sync: std::marker::PhantomData })
    }

    /// The library that created the handle.
    #[must_use]
    pub fn library(&self) -> &Arc<Library> {
        &self.raw.library
    }

    /// Sets the stream for all later launches with this handle (a `cudaStream_t` or `CUstream`; null is the default
    /// stream).
    ///
    /// # Safety
    ///
    /// The stream must belong to the device of the handle and live as long as the handle uses it.
    ///
    /// # Errors
    ///
    /// [`Error::Call`] with cuDNN's status.
    pub unsafe fn set_stream(&mut self, stream: *mut c_void) -> Result<(), Error> {
        let set = function!(self.raw.library, cudnnSetStream)?;
        let _held = self.raw.busy.hold();
        // SAFETY: the handle is live; the caller promises that the stream is valid.
        let status = unsafe { set(self.raw.pointer, stream.cast()) };
        Ok(self.raw.library.check("cudnnSetStream", status, None, None)?)
    }

    /// The stream of launches with this handle.
    ///
    /// # Errors
    ///
    /// [`Error::Call`] with cuDNN's status.
    pub fn stream(&self) -> Result<*mut c_void, Error> {
        let get = function!(self.raw.library, cudnnGetStream)?;
        let _held = self.raw.busy.hold();
        let mut stream: cudaStream_t = std::ptr::null_mut();
        // SAFETY: the handle is live and `stream` is writable.
        let status = unsafe { get(self.raw.pointer, &mut stream) };
        self.raw.library.check("cudnnGetStream", status, None, None)?;
        Ok(stream.cast())
    }

    /// cuDNN's pointer, for calls that this crate does not wrap. It is valid as long as this value.
    #[must_use]
    pub fn as_ptr(&self) -> *mut c_void {
        self.raw.pointer.cast()
    }

    pub(crate) fn raw(&self) -> &Arc<RawHandle> {
        &self.raw
    }
}
