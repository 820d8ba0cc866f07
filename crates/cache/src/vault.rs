//! The vault itself: opening it, looking a key up through its places, storing.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use crate::flight::Flights;
use crate::folder::Folder;
use crate::gc::AutoGc;
use crate::memory::Memory;
use crate::remote::{Link, Uploader};
use crate::seen::Seen;
use crate::stats::Counters;
use crate::{Mode, OpenError, RemoteOptions, Settings, Stats, VaultOptions};

/// An open vault. Cloning gives another handle on the same one.
#[derive(Clone)]
pub struct Vault {
    pub(crate) inner: Arc<Inner>,
    pub(crate) library: Option<Arc<str>>,
    /// Whether the remote is left alone by look-ups.
    pub(crate) local: bool,
}

pub(crate) struct Inner {
    pub(crate) options: VaultOptions,
    pub(crate) settings: Settings,
    pub(crate) folder: Option<Folder>,
    pub(crate) layers: Vec<Folder>,
    pub(crate) remote: Option<Arc<Link>>,
    pub(crate) uploader: Option<Uploader>,
    pub(crate) memory: Memory,
    /// Builds under way.
    pub(crate) flights: Flights,
    /// Look-ups under way: apart from builds, which no look-up waits for.
    pub(crate) looks: Flights,
    pub(crate) counters: Counters,
    pub(crate) auto_gc: AutoGc,
    /// Keys stamped as used.
    pub(crate) stamped: Seen,
    /// Keys whose rejection was logged and could not be moved aside.
    pub(crate) told: Seen,
}

// The vault's locks are never held while foreign code runs, so a caught panic leaves nothing half done.
impl std::panic::UnwindSafe for Inner {}
impl std::panic::RefUnwindSafe for Inner {}

/// Where an entry came from.
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
    /// The builder.
    Built,
    /// Another thread's builder, which this one waited for.
    Waited,
}

impl Vault {
    /// Opens the vault, making its folder if needed (never in modes `off` and `ro`).
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
            // A layer of an older format is told below.
            if !layer.places.entries.is_dir() && !layer.has_older() {
                let path = layer.places.root.display();
                tracing::warn!(%path, "a layer of the vault holds no entries, or is not there");
            }
        }
        let remote = match (settings.mode, &options.remote, &settings.remote) {
            (Mode::Off, ..) | (_, None, None) => None,
            (_, Some(remote), _) => Some(remote.clone()),
            (_, None, Some(remote)) => {
                let token = (options.env)("QKVAULT_REMOTE_TOKEN").and_then(|token| token.into_string().ok());
                Some(crate::remote::locate(remote, token.as_deref(), shared)?)
            }
        };
        let vault = Self::assemble(options, settings, folder, layers, remote);
        vault
            .places()
            .filter(|(folder, _)| folder.has_older())
            .flat_map(|(folder, source)| folder.older(source))
            .for_each(|older| {
                tracing::warn!(path = %older.path.display(), entries = older.entries, "{older}");
            });
        Ok(vault)
    }

    /// Opens the vault, or, if that fails, one that keeps entries in memory only, with a warning: for services that
    /// must start anyway.
    pub fn open_or_memory(options: VaultOptions) -> Self {
        match Self::open(options.clone()) {
            Ok(vault) => vault,
            Err(error) => {
                tracing::warn!(%error, "the vault cannot be used: plans are kept in memory only");
                Self::in_memory(options)
            }
        }
    }

    /// A vault without any folder.
    pub fn in_memory(options: VaultOptions) -> Self {
        let options = options.mode(Mode::Off).layers([]).without_environment();
        let settings = Settings {
            folder: Default::default(),
            folder_source: crate::FolderSource::Code,
            mode: Mode::Off,
            layers: Vec::new(),
            limits: options.limits.unwrap_or_default(),
            allow_shared_writable: false,
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
        let memory = Memory::new(options.memory_entries, options.memory_bytes);
        let writes = settings.mode == Mode::ReadWrite;
        let remote = remote.map(|options| Arc::new(Link::new(options)));
        let uploader = remote.as_ref().filter(|link| writes && link.options.upload);
        let uploader = uploader.map(|link| Uploader::new(Arc::clone(link)));
        Vault {
            library: options.library.as_deref().map(Arc::from),
            local: false,
            inner: Arc::new(Inner {
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
                stamped: Seen::default(),
                told: Seen::default(),
            }),
        }
    }

    /// The same vault for a process that has loaded this version of the library: refusals by others do not answer.
    pub fn for_library(&self, version: &str) -> Self {
        Vault { library: Some(Arc::from(version)), ..self.clone() }
    }

    /// The same vault, whose look-ups do not ask the remote: for callers who ask it for several keys at once ([`Vault::fetch`]). What is
    /// built is sent to it all the same.
    #[must_use]
    pub fn local(&self) -> Self {
        Vault { local: true, ..self.clone() }
    }

    /// Whether look-ups of this handle ask a remote.
    #[must_use]
    pub fn asks_remote(&self) -> bool {
        !self.local && self.inner.remote.is_some()
    }

    /// What the vault was opened with.
    pub fn settings(&self) -> &Settings {
        &self.inner.settings
    }

    /// The folder named at opening; `None` with mode `off`.
    pub fn folder(&self) -> Option<&Path> {
        self.inner.folder.as_ref().map(|folder| folder.places.root.as_path())
    }

    /// Waits until every entry built so far was sent to the remote store, or given up; false if that takes longer than
    /// `within`. Call it before a process ends that was there to fill the remote: what still waits then is lost.
    pub fn flush_remote(&self, within: Duration) -> bool {
        self.inner.uploader.as_ref().is_none_or(|uploader| uploader.flush(within))
    }

    /// Counters since opening, and what memory holds.
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
