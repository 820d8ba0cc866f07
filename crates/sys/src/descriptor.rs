//! Backend descriptors: what every graph, heuristic and plan is made of, owned.

use std::ffi::c_void;
use std::sync::{Arc, Mutex, PoisonError};

use crate::bindings::{Kind, cudnnBackendDescriptor_t};
use crate::error::Error;
use crate::handle::RawHandle;
use crate::library::{Library, function};

/// A backend descriptor of one kind.
///
/// Made empty, given attributes, finalized, then read or referred to by others. It stays alive, on cuDNN's side too, as
/// long as it or anything that refers to it does; the library stays loaded for ever.
///
/// # Threads
///
/// `Send`: cuDNN ties no descriptor to the thread that made it, and while one is being built nothing else refers to it
/// (every setter takes `&mut self`, and cuDNN accepts only finalized descriptors as values, which it then only reads).
/// Not `Sync`: cuDNN's documentation does not say that two threads may call into one descriptor, so this type does not
/// let them.
#[derive(Debug)]
pub struct Descriptor {
    pub(crate) raw: Arc<Raw>,
    /// Makes the type `!Sync`.
    _not_sync: std::marker::PhantomData<std::cell::Cell<()>>,
}

/// What must outlive a descriptor because cuDNN's side points to it.
#[derive(Debug)]
#[expect(dead_code, reason = "held only to be dropped later")]
pub(crate) enum Value {
    Descriptor(Arc<Raw>),
    Handle(Arc<RawHandle>),
}

/// cuDNN's object; destroyed with the last of those who refer to it.
#[derive(Debug)]
pub(crate) struct Raw {
    pub(crate) library: Arc<Library>,
    kind: Kind,
    pub(crate) pointer: cudnnBackendDescriptor_t,
    values: Mutex<Vec<Value>>,
}

// SAFETY: see `Descriptor`, "Threads": calls into the object happen through a `Descriptor`, which is not `Sync`; this
// type itself calls only `cudnnBackendDestroyDescriptor`, when nobody else refers to the object.
unsafe impl Send for Raw {}
// SAFETY: as above.
unsafe impl Sync for Raw {}

impl Raw {
    pub(crate) fn keep(&self, value: Value) {
        self.values.lock().unwrap_or_else(PoisonError::into_inner).push(value);
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        if let Ok(destroy) = &self.library.table().cudnnBackendDestroyDescriptor {
            // SAFETY: made by cuDNN, destroyed once; everything it points to is dropped after it, with the fields.
            unsafe { destroy(self.pointer) };
        }
    }
}

impl Descriptor {
    /// An empty descriptor.
    ///
    /// First checks that what cuDNN's engines need is there ([`Library::check_engines`]).
    ///
    /// # Errors
    ///
    /// [`Error::Load`] if something is missing; [`Error::Call`] if cuDNN does not know the kind.
    pub fn create(library: &Arc<Library>, kind: Kind) -> Result<Self, Error> {
        library.check_engines()?;
        let create = function!(library, cudnnBackendCreateDescriptor)?;
        let mut pointer = std::ptr::null_mut();
        // SAFETY: one valid place to write to.
        let status = unsafe { create(kind, &mut pointer) };
        library.check("cudnnBackendCreateDescriptor", status, Some(kind), None)?;
        let raw = Raw { library: Arc::clone(library), kind, pointer, values: Mutex::default() };
        Ok(Self { raw: Arc::new(raw), _not_sync: std::marker::PhantomData })
    }

    /// What it is.
    #[must_use]
    pub fn kind(&self) -> Kind {
        self.raw.kind
    }

    /// The library it is of.
    #[must_use]
    pub fn library(&self) -> &Arc<Library> {
        &self.raw.library
    }

    /// cuDNN's pointer, for calls that this crate does not wrap. Valid as long as this value.
    #[must_use]
    pub fn as_ptr(&self) -> *mut c_void {
        self.pointer()
    }

    /// Makes cuDNN check the attributes and freezes them. For an execution plan, cuDNN compiles the kernels here.
    ///
    /// # Errors
    ///
    /// [`Error::Call`] with the status of cuDNN and its reason.
    pub fn finalize(&mut self) -> Result<(), Error> {
        let finalize = function!(self.raw.library, cudnnBackendFinalize)?;
        // SAFETY: a live descriptor.
        let status = unsafe { finalize(self.raw.pointer) };
        Ok(self.raw.library.check("cudnnBackendFinalize", status, Some(self.kind()), None)?)
    }

    /// Finalizes the descriptor and returns it, for building in one expression.
    ///
    /// # Errors
    ///
    /// [`Error::Call`], as for [`Descriptor::finalize`].
    pub fn finalized(mut self) -> Result<Self, Error> {
        self.finalize()?;
        Ok(self)
    }

    pub(crate) fn pointer(&self) -> cudnnBackendDescriptor_t {
        self.raw.pointer
    }
}
