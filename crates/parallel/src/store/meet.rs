//! How ranks find each other: rank 0 listens, every rank connects and joins, again and again until the deadline.

use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::sync::mpsc::RecvTimeoutError;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::World;
use super::join::{self, JOIN_TIME, Join, JoinUntil, Unjoined};
use super::secret::Secret;
use super::server::ServerShared;
use crate::comm::CommError;

/// How long a rank waits before it tries again.
const AGAIN: Duration = Duration::from_millis(20);

/// How long a rank waits for one connection.
const CONNECT: Duration = Duration::from_secs(2);

/// How long a rank 0 that ends waits itself until the others know of it.
const KNOWN: Duration = Duration::from_secs(2);

/// A store that has ended, while it still tells ranks of its fault.
struct LingeringStore {
    at: (String, u16),
    shared: Arc<ServerShared>,
    thread: JoinHandle<()>,
}

/// Those of this process.
static LINGERING: Mutex<Vec<LingeringStore>> = Mutex::new(Vec::new());

/// Frees the address of a world from a store that lingers there.
fn free(world: &World) {
    let mut lingering = LINGERING.lock().unwrap_or_else(PoisonError::into_inner);
    let at = (world.address.clone(), world.port);
    let (here, others) = std::mem::take(&mut *lingering).into_iter().partition(|store| store.at == at);
    *lingering = others;
    drop(lingering);
    for LingeringStore { at: _, shared, thread } in here {
        shared.hurry();
        // It does not panic; if it did, it would listen no more.
        let _ = thread.join();
    }
}

/// The store of rank 0, and the thread that listens for it.
pub(super) struct Listening {
    pub(super) shared: Arc<ServerShared>,
    thread: JoinHandle<()>,
}

impl Listening {
    /// Tells the others of the fault for as long as the deadline, in a thread of its own: they would take the end of
    /// the store for the fault. Returns when all know of it, or after [`KNOWN`]: ranks of one thread end one by one.
    pub(super) fn end(self, world: &World, deadline: Duration) {
        let (shared, at, world) = (Arc::clone(&self.shared), (world.address.clone(), world.port), world.clone());
        let (done, known) = std::sync::mpsc::channel::<()>();
        let linger = move || {
            self.shared.linger(deadline);
            self.stop(&world);
            drop(done);
        };
        let Ok(thread) = std::thread::Builder::new().name("qkvault-store-end".to_owned()).spawn(linger) else {
            return shared.close();
        };
        if known.recv_timeout(KNOWN) == Err(RecvTimeoutError::Timeout) {
            let mut lingering = LINGERING.lock().unwrap_or_else(PoisonError::into_inner);
            lingering.retain(|store| !store.thread.is_finished());
            lingering.push(LingeringStore { at, shared, thread });
        } else {
            // As when a store is freed.
            let _ = thread.join();
        }
    }

    /// Listens no more. When this returns, the address is free for another store.
    pub(super) fn stop(self, world: &World) {
        self.shared.close();
        // The thread that listens sees that the store is closed when a connection comes.
        if connect(world, Duration::from_millis(200)).is_ok() {
            // It does not panic; if it did, it would listen no more.
            let _ = self.thread.join();
        }
    }
}

/// Opens the store of rank 0.
pub(super) fn listen(world: &World, version: &str) -> Result<Listening, CommError> {
    free(world);
    let bad = |e: std::io::Error| CommError::Address {
        what: format!("rank 0 cannot listen at {}:{}: {e}", world.address, world.port),
    };
    let addresses = addresses(world).map_err(bad)?;
    guarded(world, &addresses)?;
    // The address is one of this machine, which may have others too; ranks on other machines use any that reach it.
    let listener = TcpListener::bind(addresses.as_slice()).map_err(bad)?;
    let shared = ServerShared::new(world.size, version, world.secret.clone().unwrap_or_else(Secret::none))?;
    let serving = Arc::clone(&shared);
    let spawned = std::thread::Builder::new().name("qkvault-store".to_owned());
    let thread = spawned.spawn(move || serving.listen(&listener)).map_err(bad)?;
    Ok(Listening { shared, thread })
}

fn addresses(world: &World) -> std::io::Result<Vec<SocketAddr>> {
    let found: Vec<_> = (world.address.as_str(), world.port).to_socket_addrs()?.collect();
    match found.is_empty() {
        true => Err(std::io::Error::new(std::io::ErrorKind::NotFound, "the name has no address")),
        false => Ok(found),
    }
}

/// Refuses addresses that other machines reach, unless there is a secret.
fn guarded(world: &World, addresses: &[SocketAddr]) -> Result<(), CommError> {
    let far = addresses.iter().map(SocketAddr::ip).find(|ip| !is_loopback(*ip));
    match far {
        Some(ip) if world.secret.is_none() => Err(CommError::Secret {
            what: format!("{} is {ip}, which other machines reach, and the ranks have no secret", world.address),
        }),
        _ => Ok(()),
    }
}

fn is_loopback(ip: IpAddr) -> bool {
    ip.to_canonical().is_loopback()
}

/// Connects to the address of rank 0.
pub(super) fn connect(world: &World, patience: Duration) -> std::io::Result<TcpStream> {
    connect_to(&addresses(world)?, patience)
}

fn connect_to(addresses: &[SocketAddr], patience: Duration) -> std::io::Result<TcpStream> {
    let mut last = std::io::ErrorKind::NotFound.into();
    for address in addresses {
        match TcpStream::connect_timeout(address, patience) {
            // On one machine a connection can meet itself, and would then keep the port from rank 0.
            Ok(stream) if stream.local_addr()? == stream.peer_addr()? => {
                last = std::io::ErrorKind::ConnectionRefused.into();
            }
            Ok(stream) => {
                stream.set_nodelay(true)?;
                return Ok(stream);
            }
            Err(e) => last = e,
        }
    }
    Err(last)
}

/// Connects until the store takes the proof of this rank. Its answer to the join is still to be read.
pub(super) fn join(
    world: &World,
    said: &Join,
    own: Option<&ServerShared>,
    deadline: Duration,
) -> Result<TcpStream, CommError> {
    let none = Secret::none();
    // Rank 0 has a secret for itself, with the store in this process.
    let secret = own.map_or(world.secret.as_ref().unwrap_or(&none), |shared| shared.secret(0));
    let at = format!("{}:{}", world.address, world.port);
    let begin = Instant::now();
    loop {
        let left = deadline.saturating_sub(begin.elapsed()).max(AGAIN);
        let tried = addresses(world).map(|addresses| {
            guarded(world, &addresses)?;
            Ok(attempt(&addresses, secret, said, left))
        });
        let why = match tried {
            Ok(tried) => match tried? {
                Ok(stream) => return Ok(stream),
                Err(Unjoined::Unproven) => {
                    let what = format!("rank {} and the store of rank 0 at {at} have different secrets", world.rank);
                    return Err(CommError::Secret { what });
                }
                Err(Unjoined::Stranger(e)) => e,
            },
            Err(e) => e,
        };
        if begin.elapsed() >= deadline {
            let what = format!("its address {at} ({why})");
            return Err(CommError::Late { ranks: vec![0], what, waited: begin.elapsed() });
        }
        std::thread::sleep(AGAIN);
    }
}

/// One connection.
fn attempt(addresses: &[SocketAddr], secret: &Secret, said: &Join, left: Duration) -> Result<TcpStream, Unjoined> {
    let stream = connect_to(addresses, CONNECT.min(left))?;
    join::join(&mut JoinUntil::new(&stream, JOIN_TIME.min(left)), secret, said)?;
    Ok(stream)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A store at an address of the network was open to everyone who reached it.
    #[test]
    fn audit_4_without_a_secret_ranks_meet_on_the_loopback_alone() {
        let at = |address: &str, secret: Option<Secret>| World {
            address: address.to_owned(),
            secret,
            ..World::local(1, 2, 29_517)
        };
        let secret = Secret::new("correct-horse-battery").expect("long enough");
        let check = |address: &str, secret| {
            let world = at(address, secret);
            guarded(&world, &addresses(&world).expect("a number"))
        };
        for address in ["127.0.0.1", "127.0.1.1", "::1", "::ffff:127.0.0.1"] {
            assert_eq!(check(address, None), Ok(()), "{address}");
        }
        for address in ["0.0.0.0", "192.0.2.7", "::", "2001:db8::7", "::ffff:192.0.2.7", "169.254.1.1"] {
            let error = check(address, None).expect_err("refused").to_string();
            let words = [address, "no secret", "QKVAULT_RANKS_SECRET", "openssl rand -hex 32"];
            assert!(words.iter().all(|word| error.contains(word)), "{error}");
            assert_eq!(check(address, Some(secret.clone())), Ok(()), "{address}");
        }
        // Neither rank 0 nor another one tries, and neither waits for the deadline.
        for rank in [0, 1] {
            let world = World { rank, ..at("192.0.2.7", None) };
            let begin = Instant::now();
            let error = super::super::Store::meet(&world, Duration::from_secs(20)).err().expect("refused");
            assert!(matches!(error, CommError::Secret { .. }) && begin.elapsed() < Duration::from_secs(2), "{error}");
        }
    }
}
