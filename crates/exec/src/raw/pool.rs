//! Handles, leased one per launch: two launches never share one, and no handle belongs to a thread.

use std::ffi::c_void;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use qkvault_sys::{Error, Handle, Library};

/// The handles of one GPU. They live as long as the session that owns the pool; the end of a thread destroys none.
#[derive(Debug)]
pub(crate) struct Pool {
    library: Arc<Library>,
    free: Mutex<Vec<Seat>>,
    created: AtomicU64,
}

/// A handle and the stream that was last set on it.
#[derive(Debug)]
struct Seat {
    handle: Handle,
    stream: Option<usize>,
}

/// A handle for one launch or one load. Dropping the lease returns it to the pool.
pub(crate) struct Lease<'a> {
    pool: &'a Pool,
    seat: Option<Seat>,
}

impl Pool {
    pub(crate) fn new(library: &Arc<Library>) -> Pool {
        Pool { library: Arc::clone(library), free: Mutex::default(), created: AtomicU64::new(0) }
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

    /// Leases a handle; one that is on this stream already, if there is one.
    pub(crate) fn lease(&self, stream: *mut c_void) -> Result<Lease<'_>, Error> {
        let wanted = Some(stream as usize);
        let found = {
            let mut free = self.free();
            match free.iter().position(|seat| seat.stream == wanted) {
                Some(at) => Some(free.swap_remove(at)),
                None => free.pop(),
            }
        };
        let seat = found.map_or_else(|| self.create(), Ok)?;
        Ok(Lease { pool: self, seat: Some(seat) })
    }

    fn free(&self) -> MutexGuard<'_, Vec<Seat>> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn create(&self) -> Result<Seat, Error> {
        let handle = Handle::create(&self.library)?;
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

    pub(crate) fn handle(&mut self) -> &Handle {
        &self.seat().handle
    }

    /// Sets the stream, unless the handle has it already.
    ///
    /// # Safety
    ///
    /// The same as for [`Handle::set_stream`].
    pub(crate) unsafe fn set_stream(&mut self, stream: *mut c_void) -> Result<(), Error> {
        let seat = self.seat();
        if seat.stream != Some(stream as usize) {
            // Unknown until the call succeeds: one that fails may have changed the stream.
            seat.stream = None;
            // SAFETY: the caller's promise.
            unsafe { seat.handle.set_stream(stream) }?;
            seat.stream = Some(stream as usize);
        }
        Ok(())
    }
}

impl Drop for Lease<'_> {
    fn drop(&mut self) {
        if let Some(seat) = self.seat.take() {
            self.pool.free().push(seat);
        }
    }
}
