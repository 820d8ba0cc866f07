//! Looking a key up through memory, folders and remote, and storing under it.

use std::path::Path;
use std::sync::Arc;

use crate::flight::{FlightOutcome, FlightRole, Lead};
use crate::folder::Folder;
use crate::format::{Codec, encode};
use crate::read::ReadEntry;
use crate::remote::{Fetched, Link};
use crate::stats::{add, count};
use crate::{Entry, EntryKind, Key, Mode, Rejection, Source, StoreError, Vault};

/// The result of a look-up.
#[derive(Clone, Debug)]
#[must_use]
pub enum Lookup {
    /// The entry.
    Hit(Arc<Entry>),
    /// Neither memory, nor a folder, nor the remote has the entry.
    Absent,
    /// A stored entry was rejected, and there is no other.
    Rejected(Rejection),
}

/// The result of a look-up below memory.
pub(crate) enum Below {
    Found(Arc<Entry>, Source),
    Missing(Option<Rejection>),
}

impl Vault {
    /// Looks a key up in memory, then in the folder, the layers, and the remote.
    ///
    /// It never fails and never waits for a build. Of the threads that look one key up at once, one reads it and the
    /// others get its result; if it finds nothing, they look by themselves. A rejected file is counted and logged, and
    /// moved to quarantine if it lies in the vault's own folder; the look-up then goes on to the next folder.
    pub fn get(&self, key: &Key) -> Lookup {
        if let Some(entry) = self.recall(key) {
            return Lookup::Hit(entry);
        }
        let lead = match self.inner.looks.join(*key) {
            FlightRole::Lead(lead) => Some(lead),
            // A refusal that is valid for the other handle need not be valid for this one.
            FlightRole::Follow(flight) => match flight.wait() {
                FlightOutcome::Entry(entry) if self.answers(&entry) => {
                    self.count_hit(Source::Waited);
                    return Lookup::Hit(entry);
                }
                _ => None,
            },
            FlightRole::Reentrant => None,
        };
        // Another flight may have landed between the look into memory and the start of this one.
        if let Some(entry) = self.recall(key) {
            land(lead, &entry);
            return Lookup::Hit(entry);
        }
        match self.look_everywhere(key) {
            Below::Found(entry, source) => {
                self.count_hit(source);
                land(lead, &entry);
                Lookup::Hit(entry)
            }
            Below::Missing(rejection) => {
                count(&self.inner.counters.misses);
                rejection.map_or(Lookup::Absent, Lookup::Rejected)
            }
        }
    }

    /// Stores an entry under a key, in memory and in the folder, and replaces an older one. A good plan is replaced by
    /// plans alone: if the vault or a layer has one and `entry` is a refusal or times, the plan stays and is returned.
    ///
    /// # Errors
    ///
    /// [`StoreError`] if the folder cannot be written. Memory keeps the entry all the same.
    pub fn put(&self, key: &Key, entry: Entry) -> Result<Arc<Entry>, StoreError> {
        match self.plan_instead(key, entry.kind) {
            Some(plan) => Ok(plan),
            None => self.replace(key, entry),
        }
    }

    /// Stores an entry under a key as [`put`](Self::put) does, and replaces whatever is there: for a plan that is good
    /// as bytes and of no use to its library.
    ///
    /// # Errors
    ///
    /// [`StoreError`] if the folder cannot be written. Memory keeps the entry all the same.
    pub fn replace(&self, key: &Key, entry: Entry) -> Result<Arc<Entry>, StoreError> {
        let entry = Arc::new(entry);
        self.inner.memory.insert(*key, Arc::clone(&entry));
        self.back_fill(key, &entry);
        self.store(key, &entry)?;
        Ok(entry)
    }

    /// Looks in the memory layer only, for callers that must not wait for a disk. Counts hits; does not count misses,
    /// because lower layers were not consulted.
    #[must_use]
    pub fn recall(&self, key: &Key) -> Option<Arc<Entry>> {
        let entry = self.inner.memory.get(key)?;
        if !self.answers(&entry) {
            return None;
        }
        self.inner.counters.hits_memory.count();
        Some(entry)
    }

    /// Whether an entry is valid for this handle: a refusal must come from the library version of the handle.
    pub(crate) fn answers(&self, entry: &Entry) -> bool {
        match (entry.kind, &self.library) {
            (EntryKind::Refusal, Some(library)) => *entry.library == **library,
            _ => true,
        }
    }

    /// Looks in the folder, then in the layers. A hit goes into memory.
    pub(crate) fn look_below(&self, key: &Key) -> Below {
        let inner = &*self.inner;
        let mut first = None;
        for (folder, source) in self.folders() {
            match folder.load(key) {
                ReadEntry::Absent => {}
                ReadEntry::Bad(rejection) => {
                    self.note_rejection(folder, key, &rejection, source, None);
                    first.get_or_insert(rejection);
                }
                ReadEntry::Good { entry, file, bytes } => {
                    if !self.answers(&entry) {
                        count(&inner.counters.refusals_expired);
                        continue;
                    }
                    add(&inner.counters.bytes_read, bytes);
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

    /// Looks in the folder, in the layers, then in the remote.
    pub(crate) fn look_everywhere(&self, key: &Key) -> Below {
        match self.look_below(key) {
            Below::Missing(rejection) => match self.ask_remote(std::slice::from_ref(key)).pop() {
                None => Below::Missing(rejection),
                Some(Below::Missing(later)) => Below::Missing(rejection.or(later)),
                Some(found) => found,
            },
            found => found,
        }
    }

    /// Fetches all of these keys from the remote in about the time of one request, and keeps what it has in memory and
    /// in the folder. Returns the keys that the remote had, in their order.
    ///
    /// It is for callers who can use any of several keys and have looked for them locally.
    #[must_use]
    pub fn fetch(&self, keys: &[Key]) -> Vec<Key> {
        let found = keys.iter().zip(self.ask_remote(keys)).filter(|(_, below)| matches!(below, Below::Found(..)));
        let found: Vec<Key> = found.map(|(key, _)| *key).collect();
        found.iter().for_each(|_| self.count_hit(Source::Remote));
        found
    }

    /// Asks the remote, if there is one and this handle may; hits go into memory and into the folder. An answer for
    /// each key, or none at all.
    fn ask_remote(&self, keys: &[Key]) -> Vec<Below> {
        match &self.inner.remote {
            Some(link) if !self.local && !keys.is_empty() => {
                let answers = link.fetch(keys);
                keys.iter().zip(answers).map(|(key, answer)| self.take(link, key, answer)).collect()
            }
            _ => Vec::new(),
        }
    }

    fn take(&self, link: &Link, key: &Key, answer: Fetched) -> Below {
        let inner = &*self.inner;
        match answer {
            Fetched::Nothing => Below::Missing(None),
            Fetched::Bad(rejection) => {
                inner.counters.count_rejection(&rejection);
                let location = link.location();
                let cause = rejection.cause();
                tracing::warn!(%location, %key, %cause, why = %rejection, "an entry of the remote store was rejected");
                Below::Missing(Some(rejection))
            }
            Fetched::Hit(entry) if !self.answers(&entry) => {
                count(&inner.counters.refusals_expired);
                Below::Missing(None)
            }
            Fetched::Hit(entry) => {
                // Whoever fetches several keys at once has not looked for each of them.
                if let Some(plan) = self.plan_instead(key, entry.kind) {
                    return Below::Found(plan, Source::Disk);
                }
                let entry = Arc::new(entry);
                inner.memory.insert(*key, Arc::clone(&entry));
                if inner.settings.mode == Mode::ReadWrite {
                    // `store` counts and logs a failure; the entry is good without.
                    let _ = self.store(key, &entry);
                }
                Below::Found(entry, Source::Remote)
            }
        }
    }

    /// The good plan that the vault or a layer has under a key, which an entry of kind `new` must not replace or hide;
    /// `None` if there is none, or if the new entry is a plan.
    pub(crate) fn plan_instead(&self, key: &Key, new: EntryKind) -> Option<Arc<Entry>> {
        if new == EntryKind::Plan {
            return None;
        }
        let held = self.inner.memory.get(key).filter(|entry| entry.kind == EntryKind::Plan);
        held.or_else(|| {
            self.folders().find_map(|(folder, _)| match folder.load(key) {
                ReadEntry::Good { entry, .. } if entry.kind == EntryKind::Plan => Some(Arc::new(entry)),
                _ => None,
            })
        })
    }

    /// Queues an entry for the remote, if uploads are on.
    pub(crate) fn back_fill(&self, key: &Key, entry: &Arc<Entry>) {
        if let Some(uploader) = &self.inner.uploader {
            uploader.send(*key, Arc::clone(entry));
        }
    }

    pub(crate) fn count_hit(&self, source: Source) {
        let counters = &self.inner.counters;
        match source {
            Source::Memory => counters.hits_memory.count(),
            Source::Disk => count(&counters.hits_disk),
            Source::Layer(_) => count(&counters.hits_layer),
            Source::Remote => count(&counters.hits_remote),
            Source::Waited => count(&counters.hits_waited),
            Source::Built => {}
        }
    }

    /// Encodes and writes an entry, and counts success or failure.
    pub(crate) fn store(&self, key: &Key, entry: &Entry) -> Result<(), StoreError> {
        let inner = &*self.inner;
        let folder = self.writable()?;
        let encoded = encode(key, entry, Codec::Zstd).map_err(StoreError::from);
        match encoded.and_then(|bytes| folder.store(key, &bytes).map(|()| bytes.len() as u64)) {
            Ok(bytes) => {
                count(&inner.counters.stores);
                add(&inner.counters.bytes_written, bytes);
                self.collect_if_due(bytes);
                Ok(())
            }
            Err(error) => {
                count(&inner.counters.store_failures);
                tracing::warn!(%key, %error, "an entry could not be stored");
                Err(error)
            }
        }
    }

    /// Takes an entry out of service that is whole, and that whoever asked for it found not to be what its key
    /// promises: memory forgets it, and the file with it goes to quarantine if it lies in the vault's own folder.
    ///
    /// A layer or a remote keeps it; an entry that is stored in the vault afterwards comes before it.
    pub fn discredit(&self, key: &Key, entry: &Entry, why: &str) {
        self.inner.memory.forget(key);
        let rejection = Rejection::Discredited { detail: why.to_owned() };
        let mut told = false;
        for (folder, source) in self.folders() {
            if matches!(folder.load(key), ReadEntry::Good { entry: stored, .. } if stored == *entry) {
                self.note_rejection(folder, key, &rejection, source, Some(entry));
                told = true;
            }
        }
        if !told {
            self.inner.counters.count_rejection(&rejection);
            tracing::warn!(%key, cause = %rejection.cause(), %why, "an entry was rejected");
        }
    }

    fn note_rejection(
        &self,
        folder: &Folder,
        key: &Key,
        rejection: &Rejection,
        source: Source,
        discredited: Option<&Entry>,
    ) {
        let inner = &*self.inner;
        inner.counters.count_rejection(rejection);
        let path = folder.layout.entry(key);
        let owned = source == Source::Disk && inner.settings.mode == Mode::ReadWrite;
        let moved = match owned && rejection.is_about_content() {
            true => folder.set_aside(key, rejection, discredited),
            false => None,
        };
        if moved.is_some() {
            count(&inner.counters.quarantined);
        }
        let moved = moved.as_deref().map(Path::display).map(tracing::field::display);
        let cause = rejection.cause();
        if moved.is_some() || inner.warned.first(key) {
            let path = path.display();
            tracing::warn!(%path, %cause, why = %rejection, moved_to = moved, "a stored entry was rejected");
        } else {
            // It stays in its place, and every look-up meets it again.
            tracing::debug!(path = %path.display(), %cause, "a stored entry was rejected again");
        }
    }

    /// Stamps an entry as used, at most once per key: eviction needs days, not seconds.
    fn stamp(&self, folder: &Folder, key: &Key, file: &std::fs::File) {
        if self.inner.settings.mode == Mode::ReadWrite && self.inner.stamped.first(key) {
            folder.stamp(file, (self.inner.options.clock)());
        }
    }

    fn copy_up(&self, key: &Key, entry: &Entry) {
        if self.inner.options.copy_up && self.inner.settings.mode == Mode::ReadWrite {
            // `store` counts and logs a failure; the entry is good without.
            let _ = self.store(key, entry);
        }
    }
}

/// Gives an entry to the threads that wait for it. A lead that is dropped instead makes them look by themselves.
fn land(lead: Option<Lead<'_>>, entry: &Arc<Entry>) {
    if let Some(lead) = lead {
        lead.land(FlightOutcome::Entry(Arc::clone(entry)));
    }
}
