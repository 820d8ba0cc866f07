//! Plans and variant packs as a launch needs them: a plan that many threads may launch, and a pack that costs one call
//! into cuDNN for each of its parts and no memory of Rust's allocator.

use std::ffi::c_void;
use std::sync::Arc;

use crate::bindings::{AttributeName as A, AttributeType, Kind, cudnnBackendDescriptor_t};
use crate::busy::{Busy, ReachableObjects};
use crate::descriptor::Descriptor;
use crate::error::Error;
use crate::handle::CudnnHandle;
use crate::library::{Library, function};

/// A finalized execution plan, which threads may share: their launches of it are queued one after the other.
///
/// # Threads
///
/// `Send` and `Sync`. NVIDIA's documentation calls the library thread-safe as long as no two threads use one handle at
/// the same time. For plans NVIDIA has said less: they have "known thread-safety limitations" where threads share them
/// (<https://github.com/pytorch/pytorch/pull/103939>, of cuDNN 8). So a launch holds a lock of the plan while cuDNN
/// queues it, which costs some nanoseconds if no other thread launches the same plan. Nothing was seen without it:
/// 6,400 launches of one plan by eight threads at once, on an H200 with cuDNN 9.19, were all right.
#[derive(Debug)]
pub struct ExecutionPlan {
    descriptor: Descriptor,
    busy: Busy,
}

// SAFETY: see "Threads". Every call into the descriptor holds `busy`, or is `execute_alone`, whose caller promises as
// much.
unsafe impl Sync for ExecutionPlan {}

impl ExecutionPlan {
    /// Takes a finalized execution plan.
    ///
    /// # Errors
    ///
    /// The descriptor itself if it is of another kind. cuDNN refuses the launch of a plan that is not finalized.
    pub fn new(descriptor: Descriptor) -> Result<ExecutionPlan, Descriptor> {
        if descriptor.kind() != Kind::EXECUTION_PLAN {
            return Err(descriptor);
        }
        Ok(ExecutionPlan { descriptor, busy: Busy::default() })
    }

    /// The library of the plan.
    #[must_use]
    pub fn library(&self) -> &Arc<Library> {
        self.descriptor.library()
    }

    /// Launches the plan with the tensors of a variant pack on the handle's stream. Returns when the launch is queued.
    ///
    /// # Safety
    ///
    /// Every address in the variant pack must be valid for the plan's use of that tensor, with its dims, strides, data
    /// type and alignment, until the launch has finished on the stream (host addresses of by-value scalars: until this
    /// function returns). The workspace must have the plan's size, and no other launch may use it at the same time. The
    /// plan must be for this handle's device.
    ///
    /// # Errors
    ///
    /// [`Error::Call`] with cuDNN's status and message; then nothing was queued.
    pub unsafe fn execute(&self, handle: &CudnnHandle, pack: &VariantPack) -> Result<(), Error> {
        // Before the others: no one waits for a plan with the lock of a handle or a cache.
        let _launched = self.busy.hold();
        let handle_of = handle.raw();
        // A launch works with this handle and not with the one that the plan was finalized with. With kernel caches all
        // locks are taken in the one order.
        let caches = self.descriptor.reach.caches().map(|mut reach| {
            reach.add_handle(handle_of.busy());
            reach
        });
        let _held = caches.as_ref().map(ReachableObjects::hold);
        let _busy = caches.is_none().then(|| handle_of.busy().hold());
        // SAFETY: the caller's promise, and what a launch uses is locked.
        unsafe { self.execute_alone(handle, pack) }
    }

    /// As [`ExecutionPlan::execute`], without a lock: the floor that launches are measured against. Not part of the
    /// interface.
    ///
    /// # Safety
    ///
    /// As for [`ExecutionPlan::execute`]; and no other thread may execute the plan, or use the handle or a kernel cache
    /// of the plan, at the same time.
    ///
    /// # Errors
    ///
    /// As for [`ExecutionPlan::execute`].
    #[doc(hidden)]
    pub unsafe fn execute_alone(&self, handle: &CudnnHandle, pack: &VariantPack) -> Result<(), Error> {
        let execute = function!(self.library(), cudnnBackendExecute)?;
        // SAFETY: the objects are live; the caller promises that their addresses are valid.
        let status = unsafe { execute(handle.raw().pointer(), self.descriptor.pointer(), pack.pointer) };
        Ok(self.library().check("cudnnBackendExecute", status, Some(Kind::EXECUTION_PLAN), None)?)
    }
}

impl ExecutionPlan {
    /// Writes the launch of a variant pack into an empty CUDA graph (a `cudaGraph_t` or `CUgraph`), which need not be
    /// captured. cuDNN has this since 9.5, for engines that support it.
    ///
    /// # Safety
    ///
    /// As for [`ExecutionPlan::execute`], until the last replay of an executable graph of it is finished; and the graph
    /// must be alive, with no other thread using it.
    ///
    /// # Errors
    ///
    /// [`Error::Call`] with cuDNN's status, such as that of an engine without support.
    pub unsafe fn populate_graph(
        &self,
        handle: &CudnnHandle,
        pack: &VariantPack,
        graph: *mut c_void,
    ) -> Result<(), Error> {
        let populate = function!(self.library(), cudnnBackendPopulateCudaGraph)?;
        let (_launched, _busy) = (self.busy.hold(), handle.raw().busy().hold());
        // SAFETY: the objects are live; the caller promises that addresses and graph are valid.
        let status = unsafe { populate(handle.raw().pointer(), self.descriptor.pointer(), pack.pointer, graph.cast()) };
        Ok(self.library().check("cudnnBackendPopulateCudaGraph", status, Some(Kind::EXECUTION_PLAN), None)?)
    }

    /// Writes the addresses and numbers of another variant pack into a graph of [`ExecutionPlan::populate_graph`].
    ///
    /// # Safety
    ///
    /// As for [`ExecutionPlan::populate_graph`].
    ///
    /// # Errors
    ///
    /// [`Error::Call`] with cuDNN's status.
    pub unsafe fn update_graph(
        &self,
        handle: &CudnnHandle,
        pack: &VariantPack,
        graph: *mut c_void,
    ) -> Result<(), Error> {
        let update = function!(self.library(), cudnnBackendUpdateCudaGraph)?;
        let (_launched, _busy) = (self.busy.hold(), handle.raw().busy().hold());
        // SAFETY: as above.
        let status = unsafe { update(handle.raw().pointer(), self.descriptor.pointer(), pack.pointer, graph.cast()) };
        Ok(self.library().check("cudnnBackendUpdateCudaGraph", status, Some(Kind::EXECUTION_PLAN), None)?)
    }
}

/// The addresses of one launch. cuDNN cannot change a pack, so a launch with other addresses has another pack; making
/// and destroying one takes about half a microsecond.
///
/// # Threads
///
/// `Send`, not `Sync`, as a [`Descriptor`].
#[derive(Debug)]
pub struct VariantPack {
    library: Arc<Library>,
    pointer: cudnnBackendDescriptor_t,
}

// SAFETY: cuDNN ties no descriptor to a thread, and this value is the only way to the object.
unsafe impl Send for VariantPack {}

impl VariantPack {
    /// A finalized pack: an address for each unique id, and the workspace.
    ///
    /// # Safety
    ///
    /// cuDNN keeps the addresses and follows them when a plan is executed: they must be valid then, for the host where
    /// the plan reads a number from the host, and for the device elsewhere.
    ///
    /// # Errors
    ///
    /// [`Error::Call`] if cuDNN refuses a part, such as two lists of different lengths.
    pub unsafe fn new(
        library: &Arc<Library>,
        uids: &[i64],
        addresses: &[*mut c_void],
        workspace: *mut c_void,
    ) -> Result<VariantPack, Error> {
        let create = function!(library, cudnnBackendCreateDescriptor)?;
        let mut pointer = std::ptr::null_mut();
        // SAFETY: `pointer` is writable.
        let status = unsafe { create(Kind::VARIANT_PACK, &mut pointer) };
        library.check("cudnnBackendCreateDescriptor", status, Some(Kind::VARIANT_PACK), None)?;
        let pack = VariantPack { library: Arc::clone(library), pointer };
        // SAFETY: arrays of the types and lengths that are given, which cuDNN copies. The caller promises the rest.
        unsafe {
            pack.set(A::VARIANT_PACK_UNIQUE_IDS, AttributeType::INT64, uids.len(), uids.as_ptr().cast())?;
            let count = addresses.len();
            pack.set(A::VARIANT_PACK_DATA_POINTERS, AttributeType::VOID_PTR, count, addresses.as_ptr().cast())?;
            let workspace = std::ptr::from_ref(&workspace).cast();
            pack.set(A::VARIANT_PACK_WORKSPACE, AttributeType::VOID_PTR, 1, workspace)?;
        }
        let finalize = function!(library, cudnnBackendFinalize)?;
        // SAFETY: the object is live.
        let status = unsafe { finalize(pointer) };
        library.check("cudnnBackendFinalize", status, Some(Kind::VARIANT_PACK), None)?;
        Ok(pack)
    }

    /// # Safety
    ///
    /// `values` must point to `count` values of the type.
    unsafe fn set(&self, name: A, of: AttributeType, count: usize, values: *const c_void) -> Result<(), Error> {
        let set = function!(self.library, cudnnBackendSetAttribute)?;
        let count = i64::try_from(count).unwrap_or(i64::MAX);
        // SAFETY: the object is live, and the caller promises that the values are there.
        let status = unsafe { set(self.pointer, name, of, count, values) };
        Ok(self.library.check("cudnnBackendSetAttribute", status, Some(Kind::VARIANT_PACK), Some(name))?)
    }
}

impl Drop for VariantPack {
    fn drop(&mut self) {
        if let Ok(destroy) = &self.library.table().cudnnBackendDestroyDescriptor {
            // SAFETY: cuDNN created the object, and it is destroyed once.
            unsafe { destroy(self.pointer) };
        }
    }
}
