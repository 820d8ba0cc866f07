//! When a vault collects by itself: after many bytes were written, or once an hour over all processes.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

/// The state of one open vault's own collections.
#[derive(Debug, Default)]
pub(crate) struct AutoGc {
    written: AtomicU64,
    asked: AtomicBool,
    running: AtomicBool,
}

impl AutoGc {
    /// Counts bytes that were written, and returns whether a collection is due: after a thirty-second part of
    /// `max_bytes`, or at the first write of this process if `long_ago` finds that no process collected lately.
    pub(crate) fn is_due(&self, written: u64, max_bytes: Option<u64>, long_ago: impl FnOnce() -> bool) -> bool {
        let written = self.written.fetch_add(written, Relaxed) + written;
        let much = max_bytes.is_some_and(|max| written > max / 32);
        let first = !self.asked.swap(true, Relaxed);
        much || (first && long_ago())
    }

    /// Claims the next collection and starts counting bytes anew; false while a collection runs.
    pub(crate) fn begin(&self) -> bool {
        let free = !self.running.swap(true, Relaxed);
        if free {
            self.written.store(0, Relaxed);
        }
        free
    }

    /// Ends the claimed collection when it is dropped, by a panic too.
    pub(crate) fn running(&self) -> RunningGc<'_> {
        RunningGc(&self.running)
    }
}

/// A collection under way.
pub(crate) struct RunningGc<'a>(&'a AtomicBool);

impl Drop for RunningGc<'_> {
    fn drop(&mut self) {
        self.0.store(false, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_collection_is_due_after_many_bytes_or_when_none_was_made_lately() {
        let auto = AutoGc::default();
        assert!(!auto.is_due(1, Some(3200), || false), "the first write of a process asks");
        assert!(!auto.is_due(99, Some(3200), || true), "later ones do not");
        assert!(auto.is_due(1, Some(3200), || true));
        assert!(auto.begin() && !auto.begin(), "one at a time");
        assert!(!auto.is_due(1, Some(3200), || true), "the count starts anew");
        assert!(AutoGc::default().is_due(1, None, || true));
    }

    #[test]
    fn a_collection_that_panics_does_not_end_all_later_ones() {
        let auto = AutoGc::default();
        assert!(auto.begin());
        let died = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let _running = auto.running();
            std::panic::resume_unwind(Box::new("quietly"));
        }));
        assert!(died.is_err() && auto.begin());
    }
}
