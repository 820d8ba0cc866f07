//! Compiling plans ahead with all cores, and telling how far it is.

use std::num::NonZero;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc;
use std::thread;

use qkvault_compile::Resolution;
use qkvault_graph::Valid;

use super::Runtime;
use crate::Error;

/// What became of one attention of [`Runtime::warm`].
#[derive(Debug)]
pub struct Warmed {
    /// Its place in the list that was given.
    pub at: usize,
    /// The plan, in the vault from now on; or why there is none.
    pub plan: Result<Resolution, Error>,
}

impl Runtime {
    /// Compiles the plans that the vault lacks, with a thread for each core, for this runtime's GPU or target: 0.3 to 1
    /// second each, of FlashAttention-4 a few seconds. `told` hears of each as it is done, with how many are done.
    ///
    /// # Errors
    ///
    /// As [`Runtime::target`]. What cannot be compiled is told in its place of the list, which has the order of
    /// `attentions`.
    pub fn warm(
        &self,
        attentions: &[Valid],
        mut told: impl FnMut(&Warmed, usize),
    ) -> Result<Vec<Result<Resolution, Error>>, Error> {
        let target = self.target()?;
        let (next, count) = (AtomicUsize::new(0), attentions.len());
        let cores = thread::available_parallelism().map_or(1, NonZero::get);
        let mut plans: Vec<Option<Result<Resolution, Error>>> = (0..count).map(|_| None).collect();
        thread::scope(|scope| {
            let (say, hear) = mpsc::channel();
            for _ in 0..cores.min(count) {
                let (say, next) = (say.clone(), &next);
                scope.spawn(move || {
                    while let Some((at, attention)) =
                        Some(next.fetch_add(1, Relaxed)).and_then(|at| Some((at, attentions.get(at)?)))
                    {
                        let plan = self.inner.offline.warm(attention, target);
                        // The other end is gone where `told` panicked.
                        if say.send(Warmed { at, plan }).is_err() {
                            break;
                        }
                    }
                });
            }
            drop(say);
            for (done, warmed) in hear.into_iter().enumerate() {
                told(&warmed, done + 1);
                let Warmed { at, plan } = warmed;
                plans[at] = Some(plan);
            }
        });
        Ok(plans.into_iter().flatten().collect())
    }
}
