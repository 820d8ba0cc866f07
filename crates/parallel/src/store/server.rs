//! The store itself, in threads of rank 0.

use std::collections::HashMap;
use std::io::Read;
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::wire::{self, Answer, Ask, Fault, MAGIC};

/// How long a store that ends with a fault waits for ranks that have not come: those that were started together come
/// within a second.
const COMING: Duration = Duration::from_secs(2);

/// What all connections share.
pub(super) struct Shared {
    size: u32,
    version: String,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    values: HashMap<String, Vec<u8>>,
    joined: Vec<u32>,
    left: Vec<u32>,
    /// Who waits for whom.
    waiting: HashMap<u32, u32>,
    /// Ranks that know of the fault, or whose connection has ended.
    told: Vec<u32>,
    /// The first fault: every rank that asks anything gets it from then on.
    fault: Option<Fault>,
    closed: bool,
}

impl Shared {
    pub(super) fn new(size: u32, version: &str) -> Arc<Shared> {
        Arc::new(Shared { size, version: version.to_owned(), state: Mutex::default(), changed: Condvar::new() })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn blame(&self, fault: Fault) {
        self.lock().fault.get_or_insert(fault);
        self.changed.notify_all();
    }

    /// Stops taking connections.
    pub(super) fn close(&self) {
        self.lock().closed = true;
    }

    /// Waits until the other ranks have left or know of a fault, or the deadline: what they still have to take is here.
    /// For ranks that have not come yet it waits [`COMING`] to tell them why there is nobody to meet.
    pub(super) fn linger(&self, deadline: Duration) {
        let begin = Instant::now();
        let mut state = self.lock();
        // Rank 0 itself is one of those that have left, or that know.
        let left_to_wait = |state: &State| {
            let done = match state.fault {
                None => state.left.len() >= self.size as usize,
                Some(_) => (1..self.size).all(|rank| state.told.contains(&rank)),
            };
            let here = state.joined.iter().any(|rank| *rank != 0 && !state.told.contains(rank));
            let most = if state.fault.is_none() || here { deadline } else { deadline.min(COMING) };
            if done { Duration::ZERO } else { most.saturating_sub(begin.elapsed()) }
        };
        loop {
            let left = left_to_wait(&state);
            if left.is_zero() {
                return;
            }
            state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Serves connections until the store is closed.
    pub(super) fn listen(self: &Arc<Shared>, listener: &TcpListener) {
        for stream in listener.incoming() {
            if self.lock().closed {
                return;
            }
            let Ok(stream) = stream else { continue };
            let shared = Arc::clone(self);
            // A connection that no thread can be made for is closed, which its rank sees.
            let _ = std::thread::Builder::new().name("qkvault-store".to_owned()).spawn(move || shared.serve(stream));
        }
    }

    /// Serves one rank until its connection ends.
    fn serve(&self, mut stream: TcpStream) {
        let _ = stream.set_nodelay(true);
        let _ = stream.set_read_timeout(Some(Duration::from_secs(10)));
        let mut magic = [0; 8];
        // Anything else that finds the port is not a rank.
        if stream.read_exact(&mut magic).is_err() || magic != MAGIC {
            return;
        }
        let Ok((Ask::Join { rank, size, version }, _)) = wire::read(&mut stream) else { return };
        let _ = stream.set_read_timeout(None);
        if let Some(fault) = self.join(rank, size, version) {
            let _ = wire::write(&mut stream, &Answer::Fault { fault }, &[]);
            let mut state = self.lock();
            // Two that say to be one rank: the first one may not have heard of it yet.
            if !state.joined.contains(&rank) {
                state.told.push(rank);
            }
            drop(state);
            self.changed.notify_all();
            return;
        }
        if wire::write(&mut stream, &Answer::Done, &[]).is_err() {
            return self.gone(rank);
        }
        loop {
            let Ok((ask, value)) = wire::read(&mut stream) else { return self.gone(rank) };
            let leaves = ask == Ask::Leave;
            let (answer, bytes) = self.answer(rank, ask, value);
            let written = wire::write(&mut stream, &answer, &bytes);
            if written.is_ok() && matches!(answer, Answer::Fault { .. }) {
                self.lock().told.push(rank);
                self.changed.notify_all();
            }
            if written.is_err() && !leaves {
                return self.gone(rank);
            }
            if leaves {
                return;
            }
        }
    }

    fn join(&self, rank: u32, size: u32, version: String) -> Option<Fault> {
        let differs = |what: &str, theirs: String, ours: String| {
            Some(Fault::Differs { rank, what: what.to_owned(), theirs, ours })
        };
        let mut state = self.lock();
        let fault = if let Some(fault) = &state.fault {
            return Some(fault.clone());
        } else if version != self.version {
            differs("version", version, self.version.clone())
        } else if size != self.size {
            differs("a world of", format!("{size} ranks"), format!("{} ranks", self.size))
        } else if rank >= self.size || state.joined.contains(&rank) {
            let ours = if rank >= self.size { format!("0 to {}", self.size - 1) } else { "it already".to_owned() };
            differs("the rank", rank.to_string(), ours)
        } else {
            state.joined.push(rank);
            None
        };
        if fault.is_some() {
            state.fault.clone_from(&fault);
        }
        drop(state);
        self.changed.notify_all();
        fault
    }

    fn gone(&self, rank: u32) {
        self.lock().told.push(rank);
        self.blame(Fault::Gone { rank, how: "its connection has closed".to_owned() });
    }

    fn answer(&self, rank: u32, ask: Ask, value: Vec<u8>) -> (Answer, Vec<u8>) {
        match ask {
            Ask::Join { .. } => (Answer::Done, Vec::new()),
            Ask::Put { key } => {
                self.lock().values.insert(key, value);
                self.changed.notify_all();
                (Answer::Done, Vec::new())
            }
            Ask::Take { key, from, wait } => {
                self.lock().waiting.insert(rank, from);
                let answer = self.take(&key, from, Duration::from_millis(wait));
                self.lock().waiting.remove(&rank);
                answer
            }
            Ask::Check => {
                let fault = self.lock().fault.clone();
                (fault.map_or(Answer::Done, |fault| Answer::Fault { fault }), Vec::new())
            }
            Ask::Fault { fault } => {
                self.blame(fault);
                (Answer::Done, Vec::new())
            }
            Ask::Leave => {
                self.lock().left.push(rank);
                self.changed.notify_all();
                (Answer::Done, Vec::new())
            }
        }
    }

    fn take(&self, key: &str, from: u32, wait: Duration) -> (Answer, Vec<u8>) {
        let begin = Instant::now();
        let mut state = self.lock();
        loop {
            if let Some(value) = state.values.remove(key) {
                return (Answer::Bytes, value);
            }
            if state.fault.is_none() {
                let waited = begin.elapsed();
                if state.left.contains(&from) {
                    state.fault = Some(Fault::Gone { rank: from, how: "it has left".to_owned() });
                } else if waited >= wait {
                    let (waited, what) = (waited.as_millis() as u64, key.to_owned());
                    state.fault = Some(Fault::Late { rank: at_fault(from, &state.waiting), waited, what });
                } else {
                    let left = wait.saturating_sub(waited);
                    state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
                    continue;
                }
                self.changed.notify_all();
            }
            let fault = state.fault.clone();
            return (fault.map_or(Answer::Done, |fault| Answer::Fault { fault }), Vec::new());
        }
    }
}

/// The rank that the others wait for in the end: one that waits itself is not the cause.
pub(crate) fn at_fault(from: u32, waiting: &HashMap<u32, u32>) -> u32 {
    let mut rank = from;
    for _ in 0..waiting.len() {
        match waiting.get(&rank) {
            Some(next) => rank = *next,
            None => break,
        }
    }
    rank
}
