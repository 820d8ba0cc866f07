//! Counters of everything that a vault does, cheap enough for hits in memory.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

use crate::{Rejection, RejectionCause};

/// A snapshot of the counters of one open vault, which start at zero when it is opened, and of what its memory holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Hits in memory.
    pub hits_memory: u64,
    /// Hits in the vault's own folder.
    pub hits_disk: u64,
    /// Hits in a read-only layer.
    pub hits_layer: u64,
    /// Hits in the remote store.
    pub hits_remote: u64,
    /// Hits that came from the build or look-up of another thread.
    pub hits_waited: u64,
    /// Look-ups that found nothing.
    pub misses: u64,
    /// Refusals that were ignored because another library version wrote them.
    pub refusals_expired: u64,
    /// Builds started.
    pub builds: u64,
    /// Builds that failed or panicked.
    pub build_failures: u64,
    /// Entries written to the folder.
    pub stores: u64,
    /// Entries that could not be written.
    pub store_failures: u64,
    /// Bytes of entry files read.
    pub bytes_read: u64,
    /// Bytes of entry files written.
    pub bytes_written: u64,
    /// Rejected entries by cause; only causes that happened are listed.
    pub rejections: Vec<(RejectionCause, u64)>,
    /// Entries moved to the quarantine folder.
    pub quarantined: u64,
    /// Entries dropped from memory to keep its bounds.
    pub evicted_memory: u64,
    /// Entries deleted from the folder to keep its limits.
    pub evicted_disk: u64,
    /// Bytes of the entries deleted from the folder.
    pub evicted_disk_bytes: u64,
    /// Builds that started without the lock of their key.
    pub locks_unavailable: u64,
    /// Requests that the remote store answered with "none".
    pub remote_misses: u64,
    /// Requests to the remote store that failed or missed their deadline.
    pub remote_failures: u64,
    /// Requests that were not sent, because the remote store failed shortly before or too many were under way.
    pub remote_skipped: u64,
    /// Entries sent to the remote store.
    pub uploads: u64,
    /// Entries that the remote store did not accept.
    pub upload_failures: u64,
    /// Entries that were not sent, because the remote store failed shortly before or too many waited.
    pub uploads_dropped: u64,
    /// Entries in memory now.
    pub memory_entries: u64,
    /// Bytes in memory now.
    pub memory_bytes: u64,
}

impl Stats {
    /// The number of rejections of all causes.
    #[must_use]
    pub fn rejected(&self) -> u64 {
        self.rejections.iter().map(|(_, count)| count).sum()
    }

    /// The number of hits of all kinds.
    #[must_use]
    pub fn hits(&self) -> u64 {
        self.hits_memory + self.hits_disk + self.hits_layer + self.hits_remote + self.hits_waited
    }
}

/// The live counters behind [`Stats`].
#[derive(Default)]
pub(crate) struct Counters {
    pub(crate) hits_memory: Spread,
    pub(crate) hits_disk: AtomicU64,
    pub(crate) hits_layer: AtomicU64,
    pub(crate) hits_remote: AtomicU64,
    pub(crate) hits_waited: AtomicU64,
    pub(crate) misses: AtomicU64,
    pub(crate) refusals_expired: AtomicU64,
    pub(crate) builds: AtomicU64,
    pub(crate) build_failures: AtomicU64,
    pub(crate) stores: AtomicU64,
    pub(crate) store_failures: AtomicU64,
    pub(crate) bytes_read: AtomicU64,
    pub(crate) bytes_written: AtomicU64,
    pub(crate) rejections: [AtomicU64; RejectionCause::ALL.len()],
    pub(crate) quarantined: AtomicU64,
    pub(crate) evicted_memory: AtomicU64,
    pub(crate) evicted_disk: AtomicU64,
    pub(crate) evicted_disk_bytes: AtomicU64,
    pub(crate) locks_unavailable: AtomicU64,
}

impl Counters {
    pub(crate) fn count_rejection(&self, rejection: &Rejection) {
        count(&self.rejections[rejection.cause() as usize]);
    }

    pub(crate) fn snapshot(&self, memory_entries: u64, memory_bytes: u64) -> Stats {
        let Counters {
            hits_memory,
            hits_disk,
            hits_layer,
            hits_remote,
            hits_waited,
            misses,
            refusals_expired,
            builds,
            build_failures,
            stores,
            store_failures,
            bytes_read,
            bytes_written,
            rejections,
            quarantined,
            evicted_memory,
            evicted_disk,
            evicted_disk_bytes,
            locks_unavailable,
        } = self;
        let rejections = RejectionCause::ALL
            .into_iter()
            .map(|cause| (cause, rejections[cause as usize].load(Relaxed)))
            .filter(|(_, count)| *count != 0)
            .collect();
        Stats {
            hits_memory: hits_memory.load(),
            hits_disk: hits_disk.load(Relaxed),
            hits_layer: hits_layer.load(Relaxed),
            hits_remote: hits_remote.load(Relaxed),
            hits_waited: hits_waited.load(Relaxed),
            misses: misses.load(Relaxed),
            refusals_expired: refusals_expired.load(Relaxed),
            builds: builds.load(Relaxed),
            build_failures: build_failures.load(Relaxed),
            stores: stores.load(Relaxed),
            store_failures: store_failures.load(Relaxed),
            bytes_read: bytes_read.load(Relaxed),
            bytes_written: bytes_written.load(Relaxed),
            rejections,
            quarantined: quarantined.load(Relaxed),
            evicted_memory: evicted_memory.load(Relaxed),
            evicted_disk: evicted_disk.load(Relaxed),
            evicted_disk_bytes: evicted_disk_bytes.load(Relaxed),
            locks_unavailable: locks_unavailable.load(Relaxed),
            memory_entries,
            memory_bytes,
            // The vault adds what memory and remote count.
            ..Stats::default()
        }
    }
}

pub(crate) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Relaxed);
}

pub(crate) fn add(counter: &AtomicU64, amount: u64) {
    counter.fetch_add(amount, Relaxed);
}

/// A counter spread over cache lines, so that threads that count at the same time do not share one.
#[derive(Default)]
pub(crate) struct Spread([CounterLine; 16]);

#[derive(Default)]
#[repr(align(128))]
struct CounterLine(AtomicU64);

impl Spread {
    pub(crate) fn count(&self) {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        thread_local! {
            static MINE: usize = NEXT.fetch_add(1, Relaxed);
        }
        let mine = MINE.with(|mine| *mine);
        self.0[mine % self.0.len()].0.fetch_add(1, Relaxed);
    }

    pub(crate) fn load(&self) -> u64 {
        self.0.iter().map(|line| line.0.load(Relaxed)).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spread_counter_loses_nothing() {
        let spread = Spread::default();
        std::thread::scope(|scope| {
            for _ in 0..20 {
                scope.spawn(|| (0..1000).for_each(|_| spread.count()));
            }
        });
        assert_eq!(spread.load(), 20_000);
    }
}
