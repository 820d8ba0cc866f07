//! Sending built entries to a remote in a thread of its own, so that no build waits for it.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::Link;
use super::breaker::Breaker;
use crate::format::{Codec, encode};
use crate::stats::count;
use crate::{Entry, EntryKind, Key};

/// The queue to a remote.
pub(crate) struct Uploader {
    queue: Mutex<Option<SyncSender<UploadJob>>>,
    shared: Arc<UploadQueue>,
}

struct UploadQueue {
    link: Arc<Link>,
    breaker: Breaker,
    pending: Mutex<usize>,
    idle: Condvar,
    counts: UploadCounts,
}

/// Counters of an uploader.
#[derive(Default)]
pub(crate) struct UploadCounts {
    pub(crate) sent: AtomicU64,
    pub(crate) failed: AtomicU64,
    pub(crate) dropped: AtomicU64,
}

type UploadJob = (Key, Arc<Entry>);

/// Most entries that wait. Further ones are dropped and counted, because a build must not wait for a remote.
const QUEUE: usize = 1024;

/// The time for one entry. It delays no look-up.
const WITHIN: Duration = Duration::from_secs(30);

impl Uploader {
    pub(crate) fn new(link: Arc<Link>) -> Self {
        let breaker = Breaker::new(link.options.retry_after);
        let shared = UploadQueue {
            link,
            breaker,
            pending: Mutex::new(0),
            idle: Condvar::new(),
            counts: UploadCounts::default(),
        };
        Uploader { queue: Mutex::new(None), shared: Arc::new(shared) }
    }

    pub(crate) fn counts(&self) -> [u64; 3] {
        let UploadCounts { sent, failed, dropped } = &self.shared.counts;
        [sent, failed, dropped].map(|counter| counter.load(Relaxed))
    }

    /// Queues an entry; returns at once.
    pub(crate) fn send(&self, key: Key, entry: Arc<Entry>) {
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        let sender = match &*queue {
            Some(sender) => sender,
            None => {
                let (sender, receiver) = sync_channel(QUEUE);
                let shared = Arc::clone(&self.shared);
                let thread = thread::Builder::new().name("qkvault-upload".to_owned());
                if let Err(error) = thread.spawn(move || shared.run(&receiver)) {
                    tracing::warn!(%error, "no thread to send entries to the remote store");
                    return count(&self.shared.counts.dropped);
                }
                queue.insert(sender)
            }
        };
        self.shared.change_pending(1);
        if sender.try_send((key, entry)).is_err() {
            self.shared.change_pending(-1);
            count(&self.shared.counts.dropped);
            tracing::debug!(%key, "too many entries wait for the remote store: this one is not sent");
        }
    }

    /// Waits until all queued entries were sent or given up; false if that takes longer than `within`.
    pub(crate) fn flush(&self, within: Duration) -> bool {
        let end = Instant::now() + within;
        let mut pending = self.shared.pending.lock().unwrap_or_else(PoisonError::into_inner);
        while *pending > 0 {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            let waited = self.shared.idle.wait_timeout(pending, left);
            pending = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }
}

impl UploadQueue {
    /// Sends entries until the vault is dropped and the queue is empty.
    fn run(&self, queue: &Receiver<UploadJob>) {
        while let Ok((key, entry)) = queue.recv() {
            let _done = Done(self);
            if !self.breaker.allows() {
                count(&self.counts.dropped);
                continue;
            }
            // The folder could not store such an entry either, and the vault has logged that.
            let Ok(bytes) = encode(&key, &entry, Codec::Zstd) else {
                count(&self.counts.failed);
                continue;
            };
            let remote = &self.link.options.remote;
            // A refusal that was built because the remote did not answer in time must not hide its plan from others.
            if entry.kind != EntryKind::Plan && self.link.has_plan(&key, WITHIN) {
                tracing::debug!(%key, kind = %entry.kind, "the remote store has a plan under this key, which stays");
                continue;
            }
            match remote.store(&key, &self.link.seal(bytes), WITHIN) {
                Ok(()) => {
                    self.breaker.reset();
                    count(&self.counts.sent);
                }
                Err(error) => {
                    count(&self.counts.failed);
                    self.link.note_trouble(&error);
                    let location = self.link.location();
                    match self.breaker.trip() {
                        true => tracing::warn!(%location, %error, "the remote store takes no entries"),
                        false => tracing::debug!(%location, %error, "the remote store still takes no entries"),
                    }
                }
            }
        }
    }

    fn change_pending(&self, by: isize) {
        let mut pending = self.pending.lock().unwrap_or_else(PoisonError::into_inner);
        *pending = pending.saturating_add_signed(by);
        if *pending == 0 {
            self.idle.notify_all();
        }
    }
}

/// Counts one entry as done, also when the remote panics.
struct Done<'a>(&'a UploadQueue);

impl Drop for Done<'_> {
    fn drop(&mut self) {
        self.0.change_pending(-1);
    }
}
