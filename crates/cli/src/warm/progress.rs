//! How far `warm` is, and when it will be done: a bar on a terminal, a line for each plan elsewhere.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

use super::stopped;
use crate::out;

/// The progress of one run. Threads share it.
pub(super) struct Progress {
    bar: ProgressBar,
    count: Arc<Mutex<Count>>,
}

/// What is done.
pub(super) struct Count {
    pub(super) done: usize,
    pub(super) all: usize,
    /// When the first plan was compiled, and how many were done then. What was stored before takes no time, and a
    /// resumed run begins with much of it.
    from: Option<(Instant, usize)>,
    started: Instant,
}

impl Count {
    /// The time that the rest takes, if it takes as long as what was done since the first plan was compiled.
    fn left(&self, now: Instant) -> Option<Duration> {
        let (began, before) = self.from?;
        let done = self.done.checked_sub(before).filter(|done| *done > 0)?;
        let rest = (self.all - self.done) as f64 / done as f64;
        Some(now.saturating_duration_since(began).mul_f64(rest))
    }
}

impl Progress {
    pub(super) fn new(all: usize) -> Progress {
        let style = ProgressStyle::with_template("{bar:30} {pos}/{len} done, {elapsed} elapsed, {msg}");
        let bar = ProgressBar::new(all as u64);
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        let count = Arc::new(Mutex::new(Count { done: 0, all, from: None, started: Instant::now() }));
        stopped::tell(&count);
        Progress { bar, count }
    }

    /// One more is done; `what` was compiled, or nothing was.
    pub(super) fn done(&self, what: Option<&str>) {
        let mut count = self.count.lock().unwrap_or_else(PoisonError::into_inner);
        if what.is_some() && count.from.is_none() {
            // The time of the first one counts, that of the hits before it is too short to matter.
            count.from = Some((count.started, count.done));
        }
        count.done += 1;
        let left = count.left(Instant::now()).map(|left| format!("about {} left", spoken(left)));
        let (done, all) = (count.done, count.all);
        drop(count);
        if self.bar.is_hidden() {
            if let Some(what) = what {
                let left = left.filter(|_| done < all).map_or_else(String::new, |left| format!(", {left}"));
                out::note(&format!("built {what} ({done} of {all}{left})"));
            }
            return;
        }
        self.bar.set_message(left.unwrap_or_default());
        self.bar.inc(1);
    }

    pub(super) fn finish(&self) {
        self.bar.finish_and_clear();
    }
}

/// A time for people: `40 s`, `12 min`, `3 h 5 min`.
pub(super) fn spoken(time: Duration) -> String {
    let seconds = time.as_secs_f64().round() as u64;
    let minutes = (seconds + 30) / 60;
    match (seconds, minutes) {
        (0..=119, _) => format!("{seconds} s"),
        (_, 0..=119) => format!("{minutes} min"),
        _ => format!("{} h {} min", minutes / 60, minutes % 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_a_unit_that_fits() {
        for (seconds, text) in [(0, "0 s"), (119, "119 s"), (120, "2 min"), (7_140, "119 min"), (11_100, "3 h 5 min")] {
            assert_eq!(spoken(Duration::from_secs(seconds)), text);
        }
    }

    /// Once, plans that a first run had stored made the end of the second one look near.
    #[test]
    fn what_was_stored_before_does_not_bring_the_end_nearer() {
        let started = Instant::now();
        let now = started + Duration::from_secs(100);
        let count = |done, from| Count { done, all: 1000, from, started };
        assert_eq!(count(600, None).left(now), None, "nothing was compiled yet");
        assert_eq!(count(600, Some((started, 500))).left(now), Some(Duration::from_secs(400)));
        assert_eq!(count(1000, Some((started, 500))).left(now), Some(Duration::ZERO));
    }
}
