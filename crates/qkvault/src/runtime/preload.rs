//! Loading plans ahead, in the background.

use std::num::NonZero;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use qkvault_graph::Valid;

use super::Runtime;
use crate::Error;

/// Most threads that load. On an H200 host 256 plans take 0.54 s with one thread, 0.28 s with two, 0.14 s with four and
/// 0.08 s with eight; loading their kernels, which the driver does one at a time, takes as long again.
const THREADS: usize = 8;

/// Plans that are being loaded. Dropping it stops after those that are under way.
#[derive(Debug)]
pub struct Preload {
    shared: Arc<PreloadShared>,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Debug)]
struct PreloadShared {
    attentions: Vec<Valid>,
    next: AtomicUsize,
    done: AtomicUsize,
    stopped: AtomicBool,
    failed: Mutex<Vec<(Valid, Error)>>,
}

impl Preload {
    pub(super) fn start(runtime: Runtime, attentions: Vec<Valid>) -> Preload {
        let count = attentions.len();
        let shared = Arc::new(PreloadShared {
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
        let cores = std::thread::available_parallelism().map_or(1, NonZero::get);
        let threads = (0..THREADS.min(cores).min(count)).map(|_| work()).collect();
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

impl PreloadShared {
    fn work(&self, runtime: &Runtime) {
        while !self.stopped.load(Relaxed) {
            let Some(attention) = self.attentions.get(self.next.fetch_add(1, Relaxed)) else { return };
            match runtime.plan(attention) {
                // Otherwise the first launch loads them, a millisecond later.
                Ok(plan) => {
                    plan.load_kernels().unwrap_or_else(|why| tracing::debug!(why, "kernels are not loaded yet"))
                }
                Err(error) => {
                    let mut failed = self.failed.lock().unwrap_or_else(PoisonError::into_inner);
                    failed.push((attention.clone(), error));
                }
            }
            self.done.fetch_add(1, Relaxed);
        }
    }
}
