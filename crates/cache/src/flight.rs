//! Single flight: of all threads that miss a key at once, one builds or looks it up, and the others wait for its
//! outcome.
//!
//! A flight leaves nothing behind: after a failed or panicked build, the next call builds again.

use std::any::Any;
use std::collections::HashMap;
use std::sync::{Arc, PoisonError};

use crate::sync::{Condvar, Mutex, MutexGuard, ThreadId, thread};
use crate::{Entry, Key};

/// The flights under way.
#[derive(Default)]
pub(crate) struct Flights(Mutex<HashMap<Key, Arc<Flight>>>);

/// One build or look-up that other threads may wait for.
pub(crate) struct Flight {
    owner: ThreadId,
    outcome: Mutex<Option<FlightOutcome>>,
    landed: Condvar,
}

/// How a flight ended.
#[derive(Clone)]
pub(crate) enum FlightOutcome {
    /// With an entry.
    Entry(Arc<Entry>),
    /// With an error: an `Arc<E>` of the builder's error type, as `Any`.
    Failed(Arc<dyn Any + Send + Sync>),
    /// With a panic, or without any result.
    Panicked,
}

/// The part of a thread in the flight of a key.
pub(crate) enum FlightRole<'a> {
    /// This thread builds and gives the outcome to the others.
    Lead(Lead<'a>),
    /// Another thread builds; this one waits.
    Follow(Arc<Flight>),
    /// This very thread builds already: waiting would never end.
    Reentrant,
}

impl Flights {
    pub(crate) fn join(&self, key: Key) -> FlightRole<'_> {
        let mut flights = unpoisoned(self.0.lock());
        if let Some(flight) = flights.get(&key) {
            return match flight.owner == thread::current().id() {
                true => FlightRole::Reentrant,
                false => FlightRole::Follow(Arc::clone(flight)),
            };
        }
        let flight =
            Arc::new(Flight { owner: thread::current().id(), outcome: Mutex::new(None), landed: Condvar::new() });
        flights.insert(key, Arc::clone(&flight));
        FlightRole::Lead(Lead { flights: self, flight, key })
    }
}

impl Flight {
    /// Waits until the leader has landed.
    pub(crate) fn wait(&self) -> FlightOutcome {
        let mut outcome = unpoisoned(self.outcome.lock());
        loop {
            match &*outcome {
                Some(outcome) => return outcome.clone(),
                None => outcome = unpoisoned(self.landed.wait(outcome)),
            }
        }
    }
}

/// The duty to end a flight. If it is dropped without an outcome, as by a panic, the flight ends as panicked.
pub(crate) struct Lead<'a> {
    flights: &'a Flights,
    flight: Arc<Flight>,
    key: Key,
}

impl Lead<'_> {
    /// Ends the flight for all who wait. The entry must be in memory by now, or later callers build it again.
    pub(crate) fn land(self, outcome: FlightOutcome) {
        *unpoisoned(self.flight.outcome.lock()) = Some(outcome);
        // `Drop` removes the flight and wakes the others.
    }
}

impl Drop for Lead<'_> {
    fn drop(&mut self) {
        unpoisoned(self.flights.0.lock()).remove(&self.key);
        unpoisoned(self.flight.outcome.lock()).get_or_insert(FlightOutcome::Panicked);
        self.flight.landed.notify_all();
    }
}

/// No lock of this module is held while foreign code runs, so a poisoned one still guards consistent data.
fn unpoisoned<'a, T>(lock: Result<MutexGuard<'a, T>, PoisonError<MutexGuard<'a, T>>>) -> MutexGuard<'a, T> {
    lock.unwrap_or_else(PoisonError::into_inner)
}
