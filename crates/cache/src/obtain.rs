//! Get or build: the one way in which a missing entry comes to be, once per key, however many ask.

use std::any::Any;
use std::sync::Arc;

use crate::flight::{Lead, Outcome, Role};
use crate::lock::{self, Locked};
use crate::lookup::Below;
use crate::stats::count;
use crate::{Entry, Error, Key, Mode, Source, StoreError, Vault};

/// An entry, where it came from, and whether it will be there next time.
#[derive(Clone, Debug)]
pub struct Obtained {
    /// The entry.
    pub entry: Arc<Entry>,
    /// Where it came from.
    pub source: Source,
    /// For a built entry that was not written to the folder: why not. The entry itself is good.
    pub unstored: Option<Arc<StoreError>>,
}

impl Obtained {
    fn new(entry: Arc<Entry>, source: Source) -> Self {
        Obtained { entry, source, unstored: None }
    }
}

impl Vault {
    /// Looks a key up, and calls `build` if no place has it.
    ///
    /// * In this process one builder runs per key; whoever asks meanwhile waits and gets the same entry, or the same
    ///   error. A failed or panicked build leaves nothing behind: the next call builds again.
    /// * Across processes a lock per key saves double work where the file system has locks; after
    ///   [`lock_wait`](crate::VaultOptions::lock_wait) the build goes on without.
    /// * A stored file that is rejected counts as absent. A built entry that cannot be stored is given all the same.
    ///
    /// `build` must depend on nothing that is not under the key. It may use the vault for other keys, as long as no two
    /// builders need each other's results: they would wait for ever. For its own key it gets [`Error::Reentrant`].
    pub fn get_or_build<E>(&self, key: &Key, build: impl FnOnce() -> Result<Entry, E>) -> Result<Obtained, Error<E>>
    where
        E: Send + Sync + 'static,
    {
        loop {
            if let Some(entry) = self.recall(key) {
                return Ok(Obtained::new(entry, Source::Memory));
            }
            match self.inner.flights.join(*key) {
                Role::Lead(lead) => return self.lead(key, lead, build),
                Role::Reentrant => return Err(Error::Reentrant { key: *key }),
                Role::Follow(flight) => match flight.wait() {
                    Outcome::Entry(entry) if self.answers(&entry) => {
                        self.count_hit(Source::Waited);
                        return Ok(Obtained::new(entry, Source::Waited));
                    }
                    // A refusal for another library version: ask again, it does not answer here.
                    Outcome::Entry(_) => {}
                    Outcome::Failed(error) => {
                        // Another error type than ours tells us nothing; then this thread tries for itself.
                        if let Ok(error) = error.downcast::<E>() {
                            return Err(Error::Build(error));
                        }
                    }
                    Outcome::Panicked => return Err(Error::Panicked { key: *key }),
                },
            }
        }
    }

    fn lead<E>(&self, key: &Key, lead: Lead<'_>, build: impl FnOnce() -> Result<Entry, E>) -> Result<Obtained, Error<E>>
    where
        E: Send + Sync + 'static,
    {
        // Between our look into memory and the start of this flight, another one may have landed.
        if let Some(entry) = self.recall(key) {
            lead.land(Outcome::Entry(Arc::clone(&entry)));
            return Ok(Obtained::new(entry, Source::Memory));
        }
        let mut found = self.look_everywhere(key);
        let mut _lock = None;
        if let (Below::Missing(_), Mode::ReadWrite) = (&found, self.inner.settings.mode) {
            _lock = self.lock(key);
            // Another process may have built it while we looked, or while we waited.
            found = self.look_below(key);
        }
        if let Below::Found(entry, source) = found {
            self.count_hit(source);
            lead.land(Outcome::Entry(Arc::clone(&entry)));
            return Ok(Obtained::new(entry, source));
        }

        count(&self.inner.counters.misses);
        count(&self.inner.counters.builds);
        let failed = CountUnlessForgotten(&self.inner.counters.build_failures);
        // If this panics, `failed` counts it and `lead` tells those who wait.
        let built = build();
        let entry = match built {
            Ok(entry) => Arc::new(entry),
            Err(error) => {
                let error = Arc::new(error);
                let shared: Arc<dyn Any + Send + Sync> = error.clone();
                lead.land(Outcome::Failed(shared));
                return Err(Error::Build(error));
            }
        };
        std::mem::forget(failed);
        self.inner.memory.insert(*key, Arc::clone(&entry));
        let unstored = self.store(key, &entry).err().map(Arc::new);
        self.back_fill(key, &entry);
        lead.land(Outcome::Entry(Arc::clone(&entry)));
        Ok(Obtained { entry, source: Source::Built, unstored })
    }

    fn lock(&self, key: &Key) -> Option<lock::KeyLock> {
        let folder = self.inner.folder.as_ref()?;
        let (path, entry) = (folder.places.lock(key), folder.places.entry(key));
        match lock::acquire(&path, self.inner.options.lock_wait, || entry.exists()) {
            Locked::Held(lock) => return Some(lock),
            Locked::Appeared => {}
            Locked::TimedOut => {
                count(&self.inner.counters.locks_unavailable);
                tracing::warn!(%key, "another process holds the lock of this key for too long: building here too");
            }
            Locked::Unavailable(error) => {
                count(&self.inner.counters.locks_unavailable);
                tracing::debug!(%key, %error, "no lock for this key: two processes may build it");
            }
        }
        None
    }
}

/// Counts when dropped, as a panic does; forgotten when all went well.
struct CountUnlessForgotten<'a>(&'a std::sync::atomic::AtomicU64);

impl Drop for CountUnlessForgotten<'_> {
    fn drop(&mut self) {
        count(self.0);
    }
}
