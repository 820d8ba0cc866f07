//! Looking a key up through the places of the vault, and storing under it.

use std::path::Path;
use std::sync::Arc;

use crate::flight::{Lead, Outcome, Role};
use crate::folder::Folder;
use crate::format::{Codec, encode};
use crate::read::Loaded;
use crate::remote::{Fetched, Link};
use crate::stats::{add, count};
use crate::{Entry, EntryKind, Key, Mode, Rejection, Source, StoreError, Vault};

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

impl Vault {
    /// Looks a key up: memory, then the folder, the layers, and the remote.
    ///
    /// Never an error and never a wait for other builders. Of threads that look one key up at once, one reads it and the
    /// others are given what it found; where it found nothing they look by themselves. A file that is not served is told,
    /// counted, logged, and moved aside if it lies in the vault's own folder; if another place has the key, that one answers.
    pub fn get(&self, key: &Key) -> Lookup {
        if let Some(entry) = self.recall(key) {
            return Lookup::Hit(entry);
        }
        let lead = match self.inner.looks.join(*key) {
            Role::Lead(lead) => Some(lead),
            // A refusal that answers there need not answer here.
            Role::Follow(flight) => match flight.wait() {
                Outcome::Entry(entry) if self.answers(&entry) => {
                    self.count_hit(Source::Waited);
                    return Lookup::Hit(entry);
                }
                _ => None,
            },
            Role::Reentrant => None,
        };
        // Between our look into memory and the start of this flight, another one may have landed.
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

    /// Stores an entry under a key, in memory and in the folder, in place of what was there.
    ///
    /// In memory it is kept even when the folder cannot be written.
    pub fn put(&self, key: &Key, entry: Entry) -> Result<Arc<Entry>, StoreError> {
        let entry = Arc::new(entry);
        self.inner.memory.insert(*key, Arc::clone(&entry));
        self.back_fill(key, &entry);
        self.store(key, &entry)?;
        Ok(entry)
    }

    /// What memory has, for callers that must not wait for a disk. Counted as a hit; a miss is not counted, since nobody was
    /// asked who should know.
    #[must_use]
    pub fn recall(&self, key: &Key) -> Option<Arc<Entry>> {
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
        for (folder, source) in self.places() {
            match folder.load(key) {
                Loaded::Absent => {}
                Loaded::Bad(rejection) => {
                    self.note_rejection(folder, key, &rejection, source);
                    first.get_or_insert(rejection);
                }
                Loaded::Good { entry, file, bytes } => {
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

    /// Asks the folder, the layers, then the remote.
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

    /// Asks the remote for all of these keys at once, in about the time of one question, and keeps what it has, in memory and in the folder:
    /// for callers who take any of several keys, and have looked for them here. Gives the keys that it had, in their order.
    pub fn fetch(&self, keys: &[Key]) -> Vec<Key> {
        let found = keys.iter().zip(self.ask_remote(keys)).filter(|(_, below)| matches!(below, Below::Found(..)));
        let found: Vec<Key> = found.map(|(key, _)| *key).collect();
        found.iter().for_each(|_| self.count_hit(Source::Remote));
        found
    }

    /// Asks the remote, if there is one and this handle may; hits go into memory and into the folder. An answer for each key, or none at all.
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
                let location = link.options.remote.location();
                tracing::warn!(%location, %key, cause = %rejection.cause(), why = %rejection, "an entry of the remote store was rejected");
                Below::Missing(Some(rejection))
            }
            Fetched::Hit(entry) if !self.answers(&entry) => {
                count(&inner.counters.refusals_expired);
                Below::Missing(None)
            }
            Fetched::Hit(entry) => {
                let entry = Arc::new(entry);
                inner.memory.insert(*key, Arc::clone(&entry));
                if inner.settings.mode == Mode::ReadWrite {
                    // Counted and logged there; the answer does not depend on it.
                    let _ = self.store(key, &entry);
                }
                Below::Found(entry, Source::Remote)
            }
        }
    }

    /// Queues an entry for the remote, if it takes any.
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

    /// Encodes and writes; counts either way.
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
        let moved = moved.as_deref().map(Path::display).map(tracing::field::display);
        let cause = rejection.cause();
        if moved.is_some() || inner.told.first(key) {
            tracing::warn!(path = %path.display(), %cause, why = %rejection, moved_to = moved, "a stored entry was rejected");
        } else {
            // It stays where it is and is met again at every look-up.
            tracing::debug!(path = %path.display(), %cause, "a stored entry was rejected again");
        }
    }

    /// Marks an entry as used, at most once per key: eviction needs days, not seconds.
    fn stamp(&self, folder: &Folder, key: &Key, file: &std::fs::File) {
        if self.inner.settings.mode == Mode::ReadWrite && self.inner.stamped.first(key) {
            folder.stamp(file, (self.inner.options.clock)());
        }
    }

    fn copy_up(&self, key: &Key, entry: &Entry) {
        if self.inner.options.copy_up && self.inner.settings.mode == Mode::ReadWrite {
            // Counted and logged there; the answer does not depend on it.
            let _ = self.store(key, entry);
        }
    }
}

/// Gives what was found to those who wait for it. A lead that is dropped without gives them nothing, and they look by themselves.
fn land(lead: Option<Lead<'_>>, entry: &Arc<Entry>) {
    if let Some(lead) = lead {
        lead.land(Outcome::Entry(Arc::clone(entry)));
    }
}
