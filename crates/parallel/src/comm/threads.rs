//! Ranks as threads of one process, over host memory; and faults of theirs, for tests.

use std::collections::{HashMap, VecDeque};
use std::ffi::c_void;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::{CommError, Communicator, RankMessage};
use crate::store::at_fault;

/// A rank that is a thread. Messages are host memory.
///
/// ```
/// use std::time::Duration;
/// use qkvault_parallel::{Communicator, Threads};
///
/// let mut ranks = Threads::world(2, Duration::from_secs(5));
/// let heard: Vec<_> = std::thread::scope(|scope| {
///     let told = ranks.iter_mut().map(|rank| scope.spawn(|| rank.tell_all(&[rank.rank() as u8])));
///     told.collect::<Vec<_>>().into_iter().map(|thread| thread.join().unwrap().unwrap()).collect()
/// });
/// assert_eq!(heard[0], [[0], [1]]);
/// ```
pub struct Threads {
    rank: u32,
    hub: Arc<Hub>,
    fault: Option<RankFault>,
    exchanges: u32,
}

/// What goes wrong on a rank, for tests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RankFault {
    /// The rank ends before this exchange, counted from 0.
    Dies(u32),
    /// The rank comes so much later to this exchange.
    Late(u32, Duration),
    /// The rank sends only half of the first message of this exchange, and ends.
    Partial(u32),
}

/// What the threads share.
struct Hub {
    size: u32,
    deadline: Duration,
    state: Mutex<ThreadsState>,
    changed: Condvar,
}

#[derive(Default)]
struct ThreadsState {
    boxes: HashMap<(u32, u32), VecDeque<Vec<u8>>>,
    gone: Vec<u32>,
    /// Who waits for whom.
    waiting: HashMap<u32, u32>,
    /// The first error of any rank: every other rank gets it too, so that all name the same cause.
    first: Option<CommError>,
}

impl Threads {
    /// All ranks of a world, each to be moved into its thread. A rank that waits longer than the deadline gets an
    /// error.
    #[must_use]
    pub fn world(size: u32, deadline: Duration) -> Vec<Threads> {
        let hub = Arc::new(Hub { size, deadline, state: Mutex::default(), changed: Condvar::new() });
        (0..size).map(|rank| Threads { rank, hub: Arc::clone(&hub), fault: None, exchanges: 0 }).collect()
    }

    /// The rank with a fault.
    #[must_use]
    pub fn with_fault(mut self, fault: RankFault) -> Threads {
        self.fault = Some(fault);
        self
    }

    fn send(&self, to: u32, bytes: Vec<u8>) {
        self.hub.lock().boxes.entry((self.rank, to)).or_default().push_back(bytes);
        self.hub.changed.notify_all();
    }

    fn receive(&self, from: u32, what: &str) -> Result<Vec<u8>, CommError> {
        self.hub.lock().waiting.insert(self.rank, from);
        let received = self.wait_for(from, what);
        self.hub.lock().waiting.remove(&self.rank);
        received
    }

    fn wait_for(&self, from: u32, what: &str) -> Result<Vec<u8>, CommError> {
        let begin = Instant::now();
        let mut state = self.hub.lock();
        loop {
            if let Some(bytes) = state.boxes.get_mut(&(from, self.rank)).and_then(VecDeque::pop_front) {
                return Ok(bytes);
            }
            if let Some(error) = &state.first {
                return Err(error.clone());
            }
            let waited = begin.elapsed();
            let error = if state.gone.contains(&from) {
                CommError::Gone { rank: from, how: "its thread has ended its communicator".to_owned() }
            } else if waited >= self.hub.deadline {
                let late = at_fault(from, &state.waiting);
                CommError::Late { ranks: vec![late], what: what.to_owned(), waited }
            } else {
                let left = self.hub.deadline.saturating_sub(waited);
                state = self.hub.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
                continue;
            };
            state.first = Some(error.clone());
            self.hub.changed.notify_all();
            return Err(error);
        }
    }

    /// Whether the fault of this rank is due, after what it does at once.
    fn faulty(&mut self) -> Result<bool, CommError> {
        let now = self.exchanges;
        self.exchanges += 1;
        match self.fault {
            Some(RankFault::Dies(at)) if at == now => {
                self.abort();
                Err(CommError::Gone { rank: self.rank, how: "it was told to end".to_owned() })
            }
            Some(RankFault::Late(at, by)) if at == now => {
                std::thread::sleep(by);
                self.check().map(|()| false)
            }
            Some(RankFault::Partial(at)) => Ok(at == now),
            _ => Ok(false),
        }
    }
}

impl Hub {
    fn lock(&self) -> MutexGuard<'_, ThreadsState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Communicator for Threads {
    fn rank(&self) -> u32 {
        self.rank
    }

    fn size(&self) -> u32 {
        self.hub.size
    }

    unsafe fn exchange(&mut self, messages: &[RankMessage], _: *mut c_void) -> Result<(), CommError> {
        let partial = self.faulty()?;
        let what = format!("exchange {}", self.exchanges - 1);
        let sent = messages.iter().filter(|m| m.send);
        for message in sent.take(if partial { 1 } else { usize::MAX }) {
            let bytes = if partial { message.bytes / 2 } else { message.bytes };
            // SAFETY: the caller promises so many bytes at the address, and nobody writes them during the exchange.
            let bytes = unsafe { std::slice::from_raw_parts(message.address as *const u8, bytes as usize) };
            self.send(message.peer, bytes.to_vec());
        }
        if partial {
            self.abort();
            return Err(CommError::Gone { rank: self.rank, how: "it was told to send a part and end".to_owned() });
        }
        for message in messages.iter().filter(|m| !m.send) {
            let bytes = self.receive(message.peer, &what)?;
            if bytes.len() as u64 != message.bytes {
                let error = CommError::Size {
                    rank: Some(message.peer),
                    what: format!("a message of {what}"),
                    given: bytes.len() as u64,
                    expected: message.bytes,
                };
                self.hub.lock().first.get_or_insert(error.clone());
                self.hub.changed.notify_all();
                return Err(error);
            }
            // SAFETY: the caller promises so many writable bytes at the address, which overlap no other message.
            unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), message.address as *mut u8, bytes.len()) };
        }
        Ok(())
    }

    fn check(&mut self) -> Result<(), CommError> {
        self.hub.lock().first.clone().map_or(Ok(()), Err)
    }

    fn abort(&mut self) {
        let mut state = self.hub.lock();
        if !state.gone.contains(&self.rank) {
            state.gone.push(self.rank);
        }
        self.hub.changed.notify_all();
    }

    fn tell_all(&mut self, bytes: &[u8]) -> Result<Vec<Vec<u8>>, CommError> {
        for peer in (0..self.hub.size).filter(|peer| *peer != self.rank) {
            self.send(peer, bytes.to_vec());
        }
        (0..self.hub.size)
            .map(
                |peer| {
                    if peer == self.rank {
                        Ok(bytes.to_vec())
                    } else {
                        self.receive(peer, "the comparison of schedules")
                    }
                },
            )
            .collect()
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.abort();
    }
}
