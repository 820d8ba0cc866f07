//! Ranks that are threads of one process, each with a GPU of its own or all on one: messages are copies between them.

use std::ffi::c_void;
use std::sync::Arc;
use std::time::Duration;

use cudarc::driver::sys::{CUevent, CUevent_wait_flags, CUstream};
use cudarc::driver::{CudaContext, CudaEvent, DriverError, result};
use qkvault_exec::cudarc;

use crate::comm::{CommError, Communicator, RankFault, RankMessage, Threads};

/// A rank that is a thread with a GPU. The receiver of a message copies it, in the order of both streams; threads meet
/// twice in each exchange, to tell each other addresses and to know that copies are queued.
///
/// It is for tests, and for programs that use several GPUs from one process without NCCL. Ranks' memory must stay until
/// every thread has ended its exchanges: drop ranks after the threads.
pub struct InProcess {
    host: Threads,
    context: Arc<CudaContext>,
    /// The events of all ranks, which live as long as one of them does.
    events: Arc<Vec<Events>>,
}

/// The events of one rank.
struct Events {
    /// What it sends is written.
    ready: CudaEvent,
    /// What each other rank has sent to it is copied.
    copied: Vec<CudaEvent>,
}

impl InProcess {
    /// All ranks of a world, one for each context; several may have the same. A rank that waits longer than the
    /// deadline for another one gets an error.
    ///
    /// # Errors
    ///
    /// What the driver says against an event.
    pub fn world(contexts: &[Arc<CudaContext>], deadline: Duration) -> Result<Vec<InProcess>, DriverError> {
        let events = contexts.iter().map(|context| {
            let copied = contexts.iter().map(|_| context.new_event(None)).collect::<Result<_, _>>()?;
            Ok(Events { ready: context.new_event(None)?, copied })
        });
        let events: Arc<Vec<Events>> = Arc::new(events.collect::<Result<_, DriverError>>()?);
        let hosts = Threads::world(contexts.len() as u32, deadline);
        let rank = |(host, context): (Threads, &Arc<CudaContext>)| InProcess {
            host,
            context: Arc::clone(context),
            events: Arc::clone(&events),
        };
        Ok(hosts.into_iter().zip(contexts).map(rank).collect())
    }

    /// The rank with a fault, for tests. Threads meet twice in each exchange, so exchange `n` is `2 * n` here.
    #[must_use]
    pub fn with_fault(mut self, fault: RankFault) -> InProcess {
        self.host = self.host.with_fault(fault);
        self
    }

    /// Sends a list of numbers to each of some ranks, and receives as many as expected from each of others.
    fn tell(&mut self, sent: &[(u32, Vec<u64>)], received: &mut [(u32, Vec<u64>)]) -> Result<(), CommError> {
        let message = |send: bool, peer: u32, address: u64, len: usize| RankMessage {
            peer,
            send,
            address,
            bytes: len as u64 * 8,
        };
        let mut list: Vec<RankMessage> =
            sent.iter().map(|(peer, words)| message(true, *peer, words.as_ptr() as u64, words.len())).collect();
        list.extend(received.iter_mut().map(|(peer, words)| {
            let len = words.len();
            message(false, *peer, words.as_mut_ptr() as u64, len)
        }));
        // SAFETY: the addresses are those of vectors that outlive the call, which returns when all have arrived.
        unsafe { self.host.exchange(&list, std::ptr::null_mut()) }
    }

    /// Ends the communicator with what the driver says.
    fn failed(&mut self, call: &'static str, error: DriverError) -> CommError {
        self.host.abort();
        CommError::Call { call, what: error.to_string() }
    }
}

impl Communicator for InProcess {
    fn rank(&self) -> u32 {
        self.host.rank()
    }

    fn size(&self) -> u32 {
        self.host.size()
    }

    fn on_gpu(&self) -> bool {
        true
    }

    unsafe fn exchange(&mut self, messages: &[RankMessage], stream: *mut c_void) -> Result<(), CommError> {
        let stream: CUstream = stream.cast();
        let events = Arc::clone(&self.events);
        let own = &events[self.rank() as usize];
        if let Err(error) = self.context.bind_to_thread() {
            return Err(self.failed("cuCtxSetCurrent", error));
        }
        // SAFETY: event and stream are of this rank's context.
        if let Err(error) = unsafe { result::event::record(own.ready.cu_event(), stream) } {
            return Err(self.failed("cuEventRecord", error));
        }
        let mut peers: Vec<u32> = messages.iter().map(|m| m.peer).collect();
        peers.sort_unstable();
        peers.dedup();
        let of = |peer: u32, send: bool| messages.iter().filter(move |m| m.peer == peer && m.send == send);
        let list = |send: bool| peers.iter().copied().filter(move |peer| of(*peer, send).next().is_some());
        let sent: Vec<(u32, Vec<u64>)> =
            list(true).map(|peer| (peer, of(peer, true).flat_map(|m| [m.address, m.bytes]).collect())).collect();
        let mut told: Vec<(u32, Vec<u64>)> =
            list(false).map(|peer| (peer, vec![0; of(peer, false).count() * 2])).collect();
        self.tell(&sent, &mut told)?;
        for (peer, words) in &told {
            let ready = events[*peer as usize].ready.cu_event();
            if let Err(error) = wait(stream, ready) {
                return Err(self.failed("cuStreamWaitEvent", error));
            }
            for (to, from) in of(*peer, false).zip(words.chunks_exact(2)) {
                if to.bytes != from[1] {
                    self.host.abort();
                    return Err(CommError::Size {
                        rank: Some(*peer),
                        what: "a message".to_owned(),
                        given: from[1],
                        expected: to.bytes,
                    });
                }
                // SAFETY: the caller of each rank promises so many bytes at its address until the exchange is done on
                // its stream, which waits for the copy below.
                let copied = unsafe { result::memcpy_dtod_async(to.address, from[0], to.bytes as usize, stream) };
                if let Err(error) = copied {
                    return Err(self.failed("cuMemcpyDtoDAsync", error));
                }
            }
            // SAFETY: event and stream are of this rank's context.
            if let Err(error) = unsafe { result::event::record(own.copied[*peer as usize].cu_event(), stream) } {
                return Err(self.failed("cuEventRecord", error));
            }
        }
        // A receiver tells that its copies are queued; memory that was sent stays until they are done.
        let queued: Vec<(u32, Vec<u64>)> = told.iter().map(|(peer, _)| (*peer, vec![1])).collect();
        let mut copying: Vec<(u32, Vec<u64>)> = sent.iter().map(|(peer, _)| (*peer, vec![0])).collect();
        self.tell(&queued, &mut copying)?;
        for (peer, _) in &copying {
            let copied = events[*peer as usize].copied[self.rank() as usize].cu_event();
            if let Err(error) = wait(stream, copied) {
                return Err(self.failed("cuStreamWaitEvent", error));
            }
        }
        Ok(())
    }

    fn check(&mut self) -> Result<(), CommError> {
        self.host.check()
    }

    fn abort(&mut self) {
        self.host.abort();
    }

    fn tell_all(&mut self, bytes: &[u8]) -> Result<Vec<Vec<u8>>, CommError> {
        self.host.tell_all(bytes)
    }
}

fn wait(stream: CUstream, event: CUevent) -> Result<(), DriverError> {
    // SAFETY: both handles are alive: the caller keeps the events of all ranks.
    unsafe { result::stream::wait_event(stream, event, CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT) }
}
