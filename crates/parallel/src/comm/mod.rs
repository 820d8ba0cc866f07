//! Communicators: what carries the messages of an exchange between ranks, and what is known when it does not arrive.

mod error;
mod hello;
mod threads;
mod wait;

use std::ffi::c_void;
use std::time::Duration;

pub use error::CommError;
pub use hello::{Hello, agree};
pub use threads::{RankFault, Threads};
pub use wait::wait;

/// One message of an exchange: memory of this rank that is sent or received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RankMessage {
    /// The other rank.
    pub peer: u32,
    /// Whether this rank sends it.
    pub send: bool,
    /// Address of the first byte: on the GPU for NCCL, on the host for the others.
    pub address: u64,
    /// Number of bytes.
    pub bytes: u64,
}

/// Which ranks write each other's memory, where their GPUs are in one host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PeerCopies {
    /// None: the communicator carries everything.
    Never,
    /// Ranks that are processes.
    #[default]
    Processes,
    /// Ranks that are threads too. The driver of a process holds a lock while it loads a kernel and waits for the GPU,
    /// which may wait for a rank that needs the lock: what a thread launches for the first time between the runs of
    /// a rank must not wait for its GPU. A rank's own launches are made once before its first run.
    Threads,
}

/// Carries messages between ranks. All ranks exchange in the same order; two ranks list the messages between them in
/// the same order.
pub trait Communicator: Send {
    /// This rank.
    fn rank(&self) -> u32;

    /// Number of ranks.
    fn size(&self) -> u32;

    /// Whether messages are memory of a GPU, and exchanges are queued on a stream.
    fn on_gpu(&self) -> bool {
        false
    }

    /// Whether an exchange can be captured into a CUDA graph.
    fn capturable(&self) -> bool {
        false
    }

    /// Which ranks on GPUs of one host may write each other's memory instead of exchanging through this. `None` where
    /// that is no question: all ranks answer alike whether they have an answer.
    fn peer_copies(&self) -> Option<PeerCopies> {
        None
    }

    /// Is told of an exchange that does not go through this.
    fn begin_exchange(&mut self) {}

    /// Is given what to call before it ends on this rank, by itself or by [`Communicator::abort`]: work on the GPU that
    /// waits for other ranks is ended by it.
    fn before_end(&mut self, _call: Box<dyn Fn() + Send>) {}

    /// Sends and receives all messages of one exchange. A communicator of GPUs queues it on the stream and returns;
    /// one of hosts ignores the stream and returns when everything has arrived.
    ///
    /// # Errors
    ///
    /// What is known of why the messages cannot arrive, with the rank that is the cause. The communicator is of no more
    /// use then, on any rank: make a new one.
    ///
    /// # Safety
    ///
    /// Each address has so many bytes of memory, writable if it receives, which stay until the exchange is done; those
    /// that receive overlap nothing. The stream is one of the communicator's GPU.
    unsafe fn exchange(&mut self, messages: &[RankMessage], stream: *mut c_void) -> Result<(), CommError>;

    /// Whether everything is well, without waiting. A host that waits for a stream asks again and again.
    ///
    /// # Errors
    ///
    /// What has failed since the last call.
    fn check(&mut self) -> Result<(), CommError>;

    /// What this rank says when it has waited past its deadline: the ranks that have not come, as far as that is known.
    /// It is told to all ranks that can hear it.
    fn late(&mut self, what: &str, waited: Duration) -> CommError {
        CommError::late_others(self.size(), self.rank(), what, waited)
    }

    /// Ends the communicator on this rank, also while an exchange waits. The other ranks get errors.
    fn abort(&mut self);

    /// Sends the same few bytes to every rank, and receives those of every rank, in the order of ranks.
    ///
    /// # Errors
    ///
    /// Those of an exchange.
    fn tell_all(&mut self, bytes: &[u8]) -> Result<Vec<Vec<u8>>, CommError>;
}
