//! A rank's end of the store, and a communicator of host memory over it.

use std::ffi::c_void;
use std::io::Write;
use std::net::{TcpListener, TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::World;
use super::server::Shared;
use super::wire::{self, Answer, Ask, Fault, MAGIC};
use crate::comm::{CommError, Communicator, Message};

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
    shared: Option<Arc<Shared>>,
    /// Messages so far, by peer: sent and received.
    counts: Vec<(u64, u64)>,
    told: u64,
    /// The store of the first rank is one connection among others, so it knows no more than they do.
    broken: Option<CommError>,
}

impl Store {
    /// Meets the other ranks: rank 0 listens at the address of the world, the others connect. Returns when this rank is
    /// connected; the others may come later.
    ///
    /// # Errors
    ///
    /// [`CommError::Late`] if rank 0 does not listen within the deadline; [`CommError::Differs`] for a rank of another
    /// version, of another number of ranks, or that is there already; [`CommError::Address`] for an address that cannot
    /// be used.
    pub fn meet(world: &World, deadline: Duration) -> Result<Store, CommError> {
        Store::meet_as(world, deadline, env!("CARGO_PKG_VERSION"))
    }

    /// [`Store::meet`] with another version, for tests of its comparison.
    #[doc(hidden)]
    pub fn meet_as(world: &World, deadline: Duration, version: &str) -> Result<Store, CommError> {
        let shared = if world.rank == 0 { Some(listen(world, version)?) } else { None };
        let begin = Instant::now();
        let late = || CommError::Late {
            ranks: vec![0],
            what: format!("its address {}:{}", world.address, world.port),
            waited: begin.elapsed(),
        };
        let stream = loop {
            match connect(world, Duration::from_secs(2).min(deadline)) {
                Ok(stream) => break stream,
                Err(_) if begin.elapsed() < deadline => std::thread::sleep(Duration::from_millis(20)),
                Err(_) => return Err(late()),
            }
        };
        let counts = vec![(0, 0); world.size as usize];
        let mut store = Store { world: world.clone(), stream, deadline, shared, counts, told: 0, broken: None };
        store.stream.write_all(&MAGIC).map_err(|_| late())?;
        let join = Ask::Join { rank: world.rank, size: world.size, version: version.to_owned() };
        store.ask(&join, &[])?;
        Ok(store)
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
        for peer in (0..self.world.size).filter(|peer| *peer != own) {
            let key = format!("{name} from {own} for {peer}");
            self.ask(&Ask::Put { key }, bytes)?;
        }
        Ok(())
    }

    /// Takes what a rank has given to all, and waits for it.
    ///
    /// # Errors
    ///
    /// The first fault of any rank; [`CommError::Late`] after the deadline.
    pub fn take_all(&mut self, name: &str, from: u32) -> Result<Vec<u8>, CommError> {
        self.take(format!("{name} from {from} for {}", self.world.rank), from)
    }

    fn take(&mut self, key: String, from: u32) -> Result<Vec<u8>, CommError> {
        let wait = self.deadline.as_millis() as u64;
        self.ask(&Ask::Take { key, from, wait }, &[])
    }

    /// Asks the store and waits for its answer, somewhat longer than the store itself waits.
    fn ask(&mut self, ask: &Ask, value: &[u8]) -> Result<Vec<u8>, CommError> {
        if let Some(error) = &self.broken {
            return Err(error.clone());
        }
        let patience = self.deadline + self.deadline / 4 + Duration::from_millis(200);
        let begin = Instant::now();
        let asked = (|| {
            self.stream.set_read_timeout(Some(patience))?;
            self.stream.set_write_timeout(Some(patience))?;
            wire::write(&mut self.stream, ask, value)?;
            wire::read::<Answer>(&mut self.stream)
        })();
        let error = match asked {
            Ok((Answer::Done | Answer::Bytes, bytes)) => return Ok(bytes),
            Ok((Answer::Fault { fault }, _)) => error_of(fault),
            // Rank 0 has the store.
            Err(e) if matches!(e.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut) => {
                CommError::Late { ranks: vec![0], what: "an answer of its store".to_owned(), waited: begin.elapsed() }
            }
            Err(e) => CommError::Gone { rank: 0, how: format!("the connection to its store has closed ({e})") },
        };
        self.broken = Some(error.clone());
        Err(error)
    }

    /// Ends without a fault: every message that this rank has sent can still be taken. Rank 0 waits for the others,
    /// because it has the store.
    pub fn leave(mut self) {
        if self.broken.is_none()
            && self.ask(&Ask::Leave, &[]).is_ok()
            && let Some(shared) = &self.shared
        {
            shared.linger(self.deadline);
        }
        self.broken.get_or_insert(CommError::Gone { rank: self.world.rank, how: "it has left".to_owned() });
    }
}

fn listen(world: &World, version: &str) -> Result<Arc<Shared>, CommError> {
    let bad = |e: std::io::Error| CommError::Address {
        what: format!("rank 0 cannot listen at {}:{}: {e}", world.address, world.port),
    };
    // The address is one of this machine, which may have others too; ranks on other machines use any that reach it.
    let listener = TcpListener::bind((world.address.as_str(), world.port)).map_err(bad)?;
    let shared = Shared::new(world.size, version);
    let serving = Arc::clone(&shared);
    let spawned = std::thread::Builder::new().name("qkvault-store".to_owned());
    spawned.spawn(move || serving.listen(&listener)).map_err(bad)?;
    Ok(shared)
}

fn connect(world: &World, patience: Duration) -> std::io::Result<TcpStream> {
    let mut last = std::io::Error::new(std::io::ErrorKind::NotFound, "the name has no address");
    for address in (world.address.as_str(), world.port).to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, patience) {
            Ok(stream) => {
                stream.set_nodelay(true)?;
                return Ok(stream);
            }
            Err(e) => last = e,
        }
    }
    Err(last)
}

fn error_of(fault: Fault) -> CommError {
    match fault {
        Fault::Gone { rank, how } => CommError::Gone { rank, how },
        Fault::Late { rank, waited, what } => {
            CommError::Late { ranks: vec![rank], what, waited: Duration::from_millis(waited) }
        }
        Fault::Differs { rank, what, theirs, ours } => CommError::Differs { rank, what, theirs, ours },
    }
}

fn fault_of(error: &CommError, rank: u32) -> Fault {
    match error {
        CommError::Gone { rank, how } => Fault::Gone { rank: *rank, how: how.clone() },
        CommError::Late { ranks, what, waited } => Fault::Late {
            rank: ranks.first().copied().unwrap_or(0),
            waited: waited.as_millis() as u64,
            what: what.clone(),
        },
        CommError::Differs { rank, what, theirs, ours } => {
            Fault::Differs { rank: *rank, what: what.clone(), theirs: theirs.clone(), ours: ours.clone() }
        }
        other => Fault::Gone { rank: other.rank().unwrap_or(rank), how: other.to_string() },
    }
}

impl Communicator for Store {
    fn rank(&self) -> u32 {
        self.world.rank
    }

    fn size(&self) -> u32 {
        self.world.size
    }

    unsafe fn exchange(&mut self, messages: &[Message], _: *mut c_void) -> Result<(), CommError> {
        for message in messages.iter().filter(|m| m.send) {
            let number = &mut self.counts[message.peer as usize].0;
            let key = format!("message {number} from {} for {}", self.world.rank, message.peer);
            *number += 1;
            // SAFETY: the caller promises so many bytes at the address, and nobody writes them during the exchange.
            let bytes = unsafe { std::slice::from_raw_parts(message.address as *const u8, message.bytes as usize) };
            self.ask(&Ask::Put { key }, bytes)?;
        }
        for message in messages.iter().filter(|m| !m.send) {
            let number = &mut self.counts[message.peer as usize].1;
            let key = format!("message {number} from {} for {}", message.peer, self.world.rank);
            *number += 1;
            let bytes = self.take(key.clone(), message.peer)?;
            if bytes.len() as u64 != message.bytes {
                let error = CommError::Size {
                    rank: Some(message.peer),
                    what: key,
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

    fn check(&mut self) -> Result<(), CommError> {
        self.ask(&Ask::Check, &[]).map(drop)
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
        if let Some(shared) = self.shared.take() {
            self.abort();
            // The others would take the end of the store for the fault.
            shared.linger(self.deadline);
            shared.close();
            // The thread that listens sees that the store is closed when a connection comes.
            let _ = connect(&self.world, Duration::from_millis(200));
        }
    }
}
