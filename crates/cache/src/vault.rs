//! The vault: its state, and how it is opened.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use crate::auto_gc::AutoGc;
use crate::flight::Flights;
use crate::folder::Folder;
use crate::memory::MemoryTier;
use crate::remote::{Link, Uploader};
use crate::seen::SeenKeys;
use crate::stats::Counters;
use crate::{Address, Mode, OpenError, RemoteOptions, Settings, Stats, VaultOptions};

/// An open vault. Cheap to clone; clones share one vault.
///
/// ```
/// use std::convert::Infallible;
///
/// use qkvault_cache::{Entry, EntryKind, Key, Source, Vault, VaultOptions};
///
/// # let folder = tempfile::tempdir()?;
/// let vault = Vault::open(VaultOptions::in_folder(folder.path()))?;
/// let build = || -> Result<Entry, Infallible> {
///     let (target, what, library) = ("sm_90".into(), "prefill".into(), "9.27.0".into());
///     Ok(Entry { kind: EntryKind::Plan, target, what, library, meta: Vec::new(), payload: vec![1, 2, 3] })
/// };
/// assert_eq!(vault.get_or_build(&Key([7; 32]), build)?.source, Source::Built);
///
/// // Another process, or this one tomorrow.
/// let again = Vault::open(VaultOptions::in_folder(folder.path()))?;
/// assert_eq!(again.get_or_build(&Key([7; 32]), build)?.source, Source::Disk);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Vault {
    pub(crate) inner: Arc<VaultInner>,
    pub(crate) library: Option<Arc<str>>,
    /// Whether look-ups of this handle skip the remote.
    pub(crate) local: bool,
}

pub(crate) struct VaultInner {
    pub(crate) options: VaultOptions,
    pub(crate) settings: Settings,
    pub(crate) folder: Option<Folder>,
    pub(crate) layers: Vec<Folder>,
    pub(crate) remote: Option<Arc<Link>>,
    pub(crate) uploader: Option<Uploader>,
    pub(crate) memory: MemoryTier,
    /// Builds under way.
    pub(crate) flights: Flights,
    /// Look-ups under way, apart from builds, because a look-up never waits for a build.
    pub(crate) looks: Flights,
    pub(crate) counters: Counters,
    pub(crate) auto_gc: AutoGc,
    /// Keys stamped as used.
    pub(crate) stamped: SeenKeys,
    /// Keys whose rejected file stays in its place and was logged as a warning.
    pub(crate) warned: SeenKeys,
}

// No lock of the vault is held while code of a caller runs, so a caught panic leaves consistent data.
impl std::panic::UnwindSafe for VaultInner {}
impl std::panic::RefUnwindSafe for VaultInner {}

/// The source of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Source {
    /// The memory of this process.
    Memory,
    /// The vault's own folder.
    Disk,
    /// A read-only layer, counted from 0.
    Layer(usize),
    /// The remote store.
    Remote,
    /// The builder of this call.
    Built,
    /// The build or look-up of another thread, which this one waited for.
    Waited,
}

impl Vault {
    /// Opens the vault. Creates its folder if it is missing and the mode is [`Mode::ReadWrite`].
    ///
    /// # Errors
    ///
    /// [`OpenError`] if a variable cannot be parsed, the folder cannot be used or is not trusted, or the remote store
    /// cannot be set up.
    pub fn open(options: VaultOptions) -> Result<Self, OpenError> {
        let settings = options.resolve()?;
        let shared = settings.allow_shared_writable;
        let folder = match settings.mode {
            Mode::Off => None,
            Mode::ReadOnly => Some(Folder::open_read_only(&settings.folder, shared, options.durable)?),
            Mode::ReadWrite => Some(Folder::open_writable(&settings.folder, shared, options.durable)?),
        };
        let layers = match settings.mode {
            Mode::Off => Vec::new(),
            Mode::ReadOnly | Mode::ReadWrite => settings
                .layers
                .iter()
                .map(|layer| Folder::open_read_only(layer, shared, false))
                .collect::<Result<_, _>>()?,
        };
        for layer in &layers {
            // A layer of an older format is logged below.
            if !layer.layout.entries.is_dir() && !layer.has_older() {
                let path = layer.layout.root.display();
                tracing::warn!(%path, "a layer of the vault holds no entries, or is not there");
            }
        }
        let remote = match (settings.mode, &options.remote, &settings.remote) {
            (Mode::Off, ..) | (_, None, None) => None,
            (_, Some(remote), _) => Some(remote.clone()),
            (_, None, Some(remote)) => {
                let token = (options.env)("QKVAULT_REMOTE_TOKEN").map(|token| token.to_string_lossy().into_owned());
                Some(crate::remote::locate(remote, token.as_deref(), shared)?)
            }
        };
        if let Some(remote) = remote.as_ref().filter(|remote| settings.require_seal && remote.seal.is_none()) {
            let detail =
                "a seal is required here (QKVAULT_CACHE_REQUIRE_SEAL), and there is no secret to check it with: \
                          set QKVAULT_REMOTE_SEAL_FILE"
                    .to_owned();
            return Err(OpenError::Remote { location: Address::new(remote.remote.location()), detail });
        }
        let vault = Self::assemble(options, settings, folder, layers, remote);
        vault
            .folders()
            .filter(|(folder, _)| folder.has_older())
            .flat_map(|(folder, source)| folder.older(source))
            .for_each(|older| {
                tracing::warn!(path = %older.path.display(), entries = older.entries, "{older}");
            });
        Ok(vault)
    }

    /// Opens the vault or, if that fails, logs a warning and returns one that keeps entries in memory alone. For
    /// services that must start anyway.
    pub fn open_or_memory(options: VaultOptions) -> Self {
        match Self::open(options.clone()) {
            Ok(vault) => vault,
            Err(error) => {
                tracing::warn!(%error, "the vault cannot be used: plans are kept in memory only");
                Self::in_memory(options)
            }
        }
    }

    /// A vault that keeps entries in memory alone.
    #[must_use]
    pub fn in_memory(options: VaultOptions) -> Self {
        let options = options.mode(Mode::Off).layers([]).without_environment();
        let settings = Settings {
            folder: Default::default(),
            folder_source: crate::FolderSource::Code,
            mode: Mode::Off,
            layers: Vec::new(),
            limits: options.limits.unwrap_or_default(),
            allow_shared_writable: false,
            require_seal: false,
            remote: None,
        };
        Self::assemble(options, settings, None, Vec::new(), None)
    }

    fn assemble(
        options: VaultOptions,
        settings: Settings,
        folder: Option<Folder>,
        layers: Vec<Folder>,
        remote: Option<RemoteOptions>,
    ) -> Self {
        let memory = MemoryTier::new(options.memory_entries, options.memory_bytes);
        let writes = settings.mode == Mode::ReadWrite;
        let remote = remote.map(|options| Arc::new(Link::new(options)));
        let uploader = remote.as_ref().filter(|link| writes && link.options.upload);
        let uploader = uploader.map(|link| Uploader::new(Arc::clone(link)));
        Vault {
            library: options.library.as_deref().map(Arc::from),
            local: false,
            inner: Arc::new(VaultInner {
                options,
                settings,
                folder,
                layers,
                remote,
                uploader,
                memory,
                flights: Flights::default(),
                looks: Flights::default(),
                counters: Counters::default(),
                auto_gc: AutoGc::default(),
                stamped: SeenKeys::default(),
                warned: SeenKeys::default(),
            }),
        }
    }

    /// Returns a handle for a process that has loaded this version of the library: it ignores refusals by other
    /// versions.
    #[must_use]
    pub fn for_library(&self, version: &str) -> Self {
        Vault { library: Some(Arc::from(version)), ..self.clone() }
    }

    /// Returns a handle whose look-ups skip the remote, for callers that fetch several keys at once ([`Vault::fetch`]).
    /// Entries that it builds are sent to the remote all the same.
    #[must_use]
    pub fn local(&self) -> Self {
        Vault { local: true, ..self.clone() }
    }

    /// Whether look-ups of this handle use a remote.
    #[must_use]
    pub fn asks_remote(&self) -> bool {
        !self.local && self.inner.remote.is_some()
    }

    /// The settings that the vault was opened with.
    #[must_use]
    pub fn settings(&self) -> &Settings {
        &self.inner.settings
    }

    /// The folder of the vault; `None` with mode `off`.
    #[must_use]
    pub fn folder(&self) -> Option<&Path> {
        self.inner.folder.as_ref().map(|folder| folder.layout.root.as_path())
    }

    /// Waits until every entry built so far was sent to the remote store or given up. Returns false if that takes
    /// longer than `within`.
    ///
    /// Call it at the end of a process that fills the remote: the end of a process discards entries that still wait.
    #[must_use]
    pub fn flush_remote(&self, within: Duration) -> bool {
        self.inner.uploader.as_ref().is_none_or(|uploader| uploader.flush(within))
    }

    /// The remote's address and its last failure to answer or to take an entry, in one sentence; `None` if it had none.
    #[must_use]
    pub fn remote_trouble(&self) -> Option<String> {
        let link = self.inner.remote.as_ref()?;
        link.trouble().map(|error| format!("the remote store {}: {error}", link.location()))
    }

    /// The counters since the vault was opened, and what its memory holds.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let (entries, bytes) = self.inner.memory.holds();
        let mut stats = self.inner.counters.snapshot(entries, bytes);
        stats.evicted_memory = self.inner.memory.evicted();
        if let Some(link) = &self.inner.remote {
            stats.remote_misses = link.misses.load(Relaxed);
            stats.remote_failures = link.failures.load(Relaxed);
            stats.remote_skipped = link.skipped.load(Relaxed);
        }
        if let Some(uploader) = &self.inner.uploader {
            [stats.uploads, stats.upload_failures, stats.uploads_dropped] = uploader.counts();
        }
        stats
    }
}

impl std::fmt::Debug for Vault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Vault")
            .field("settings", &self.inner.settings)
            .field("library", &self.library)
            .field("local", &self.local)
            .finish_non_exhaustive()
    }
}
