//! Options of a vault. The program's values come first, then the environment's, then defaults.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use crate::env::EnvLookup;
use crate::{DiskLimits, Mode, RemoteOptions};

/// A source of wall-clock time.
pub(crate) type Clock = Arc<dyn Fn() -> SystemTime + Send + Sync>;

/// Options of [`Vault::open`](crate::Vault::open).
///
/// An option that is not set here comes from the environment, and one that is not set there has the default that its
/// method documents. `docs/vault.md` lists all options.
#[derive(Clone)]
#[must_use]
pub struct VaultOptions {
    pub(crate) folder: Option<PathBuf>,
    pub(crate) mode: Option<Mode>,
    pub(crate) layers: Option<Vec<PathBuf>>,
    pub(crate) copy_up: bool,
    pub(crate) memory_entries: usize,
    pub(crate) memory_bytes: u64,
    pub(crate) limits: Option<DiskLimits>,
    pub(crate) allow_shared: Option<bool>,
    pub(crate) require_seal: Option<bool>,
    pub(crate) library: Option<String>,
    pub(crate) durable: bool,
    pub(crate) lock_wait: Duration,
    pub(crate) remote: Option<RemoteOptions>,
    pub(crate) clock: Clock,
    pub(crate) env: EnvLookup,
}

impl Default for VaultOptions {
    fn default() -> Self {
        VaultOptions {
            folder: None,
            mode: None,
            layers: None,
            copy_up: true,
            memory_entries: 1024,
            memory_bytes: 256 << 20,
            limits: None,
            allow_shared: None,
            require_seal: None,
            library: None,
            durable: true,
            lock_wait: Duration::from_secs(120),
            remote: None,
            clock: Arc::new(SystemTime::now),
            env: Arc::new(|name: &str| std::env::var_os(name)),
        }
    }
}

impl VaultOptions {
    /// Options with nothing set.
    pub fn new() -> Self {
        Self::default()
    }

    /// Options for the vault in this folder (`vault/v3` inside it).
    pub fn in_folder(folder: impl Into<PathBuf>) -> Self {
        Self::default().folder(folder)
    }

    /// Sets the folder. Default: `$QKVAULT_CACHE_DIR`, else `$XDG_CACHE_HOME/qkvault`, else `~/.cache/qkvault`, else,
    /// with a warning, a folder under the temporary one.
    pub fn folder(mut self, folder: impl Into<PathBuf>) -> Self {
        self.folder = Some(folder.into());
        self
    }

    /// Sets what the vault may do with the folder. Default: `$QKVAULT_CACHE` (`off`, `ro`, `rw`), else read and write.
    pub fn mode(mut self, mode: Mode) -> Self {
        self.mode = Some(mode);
        self
    }

    /// Sets the layers: read-only folders that a look-up tries in this order after the vault's own folder, each with
    /// the same structure. Default: `$QKVAULT_CACHE_LAYERS` (separated like `$PATH`), else none.
    pub fn layers(mut self, layers: impl IntoIterator<Item = PathBuf>) -> Self {
        self.layers = Some(layers.into_iter().collect());
        self
    }

    /// Sets whether the vault copies a hit in a layer into its own folder. Default: yes.
    pub fn copy_up(mut self, copy_up: bool) -> Self {
        self.copy_up = copy_up;
        self
    }

    /// Sets the bounds of memory: entries and bytes. Default: 1024 entries, 256 MiB.
    ///
    /// Entries that the program still holds stay beyond the bounds, because dropping them would free nothing. An entry
    /// larger than an eighth of the bytes may be left out.
    pub fn memory(mut self, entries: usize, bytes: u64) -> Self {
        (self.memory_entries, self.memory_bytes) = (entries, bytes);
        self
    }

    /// Sets the limits of the folder. Default: those of [`DiskLimits`] with `$QKVAULT_CACHE_MAX_BYTES` (a number, or
    /// one with `K`, `M`, `G`, `T`; 0 for no limit) and `$QKVAULT_CACHE_MAX_AGE` (days; 0 for no limit).
    pub fn limits(mut self, limits: DiskLimits) -> Self {
        self.limits = Some(limits);
        self
    }

    /// Sets whether the vault uses folders that others can write to or that another user owns. Default:
    /// `$QKVAULT_CACHE_ALLOW_SHARED` (`1` or `0`), else no. Whoever can write there can run code on the GPU.
    pub fn allow_shared_writable(mut self, allow: bool) -> Self {
        self.allow_shared = Some(allow);
        self
    }

    /// Sets whether entries from elsewhere need a seal: unsealed packs are refused, and so is a remote store without
    /// the secret of a seal. Default: `$QKVAULT_CACHE_REQUIRE_SEAL` (`1` or `0`), else no. Folders and layers have no
    /// seals: their owners and permissions are checked.
    pub fn require_seal(mut self, require: bool) -> Self {
        self.require_seal = Some(require);
        self
    }

    /// Sets the version of the library that this process has loaded. Refusals by other versions are then ignored;
    /// without a version, all refusals are used. See also [`Vault::for_library`](crate::Vault::for_library).
    pub fn library(mut self, version: impl Into<String>) -> Self {
        self.library = Some(version.into());
        self
    }

    /// Sets whether every entry is synced to the disk before it gets its name. Default: yes. Without it a power cut can
    /// leave torn entries, which the vault then rejects and builds again.
    pub fn durable(mut self, durable: bool) -> Self {
        self.durable = durable;
        self
    }

    /// Sets the longest wait for another process that builds the same key, before this one builds it too. Default: two
    /// minutes.
    pub fn lock_wait(mut self, wait: Duration) -> Self {
        self.lock_wait = wait;
        self
    }

    /// Sets a remote store, which a look-up tries after the local folders. Default: `$QKVAULT_REMOTE` (an HTTP address,
    /// with the feature `http`, or a folder) with `$QKVAULT_REMOTE_TOKEN`, `$QKVAULT_REMOTE_DEADLINE_MS` and
    /// `$QKVAULT_REMOTE_SEAL_FILE` (a file with the secret of the seal), else none.
    pub fn remote(mut self, remote: RemoteOptions) -> Self {
        self.remote = Some(remote);
        self
    }

    /// Sets the clock for stamps and eviction. Default: the system's.
    pub fn clock(mut self, clock: impl Fn() -> SystemTime + Send + Sync + 'static) -> Self {
        self.clock = Arc::new(clock);
        self
    }

    /// Makes the vault read variables with `lookup` instead of from the environment of the process.
    pub fn environment<F>(mut self, lookup: F) -> Self
    where
        F: Fn(&str) -> Option<std::ffi::OsString> + Send + Sync + 'static,
    {
        self.env = Arc::new(lookup);
        self
    }

    /// Makes the vault ignore the environment.
    pub fn without_environment(self) -> Self {
        self.environment(|_| None)
    }
}
