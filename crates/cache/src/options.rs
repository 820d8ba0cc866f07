//! How a vault is opened: what code says, what the environment says, what holds otherwise. In that order.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use crate::RemoteOptions;
use crate::env::OptionError;
use crate::settings::{EnvLookup, Settings};

/// What the vault may do with its folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mode {
    /// No folder, no layers, no remote: the memory of this process only.
    Off,
    /// Read what is there; write, touch, move and delete nothing.
    ReadOnly,
    /// Read and write.
    ReadWrite,
}

/// Limits of the folder on disk, used by `gc`, which also runs by itself after a `put`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DiskLimits {
    /// Most bytes of entries; `None` for no limit.
    pub max_bytes: Option<u64>,
    /// Longest time since the last use; `None` for no limit.
    pub max_age: Option<Duration>,
    /// When over `max_bytes`, evict down to this share of it, 0 to 1, so that not every `put` evicts.
    pub low_water: f64,
    /// Entries written or used within this time are never evicted.
    pub grace: Duration,
}

impl Default for DiskLimits {
    /// 4 GiB, no age limit, down to four fifths, ten minutes of grace.
    fn default() -> Self {
        DiskLimits { max_bytes: Some(4 << 30), max_age: None, low_water: 0.8, grace: Duration::from_secs(600) }
    }
}

/// A source of wall-clock time.
pub(crate) type Clock = Arc<dyn Fn() -> SystemTime + Send + Sync>;

/// Options of [`Vault::open`](crate::Vault::open). Whatever is not set here is taken from the environment, and
/// whatever is not set there has the default told at each method. `docs/vault.md` has one table of all.
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
    /// Nothing set.
    pub fn new() -> Self {
        Self::default()
    }

    /// The vault of this folder (`vault/v3` inside it).
    pub fn in_folder(folder: impl Into<PathBuf>) -> Self {
        Self::default().folder(folder)
    }

    /// The folder; else `$QKVAULT_CACHE_DIR`, `$XDG_CACHE_HOME/qkvault`, `~/.cache/qkvault`, or one under the
    /// temporary folder, with a warning.
    pub fn folder(mut self, folder: impl Into<PathBuf>) -> Self {
        self.folder = Some(folder.into());
        self
    }

    /// What may be done with the folder; else `$QKVAULT_CACHE` (`off`, `ro`, `rw`), else read and write.
    pub fn mode(mut self, mode: Mode) -> Self {
        self.mode = Some(mode);
        self
    }

    /// Folders that are only read, asked in this order after the vault's own; else `$QKVAULT_CACHE_LAYERS` (separated
    /// like `$PATH`), else none. Each has the same shape as the vault's own folder.
    pub fn layers(mut self, layers: impl IntoIterator<Item = PathBuf>) -> Self {
        self.layers = Some(layers.into_iter().collect());
        self
    }

    /// Whether a hit in a layer is copied into the vault's own folder. Default: yes.
    pub fn copy_up(mut self, copy_up: bool) -> Self {
        self.copy_up = copy_up;
        self
    }

    /// Bounds of the memory layer: entries and bytes. Default: 1024 entries, 256 MiB. Entries that someone still holds
    /// are kept beyond the bounds, because dropping them here would free nothing. An entry larger than an eighth of the
    /// bytes may be left out.
    pub fn memory(mut self, entries: usize, bytes: u64) -> Self {
        (self.memory_entries, self.memory_bytes) = (entries, bytes);
        self
    }

    /// Limits of the folder; else the defaults of [`DiskLimits`] with `$QKVAULT_CACHE_MAX_BYTES` (a number, or one with
    /// `K`, `M`, `G`, `T`; 0 for no limit) and `$QKVAULT_CACHE_MAX_AGE` (days; 0 for no limit).
    pub fn limits(mut self, limits: DiskLimits) -> Self {
        self.limits = Some(limits);
        self
    }

    /// Whether folders that others can write to, or that another user owns, are used; else
    /// `$QKVAULT_CACHE_ALLOW_SHARED` (`1` or `0`), else no. Whoever can write there can run code on the GPU.
    pub fn allow_shared_writable(mut self, allow: bool) -> Self {
        self.allow_shared = Some(allow);
        self
    }

    /// The version of the library this process has loaded. Refusals by another version then never answer. Without it,
    /// every refusal answers. See also [`Vault::for_library`](crate::Vault::for_library).
    pub fn library(mut self, version: impl Into<String>) -> Self {
        self.library = Some(version.into());
        self
    }

    /// Whether every entry is synced to the disk before it gets its name. Default: yes. Without it a power cut can
    /// leave torn entries, which are then rejected and rebuilt.
    pub fn durable(mut self, durable: bool) -> Self {
        self.durable = durable;
        self
    }

    /// Longest wait for another process that builds the same key, before building it here too. Default: two minutes.
    pub fn lock_wait(mut self, wait: Duration) -> Self {
        self.lock_wait = wait;
        self
    }

    /// A remote store, asked after every local place; else `$QKVAULT_REMOTE` (an http address, with the feature `http`,
    /// or a folder) with `$QKVAULT_REMOTE_TOKEN`, `$QKVAULT_REMOTE_DEADLINE_MS` and `$QKVAULT_REMOTE_SEAL_FILE` (a file
    /// with the seal's secret); else none.
    pub fn remote(mut self, remote: RemoteOptions) -> Self {
        self.remote = Some(remote);
        self
    }

    /// The clock for stamps and eviction. Default: the system's.
    pub fn clock(mut self, clock: impl Fn() -> SystemTime + Send + Sync + 'static) -> Self {
        self.clock = Arc::new(clock);
        self
    }

    /// Reads variables from `lookup` instead of the process's environment.
    pub fn environment<F>(mut self, lookup: F) -> Self
    where
        F: Fn(&str) -> Option<std::ffi::OsString> + Send + Sync + 'static,
    {
        self.env = Arc::new(lookup);
        self
    }

    /// Ignores the environment.
    pub fn without_environment(self) -> Self {
        self.environment(|_| None)
    }

    /// What these options come to in this environment: what `cache dir` and `doctor` show.
    pub fn resolve(&self) -> Result<Settings, OptionError> {
        Settings::resolve(self)
    }
}
