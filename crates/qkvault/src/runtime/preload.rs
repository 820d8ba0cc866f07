//! Loading plans ahead, in the background.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use qkvault_graph::Valid;

use super::Runtime;
use crate::Error;

/// Threads that load. cuDNN loads a plan under a lock of its own, so more gain nothing.
const THREADS: usize = 2;

/// Plans that are being loaded. Dropping it stops after those that are under way.
#[derive(Debug)]
pub struct Preload {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    attentions: Vec<Valid>,
    next: AtomicUsize,
    done: AtomicUsize,
    stopped: AtomicBool,
    failed: Mutex<Vec<(Valid, Error)>>,
}

impl Preload {
    pub(super) fn start(runtime: Runtime, attentions: Vec<Valid>) -> Preload {
        let count = attentions.len();
        let shared = Arc::new(Shared {
            attentions,
            next: AtomicUsize::new(0),
            done: AtomicUsize::new(0),
            stopped: AtomicBool::new(false),
            failed: Mutex::default(),
        });
        let work = || {
            let (shared, runtime) = (Arc::clone(&shared), runtime.clone());
            std::thread::spawn(move || shared.work(&runtime))
        };
        let threads = (0..THREADS.min(count)).map(|_| work()).collect();
        Preload { shared, threads }
    }

    /// Plans that are loaded or could not be, and all plans.
    #[must_use]
    pub fn progress(&self) -> (usize, usize) {
        (self.shared.done.load(Relaxed), self.shared.attentions.len())
    }

    /// Waits for all plans, and returns those that could not be loaded, with the reasons.
    #[must_use]
    pub fn wait(mut self) -> Vec<(Valid, Error)> {
        self.join();
        std::mem::take(&mut *self.shared.failed.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn join(&mut self) {
        for thread in self.threads.drain(..) {
            // A panic in a thread leaves the plan that it was loading out.
            let _ = thread.join();
        }
    }
}

impl Drop for Preload {
    fn drop(&mut self) {
        self.shared.stopped.store(true, Relaxed);
        self.join();
    }
}

impl Shared {
    fn work(&self, runtime: &Runtime) {
        while !self.stopped.load(Relaxed) {
            let Some(attention) = self.attentions.get(self.next.fetch_add(1, Relaxed)) else { return };
            if let Err(error) = runtime.plan(attention) {
                let mut failed = self.failed.lock().unwrap_or_else(PoisonError::into_inner);
                failed.push((attention.clone(), error));
            }
            self.done.fetch_add(1, Relaxed);
        }
    }
}
