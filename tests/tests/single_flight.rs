//! The vault's single flight in every order in which threads can run: its own source, with the locks of a model checker
//! in the place of those of the standard library.
//!
//! The checker runs each body once for every order of the threads' steps, and fails where a thread waits for ever.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use loom::thread;
use qkvault_cache::{Entry, EntryKind, Key};

#[path = "../../crates/cache/src/flight.rs"]
mod flight;

/// What `flight.rs` takes from its crate.
mod sync {
    pub(crate) use loom::sync::{Condvar, Mutex, MutexGuard};
    pub(crate) use loom::thread::{self, ThreadId};
}

use flight::{FlightOutcome, FlightRole, Flights};

const KEY: Key = Key([7; 32]);

/// A vault with nothing but memory.
#[derive(Default)]
struct Vault {
    memory: loom::sync::Mutex<HashMap<Key, Arc<Entry>>>,
    flights: Flights,
    builds: AtomicU32,
}

fn entry() -> Entry {
    Entry {
        kind: EntryKind::Plan,
        target: "sm_90".into(),
        what: "decode".into(),
        library: "9.27.0".into(),
        meta: Vec::new(),
        payload: vec![1, 2, 3],
    }
}

/// What a builder does.
#[derive(Clone, Copy, PartialEq)]
enum Build {
    Works,
    Fails,
    Panics,
}

#[derive(Debug, PartialEq)]
enum Failed {
    Error(&'static str),
    Panicked,
    Reentrant,
}

impl Vault {
    fn recall(&self) -> Option<Arc<Entry>> {
        self.memory.lock().expect("no panic").get(&KEY).cloned()
    }

    /// The steps of the vault's own `get_or_build`.
    fn obtain(&self, build: Build) -> Result<Arc<Entry>, Failed> {
        if let Some(entry) = self.recall() {
            return Ok(entry);
        }
        let lead = match self.flights.join(KEY) {
            FlightRole::Lead(lead) => lead,
            FlightRole::Reentrant => return Err(Failed::Reentrant),
            FlightRole::Follow(flight) => {
                return match flight.wait() {
                    FlightOutcome::Entry(entry) => Ok(entry),
                    FlightOutcome::Failed(error) => Err(Failed::Error(error.downcast_ref::<&str>().expect("a text"))),
                    FlightOutcome::Panicked => Err(Failed::Panicked),
                };
            }
        };
        if let Some(entry) = self.recall() {
            lead.land(FlightOutcome::Entry(Arc::clone(&entry)));
            return Ok(entry);
        }
        self.builds.fetch_add(1, Relaxed);
        match build {
            Build::Works => {
                let entry = Arc::new(entry());
                self.memory.lock().expect("no panic").insert(KEY, Arc::clone(&entry));
                lead.land(FlightOutcome::Entry(Arc::clone(&entry)));
                Ok(entry)
            }
            Build::Fails => {
                lead.land(FlightOutcome::Failed(Arc::new("no compiler")));
                Err(Failed::Error("no compiler"))
            }
            // As unwinding does.
            Build::Panics => {
                drop(lead);
                Err(Failed::Panicked)
            }
        }
    }
}

/// Runs a body for threads that ask at once, in every order.
fn at_once(
    builders: &'static [Build],
    check: impl Fn(&Vault, Vec<Result<Arc<Entry>, Failed>>) + Sync + Send + 'static,
) {
    let mut model = loom::model::Builder::new();
    // With three threads there are too many orders to try all; bugs of locks show with few switches.
    model.preemption_bound = (builders.len() > 2).then_some(3);
    model.check(move || {
        let vault = Arc::new(Vault::default());
        let (first, others) = builders.split_first().expect("a builder");
        let threads: Vec<_> = others
            .iter()
            .map(|&build| {
                let vault = Arc::clone(&vault);
                thread::spawn(move || vault.obtain(build))
            })
            .collect();
        let mut results = vec![vault.obtain(*first)];
        results.extend(threads.into_iter().map(|thread| thread.join().expect("no panic")));
        check(&vault, results);
        // Nothing stays behind: the next flight of the key is led.
        assert!(matches!(vault.flights.join(KEY), FlightRole::Lead(_)));
    });
}

#[test]
fn one_of_all_threads_builds_and_the_others_get_its_entry() {
    for builders in [&[Build::Works; 2][..], &[Build::Works; 3]] {
        at_once(builders, |vault, results| {
            assert_eq!(vault.builds.load(Relaxed), 1);
            let entries: Vec<Arc<Entry>> = results.into_iter().map(|result| result.expect("an entry")).collect();
            assert!(entries.iter().all(|entry| Arc::ptr_eq(entry, &entries[0])));
        });
    }
}

#[test]
fn a_failed_build_ends_the_flight_for_all_who_wait_and_for_no_one_else() {
    at_once(&[Build::Fails, Build::Works], |vault, results| {
        for result in &results {
            assert!(matches!(result, Ok(_) | Err(Failed::Error("no compiler"))), "{result:?}");
        }
        assert!((1..=2).contains(&vault.builds.load(Relaxed)));
        assert_eq!(vault.recall().is_some(), results.iter().any(Result::is_ok));
    });
}

#[test]
fn a_builder_that_panics_leaves_no_one_waiting() {
    for builders in [&[Build::Panics, Build::Works][..], &[Build::Panics, Build::Works, Build::Works]] {
        at_once(builders, |vault, results| {
            for result in &results {
                assert!(matches!(result, Ok(_) | Err(Failed::Panicked)), "{result:?}");
            }
            assert_eq!(vault.obtain(Build::Works).map(|_| ()), Ok(()), "the next call builds again");
        });
    }
}

#[test]
fn a_builder_that_asks_for_its_own_key_is_told_so() {
    loom::model(|| {
        let vault = Vault::default();
        let FlightRole::Lead(lead) = vault.flights.join(KEY) else { panic!("the first one leads") };
        assert_eq!(vault.obtain(Build::Works).map(|_| ()), Err(Failed::Reentrant));
        drop(lead);
        assert!(vault.obtain(Build::Works).is_ok());
    });
}
