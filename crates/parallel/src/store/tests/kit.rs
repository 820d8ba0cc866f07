//! Jobs that go on while strangers come, and the strangers' hands.

use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread::JoinHandle;
use std::time::Duration;

use super::super::join::{self, Join, Unjoined};
use super::super::{Secret, Store, World};
use crate::comm::{CommError, Communicator as _};

pub(super) const DEADLINE: Duration = Duration::from_secs(20);

pub(super) fn secret(text: &str) -> Secret {
    Secret::new(&format!("the secret of a test: {text}").replace(' ', "-")).expect("long enough")
}

pub(super) fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.local_addr().expect("an address").port()
}

/// The worlds of a job's ranks.
pub(super) fn worlds(size: u32, secret: &Secret) -> Vec<World> {
    let port = free_port();
    (0..size).map(|rank| World::local(rank, size, port).with_secret(secret.clone())).collect()
}

pub(super) fn said(rank: u32, size: u32) -> Join {
    Join { rank, size, version: env!("CARGO_PKG_VERSION").to_owned() }
}

/// A connection of a stranger.
pub(super) fn dial(world: &World) -> TcpStream {
    let stream = TcpStream::connect((world.address.as_str(), world.port)).expect("the store listens");
    stream.set_read_timeout(Some(DEADLINE)).expect("is set");
    stream
}

/// A stream that keeps what is written.
pub(super) struct RecordedStream<'s>(pub(super) &'s TcpStream, pub(super) Vec<u8>);

impl Read for RecordedStream<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.0.read(into)
    }
}

impl Write for RecordedStream<'_> {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        self.1.extend(from);
        self.0.write(from)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Joins with any words. Returns the connection, what was written, and how it went.
pub(super) fn join_as(world: &World, secret: &Secret, said: &Join) -> (TcpStream, Vec<u8>, Result<(), Unjoined>) {
    let stream = dial(world);
    let mut recorder = RecordedStream(&stream, Vec::new());
    let joined = join::join(&mut recorder, secret, said);
    let written = recorder.1;
    (stream, written, joined)
}

/// Everything that the store sends until it closes the connection.
pub(super) fn rest(mut stream: &TcpStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    match stream.read_to_end(&mut bytes) {
        Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
            panic!("the store keeps a stranger")
        }
        _ => bytes,
    }
}

/// Rounds in which every rank tells all others a number, while rank 0 says that they go on.
pub(super) fn rounds(mut store: Store, done: &AtomicBool) -> Result<u64, CommError> {
    for round in 0_u64.. {
        let last = store.rank() == 0 && done.load(SeqCst);
        let own = [&[u8::from(last)][..], &round.to_le_bytes(), &store.rank().to_le_bytes()].concat();
        let all = store.tell_all(&own)?;
        for (rank, told) in (0_u32..).zip(&all) {
            assert_eq!(told[1..], [&round.to_le_bytes()[..], &rank.to_le_bytes()].concat(), "another one's message");
        }
        if all[0][0] == 1 {
            store.leave();
            return Ok(round);
        }
    }
    unreachable!("the rounds end with rank 0's word")
}

/// A job of two ranks that ends well, though strangers come before rank 1 is there and while both work.
pub(super) fn job_goes_on(strangers: impl Fn(&World) + Sync) {
    let worlds = worlds(2, &secret("job"));
    job_of(&worlds, strangers);
}

pub(super) fn job_of(worlds: &[World], strangers: impl Fn(&World) + Sync) {
    let zero = Store::meet(&worlds[0], DEADLINE).expect("rank 0 meets itself");
    strangers(&worlds[1]);
    let done = &AtomicBool::new(false);
    std::thread::scope(|scope| {
        let one = scope.spawn(move || rounds(Store::meet(&worlds[1], DEADLINE)?, done));
        let zero = scope.spawn(move || rounds(zero, done));
        let during = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| strangers(&worlds[1])));
        done.store(true, SeqCst);
        let results = [zero, one].map(|thread| thread.join().expect("no panic"));
        during.unwrap_or_else(|why| std::panic::resume_unwind(why));
        assert!(results.iter().all(Result::is_ok), "the strangers have ended the job: {results:?}");
    });
}

/// Something that listens in the place of a store, for one connection.
pub(super) fn fake(answer: impl FnOnce(&mut TcpStream) + Send + 'static) -> (World, JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("an address").port();
    let thread = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("a rank comes");
        stream.set_read_timeout(Some(DEADLINE)).expect("is set");
        answer(&mut stream);
    });
    (World::local(1, 2, port).with_secret(secret("job")), thread)
}
