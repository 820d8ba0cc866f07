//! Users at once: each asks for an answer, reads it, and asks for the next.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde::Serialize;

use super::client::{LoadAnswer, LoadClient};
use crate::ServerError;
use crate::request::Summary;
use crate::weights::mix;

/// Random numbers of a user.
pub(super) struct UserRandom(u32);

impl UserRandom {
    pub(super) fn new(seed: u32, user: usize) -> UserRandom {
        UserRandom(mix(seed ^ mix(user as u32 + 1)))
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
#[derive(Clone, Debug, Serialize)]
pub(super) struct Answered {
    pub(super) prompt: Vec<u32>,
    pub(super) answer: Vec<u32>,
    /// How often the sequence lost its pages.
    pub(super) preempted: usize,
}

/// Sizes of requests.
#[derive(Clone, Copy, Debug)]
pub(super) struct RequestSizes {
    pub(super) prompt: (usize, usize),
    pub(super) answer: (usize, usize),
    pub(super) vocab: usize,
}

/// What users saw between the start and the end of a measurement.
#[derive(Debug, Default)]
pub(super) struct UsersSeen {
    pub(super) tokens: u64,
    pub(super) seconds: f64,
    /// Times to the first token, in milliseconds, sorted.
    pub(super) first_ms: Vec<f64>,
    pub(super) answers: Vec<Answered>,
    pub(super) refused: usize,
}

impl UsersSeen {
    /// A quantile of the times to the first token.
    pub(super) fn first(&self, share: f64) -> f64 {
        let at = (self.first_ms.len() as f64 * share) as usize;
        self.first_ms.get(at.min(self.first_ms.len().saturating_sub(1))).copied().unwrap_or(f64::NAN)
    }
}

/// Runs users for `before` and then `during`, of which the second is measured.
pub(super) fn run(
    base: &str,
    (users, seed): (usize, u32),
    sizes: RequestSizes,
    (before, during): (Duration, Duration),
) -> Result<UsersSeen, ServerError> {
    let (tokens, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    let seen: Mutex<Vec<(Instant, LoadAnswer, Vec<u32>)>> = Mutex::default();
    let failed: Mutex<Option<ServerError>> = Mutex::default();
    let user = |number: usize| -> Result<(), ServerError> {
        let (client, mut random) = (LoadClient::new(base), UserRandom::new(seed, number));
        while !stop.load(Relaxed) {
            let length = random.within(sizes.prompt.0, sizes.prompt.1);
            let (prompt, max_new) = (random.prompt(length, sizes.vocab), random.within(sizes.answer.0, sizes.answer.1));
            let asked = Instant::now();
            let answer = client.stream((&prompt, max_new), || {
                tokens.fetch_add(1, Relaxed);
            })?;
            seen.lock().unwrap_or_else(PoisonError::into_inner).push((asked, answer, prompt));
        }
        Ok(())
    };
    let (from, to, measured) = std::thread::scope(|scope| {
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
        stop.store(true, Relaxed);
        (from, to, last - first)
    });
    if let Some(error) = failed.into_inner().unwrap_or_else(PoisonError::into_inner) {
        return Err(error);
    }
    let mut out = UsersSeen { tokens: measured, seconds: (to - from).as_secs_f64(), ..UsersSeen::default() };
    for (asked, answer, prompt) in seen.into_inner().unwrap_or_else(PoisonError::into_inner) {
        if answer.status != 200 {
            out.refused += 1;
            continue;
        }
        // A user who asks once in a measurement counts too, so the first answers count where there are no others.
        if asked >= from && asked < to {
            out.first_ms.push(answer.first.as_secs_f64() * 1e3);
        }
        if let Some(Summary { preempted, .. }) = answer.done {
            out.answers.push(Answered { prompt, answer: answer.tokens, preempted });
        }
    }
    out.first_ms.sort_by(f64::total_cmp);
    Ok(out)
}
