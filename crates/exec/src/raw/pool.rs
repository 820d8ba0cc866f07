//! Handles, leased one per launch: two launches never share one, and no handle belongs to a thread.

use std::ffi::c_void;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use qkvault_sys::{CudnnHandle, Error, Library};

use crate::raw::primary::{StreamId, stream_id};
use crate::raw::relaxed::RelaxedCaptures;

/// The handles of one GPU. They live as long as the session that owns the pool; the end of a thread destroys none.
#[derive(Debug)]
pub(crate) struct HandlePool {
    library: Arc<Library>,
    free: Mutex<Vec<Seat>>,
    created: AtomicU64,
}

/// A handle and the stream that was last set on it.
#[derive(Debug)]
struct Seat {
    handle: CudnnHandle,
    stream: Option<On>,
}

/// A stream by address, and by the number that the driver gives each stream: a new one may have the address of one that
/// is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct On {
    address: usize,
    id: StreamId,
}

impl On {
    /// Whether a handle that was put on `self` is on the stream `other`.
    fn is(self, other: On) -> bool {
        self.address == other.address
            && match (self.id, other.id) {
                (StreamId::Known(ours), StreamId::Known(theirs)) => ours == theirs,
                // A stream tells no number while it is captured, and no handle can be put on it then.
                (_, StreamId::Captured) => true,
                _ => false,
            }
    }
}

/// A handle for one launch or one load. Dropping the lease returns it to the pool.
pub(crate) struct Lease<'a> {
    pool: &'a HandlePool,
    seat: Option<Seat>,
}

impl HandlePool {
    pub(crate) fn new(library: &Arc<Library>) -> HandlePool {
        HandlePool { library: Arc::clone(library), free: Mutex::default(), created: AtomicU64::new(0) }
    }

    /// The number of handles created so far: at most as many as launches ran at one time, or as were reserved.
    pub(crate) fn created(&self) -> u64 {
        self.created.load(Ordering::Relaxed)
    }

    /// Creates handles until there are this many.
    pub(crate) fn reserve(&self, handles: usize) -> Result<(), Error> {
        while self.created() < handles as u64 {
            let seat = self.create()?;
            self.free().push(seat);
        }
        Ok(())
    }

    /// Leases any handle, for work that is on no stream.
    pub(crate) fn any(&self) -> Result<Lease<'_>, Error> {
        // Not in one expression: the lock would be held while a handle is created, which takes it too.
        let found = self.free().pop();
        self.leased(found)
    }

    /// Leases a handle that is on this stream.
    ///
    /// # Safety
    ///
    /// The stream must be of the handles' GPU and alive as long as the lease, and its context current.
    pub(crate) unsafe fn on(&self, stream: *mut c_void) -> Result<Lease<'_>, Error> {
        // SAFETY: the caller's promise.
        let wanted = On { address: stream as usize, id: unsafe { stream_id(stream) } };
        let found = {
            let mut free = self.free();
            match free.iter().position(|seat| seat.stream.is_some_and(|on| on.is(wanted))) {
                Some(at) => Some(free.swap_remove(at)),
                None => free.pop(),
            }
        };
        let mut lease = self.leased(found)?;
        let seat = lease.seat();
        if !seat.stream.is_some_and(|on| on.is(wanted)) {
            // Unknown until the call succeeds: one that fails may have changed the stream.
            seat.stream = None;
            let _relaxed = (wanted.id == StreamId::Captured).then(RelaxedCaptures::enter);
            // SAFETY: the caller's promise.
            unsafe { seat.handle.set_stream(stream) }?;
            seat.stream = Some(wanted);
        }
        Ok(lease)
    }

    /// Destroys the handles, in the current context.
    pub(crate) fn clear(&self) {
        self.free().clear();
    }

    fn leased(&self, found: Option<Seat>) -> Result<Lease<'_>, Error> {
        let seat = found.map_or_else(|| self.create(), Ok)?;
        Ok(Lease { pool: self, seat: Some(seat) })
    }

    fn free(&self) -> MutexGuard<'_, Vec<Seat>> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn create(&self) -> Result<Seat, Error> {
        let _relaxed = RelaxedCaptures::enter();
        let handle = CudnnHandle::create(&self.library)?;
        let created = self.created.fetch_add(1, Ordering::Relaxed) + 1;
        tracing::debug!(handles = created, "a cuDNN handle was made");
        // Room for all handles, so that returning one never allocates.
        let mut free = self.free();
        let room = usize::try_from(created).unwrap_or(0).saturating_sub(free.len());
        free.reserve(room);
        Ok(Seat { handle, stream: None })
    }
}

impl Lease<'_> {
    fn seat(&mut self) -> &mut Seat {
        self.seat.as_mut().expect("there until dropped")
    }

    pub(crate) fn handle(&mut self) -> &CudnnHandle {
        &self.seat().handle
    }
}

impl Drop for Lease<'_> {
    fn drop(&mut self) {
        if let Some(seat) = self.seat.take() {
            self.pool.free().push(seat);
        }
    }
}
