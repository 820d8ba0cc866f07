//! A rank's end of the store, and a communicator of host memory over it.

use std::ffi::c_void;
use std::net::TcpStream;
use std::time::{Duration, Instant};

use super::World;
use super::join::Join;
use super::meet::{Listening, join, listen};
use super::wire::{self, Ask, StoreAnswer, StoreFault};
use crate::comm::{CommError, Communicator, RankMessage};

/// A rank that has met the others over TCP.
///
/// It carries small messages of host memory itself, for the comparison of schedules, for the id of NCCL, and for ranks
/// without GPUs. If a process ends, its connection closes, and every rank that waits for anything gets an error that
/// names it; a rank that only hangs is named after the deadline.
pub struct Store {
    world: World,
    stream: TcpStream,
    deadline: Duration,
    /// On rank 0.
    own: Option<Listening>,
    /// Messages so far, by peer: sent and received.
    counts: Vec<(u64, u64)>,
    told: u64,
    /// Exchanges that this rank has begun, which the store tells from those of the others.
    begun: u64,
    /// When the store was asked whether all is well, while its answer has not come.
    asked: Option<Instant>,
    /// The store of the first rank is one connection among others, so it knows no more than they do.
    broken: Option<CommError>,
}

impl Store {
    /// Meets the other ranks: rank 0 listens at the address of the world, the others connect. Returns when this rank is
    /// connected; the others may come later.
    ///
    /// Every rank proves the secret of the world to the store, and the store proves it to the rank. Without a secret
    /// the address must be one of the loopback.
    ///
    /// # Errors
    ///
    /// [`CommError::Late`] if rank 0 does not listen within the deadline; [`CommError::Differs`] for a rank of another
    /// version, of another number of ranks, or that is there already; [`CommError::Secret`] for one with another
    /// secret, or without one at an address that other machines reach; [`CommError::Address`] for an address that
    /// cannot be used.
    pub fn meet(world: &World, deadline: Duration) -> Result<Store, CommError> {
        Store::meet_as(world, deadline, env!("CARGO_PKG_VERSION"))
    }

    /// [`Store::meet`] with another version, for tests of its comparison.
    #[doc(hidden)]
    pub fn meet_as(world: &World, deadline: Duration, version: &str) -> Result<Store, CommError> {
        let mut own = if world.rank == 0 { Some(listen(world, version)?) } else { None };
        let said = Join { rank: world.rank, size: world.size, version: version.to_owned() };
        let shared = own.as_ref().map(|own| &*own.shared);
        let joined = join(world, &said, shared, deadline);
        if joined.is_err()
            && let Some(own) = own.take()
        {
            own.stop(world);
        }
        let counts = vec![(0, 0); world.size as usize];
        let stream = joined?;
        let mut store =
            Store { world: world.clone(), stream, deadline, own, counts, told: 0, begun: 0, asked: None, broken: None };
        // The store's answer to the join.
        let answer = store.heard(Instant::now(), store.patience());
        store.settled(answer)?;
        Ok(store)
    }

    /// Whether all is well, with an answer of now, for which it waits a second at most.
    ///
    /// # Errors
    ///
    /// As [`Communicator::check`].
    pub fn check_now(&mut self) -> Result<(), CommError> {
        self.ask_within(&Ask::Check { begun: self.begun }, &[], PROMPT).map(drop)
    }

    /// Counts an exchange that this rank queues by other means, as on a GPU: where ranks wait for each other, the one
    /// that has begun fewer is the cause.
    pub fn begin_exchange(&mut self) {
        self.begun += 1;
    }

    /// How long this rank waits for another one.
    #[must_use]
    pub const fn deadline(&self) -> Duration {
        self.deadline
    }

    /// Puts bytes for every other rank, from this one: each takes them with [`Store::take_all`].
    ///
    /// # Errors
    ///
    /// The first fault of any rank.
    pub fn give_all(&mut self, name: &str, bytes: &[u8]) -> Result<(), CommError> {
        let own = self.world.rank;
        for to in (0..self.world.size).filter(|peer| *peer != own) {
            self.put(name.to_owned(), to, bytes)?;
        }
        Ok(())
    }

    /// Takes what a rank has given to all, and waits for it.
    ///
    /// # Errors
    ///
    /// The first fault of any rank; [`CommError::Late`] after the deadline.
    pub fn take_all(&mut self, name: &str, from: u32) -> Result<Vec<u8>, CommError> {
        self.take(name.to_owned(), from)
    }

    /// Puts bytes for one rank. What is too long to be sent is a fault of this rank, which the others hear of.
    fn put(&mut self, name: String, to: u32, bytes: &[u8]) -> Result<(), CommError> {
        let put = self.ask(&Ask::Put { name, to }, bytes).map(drop);
        put.inspect_err(|error| self.tell_fault(error))
    }

    fn take(&mut self, name: String, from: u32) -> Result<Vec<u8>, CommError> {
        let wait = self.deadline.as_millis() as u64;
        self.ask(&Ask::Take { name, from, wait }, &[])
    }

    /// Asks the store and waits for its answer.
    fn ask(&mut self, ask: &Ask, value: &[u8]) -> Result<Vec<u8>, CommError> {
        self.ask_within(ask, value, self.patience())
    }

    fn ask_within(&mut self, ask: &Ask, value: &[u8], patience: Duration) -> Result<Vec<u8>, CommError> {
        if let Some(error) = &self.broken {
            return Err(error.clone());
        }
        let begin = Instant::now();
        if self.asked.take().is_some() {
            let answer = self.heard(begin, patience);
            self.settled(answer)?;
        }
        let answer = match self.say(ask, value, patience) {
            Ok(Ok(())) => self.heard(begin, patience),
            Ok(Err(long)) => {
                let (what, bytes, most) = (ask.to_string(), long.bytes as u64, long.most as u64);
                return Err(CommError::Long { what, bytes, most });
            }
            Err(e) => Err(lost(&e, begin)),
        };
        self.settled(answer)
    }

    fn say(&mut self, ask: &Ask, value: &[u8], patience: Duration) -> std::io::Result<Result<(), wire::TooLong>> {
        self.stream.set_write_timeout(Some(patience))?;
        wire::write(&mut self.stream, ask, value)
    }

    /// Somewhat longer than the store itself waits.
    fn patience(&self) -> Duration {
        self.deadline + self.deadline / 4 + Duration::from_millis(200)
    }

    /// The next answer of the store.
    fn heard(&mut self, begin: Instant, patience: Duration) -> Result<Vec<u8>, CommError> {
        let waits = self.stream.set_read_timeout(Some(patience));
        match waits.and_then(|()| wire::read(&mut self.stream)) {
            Ok((StoreAnswer::Done | StoreAnswer::Bytes, bytes)) => Ok(bytes),
            Ok((StoreAnswer::Fault { fault }, _)) => Err(error_of(fault)),
            Err(e) => Err(lost(&e, begin)),
        }
    }

    /// Keeps the first error: the store is of no use after it.
    fn settled(&mut self, answer: Result<Vec<u8>, CommError>) -> Result<Vec<u8>, CommError> {
        answer.inspect_err(|error| self.broken = Some(error.clone()))
    }

    /// Ends without a fault: every message that this rank has sent can still be taken. Rank 0 waits for the others,
    /// because it has the store.
    pub fn leave(mut self) {
        if self.broken.is_none()
            && self.ask(&Ask::Leave, &[]).is_ok()
            && let Some(own) = &self.own
        {
            own.shared.linger(self.deadline);
        }
        self.broken.get_or_insert(CommError::Gone { rank: self.world.rank, how: "it has left".to_owned() });
    }
}

/// How long an answer of a store that lives takes at most, with all that a busy machine does besides.
const PROMPT: Duration = Duration::from_secs(1);

/// What an error of the connection means: rank 0 has the store.
fn lost(error: &std::io::Error, begin: Instant) -> CommError {
    if matches!(error.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut) {
        return CommError::Late { ranks: vec![0], what: "an answer of its store".to_owned(), waited: begin.elapsed() };
    }
    CommError::Gone { rank: 0, how: format!("the connection to its store has closed ({error})") }
}

fn error_of(fault: StoreFault) -> CommError {
    match fault.printable() {
        StoreFault::Gone { rank, how } => CommError::Gone { rank, how },
        StoreFault::Late { ranks, waited, what } => {
            CommError::Late { ranks, what, waited: Duration::from_millis(waited) }
        }
        StoreFault::Differs { rank, what, theirs, ours } => CommError::Differs { rank, what, theirs, ours },
    }
}

fn fault_of(error: &CommError, rank: u32) -> StoreFault {
    let fault = match error {
        CommError::Gone { rank, how } => StoreFault::Gone { rank: *rank, how: how.clone() },
        CommError::Late { ranks, what, waited } => {
            StoreFault::Late { ranks: ranks.clone(), waited: waited.as_millis() as u64, what: what.clone() }
        }
        CommError::Differs { rank, what, theirs, ours } => {
            StoreFault::Differs { rank: *rank, what: what.clone(), theirs: theirs.clone(), ours: ours.clone() }
        }
        other => StoreFault::Gone { rank: other.rank().unwrap_or(rank), how: other.to_string() },
    };
    fault.printable()
}

impl Communicator for Store {
    fn rank(&self) -> u32 {
        self.world.rank
    }

    fn size(&self) -> u32 {
        self.world.size
    }

    unsafe fn exchange(&mut self, messages: &[RankMessage], _: *mut c_void) -> Result<(), CommError> {
        for message in messages.iter().filter(|m| m.send) {
            let number = &mut self.counts[message.peer as usize].0;
            let name = format!("message {number}");
            *number += 1;
            // SAFETY: the caller promises so many bytes at the address, and nobody writes them during the exchange.
            let bytes = unsafe { std::slice::from_raw_parts(message.address as *const u8, message.bytes as usize) };
            self.put(name, message.peer, bytes)?;
        }
        for message in messages.iter().filter(|m| !m.send) {
            let number = &mut self.counts[message.peer as usize].1;
            let name = format!("message {number}");
            *number += 1;
            let bytes = self.take(name.clone(), message.peer)?;
            if bytes.len() as u64 != message.bytes {
                let error = CommError::Size {
                    rank: Some(message.peer),
                    what: format!("{name} from {} for {}", message.peer, self.world.rank),
                    given: bytes.len() as u64,
                    expected: message.bytes,
                };
                self.tell_fault(&error);
                return Err(error);
            }
            // SAFETY: the caller promises so many writable bytes at the address, which overlap no other message.
            unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), message.address as *mut u8, bytes.len()) };
        }
        Ok(())
    }

    /// Asks, and hears the answer at a later call, if it has come by then: a store that hangs holds up nobody.
    fn check(&mut self) -> Result<(), CommError> {
        if let Some(error) = &self.broken {
            return Err(error.clone());
        }
        let answer = match self.asked {
            None => {
                let ask = Ask::Check { begun: self.begun };
                self.asked = Some(Instant::now());
                // A check is short, and one alone is on its way.
                self.say(&ask, &[], PROMPT).map(drop).map_err(|e| lost(&e, Instant::now()))
            }
            Some(begin) => match wire::has_arrived(&self.stream) {
                Ok(true) => {
                    self.asked = None;
                    self.heard(begin, PROMPT).map(drop)
                }
                Ok(false) if begin.elapsed() < self.deadline => Ok(()),
                Ok(false) => Err(lost(&std::io::ErrorKind::TimedOut.into(), begin)),
                Err(e) => Err(lost(&e, begin)),
            },
        };
        self.settled(answer.map(|()| Vec::new())).map(drop)
    }

    fn late(&mut self, what: &str, waited: Duration) -> CommError {
        let ask = Ask::Late { what: what.to_owned(), waited: waited.as_millis() as u64, begun: self.begun };
        // A store that does not answer is the cause itself: rank 0 hangs.
        let answer = self.ask_within(&ask, &[], PROMPT);
        answer.err().unwrap_or_else(|| CommError::late_others(self.world.size, self.world.rank, what, waited))
    }

    fn abort(&mut self) {
        self.tell_fault(&CommError::Gone { rank: self.world.rank, how: "it has ended its communicator".to_owned() });
    }

    fn tell_all(&mut self, bytes: &[u8]) -> Result<Vec<Vec<u8>>, CommError> {
        let name = format!("word {}", self.told);
        self.told += 1;
        self.give_all(&name, bytes)?;
        let own = self.world.rank;
        (0..self.world.size)
            .map(|peer| if peer == own { Ok(bytes.to_vec()) } else { self.take_all(&name, peer) })
            .collect()
    }
}

impl Store {
    /// Tells every rank of a fault, unless there was one before.
    pub fn tell_fault(&mut self, error: &CommError) {
        if self.broken.is_none() {
            let fault = fault_of(error, self.world.rank);
            let _ = self.ask(&Ask::Fault { fault }, &[]);
            self.broken.get_or_insert_with(|| error.clone());
        }
    }
}

impl Drop for Store {
    /// A rank that is dropped without [`Store::leave`] has ended: its connection closes, and the others hear of it.
    fn drop(&mut self) {
        if let Some(own) = self.own.take() {
            self.abort();
            own.end(&self.world, self.deadline);
        }
    }
}
