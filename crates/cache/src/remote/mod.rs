//! Remote stores: entries that other hosts have built, fetched on a miss, and sent after a build.
//!
//! A look-up tries the remote after the local folders and before a build. The remote can only help: each request has a
//! deadline, after a failure there are no requests for a while, and what it sends passes the same checks as a file (and
//! of a seal, with a key). A thread of its own sends what this process builds.

mod address;
mod breaker;
mod folder;
#[cfg(feature = "http")]
mod http;
mod link;
mod locate;
#[cfg(feature = "object-store")]
mod objects;
mod upload;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

pub use address::{Address, without_secrets};
pub use folder::FolderRemote;
#[cfg(feature = "http")]
pub use http::{BadLocation, HttpRemote};
pub(crate) use link::{Fetched, Link};
pub(crate) use locate::locate;
#[cfg(feature = "object-store")]
pub use objects::{ObjectStoreError, ObjectStoreRemote};
pub(crate) use upload::Uploader;

use crate::format::{HASH_LEN, MAX_HEADER, MAX_PAYLOAD};
use crate::paths::STORE_FORMAT;
use crate::{Key, SealKey};

/// Most bytes that the vault accepts from a remote for one entry: the longest entry and a seal.
pub const MAX_REMOTE_BYTES: u64 = MAX_HEADER as u64 + MAX_PAYLOAD + HASH_LEN as u64;

/// A store of entry files under keys on another host or in another folder.
///
/// An implementation need not check the bytes. It should keep to the time that it is given, but the vault does not
/// depend on that.
pub trait Remote: Send + Sync + 'static {
    /// The address of the store, for logs and errors. The vault leaves out what may be secret ([`Address`]).
    fn location(&self) -> String;

    /// Fetches the bytes stored under a key, at most [`MAX_REMOTE_BYTES`]; `None` if there are none.
    ///
    /// # Errors
    ///
    /// [`RemoteError`] if the store does not answer, or not within the time.
    fn fetch(&self, key: &Key, within: Duration) -> Result<Option<Vec<u8>>, RemoteError>;

    /// Fetches the bytes stored under each of these keys, in about the time of one [`fetch`](Remote::fetch).
    ///
    /// The default implementation runs `fetch` for at most 32 keys at a time in threads. Implement it if the store has
    /// a request for many keys.
    fn fetch_many(&self, keys: &[Key], within: Duration) -> Vec<Result<Option<Vec<u8>>, RemoteError>> {
        side_by_side(keys, |key| self.fetch(key, within))
    }

    /// Stores bytes under a key, so that readers see all of them or none.
    ///
    /// # Errors
    ///
    /// [`RemoteError`] if the store does not accept the bytes, or not within the time.
    fn store(&self, key: &Key, bytes: &[u8], within: Duration) -> Result<(), RemoteError>;
}

/// Most keys that [`Remote::fetch_many`] fetches at a time.
const SIDE_BY_SIDE: usize = 32;

/// Calls `ask` for every key, each in a thread of its own, and returns the answers in the order of the keys.
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

/// Why a remote did not answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RemoteError {
    /// The remote did not answer in time.
    #[error("no answer within {} ms", within.as_millis())]
    Timeout {
        /// The time that it had.
        within: Duration,
    },
    /// The remote cannot be reached, or the connection broke.
    #[error("it cannot be reached: {}", without_secrets(detail))]
    Unreachable {
        /// The error of the operating system or the client.
        detail: String,
    },
    /// The remote answered with an error status.
    #[error("it answered with status {status}; {}", status_advice(*status))]
    Refused {
        /// The HTTP status.
        status: u16,
    },
    /// The remote holds more bytes under a key than an entry has.
    #[error("it has more than {limit} bytes under one key, which is more than an entry has")]
    TooLarge {
        /// The limit.
        limit: u64,
    },
    /// Others can write where the remote keeps its entries.
    #[error("it is not trusted: {detail}")]
    Untrusted {
        /// Who can write there.
        detail: String,
    },
}

fn status_advice(status: u16) -> &'static str {
    match status {
        401 | 403 => "check the token (QKVAULT_REMOTE_TOKEN) and what it may do",
        405 | 501 => "it accepts no entries: turn uploads off",
        300..=399 => "it redirects, and redirects are not followed: give the address that it redirects to",
        413 | 507 => "it has no room for the entry",
        _ => "check the server's log",
    }
}

/// Options of a remote.
#[derive(Clone)]
pub struct RemoteOptions {
    /// The store.
    pub remote: Arc<dyn Remote>,
    /// Longest time that one look-up waits for the store. Default: one second.
    pub deadline: Duration,
    /// Time without requests after a failure or a missed deadline. Default: 30 seconds.
    pub retry_after: Duration,
    /// Whether the vault sends built entries to the store. Default: yes.
    pub upload: bool,
    /// Key of the seal. With a key, the vault seals the entries that it sends and rejects entries without the seal, so
    /// that no one without the key can plant a plan in the store. Default: none.
    pub seal: Option<SealKey>,
}

impl RemoteOptions {
    /// Options for a remote, with the default of each field.
    #[must_use]
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
            .field("remote", &Address::new(remote.location()))
            .field("deadline", deadline)
            .field("retry_after", retry_after)
            .field("upload", upload)
            .field("sealed", &seal.is_some())
            .finish()
    }
}

/// The name of a key's object below the root of a remote, the same for every kind of remote.
#[must_use]
pub fn remote_name(key: &Key) -> String {
    let name = key.to_string();
    format!("v{STORE_FORMAT}/{}/{name}.qkv", &name[..2])
}
