//! Owned backend descriptors, from which cuDNN's API builds every graph, heuristic query and plan.

use std::ffi::c_void;
use std::sync::{Arc, Mutex, PoisonError};

use crate::bindings::{Kind, cudnnBackendDescriptor_t};
use crate::busy::ReachableObjects;
use crate::error::Error;
use crate::handle::RawHandle;
use crate::library::{Library, function};

/// A backend descriptor of one kind.
///
/// A descriptor is created empty, given attributes and finalized; then it can be read, and other descriptors can refer
/// to it. The cuDNN object lives as long as this value or any descriptor that refers to it. The library is never
/// unloaded.
///
/// # Threads
///
/// `Send`: cuDNN ties no descriptor to the thread that created it, and nothing else refers to a descriptor while it is
/// built: every setter takes `&mut self`, and cuDNN accepts only finalized descriptors as values. It only reads these
/// from then on, except for kernel caches. Not `Sync`: cuDNN's documentation does not allow two threads to call into
/// one descriptor.
///
/// A descriptor that refers to a handle or a kernel cache, directly or through others, can be on another thread than
/// that. Each of its calls therefore waits until no other thread uses what it refers to.
#[derive(Debug)]
pub struct Descriptor {
    pub(crate) raw: Arc<RawDescriptor>,
    /// What calls into it reach; `raw` has the same for its end.
    pub(crate) reach: ReachableObjects,
    /// Makes the type `!Sync`.
    _not_sync: std::marker::PhantomData<std::cell::Cell<()>>,
}

/// An object that must outlive a descriptor, because cuDNN's object points to it.
#[derive(Debug)]
#[expect(dead_code, reason = "held only to be dropped later")]
pub(crate) enum KeptObject {
    Descriptor(Arc<RawDescriptor>),
    Handle(Arc<RawHandle>),
}

/// cuDNN's object. It is destroyed when the last reference to it is dropped.
#[derive(Debug)]
pub(crate) struct RawDescriptor {
    pub(crate) library: Arc<Library>,
    kind: Kind,
    pub(crate) pointer: cudnnBackendDescriptor_t,
    kept: Mutex<Kept>,
}

/// What a descriptor refers to.
#[derive(Debug, Default)]
struct Kept {
    values: Vec<KeptObject>,
    reach: ReachableObjects,
}

// SAFETY: see `Descriptor`, "Threads". All calls into the object go through a `Descriptor`, which is not `Sync`, and
// which holds the locks of the handles and kernel caches that the call can reach. Other objects that it refers to are
// finalized, and cuDNN only reads them. This type itself only calls `cudnnBackendDestroyDescriptor`, when no other
// reference to the object is left, with these locks held.
unsafe impl Send for RawDescriptor {}
// SAFETY: for the same reasons as `Send`.
unsafe impl Sync for RawDescriptor {}

impl RawDescriptor {
    pub(crate) fn keep(&self, value: KeptObject, reach: &ReachableObjects) {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.values.push(value);
        kept.reach.extend(reach);
    }
}

impl Drop for RawDescriptor {
    fn drop(&mut self) {
        if let Ok(destroy) = &self.library.table().cudnnBackendDestroyDescriptor {
            let _held = self.kept.get_mut().unwrap_or_else(PoisonError::into_inner).reach.hold();
            // SAFETY: cuDNN created the object, and it is destroyed once. The fields drop what it points to afterwards.
            unsafe { destroy(self.pointer) };
        }
    }
}

impl Descriptor {
    /// Creates an empty descriptor.
    ///
    /// Before that, it checks that the libraries which cuDNN's engines need are present ([`Library::check_engines`]).
    ///
    /// # Errors
    ///
    /// [`Error::Load`] if a library is missing; [`Error::Call`] if cuDNN does not know the kind.
    pub fn create(library: &Arc<Library>, kind: Kind) -> Result<Self, Error> {
        library.check_engines()?;
        let create = function!(library, cudnnBackendCreateDescriptor)?;
        let mut pointer = std::ptr::null_mut();
        // SAFETY: `pointer` is writable.
        let status = unsafe { create(kind, &mut pointer) };
        library.check("cudnnBackendCreateDescriptor", status, Some(kind), None)?;
        let mut reach = ReachableObjects::default();
        if kind == Kind::KERNEL_CACHE {
            reach.add_cache(&Arc::default());
        }
        let kept = Mutex::new(Kept { values: Vec::new(), reach: reach.clone() });
        let raw = RawDescriptor { library: Arc::clone(library), kind, pointer, kept };
        Ok(Self { raw: Arc::new(raw), reach, _not_sync: std::marker::PhantomData })
    }

    /// The kind of the descriptor.
    #[must_use]
    pub fn kind(&self) -> Kind {
        self.raw.kind
    }

    /// The library that created the descriptor.
    #[must_use]
    pub fn library(&self) -> &Arc<Library> {
        &self.raw.library
    }

    /// cuDNN's pointer, for calls that this crate does not wrap. It is valid as long as this value.
    #[must_use]
    pub fn as_ptr(&self) -> *mut c_void {
        self.pointer()
    }

    /// Finalizes the descriptor: cuDNN checks its attributes and freezes them. For an execution plan it compiles the
    /// kernels.
    ///
    /// # Errors
    ///
    /// [`Error::Call`] with cuDNN's status and message.
    pub fn finalize(&mut self) -> Result<(), Error> {
        let finalize = function!(self.raw.library, cudnnBackendFinalize)?;
        let _held = self.reach.hold();
        // SAFETY: the descriptor is live.
        let status = unsafe { finalize(self.raw.pointer) };
        Ok(self.raw.library.check("cudnnBackendFinalize", status, Some(self.kind()), None)?)
    }

    /// Finalizes the descriptor and returns it, for building in one expression.
    ///
    /// # Errors
    ///
    /// The errors of [`Descriptor::finalize`].
    pub fn finalized(mut self) -> Result<Self, Error> {
        self.finalize()?;
        Ok(self)
    }

    pub(crate) fn pointer(&self) -> cudnnBackendDescriptor_t {
        self.raw.pointer
    }
}
