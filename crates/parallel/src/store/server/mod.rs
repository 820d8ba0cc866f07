//! The store itself, in threads of rank 0: who has joined, what lies there for whom, and the first fault.

mod guilt;
mod serve;

use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use self::guilt::{Heard, guilty};
use super::door::Door;
use super::secret::Secret;
use super::wire::{Ask, StoreAnswer, StoreFault, short};
use crate::comm::CommError;

/// How long a store that ends with a fault waits for ranks that have not come: those that were started together come
/// within a second.
const COMING: Duration = Duration::from_secs(2);

/// What all connections share.
pub(super) struct ServerShared {
    size: u32,
    version: String,
    secret: Secret,
    /// Rank 0 is in this process, so nobody else can join in its place.
    own: Secret,
    door: Arc<Door>,
    state: Mutex<ServerState>,
    changed: Condvar,
}

#[derive(Default)]
struct ServerState {
    /// What a rank has put for another, by name.
    values: HashMap<(u32, u32, String), Vec<u8>>,
    joined: Vec<u32>,
    left: Vec<u32>,
    /// What was heard of each rank that has joined.
    heard: HashMap<u32, Heard>,
    /// Who waits for whom.
    waiting: HashMap<u32, u32>,
    /// Ranks that know of the fault, or whose connection has ended.
    told: Vec<u32>,
    /// Joins that did not fit, of ranks that have not joined: they end nothing, and tell why a rank is late.
    refused: HashMap<u32, StoreFault>,
    /// Connections that had another secret.
    unproven: u64,
    /// Whether the store ends at once, because another one comes to its address.
    hurried: bool,
    /// The first fault: every rank that asks anything gets it from then on.
    fault: Option<StoreFault>,
}

impl ServerShared {
    pub(super) fn new(size: u32, version: &str, secret: Secret) -> Result<Arc<ServerShared>, CommError> {
        Ok(Arc::new(ServerShared {
            size,
            version: version.to_owned(),
            secret,
            own: Secret::random()?,
            door: Arc::default(),
            state: Mutex::default(),
            changed: Condvar::new(),
        }))
    }

    /// The secret with which a rank joins.
    pub(super) const fn secret(&self, rank: u32) -> &Secret {
        if rank == 0 { &self.own } else { &self.secret }
    }

    fn lock(&self) -> MutexGuard<'_, ServerState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps the first fault, and gives it.
    fn blame(&self, fault: StoreFault) -> StoreFault {
        let first = self.lock().fault.get_or_insert(fault).clone();
        self.changed.notify_all();
        first
    }

    /// Stops taking connections.
    pub(super) fn close(&self) {
        self.door.close();
    }

    /// Waits until the other ranks have left or know of a fault, or the deadline: what they still have to take is here.
    /// For ranks that have not come yet it waits [`COMING`] to tell them why there is nobody to meet.
    pub(super) fn linger(&self, deadline: Duration) {
        let begin = Instant::now();
        let mut state = self.lock();
        // Rank 0 itself is one of those that have left, or that know.
        let left_to_wait = |state: &ServerState| {
            let done = match state.fault {
                None => state.left.len() >= self.size as usize,
                Some(_) => (1..self.size).all(|rank| state.told.contains(&rank)),
            };
            let here = state.joined.iter().any(|rank| *rank != 0 && !state.told.contains(rank));
            let most = if state.fault.is_none() || here { deadline } else { deadline.min(COMING) };
            if done || state.hurried { Duration::ZERO } else { most.saturating_sub(begin.elapsed()) }
        };
        loop {
            let left = left_to_wait(&state);
            if left.is_zero() {
                return;
            }
            state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Ends a wait of [`ServerShared::linger`].
    pub(super) fn hurry(&self) {
        self.lock().hurried = true;
        self.changed.notify_all();
    }

    /// A rank has heard of the fault, or hears no more.
    fn tell(&self, rank: u32) {
        let mut state = self.lock();
        if !state.told.contains(&rank) {
            state.told.push(rank);
        }
        drop(state);
        self.changed.notify_all();
    }

    fn gone(&self, rank: u32, how: &str) {
        self.tell(rank);
        self.blame(StoreFault::Gone { rank, how: how.to_owned() });
    }

    /// The answer to a rank that has joined; none to what no rank asks.
    fn answer(&self, rank: u32, ask: Ask, value: Vec<u8>) -> Option<(StoreAnswer, Vec<u8>)> {
        let done = Some((StoreAnswer::Done, Vec::new()));
        self.lock().hear(rank, if let Ask::Check { begun } | Ask::Late { begun, .. } = ask { begun } else { 0 });
        match ask {
            Ask::Put { name, to } if to < self.size && to != rank => {
                self.lock().values.insert((rank, to, name), value);
                self.changed.notify_all();
                done
            }
            Ask::Take { name, from, wait } if from < self.size && from != rank => {
                self.lock().waiting.insert(rank, from);
                let answer = self.take((from, rank, name), Duration::from_millis(wait));
                self.lock().waiting.remove(&rank);
                Some(answer)
            }
            Ask::Put { .. } | Ask::Take { .. } => None,
            Ask::Check { .. } => {
                let fault = self.lock().fault.clone();
                Some((fault.map_or(StoreAnswer::Done, |fault| StoreAnswer::Fault { fault }), Vec::new()))
            }
            Ask::Late { what, waited, begun: _ } => {
                let fault = self.lock().waited_for(self.size, rank, &short(&what), Duration::from_millis(waited));
                Some((StoreAnswer::Fault { fault: self.blame(fault) }, Vec::new()))
            }
            Ask::Fault { fault } => {
                self.blame(self.reported(rank, fault)?);
                // Who reports a fault knows of one.
                self.tell(rank);
                done
            }
            Ask::Leave => {
                self.lock().left.push(rank);
                self.changed.notify_all();
                done
            }
        }
    }

    /// The fault that a report makes: one of the rank itself, or of another one that it can have seen.
    fn reported(&self, by: u32, fault: StoreFault) -> Option<StoreFault> {
        let of = fault.ranks();
        if of.is_empty() || of.iter().any(|rank| *rank >= self.size) {
            return None;
        }
        let state = self.lock();
        let unseen = of.iter().find(|rank| **rank != by && !state.joined.contains(rank));
        match unseen {
            Some(rank) if !matches!(fault, StoreFault::Late { .. }) => {
                let how = format!("it reports a fault of rank {rank}, which has not joined");
                Some(StoreFault::Gone { rank: by, how })
            }
            _ => Some(fault.printable()),
        }
    }

    fn take(&self, key: (u32, u32, String), wait: Duration) -> (StoreAnswer, Vec<u8>) {
        let (begin, from) = (Instant::now(), key.0);
        let mut state = self.lock();
        loop {
            if let Some(value) = state.values.remove(&key) {
                return (StoreAnswer::Bytes, value);
            }
            if state.fault.is_none() {
                let waited = begin.elapsed();
                if state.left.contains(&from) {
                    state.fault = Some(StoreFault::Gone { rank: from, how: "it has left".to_owned() });
                } else if waited >= wait {
                    state.fault = Some(state.late(&key, waited));
                } else {
                    let left = wait.saturating_sub(waited);
                    state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
                    continue;
                }
                self.changed.notify_all();
            }
            let fault = state.fault.clone();
            return (fault.map_or(StoreAnswer::Done, |fault| StoreAnswer::Fault { fault }), Vec::new());
        }
    }
}

impl ServerState {
    /// A rank lives.
    fn hear(&mut self, rank: u32, begun: u64) {
        let heard = self.heard.entry(rank).or_insert(Heard { at: Instant::now(), begun });
        *heard = Heard { at: Instant::now(), begun: begun.max(heard.begun) };
    }

    /// The fault of a rank that has not come, with what is known of why.
    fn late(&self, (from, to, name): &(u32, u32, String), waited: Duration) -> StoreFault {
        self.late_rank(at_fault(*from, &self.waiting), format!("{} from {from} for {to}", short(name)), waited)
    }

    /// The fault of whoever a rank has waited for, on its GPU: of those that have not joined, or that [`guilty`] finds.
    fn waited_for(&self, size: u32, by: u32, what: &str, waited: Duration) -> StoreFault {
        let now = Instant::now();
        // A rank that the store keeps waiting for another's message asks nothing meanwhile.
        let mut heard = self.heard.clone();
        heard.iter_mut().filter(|(rank, _)| self.waiting.contains_key(rank)).for_each(|(_, heard)| heard.at = now);
        let absent = (0..size).find(|rank| !self.joined.contains(rank));
        let ranks = absent.map_or_else(|| guilty(by, waited, now, &heard), |rank| vec![rank]);
        match ranks[..] {
            [rank] => self.late_rank(rank, what.to_owned(), waited),
            _ => StoreFault::Late { ranks, waited: waited.as_millis() as u64, what: what.to_owned() },
        }
    }

    fn late_rank(&self, rank: u32, mut what: String, waited: Duration) -> StoreFault {
        if let Some(fault) = self.refused.get(&rank) {
            return fault.clone();
        }
        if self.unproven > 0 && !self.joined.contains(&rank) {
            what = format!("{what} (the store has closed {} connections of another secret)", self.unproven);
        }
        StoreFault::Late { ranks: vec![rank], waited: waited.as_millis() as u64, what }
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

#[cfg(test)]
mod tests {
    use super::*;

    /// A rank that takes a message of the one that hangs was silent for longer than that one.
    #[test]
    fn a_rank_that_waits_at_the_store_is_not_the_one_that_hangs() {
        let ago = |ms: u64| Heard { at: Instant::now() - Duration::from_millis(ms), begun: 4 };
        let heard = HashMap::from([(0, ago(5)), (1, ago(2_500)), (2, ago(2_200))]);
        let mut state = ServerState { joined: vec![0, 1, 2], heard, ..ServerState::default() };
        let guilty = |state: &ServerState| state.waited_for(3, 0, "a test", Duration::from_secs(2)).ranks().to_vec();
        assert_eq!(guilty(&state), [1]);
        state.waiting.insert(1, 2);
        assert_eq!(guilty(&state), [2]);
    }
}
