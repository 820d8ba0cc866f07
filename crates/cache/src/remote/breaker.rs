//! A circuit breaker: after a failure no requests are sent for a while, so that a dead remote costs one deadline and
//! not one per look-up.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The state of a circuit breaker.
#[derive(Debug)]
pub(crate) struct Breaker {
    retry_after: Duration,
    closed_until: Mutex<Option<Instant>>,
}

impl Breaker {
    pub(crate) fn new(retry_after: Duration) -> Self {
        Breaker { retry_after, closed_until: Mutex::new(None) }
    }

    /// Whether a request may be sent now. After the pause one request may, and others wait for another pause unless it
    /// succeeds.
    pub(crate) fn allows(&self) -> bool {
        let mut until = self.closed_until.lock().unwrap_or_else(PoisonError::into_inner);
        match *until {
            None => true,
            Some(time) if Instant::now() < time => false,
            Some(_) => {
                *until = Some(Instant::now() + self.retry_after);
                true
            }
        }
    }

    /// Records a failure. Returns whether it is the first one since the last success.
    pub(crate) fn trip(&self) -> bool {
        let mut until = self.closed_until.lock().unwrap_or_else(PoisonError::into_inner);
        let news = until.is_none();
        *until = Some(Instant::now() + self.retry_after);
        news
    }

    /// Records a success.
    pub(crate) fn reset(&self) {
        *self.closed_until.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_try_after_the_pause() {
        let breaker = Breaker::new(Duration::from_millis(30));
        assert!(breaker.allows() && breaker.allows());
        assert!(breaker.trip());
        assert!(!breaker.trip(), "the second failure is no news");
        assert!(!breaker.allows());
        std::thread::sleep(Duration::from_millis(40));
        assert!(breaker.allows());
        assert!(!breaker.allows(), "one at a time until it has answered");
        breaker.reset();
        assert!(breaker.allows() && breaker.allows());
    }
}
