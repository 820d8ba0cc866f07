//! The vault itself: opening it, looking a key up through its places, storing.

use std::collections::HashSet;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use crate::flight::Flights;
use crate::folder::{Folder, Loaded};
use crate::format::{Codec, encode};
use crate::memory::Memory;
use crate::stats::{Counters, add, count};
use crate::{
    Entry, EntryKind, Key, Mode, OpenError, Rejection, Settings, Stats, StoreError, VaultOptions,
};

/// An open vault. Cloning gives another handle on the same one.
#[derive(Clone)]
pub struct Vault {
    pub(crate) inner: Arc<Inner>,
    library: Option<Arc<str>>,
}

pub(crate) struct Inner {
    pub(crate) options: VaultOptions,
    pub(crate) settings: Settings,
    pub(crate) folder: Option<Folder>,
    pub(crate) layers: Vec<Folder>,
    pub(crate) memory: Memory,
    pub(crate) flights: Flights,
    pub(crate) counters: Counters,
    stamped: Mutex<HashSet<Key>>,
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
    /// The builder.
    Built,
    /// Another thread's builder, which this one waited for.
    Waited,
}

/// The answer to a look-up.
#[derive(Clone, Debug)]
#[must_use]
pub enum Lookup {
    /// Here it is.
    Hit(Arc<Entry>),
    /// No place has it.
    Absent,
    /// It was there and was not served; no other place has it.
    Rejected(Rejection),
}

/// What the places below memory have.
pub(crate) enum Below {
    Found(Arc<Entry>, Source),
    Missing(Option<Rejection>),
}

/// Most keys remembered as stamped. Beyond it the memory starts afresh, and a few entries are stamped twice.
const STAMPED: usize = 65_536;

impl Vault {
    /// Opens the vault, making its folder if needed (never in modes `off` and `ro`).
    pub fn open(options: VaultOptions) -> Result<Self, OpenError> {
        let settings = options.resolve()?;
        let shared = settings.allow_shared_writable;
        let folder = match settings.mode {
            Mode::Off => None,
            Mode::ReadOnly => Some(Folder::open_read_only(
                &settings.folder,
                shared,
                options.durable,
            )?),
            Mode::ReadWrite => Some(Folder::open_writable(
                &settings.folder,
                shared,
                options.durable,
            )?),
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
            if !layer.places.entries.is_dir() {
                let path = layer.places.root.display();
                tracing::warn!(%path, "a layer of the vault holds no entries, or is not there");
            }
        }
        Ok(Self::assemble(options, settings, folder, layers))
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
        };
        Self::assemble(options, settings, None, Vec::new())
    }

    fn assemble(
        options: VaultOptions,
        settings: Settings,
        folder: Option<Folder>,
        layers: Vec<Folder>,
    ) -> Self {
        let memory = Memory::new(options.memory_entries, options.memory_bytes);
        Vault {
            library: options.library.as_deref().map(Arc::from),
            inner: Arc::new(Inner {
                options,
                settings,
                folder,
                layers,
                memory,
                flights: Flights::default(),
                counters: Counters::default(),
                stamped: Mutex::default(),
            }),
        }
    }

    /// The same vault for a process that has loaded this version of the library: refusals by others do not answer.
    pub fn for_library(&self, version: &str) -> Self {
        Vault {
            inner: Arc::clone(&self.inner),
            library: Some(Arc::from(version)),
        }
    }

    /// What the vault was opened with.
    pub fn settings(&self) -> &Settings {
        &self.inner.settings
    }

    /// The folder named at opening; `None` with mode `off`.
    pub fn folder(&self) -> Option<&Path> {
        self.inner
            .folder
            .as_ref()
            .map(|folder| folder.places.root.as_path())
    }

    /// Looks a key up: memory, then the folder, then the layers.
    ///
    /// Never an error and never a wait for other builders. A file that is not served is told, counted, logged, and
    /// moved aside if it lies in the vault's own folder; if another place has the key, that one answers.
    pub fn get(&self, key: &Key) -> Lookup {
        if let Some(entry) = self.recall(key) {
            return Lookup::Hit(entry);
        }
        match self.look_below(key) {
            Below::Found(entry, source) => {
                self.count_hit(source);
                Lookup::Hit(entry)
            }
            Below::Missing(rejection) => {
                count(&self.inner.counters.misses);
                rejection.map_or(Lookup::Absent, Lookup::Rejected)
            }
        }
    }

    /// Stores an entry under a key, in memory and in the folder, in place of what was there.
    ///
    /// In memory it is kept even when the folder cannot be written.
    pub fn put(&self, key: &Key, entry: Entry) -> Result<Arc<Entry>, StoreError> {
        let entry = Arc::new(entry);
        self.inner.memory.insert(*key, Arc::clone(&entry));
        self.store(key, &entry)?;
        Ok(entry)
    }

    /// Counters since opening, and what memory holds.
    pub fn stats(&self) -> Stats {
        let (entries, bytes) = self.inner.memory.holds();
        let mut stats = self.inner.counters.snapshot(entries, bytes);
        stats.evicted_memory = self.inner.memory.evicted();
        stats
    }

    /// The memory layer's answer, counted.
    pub(crate) fn recall(&self, key: &Key) -> Option<Arc<Entry>> {
        let entry = self.inner.memory.get(key)?;
        if !self.answers(&entry) {
            return None;
        }
        self.inner.counters.hits_memory.count();
        Some(entry)
    }

    /// Whether an entry may answer here: a refusal must be by the library that this process has.
    pub(crate) fn answers(&self, entry: &Entry) -> bool {
        match (entry.kind, &self.library) {
            (EntryKind::Refusal, Some(library)) => *entry.library == **library,
            _ => true,
        }
    }

    /// Asks the folder, then the layers; a hit goes into memory.
    pub(crate) fn look_below(&self, key: &Key) -> Below {
        let inner = &*self.inner;
        let mut first = None;
        let places = inner
            .folder
            .iter()
            .map(|folder| (folder, Source::Disk))
            .chain(
                inner
                    .layers
                    .iter()
                    .enumerate()
                    .map(|(n, layer)| (layer, Source::Layer(n))),
            );
        for (folder, source) in places {
            match folder.load(key) {
                Loaded::Absent => {}
                Loaded::Bad(rejection) => {
                    self.note_rejection(folder, key, &rejection, source);
                    first.get_or_insert(rejection);
                }
                Loaded::Good(header, entry, file) => {
                    if !self.answers(&entry) {
                        count(&inner.counters.refusals_expired);
                        continue;
                    }
                    add(&inner.counters.bytes_read, header.file_len());
                    let entry = Arc::new(entry);
                    inner.memory.insert(*key, Arc::clone(&entry));
                    match source {
                        Source::Disk => self.stamp(folder, key, &file),
                        _ => self.copy_up(key, &entry),
                    }
                    return Below::Found(entry, source);
                }
            }
        }
        Below::Missing(first)
    }

    pub(crate) fn count_hit(&self, source: Source) {
        let counters = &self.inner.counters;
        match source {
            Source::Memory => counters.hits_memory.count(),
            Source::Disk => count(&counters.hits_disk),
            Source::Layer(_) => count(&counters.hits_layer),
            Source::Waited => count(&counters.hits_waited),
            Source::Built => {}
        }
    }

    /// Encodes and writes; counts either way.
    pub(crate) fn store(&self, key: &Key, entry: &Entry) -> Result<(), StoreError> {
        let inner = &*self.inner;
        let folder = match (inner.settings.mode, &inner.folder) {
            (Mode::ReadWrite, Some(folder)) => folder,
            (Mode::ReadOnly, _) => return Err(StoreError::NotWritable { mode: "ro" }),
            _ => return Err(StoreError::NotWritable { mode: "off" }),
        };
        let stored = encode(key, entry, Codec::Zstd)
            .map_err(StoreError::from)
            .and_then(|bytes| folder.store(key, &bytes).map(|()| bytes.len() as u64));
        match stored {
            Ok(bytes) => {
                count(&inner.counters.stores);
                add(&inner.counters.bytes_written, bytes);
                Ok(())
            }
            Err(error) => {
                count(&inner.counters.store_failures);
                tracing::warn!(%key, %error, "an entry could not be stored");
                Err(error)
            }
        }
    }

    fn note_rejection(&self, folder: &Folder, key: &Key, rejection: &Rejection, source: Source) {
        let inner = &*self.inner;
        inner.counters.count_rejection(rejection);
        let path = folder.places.entry(key);
        let owned = source == Source::Disk && inner.settings.mode == Mode::ReadWrite;
        let moved = match owned && rejection.is_about_content() {
            true => folder.set_aside(key, rejection),
            false => None,
        };
        if moved.is_some() {
            count(&inner.counters.quarantined);
        }
        let moved = moved
            .as_deref()
            .map(Path::display)
            .map(tracing::field::display);
        tracing::warn!(path = %path.display(), cause = %rejection.cause(), why = %rejection, moved_to = moved, "a stored entry was rejected");
    }

    /// Marks an entry as used, at most once per key: eviction needs days, not seconds.
    fn stamp(&self, folder: &Folder, key: &Key, file: &std::fs::File) {
        if self.inner.settings.mode != Mode::ReadWrite {
            return;
        }
        {
            let stamped = self.inner.stamped.lock();
            let mut stamped = stamped.unwrap_or_else(PoisonError::into_inner);
            if stamped.len() >= STAMPED {
                stamped.clear();
            }
            if !stamped.insert(*key) {
                return;
            }
        }
        folder.stamp(file, (self.inner.options.clock)());
    }

    fn copy_up(&self, key: &Key, entry: &Entry) {
        if self.inner.options.copy_up && self.inner.settings.mode == Mode::ReadWrite {
            // Counted and logged there; the answer does not depend on it.
            let _ = self.store(key, entry);
        }
    }
}

impl std::fmt::Debug for Vault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Vault")
            .field("settings", &self.inner.settings)
            .field("library", &self.library)
            .finish_non_exhaustive()
    }
}
