//! The connections of the store: each is a stranger until it joins, and then a rank until it ends.

use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use super::super::door::DoorPlace;
use super::super::join::{self, JOIN_TIME, Join, JoinUntil, Unjoined};
use super::super::wire::{self, Ask, StoreAnswer, StoreFault};
use super::ServerShared;

/// Bytes of the stack of a thread that serves a connection.
const STACK: usize = 512 << 10;

/// How long the listener waits when the system gives it no connection, as without free descriptors.
const NO_CONNECTION: Duration = Duration::from_millis(10);

/// What becomes of a rank that has proved its secret.
enum Joined {
    Taken,
    Refused(StoreFault),
    /// Its connection was ended meanwhile; it comes again.
    Ended,
}

impl ServerShared {
    /// Serves connections until the store is closed.
    pub(in crate::store) fn listen(self: &Arc<ServerShared>, listener: &TcpListener) {
        for stream in listener.incoming() {
            if self.door.is_closed() {
                return;
            }
            let Ok(stream) = stream.map(Arc::new) else {
                self.door.make_room();
                std::thread::sleep(NO_CONNECTION);
                continue;
            };
            let Some(place) = self.door.place(&stream) else { return };
            let shared = Arc::clone(self);
            // A connection that no thread can be made for is closed, which its rank sees.
            let builder = std::thread::Builder::new().name("qkvault-store".to_owned()).stack_size(STACK);
            let _ = builder.spawn(move || shared.serve(&stream, place));
        }
    }

    /// Serves one connection until it ends.
    fn serve(&self, stream: &TcpStream, place: DoorPlace) {
        let _ = stream.set_nodelay(true);
        let mut until = JoinUntil::new(stream, JOIN_TIME);
        let join = match join::admit(&mut until, |rank| self.secret(rank)) {
            Ok(join) => join,
            Err(error) => {
                if matches!(error, Unjoined::Unproven) {
                    self.lock().unproven += 1;
                }
                return;
            }
        };
        let rank = join.rank;
        match self.join(join, &place) {
            Joined::Taken => {}
            Joined::Ended => return,
            Joined::Refused(fault) => {
                // The rank that hears it ends by itself.
                let _ = wire::write(&mut until, &StoreAnswer::Fault { fault }, &[]);
                return self.changed.notify_all();
            }
        }
        drop(place);
        let _ = stream.set_read_timeout(None).and_then(|()| stream.set_write_timeout(None));
        self.answer_all(rank, stream);
    }

    /// Serves a rank that has joined.
    fn answer_all(&self, rank: u32, mut stream: &TcpStream) {
        const CLOSED: &str = "its connection has closed";
        if wire::write(&mut stream, &StoreAnswer::Done, &[]).is_err() {
            return self.gone(rank, CLOSED);
        }
        loop {
            let Ok((ask, value)) = wire::read(&mut stream) else { return self.gone(rank, CLOSED) };
            let leaves = ask == Ask::Leave;
            let Some((answer, bytes)) = self.answer(rank, ask, value) else {
                return self.gone(rank, "it has asked what no rank asks");
            };
            let written = wire::write(&mut stream, &answer, &bytes);
            if written.is_ok() && matches!(answer, StoreAnswer::Fault { .. }) {
                self.tell(rank);
            }
            if leaves {
                return;
            }
            if written.is_err() {
                return self.gone(rank, CLOSED);
            }
        }
    }

    fn join(&self, Join { rank, size, version }: Join, place: &DoorPlace) -> Joined {
        let mut state = self.lock();
        if let Some(fault) = &state.fault {
            let fault = fault.clone();
            // Two that say to be one rank: the first one may not have heard of it yet.
            if rank < self.size && !state.joined.contains(&rank) && !state.told.contains(&rank) {
                state.told.push(rank);
            }
            return Joined::Refused(fault);
        }
        let (what, theirs, ours) = if version != self.version {
            ("version", version, self.version.clone())
        } else if size != self.size {
            ("a world of", format!("{size} ranks"), format!("{} ranks", self.size))
        } else if rank >= self.size {
            ("the rank", rank.to_string(), format!("0 to {}", self.size - 1))
        } else if state.joined.contains(&rank) {
            ("the rank", rank.to_string(), "it already".to_owned())
        } else if place.leave() {
            state.joined.push(rank);
            state.hear(rank, 0);
            state.refused.remove(&rank);
            drop(state);
            self.changed.notify_all();
            return Joined::Taken;
        } else {
            return Joined::Ended;
        };
        let fault = StoreFault::Differs { rank, what: what.to_owned(), theirs, ours };
        if rank < self.size && !state.joined.contains(&rank) {
            state.refused.insert(rank, fault.clone());
        }
        Joined::Refused(fault)
    }
}
