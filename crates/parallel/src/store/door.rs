//! Connections that have not joined: a bounded number, each for a bounded time, so that strangers take neither the
//! memory nor the threads of the job, nor the places of its ranks.

use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Connections that have not joined, at most. Each has a thread.
pub(super) const MOST_PENDING: usize = 128;

/// How long a connection has to join while others wait for its place. A rank needs a few round trips.
const CROWDED: Duration = Duration::from_millis(100);

/// The connections that have not joined.
#[derive(Default)]
pub(super) struct Door {
    pending: Mutex<Vec<Pending>>,
    changed: Condvar,
    closed: AtomicBool,
}

struct Pending {
    stream: Arc<TcpStream>,
    since: Instant,
    ended: bool,
}

/// The place of one connection, until it has joined or ended.
pub(super) struct DoorPlace {
    door: Arc<Door>,
    stream: Arc<TcpStream>,
}

impl Door {
    fn lock(&self) -> MutexGuard<'_, Vec<Pending>> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn is_closed(&self) -> bool {
        self.closed.load(SeqCst)
    }

    /// Takes no more connections, and ends those that have not joined.
    pub(super) fn close(&self) {
        self.closed.store(true, SeqCst);
        self.lock().iter_mut().for_each(Pending::end);
        self.changed.notify_all();
    }

    /// A place for a connection. While there is none, the oldest connection is ended once it has had [`CROWDED`]: ranks
    /// join at once, so those that are old are strangers'. `None` when the door is closed.
    pub(super) fn place(self: &Arc<Door>, stream: &Arc<TcpStream>) -> Option<DoorPlace> {
        let mut pending = self.lock();
        while pending.len() >= MOST_PENDING && !self.is_closed() {
            let age = pending.first().map_or(CROWDED, |oldest| oldest.since.elapsed());
            if age >= CROWDED {
                pending.first_mut().map(Pending::end);
            }
            // The thread of the one that was ended gives its place back.
            let wait = CROWDED.saturating_sub(age).max(Duration::from_millis(1));
            pending = self.changed.wait_timeout(pending, wait).unwrap_or_else(PoisonError::into_inner).0;
        }
        if self.is_closed() {
            return None;
        }
        pending.push(Pending { stream: Arc::clone(stream), since: Instant::now(), ended: false });
        Some(DoorPlace { door: Arc::clone(self), stream: Arc::clone(stream) })
    }

    /// Ends the oldest connection, when the process has no descriptor for another one.
    pub(super) fn make_room(&self) {
        self.lock().first_mut().map(Pending::end);
    }
}

impl Pending {
    fn end(&mut self) {
        self.ended = true;
        // It may have ended by itself.
        let _ = self.stream.shutdown(Shutdown::Both);
    }
}

impl DoorPlace {
    /// Gives the place back, because the connection joins: from now on the door does not end it. False if it has.
    pub(super) fn leave(&self) -> bool {
        let mut pending = self.door.lock();
        let own = pending.iter().position(|pending| Arc::ptr_eq(&pending.stream, &self.stream));
        let left = own.map(|at| pending.remove(at));
        self.door.changed.notify_all();
        left.is_some_and(|left| !left.ended)
    }
}

impl Drop for DoorPlace {
    fn drop(&mut self) {
        self.leave();
    }
}
