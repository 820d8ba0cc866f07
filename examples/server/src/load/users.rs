//! Users at once: each asks for an answer, reads it, and asks for the next.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::client::{Answer, Client};
use crate::Failure;
use crate::weights::mix;

/// Random numbers of a user.
pub(super) struct Random(u32);

impl Random {
    pub(super) fn new(seed: u32, user: usize) -> Random {
        Random(mix(seed ^ mix(user as u32 + 1)))
    }

    /// A number from `low` to `high`.
    pub(super) fn within(&mut self, low: usize, high: usize) -> usize {
        self.0 = mix(self.0.wrapping_add(0x9e37_79b9));
        low + self.0 as usize % (high - low + 1)
    }

    /// A prompt of random tokens.
    pub(super) fn prompt(&mut self, length: usize, vocab: usize) -> Vec<u32> {
        (0..length).map(|_| self.within(0, vocab - 1) as u32).collect()
    }
}

/// A prompt with its whole answer.
pub(super) type Told = (Vec<u32>, Vec<u32>);

/// Sizes of requests.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sizes {
    pub(super) prompt: (usize, usize),
    pub(super) answer: (usize, usize),
    pub(super) vocab: usize,
}

/// What users saw between the start and the end of a measurement.
#[derive(Debug, Default)]
pub(super) struct Seen {
    pub(super) tokens: u64,
    pub(super) seconds: f64,
    /// Times to the first token, in milliseconds, sorted.
    pub(super) first_ms: Vec<f64>,
    pub(super) answers: Vec<Told>,
    pub(super) refused: usize,
}

impl Seen {
    /// A quantile of the times to the first token.
    pub(super) fn first(&self, share: f64) -> f64 {
        let at = (self.first_ms.len() as f64 * share) as usize;
        self.first_ms.get(at.min(self.first_ms.len().saturating_sub(1))).copied().unwrap_or(f64::NAN)
    }
}

/// Runs users for `before` and then `during`, of which the second is measured; then `after` is called while they go on.
pub(super) fn run(
    base: &str,
    (users, seed): (usize, u32),
    sizes: Sizes,
    (before, during): (Duration, Duration),
    after: impl FnOnce() -> Result<(), Failure>,
) -> Result<Seen, Failure> {
    let (tokens, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    let seen: Mutex<Vec<(Instant, Answer, Vec<u32>)>> = Mutex::default();
    let failed: Mutex<Option<Failure>> = Mutex::default();
    let user = |number: usize| -> Result<(), Failure> {
        let (client, mut random) = (Client::new(base), Random::new(seed, number));
        while !stop.load(Relaxed) {
            let length = random.within(sizes.prompt.0, sizes.prompt.1);
            let (prompt, max_new) = (random.prompt(length, sizes.vocab), random.within(sizes.answer.0, sizes.answer.1));
            let asked = Instant::now();
            let answer = client.stream((&prompt, max_new), usize::MAX, || {
                tokens.fetch_add(1, Relaxed);
            })?;
            seen.lock().unwrap_or_else(PoisonError::into_inner).push((asked, answer, prompt));
        }
        Ok(())
    };
    let (from, to, measured, result) = std::thread::scope(|scope| {
        for number in 0..users {
            let (user, failed, stop) = (&user, &failed, &stop);
            scope.spawn(move || {
                if let Err(error) = user(number) {
                    stop.store(true, Relaxed);
                    failed.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
                }
            });
        }
        std::thread::sleep(before);
        let (from, first) = (Instant::now(), tokens.load(Relaxed));
        std::thread::sleep(during);
        let (to, last) = (Instant::now(), tokens.load(Relaxed));
        let result = after();
        stop.store(true, Relaxed);
        (from, to, last - first, result)
    });
    result?;
    if let Some(error) = failed.into_inner().unwrap_or_else(PoisonError::into_inner) {
        return Err(error);
    }
    let mut out = Seen { tokens: measured, seconds: (to - from).as_secs_f64(), ..Seen::default() };
    for (asked, answer, prompt) in seen.into_inner().unwrap_or_else(PoisonError::into_inner) {
        if answer.status != 200 {
            out.refused += 1;
            continue;
        }
        // A user who asks once in a measurement counts too, so the first answers count where there are no others.
        if asked >= from && asked < to {
            out.first_ms.push(answer.first.as_secs_f64() * 1e3);
        }
        if answer.done {
            out.answers.push((prompt, answer.tokens));
        }
    }
    out.first_ms.sort_by(f64::total_cmp);
    Ok(out)
}
