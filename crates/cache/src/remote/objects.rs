//! A cloud object store as a remote of the vault, for every store of the crate `object_store`. Each entry is one object
//! with the same name as in every other remote: `PREFIX/v4/ab/<key>.qkv`.

use std::fmt;
use std::future::Future;
use std::io;
use std::time::Duration;

use object_store::path::Path;
use object_store::{Error, ObjectStore, ObjectStoreExt, PutPayload};
use tokio::runtime::{Builder, Runtime};

use super::{Address, MAX_REMOTE_BYTES, Remote, RemoteError, remote_name, without_secrets};
use crate::Key;

/// A remote that keeps its entries as objects of a store, below a prefix.
///
/// ```
/// use qkvault_cache::{ObjectStoreRemote, RemoteOptions, Vault, VaultOptions};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let folder = tempfile::tempdir()?;
/// let store = object_store::memory::InMemory::new();
/// let remote = ObjectStoreRemote::new(store, "team/plans", "memory")?;
/// let options = VaultOptions::in_folder(folder.path()).remote(RemoteOptions::new(remote));
/// let vault = Vault::open(options)?;
/// # Ok(())
/// # }
/// ```
pub struct ObjectStoreRemote {
    store: Box<dyn ObjectStore>,
    prefix: Path,
    location: Address,
    /// `None` only while the value is dropped.
    runtime: Option<Runtime>,
}

/// Why [`ObjectStoreRemote::new`] failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ObjectStoreError {
    /// The prefix cannot begin the name of an object.
    #[error("`{prefix}` cannot be the start of an object's name: {source}")]
    Prefix {
        /// The prefix.
        prefix: String,
        /// Why it cannot.
        source: object_store::path::Error,
    },
    /// The async runtime could not be started.
    #[error("no async runtime could be started: {0}")]
    Runtime(io::Error),
}

impl ObjectStoreRemote {
    /// Creates a remote from a store and the prefix of its objects, which may be empty. Logs name the remote
    /// `location`, without the user, password, query and fragment that it may have.
    ///
    /// # Errors
    ///
    /// [`ObjectStoreError::Prefix`] for a prefix that no object name can have; [`ObjectStoreError::Runtime`] if no
    /// async runtime can be started.
    pub fn new(store: impl ObjectStore, prefix: &str, location: impl Into<String>) -> Result<Self, ObjectStoreError> {
        let path = Path::parse(prefix);
        let prefix = path.map_err(|source| ObjectStoreError::Prefix { prefix: prefix.to_owned(), source })?;
        let runtime = Builder::new_current_thread().enable_all().build().map_err(ObjectStoreError::Runtime)?;
        Ok(ObjectStoreRemote {
            store: Box::new(store),
            prefix,
            location: Address::new(location),
            runtime: Some(runtime),
        })
    }

    fn path(&self, key: &Key) -> Path {
        remote_name(key).split('/').fold(self.prefix.clone(), |path, part| path.join(part))
    }

    /// Runs a request until it completes or reaches its deadline. The vault calls this from its own threads, never from
    /// async code.
    fn run<T>(
        &self,
        within: Duration,
        request: impl Future<Output = Result<T, RemoteError>>,
    ) -> Result<T, RemoteError> {
        let Some(runtime) = &self.runtime else {
            return Err(RemoteError::Unreachable { detail: "it is being closed".to_owned() });
        };
        runtime.block_on(async {
            let answer = tokio::time::timeout(within, request).await;
            answer.unwrap_or(Err(RemoteError::Timeout { within }))
        })
    }
}

impl Remote for ObjectStoreRemote {
    fn location(&self) -> String {
        self.location.to_string()
    }

    fn fetch(&self, key: &Key, within: Duration) -> Result<Option<Vec<u8>>, RemoteError> {
        let path = self.path(key);
        self.run(within, async {
            let object = match self.store.get(&path).await {
                Ok(object) => object,
                Err(Error::NotFound { .. }) => return Ok(None),
                Err(error) => return Err(remote_error(&error)),
            };
            if object.meta.size > MAX_REMOTE_BYTES {
                return Err(RemoteError::TooLarge { limit: MAX_REMOTE_BYTES });
            }
            let bytes = object.bytes().await.map_err(|error| remote_error(&error))?;
            Ok(Some(bytes.to_vec()))
        })
    }

    fn store(&self, key: &Key, bytes: &[u8], within: Duration) -> Result<(), RemoteError> {
        let path = self.path(key);
        let payload = PutPayload::from(bytes.to_vec());
        self.run(within, async {
            // Every implementation of `ObjectStore` writes an object whole or not at all.
            self.store.put(&path, payload).await.map(drop).map_err(|error| remote_error(&error))
        })
    }
}

fn remote_error(error: &Error) -> RemoteError {
    match error {
        Error::Unauthenticated { .. } => RemoteError::Refused { status: 401 },
        Error::PermissionDenied { .. } => RemoteError::Refused { status: 403 },
        Error::NotSupported { .. } | Error::NotImplemented { .. } => RemoteError::Refused { status: 501 },
        // Stores that sign addresses print them whole.
        other => RemoteError::Unreachable { detail: without_secrets(&other.to_string()) },
    }
}

impl Drop for ObjectStoreRemote {
    fn drop(&mut self) {
        // Dropping a runtime waits for its threads and panics inside async code; `shutdown_background` does neither.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

impl fmt::Debug for ObjectStoreRemote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ObjectStoreRemote { store: _, prefix, location, runtime: _ } = self;
        f.debug_struct("ObjectStoreRemote").field("location", location).field("prefix", prefix).finish_non_exhaustive()
    }
}
