//! Remote stores: entries that other hosts have built, fetched on a miss, and given back after a build.
//!
//! A remote is asked after every local place and before building. It can only help: each question has a deadline, after
//! a failure it is left alone for a while, and what it sends passes the same checks as a file (and a seal, if a key is
//! set). What is built here is sent to it by a thread of its own.

mod breaker;
mod folder;
#[cfg(feature = "http")]
mod http;
mod link;
mod locate;
mod upload;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

pub use folder::FolderRemote;
#[cfg(feature = "http")]
pub use http::{BadLocation, HttpRemote};
pub(crate) use link::{Fetched, Link};
pub(crate) use locate::locate;
pub(crate) use upload::Uploader;

use crate::format::{HASH_LEN, MAX_HEADER, MAX_PAYLOAD};
use crate::paths::STORE_FORMAT;
use crate::{Key, SealKey};

/// Most bytes that are taken from a remote for one entry: the longest entry and a seal.
pub const MAX_REMOTE_BYTES: u64 = MAX_HEADER as u64 + MAX_PAYLOAD + HASH_LEN as u64;

/// A store of entry files under keys, somewhere else. Implementations need no checks of what they carry, and should keep
/// to the time they are given; the vault does not depend on it.
pub trait Remote: Send + Sync + 'static {
    /// Where it is, for logs; without secrets.
    fn location(&self) -> String;

    /// The bytes stored under a key, at most [`MAX_REMOTE_BYTES`]; `None` if there are none.
    fn fetch(&self, key: &Key, within: Duration) -> Result<Option<Vec<u8>>, RemoteError>;

    /// The bytes stored under each of these keys, as [`fetch`](Remote::fetch) gives them, in about the time of one.
    ///
    /// By default all are fetched side by side, at most 32 at a time. A remote that can be asked for many in one
    /// request does better.
    fn fetch_many(&self, keys: &[Key], within: Duration) -> Vec<Result<Option<Vec<u8>>, RemoteError>> {
        side_by_side(keys, |key| self.fetch(key, within))
    }

    /// Stores bytes under a key, so that readers see all of them or none.
    fn store(&self, key: &Key, bytes: &[u8], within: Duration) -> Result<(), RemoteError>;
}

/// Most keys that [`Remote::fetch_many`] fetches at a time: more than a machine has targets whose plans it loads.
const SIDE_BY_SIDE: usize = 32;

/// Asks for every key, each in a thread of its own, and gives the answers in the order of the keys.
fn side_by_side<T: Send>(
    keys: &[Key],
    ask: impl Fn(&Key) -> Result<T, RemoteError> + Sync,
) -> Vec<Result<T, RemoteError>> {
    let ask = &ask;
    let mut answers = Vec::with_capacity(keys.len());
    for some in keys.chunks(SIDE_BY_SIDE) {
        std::thread::scope(|scope| {
            let threads: Vec<_> = some.iter().map(|key| scope.spawn(move || ask(key))).collect();
            answers.extend(threads.into_iter().map(|thread| {
                let panicked = |_| Err(RemoteError::Unreachable { detail: "asking it panicked".to_owned() });
                thread.join().unwrap_or_else(panicked)
            }));
        });
    }
    answers
}

/// Why a remote could not answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RemoteError {
    /// No answer in time.
    #[error("no answer within {} ms", within.as_millis())]
    Timeout {
        /// The time it had.
        within: Duration,
    },
    /// It cannot be reached, or broke off.
    #[error("it cannot be reached: {detail}")]
    Unreachable {
        /// What the system said.
        detail: String,
    },
    /// It answered with a refusal.
    #[error("it answered with status {status}; {}", status_advice(*status))]
    Refused {
        /// The HTTP status.
        status: u16,
    },
    /// It sent or holds more than any entry has.
    #[error("it has more than {limit} bytes under one key, which is no entry")]
    TooLarge {
        /// The limit.
        limit: u64,
    },
    /// Others can write where it keeps its entries.
    #[error("it is not trusted: {detail}")]
    Untrusted {
        /// Who can write there.
        detail: String,
    },
}

fn status_advice(status: u16) -> &'static str {
    match status {
        401 | 403 => "check the token (QKVAULT_REMOTE_TOKEN) and what it may do",
        405 | 501 => "it does not take entries: use it to read only",
        300..=399 => "it redirects, which is not followed: give its real address",
        413 | 507 => "it has no room for the entry",
        _ => "check the server's log",
    }
}

/// How a remote is used.
#[derive(Clone)]
pub struct RemoteOptions {
    /// The store.
    pub remote: Arc<dyn Remote>,
    /// Longest time that one look-up waits for it. Default: one second.
    pub deadline: Duration,
    /// Time for which it is not asked again after a failure or a missed deadline. Default: 30 seconds.
    pub retry_after: Duration,
    /// Whether built entries are sent to it. Default: yes.
    pub upload: bool,
    /// With a key, entries are sealed when sent, and only sealed ones are taken: then whoever runs or reaches the remote
    /// cannot plant a plan. Default: none.
    pub seal: Option<SealKey>,
}

impl RemoteOptions {
    /// A remote with the defaults told at each field.
    pub fn new(remote: impl Remote) -> Self {
        RemoteOptions {
            remote: Arc::new(remote),
            deadline: Duration::from_secs(1),
            retry_after: Duration::from_secs(30),
            upload: true,
            seal: None,
        }
    }
}

impl fmt::Debug for RemoteOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let RemoteOptions { remote, deadline, retry_after, upload, seal } = self;
        f.debug_struct("RemoteOptions")
            .field("remote", &remote.location())
            .field("deadline", deadline)
            .field("retry_after", retry_after)
            .field("upload", upload)
            .field("sealed", &seal.is_some())
            .finish()
    }
}

/// The name of a key's object below the root of a remote, the same for every kind of remote.
pub fn remote_name(key: &Key) -> String {
    let name = key.to_string();
    format!("v{STORE_FORMAT}/{}/{name}.qkv", &name[..2])
}
