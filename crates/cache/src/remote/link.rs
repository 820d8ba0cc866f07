//! The vault's side of a remote: deadline, circuit breaker, seal.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use super::breaker::Breaker;
use super::{Address, RemoteError, RemoteOptions};
use crate::format::{HASH_LEN, decode};
use crate::stats::count;
use crate::{Entry, EntryKind, Key, Rejection};

/// A remote in use.
pub(crate) struct Link {
    pub(crate) options: RemoteOptions,
    breaker: Breaker,
    asking: AtomicUsize,
    /// The last failure, to be told.
    trouble: Mutex<Option<RemoteError>>,
    pub(crate) misses: AtomicU64,
    pub(crate) failures: AtomicU64,
    pub(crate) skipped: AtomicU64,
}

/// The answer of a remote for a key.
type RemoteAnswer = Result<Option<Vec<u8>>, RemoteError>;

/// The checked answer for a key.
pub(crate) enum Fetched {
    Hit(Entry),
    Bad(Rejection),
    Nothing,
}

/// Most requests under way at once. A remote that never answers occupies at most this many threads.
const ASKING: usize = 16;

impl Link {
    pub(crate) fn new(options: RemoteOptions) -> Self {
        Link {
            breaker: Breaker::new(options.retry_after),
            options,
            asking: AtomicUsize::new(0),
            trouble: Mutex::default(),
            misses: AtomicU64::new(0),
            failures: AtomicU64::new(0),
            skipped: AtomicU64::new(0),
        }
    }

    /// The address of the remote, which prints without what may be secret.
    pub(crate) fn location(&self) -> Address {
        Address::new(self.options.remote.location())
    }

    /// Keeps a failure, to be told.
    pub(crate) fn note_trouble(&self, error: &RemoteError) {
        *self.trouble.lock().unwrap_or_else(PoisonError::into_inner) = Some(error.clone());
    }

    /// The last failure.
    pub(crate) fn trouble(&self) -> Option<RemoteError> {
        self.trouble.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Fetches keys and returns within the deadline whatever the remote does: an answer for each, in their order.
    pub(crate) fn fetch(self: &Arc<Self>, keys: &[Key]) -> Vec<Fetched> {
        let nothing = || keys.iter().map(|_| Fetched::Nothing).collect();
        if !self.breaker.allows() || self.asking.load(Relaxed) >= ASKING {
            count(&self.skipped);
            return nothing();
        }
        match self.ask(keys.to_vec()) {
            Ok(answers) => {
                // A remote that answers for some keys is reachable, so only a failure for all trips the breaker.
                if answers.iter().all(Result::is_err) {
                    self.failed(answers.into_iter().find_map(Result::err));
                    return nothing();
                }
                self.breaker.reset();
                keys.iter().zip(answers).map(|(key, answer)| self.answer(key, answer)).collect()
            }
            Err(error) => {
                self.failed(Some(error));
                nothing()
            }
        }
    }

    fn answer(&self, key: &Key, answer: RemoteAnswer) -> Fetched {
        match answer {
            Ok(None) => {
                count(&self.misses);
                Fetched::Nothing
            }
            Ok(Some(bytes)) => match self.open(key, &bytes) {
                Ok(entry) => Fetched::Hit(entry),
                Err(rejection) => Fetched::Bad(rejection),
            },
            Err(error) => {
                count(&self.failures);
                self.note_trouble(&error);
                let location = self.location();
                tracing::debug!(%location, %key, %error, "the remote store did not answer for a key");
                Fetched::Nothing
            }
        }
    }

    fn failed(&self, error: Option<RemoteError>) {
        let Some(error) = error else { return };
        count(&self.failures);
        self.note_trouble(&error);
        let location = self.location();
        let pause_s = self.options.retry_after.as_secs_f32();
        if self.breaker.trip() {
            tracing::warn!(%location, %error, pause_s, "the remote store does not answer: no requests for a while");
        } else {
            tracing::debug!(%location, %error, "the remote store still does not answer");
        }
    }

    /// Fetches in a thread of its own, because not every wait has a deadline (a folder on a dead mount has none).
    fn ask(self: &Arc<Self>, keys: Vec<Key>) -> Result<Vec<RemoteAnswer>, RemoteError> {
        let within = self.options.deadline;
        let (sender, receiver) = sync_channel(1);
        let link = Arc::clone(self);
        self.asking.fetch_add(1, Relaxed);
        let ask = move || {
            let _asking = Asking(&link.asking);
            let remote = &link.options.remote;
            let answers = match &keys[..] {
                [key] => vec![remote.fetch(key, within)],
                keys => remote.fetch_many(keys, within),
            };
            // The receiver is gone after the deadline.
            let _ = sender.send(answers);
        };
        let spawned = thread::Builder::new().name("qkvault-fetch".to_owned()).spawn(ask);
        if let Err(error) = spawned {
            self.asking.fetch_sub(1, Relaxed);
            return Err(RemoteError::Unreachable { detail: format!("no thread to ask it: {error}") });
        }
        match receiver.recv_timeout(within) {
            Ok(answers) => Ok(answers),
            Err(RecvTimeoutError::Timeout) => Err(RemoteError::Timeout { within }),
            Err(RecvTimeoutError::Disconnected) => {
                Err(RemoteError::Unreachable { detail: "asking it panicked".to_owned() })
            }
        }
    }

    /// Checks what the remote sent: the seal, if there is a key, then the entry.
    fn open(&self, key: &Key, bytes: &[u8]) -> Result<Entry, Rejection> {
        let bytes = match &self.options.seal {
            None => bytes,
            Some(seal) => match bytes.split_last_chunk::<HASH_LEN>() {
                // A comparison with a blake3 hash takes constant time.
                Some((entry, found)) if seal.seal(entry) == *found => entry,
                _ => return Err(Rejection::Seal),
            },
        };
        decode(bytes, Some(key)).map(|(_, entry)| entry)
    }

    /// Whether the remote has a good plan under a key. Waits for it, so look-ups do not ask this.
    pub(crate) fn has_plan(&self, key: &Key, within: Duration) -> bool {
        let Ok(Some(bytes)) = self.options.remote.fetch(key, within) else { return false };
        self.open(key, &bytes).is_ok_and(|entry| entry.kind == EntryKind::Plan)
    }

    /// Appends the seal, if there is a key.
    pub(crate) fn seal(&self, mut bytes: Vec<u8>) -> Vec<u8> {
        if let Some(seal) = &self.options.seal {
            let seal = seal.seal(&bytes);
            bytes.extend_from_slice(seal.as_bytes());
        }
        bytes
    }
}

/// Counts down a request when it ends, by a panic too.
struct Asking<'a>(&'a AtomicUsize);

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}
