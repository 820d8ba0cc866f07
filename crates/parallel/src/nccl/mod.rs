//! NCCL as a communicator: calls that return at once, errors that are asked for, and an end for every wait.

mod library;

use std::ffi::{c_int, c_void};
use std::sync::Arc;
use std::time::{Duration, Instant};

use library::{NcclConfig, NcclHandle, NcclStatus};
pub use library::{NcclId, NcclLibrary};

use crate::comm::{CommError, Communicator, PeerCopies, RankMessage};
use crate::store::Store;

/// NCCL's number of the type of bytes.
const BYTES: c_int = 1;

/// How long a call that has not ended is asked for again and again, before the host sleeps between.
const SPIN: Duration = Duration::from_micros(500);

/// A rank of NCCL. Messages are memory of its GPU, and exchanges are queued on a stream.
///
/// One process has one rank and one GPU, which is current on the thread that makes it and on those that use it.
pub struct Nccl {
    library: Arc<NcclLibrary>,
    handle: NcclHandle,
    rank: u32,
    size: u32,
    deadline: Duration,
    /// The store in which the ranks met: it knows which of them live. None after the end.
    store: Option<Box<Store>>,
    /// The first error: NCCL's communicator is of no use after it.
    broken: Option<CommError>,
    peer_copies: PeerCopies,
    before_end: Vec<Box<dyn Fn() + Send>>,
}

// SAFETY: NCCL lets any thread use a communicator, one at a time, which `&mut self` ensures.
unsafe impl Send for Nccl {}

impl Nccl {
    /// Joins the ranks that have met in a store: rank 0 makes the id and gives it to the others.
    ///
    /// # Errors
    ///
    /// [`CommError::Library`] without NCCL; [`CommError::Late`] and [`CommError::Gone`] for a rank that does not come;
    /// [`CommError::Call`] for what NCCL refuses.
    pub fn join(mut store: Store, max_ctas: Option<u32>) -> Result<Nccl, CommError> {
        let joined = (|| {
            let library = NcclLibrary::open()?;
            let id = if store.rank() == 0 {
                let id = library.new_id()?;
                store.give_all("nccl id", &id.0)?;
                id
            } else {
                let bytes = store.take_all("nccl id", 0)?;
                let size = bytes.len() as u64;
                NcclId(bytes.try_into().map_err(|_| CommError::Size {
                    rank: Some(0),
                    what: "the id of NCCL".to_owned(),
                    given: size,
                    expected: 128,
                })?)
            };
            Ok((library, id))
        })();
        match joined {
            Ok((library, id)) => Nccl::begin(library, id, Box::new(store), max_ctas),
            Err(error) => {
                // The others wait for this rank, and hear why it does not come.
                store.tell_fault(&error);
                Err(error)
            }
        }
    }

    fn begin(
        library: Arc<NcclLibrary>,
        id: NcclId,
        store: Box<Store>,
        max_ctas: Option<u32>,
    ) -> Result<Nccl, CommError> {
        let (rank, size, deadline) = (store.rank(), store.size(), store.deadline());
        let handle = std::ptr::null_mut();
        let mut nccl = Nccl {
            library,
            handle,
            rank,
            size,
            deadline,
            store: Some(store),
            broken: None,
            peer_copies: PeerCopies::Processes,
            before_end: Vec::new(),
        };
        let mut config = NcclConfig::non_blocking(max_ctas);
        // SAFETY: the pointers are to a handle and a configuration that outlive the call, which reads both at once.
        let status = unsafe {
            (nccl.library.functions.init)(&raw mut nccl.handle, size as c_int, id, rank as c_int, &raw mut config)
        };
        nccl.call("ncclCommInitRankConfig", status)?;
        Ok(nccl)
    }

    /// The communicator with another choice of the ranks that write each other's memory, the same on all ranks.
    #[must_use]
    pub const fn with_peer_copies(mut self, which: PeerCopies) -> Nccl {
        self.peer_copies = which;
        self
    }

    /// Ends without a fault, when everything that was queued is done.
    ///
    /// # Errors
    ///
    /// What NCCL refuses, and ranks that do not end.
    pub fn finish(mut self) -> Result<(), CommError> {
        // SAFETY: the handle is a communicator.
        let status = unsafe { (self.library.functions.finalize)(self.handle) };
        self.call("ncclCommFinalize", status)?;
        // SAFETY: the communicator is finalized, and is forgotten here.
        let status = unsafe { (self.library.functions.destroy)(self.handle) };
        self.handle = std::ptr::null_mut();
        self.library.checked("ncclCommDestroy", status, std::ptr::null_mut())?;
        if let Some(store) = self.store.take() {
            store.leave();
        }
        Ok(())
    }

    /// Waits until a call that returned at once is done, or a rank is known to be lost, or the deadline.
    fn call(&mut self, call: &'static str, status: NcclStatus) -> Result<(), CommError> {
        let begin = Instant::now();
        let mut status = self.library.checked(call, status, self.handle);
        let mut asked = begin;
        loop {
            match status {
                Ok(NcclStatus::SUCCESS) => return Ok(()),
                Ok(_) => {}
                Err(error) => return Err(self.fail(error)),
            }
            if begin.elapsed() > self.deadline {
                return Err(self.late(call, begin.elapsed()));
            }
            if asked.elapsed() > Duration::from_millis(20) {
                asked = Instant::now();
                if let Err(error) = self.others() {
                    return Err(self.fail(error));
                }
            }
            // Most calls are done within microseconds, and a sleep takes fifty of them at least.
            match begin.elapsed() > SPIN {
                true => std::thread::sleep(Duration::from_micros(50)),
                false => std::hint::spin_loop(),
            }
            status = self.state(call);
        }
    }

    /// The state of the communicator.
    fn state(&self, call: &'static str) -> Result<NcclStatus, CommError> {
        let mut state = NcclStatus::SUCCESS;
        // SAFETY: the handle is a communicator, and the function writes one status.
        let asked = unsafe { (self.library.functions.async_error)(self.handle, &raw mut state) };
        self.library.checked("ncclCommGetAsyncError", asked, self.handle)?;
        self.library.checked(call, state, self.handle)
    }

    /// Whether a store knows of a rank that is lost.
    fn others(&mut self) -> Result<(), CommError> {
        self.store.as_mut().map_or(Ok(()), |store| store.check())
    }

    /// Ends the communicator, and tells the others why.
    fn fail(&mut self, error: CommError) -> CommError {
        // A rank that NCCL only knows as an error of the network has a name in the store.
        let error = self.store.as_mut().and_then(|store| store.check_now().err()).unwrap_or(error);
        if let Some(store) = &mut self.store {
            store.tell_fault(&error);
        }
        self.broken.get_or_insert_with(|| error.clone());
        self.before_end.drain(..).for_each(|call| call());
        self.end();
        error
    }

    /// Makes kernels of NCCL that run leave, and frees the communicator.
    fn end(&mut self) {
        if !self.handle.is_null() {
            // SAFETY: the handle is a communicator, and is forgotten here.
            let _ = unsafe { (self.library.functions.abort)(self.handle) };
            self.handle = std::ptr::null_mut();
        }
    }

    fn ready(&self) -> Result<(), CommError> {
        self.broken.clone().map_or(Ok(()), Err)
    }
}

impl Communicator for Nccl {
    fn rank(&self) -> u32 {
        self.rank
    }

    fn size(&self) -> u32 {
        self.size
    }

    fn on_gpu(&self) -> bool {
        true
    }

    fn capturable(&self) -> bool {
        true
    }

    fn peer_copies(&self) -> Option<PeerCopies> {
        Some(self.peer_copies)
    }

    fn before_end(&mut self, call: Box<dyn Fn() + Send>) {
        self.before_end.push(call);
    }

    fn begin_exchange(&mut self) {
        if let Some(store) = &mut self.store {
            store.begin_exchange();
        }
    }

    unsafe fn exchange(&mut self, messages: &[RankMessage], stream: *mut c_void) -> Result<(), CommError> {
        self.ready()?;
        self.begin_exchange();
        let functions = &self.library.functions;
        // SAFETY: the function takes nothing.
        let status = unsafe { (functions.group_start)() };
        let mut first = self.library.checked("ncclGroupStart", status, self.handle);
        for m in messages {
            let (bytes, peer) = (m.bytes as usize, m.peer as c_int);
            // SAFETY: the caller promises memory of the GPU at the address, of so many bytes, until the exchange is
            // done, and a stream of that GPU; the handle is a communicator.
            let status = unsafe {
                match m.send {
                    true => (functions.send)(m.address as *const c_void, bytes, BYTES, peer, self.handle, stream),
                    false => (functions.receive)(m.address as *mut c_void, bytes, BYTES, peer, self.handle, stream),
                }
            };
            let call = if m.send { "ncclSend" } else { "ncclRecv" };
            first = first.and(self.library.checked(call, status, self.handle));
        }
        // A group that was begun is ended, also after an error.
        // SAFETY: the function takes nothing.
        let status = unsafe { (functions.group_end)() };
        if let Err(error) = first {
            return Err(self.fail(error));
        }
        self.call("ncclGroupEnd", status)
    }

    fn check(&mut self) -> Result<(), CommError> {
        self.ready()?;
        let state = self.state("an exchange").and_then(|_| self.others());
        state.map_err(|error| self.fail(error))
    }

    fn late(&mut self, what: &str, waited: Duration) -> CommError {
        let late = match &mut self.store {
            Some(store) => store.late(what, waited),
            None => CommError::late_others(self.size, self.rank, what, waited),
        };
        self.fail(late)
    }

    fn abort(&mut self) {
        if self.broken.is_none() {
            let how = "it has ended its communicator".to_owned();
            self.fail(CommError::Gone { rank: self.rank, how });
        }
        self.end();
    }

    fn tell_all(&mut self, bytes: &[u8]) -> Result<Vec<Vec<u8>>, CommError> {
        self.ready()?;
        self.store.as_mut().map_or(Ok(Vec::new()), |store| store.tell_all(bytes))
    }
}

impl Drop for Nccl {
    fn drop(&mut self) {
        self.end();
    }
}
