//! Copies from GPU to GPU of one host: what NCCL would carry is written into the other rank's memory by copy engines,
//! which take no multiprocessor from the attention beside them, and everything can be replayed as a graph.
//!
//! A rank has two flags for each exchange with another one, in its own memory. The receiver sets `ready` on the sender
//! when its buffers may be written, at the beginning of a run if nothing touches them before; the sender waits for it,
//! clears it, writes, and sets `arrived` on the receiver, who waits and clears it. So each flag is set again only after
//! it was cleared, and replays need no counters.
//!
//! A rank waits for what arrives on a stream of its own, behind its sends of the same and of earlier exchanges. So no
//! order in which the driver runs independent work makes ranks wait for each other: what the first exchange that is
//! stuck waits for was queued before anything that could hold it up.

mod flags;
mod reach;
mod release;
mod routes;
mod told;

use cudarc::driver::sys::CUstream;
use cudarc::driver::{DriverError, result};
use qkvault_exec::cudarc;

use flags::{set, taken};
use reach::OpenPeer;
pub(super) use reach::meet;
pub(super) use release::PeerWaits;
pub(super) use routes::most_meetings;

use crate::comm::RankMessage;

/// Bytes of the flags for each exchange with another rank.
pub(super) const FLAGS: u64 = 8;
/// Where `arrived` is in them; `ready` is first.
const ARRIVED: u64 = 4;

/// What one exchange does on this rank, in addresses.
#[derive(Debug, Default)]
struct PeerExchange {
    /// Whether its messages may come from the beginning of a run.
    early: bool,
    /// `ready` flags of those that send to this rank.
    free: Vec<u64>,
    sends: Vec<PeerSend>,
    /// This rank's `arrived` flags.
    arrivals: Vec<u64>,
}

/// What is written to one other rank.
#[derive(Debug)]
struct PeerSend {
    peer: u32,
    /// This rank's `ready` flag.
    ready: u64,
    /// Where each message goes, in their order.
    to: Vec<u64>,
    /// The other's `arrived` flag.
    arrived: u64,
}

/// The other ranks' memory, open to this one.
pub(super) struct PeerMemory {
    exchanges: Vec<PeerExchange>,
    /// Whether one of the others is a thread of this process, and shares the driver's locks.
    pub(super) threads: bool,
    #[expect(dead_code, reason = "it closes the memory of the others when it is dropped")]
    open: Vec<OpenPeer>,
}

impl PeerMemory {
    /// Queues what is told to other ranks when a run begins.
    ///
    /// # Safety
    ///
    /// The stream is of this rank's context, which is current, and everything on it comes after the last run.
    pub(super) unsafe fn begin(&self, stream: CUstream) -> Result<(), DriverError> {
        let early = self.exchanges.iter().filter(|exchange| exchange.early).flat_map(|exchange| &exchange.free);
        // SAFETY: flags of ranks that have opened their memory.
        unsafe { set(stream, early.copied()) }
    }

    /// Queues an exchange, counted from the start of a run. Whether something arrives, which [`PeerMemory::arrivals`]
    /// waits for.
    ///
    /// # Safety
    ///
    /// The messages are those of this exchange, with memory that stays until it is done, as in
    /// [`crate::Communicator::exchange`]; the stream is of this rank's context, which is current.
    pub(super) unsafe fn exchange(
        &self,
        number: usize,
        messages: &[RankMessage],
        stream: CUstream,
    ) -> Result<bool, DriverError> {
        let exchange = &self.exchanges[number];
        if !exchange.early {
            // SAFETY: flags of ranks that have opened their memory.
            unsafe { set(stream, exchange.free.iter().copied())? };
        }
        for send in &exchange.sends {
            // SAFETY: a flag of this rank.
            unsafe { taken(stream, [send.ready])? };
            let list = messages.iter().filter(|m| m.send && m.peer == send.peer);
            for (message, to) in list.zip(&send.to) {
                // SAFETY: the caller promises what is read; the other rank has a buffer of as many bytes there, which
                // nobody reads before its `arrived` flag is set.
                unsafe { result::memcpy_dtod_async(*to, message.address, message.bytes as usize, stream)? };
            }
            // SAFETY: as above. A write of a flag is seen after all that the stream has written.
            unsafe { set(stream, [send.arrived])? };
        }
        Ok(!exchange.arrivals.is_empty())
    }

    /// Queues the wait for the messages of an exchange.
    ///
    /// # Safety
    ///
    /// The stream is of this rank's context, which is current.
    pub(super) unsafe fn arrivals(&self, number: usize, stream: CUstream) -> Result<(), DriverError> {
        // SAFETY: flags of this rank.
        unsafe { taken(stream, self.exchanges[number].arrivals.iter().copied()) }
    }
}
