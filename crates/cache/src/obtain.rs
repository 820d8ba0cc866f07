//! Get or build: the one way to make a missing entry, once per key for all threads that ask.

use std::any::Any;
use std::sync::Arc;

use crate::flight::{FlightOutcome, FlightRole, Lead};
use crate::lock::{self, Locked};
use crate::lookup::Below;
use crate::stats::count;
use crate::{Entry, Error, Key, Mode, Source, StoreError, Vault};

/// An entry, its source, and whether it was stored.
#[derive(Clone, Debug)]
pub struct Obtained {
    /// The entry.
    pub entry: Arc<Entry>,
    /// The source of the entry.
    pub source: Source,
    /// Why a built entry was not written to the folder, if it was not. The entry itself is good.
    pub unstored: Option<Arc<StoreError>>,
}

impl Obtained {
    fn new(entry: Arc<Entry>, source: Source) -> Self {
        Obtained { entry, source, unstored: None }
    }
}

impl Vault {
    /// Looks a key up as [`Vault::get`] does, and calls `build` if that finds nothing.
    ///
    /// * In this process one builder runs per key. A thread that asks meanwhile waits and gets the same entry or the
    ///   same error. A failed or panicked build leaves nothing behind: the next call builds again.
    /// * Across processes a lock per key saves double work where the file system has locks. After
    ///   [`lock_wait`](crate::VaultOptions::lock_wait) the build starts without the lock.
    /// * A rejected file counts as absent. A built entry that cannot be stored is returned all the same.
    ///
    /// The result of `build` must follow from the key. `build` may use the vault for other keys, as long as no two
    /// builders need each other's results, which would wait for ever.
    ///
    /// ```
    /// use qkvault_cache::{Entry, EntryKind, Error, Key, Source, Vault, VaultOptions};
    ///
    /// let vault = Vault::in_memory(VaultOptions::new());
    /// let compile = || {
    ///     Ok::<_, String>(Entry {
    ///         kind: EntryKind::Plan,
    ///         target: "sm_90".into(),
    ///         what: "decode".into(),
    ///         library: "9.27.0".into(),
    ///         meta: Vec::new(),
    ///         payload: vec![1, 2, 3],
    ///     })
    /// };
    /// let first = vault.get_or_build(&Key([1; 32]), compile)?;
    /// assert_eq!((first.source, &first.entry.payload[..]), (Source::Built, &[1, 2, 3][..]));
    /// // The second call does not build.
    /// let again = vault.get_or_build(&Key([1; 32]), || Err::<Entry, _>("not called".to_owned()))?;
    /// assert_eq!(again.source, Source::Memory);
    /// // An error of the builder is returned and not kept.
    /// let failed = vault.get_or_build(&Key([2; 32]), || Err::<Entry, _>("no compiler".to_owned()));
    /// assert!(matches!(failed, Err(Error::Build(_))));
    /// # Ok::<(), Error<String>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::Build`] with the error of the builder, [`Error::Panicked`] if the builder of another thread panicked,
    /// and [`Error::Reentrant`] if `build` asks for the key that it builds.
    pub fn get_or_build<E>(&self, key: &Key, build: impl FnOnce() -> Result<Entry, E>) -> Result<Obtained, Error<E>>
    where
        E: Send + Sync + 'static,
    {
        loop {
            if let Some(entry) = self.recall(key) {
                return Ok(Obtained::new(entry, Source::Memory));
            }
            match self.inner.flights.join(*key) {
                FlightRole::Lead(lead) => return self.lead(key, lead, build),
                FlightRole::Reentrant => return Err(Error::Reentrant { key: *key }),
                FlightRole::Follow(flight) => match flight.wait() {
                    FlightOutcome::Entry(entry) if self.answers(&entry) => {
                        self.count_hit(Source::Waited);
                        return Ok(Obtained::new(entry, Source::Waited));
                    }
                    // A refusal by another library version is not valid here: look again.
                    FlightOutcome::Entry(_) => {}
                    FlightOutcome::Failed(error) => {
                        // The other builder has another error type: this thread tries by itself.
                        if let Ok(error) = error.downcast::<E>() {
                            return Err(Error::Build(error));
                        }
                    }
                    FlightOutcome::Panicked => return Err(Error::Panicked { key: *key }),
                },
            }
        }
    }

    fn lead<E>(&self, key: &Key, lead: Lead<'_>, build: impl FnOnce() -> Result<Entry, E>) -> Result<Obtained, Error<E>>
    where
        E: Send + Sync + 'static,
    {
        // Another flight may have landed between the look into memory and the start of this one.
        if let Some(entry) = self.recall(key) {
            lead.land(FlightOutcome::Entry(Arc::clone(&entry)));
            return Ok(Obtained::new(entry, Source::Memory));
        }
        let mut found = self.look_everywhere(key);
        let mut _lock = None;
        if let (Below::Missing(_), Mode::ReadWrite) = (&found, self.inner.settings.mode) {
            _lock = self.lock(key);
            // Another process may have built it during the look-up or the wait.
            found = self.look_below(key);
        }
        if let Below::Found(entry, source) = found {
            self.count_hit(source);
            lead.land(FlightOutcome::Entry(Arc::clone(&entry)));
            return Ok(Obtained::new(entry, source));
        }

        count(&self.inner.counters.misses);
        count(&self.inner.counters.builds);
        let failed = CountUnlessForgotten(&self.inner.counters.build_failures);
        // If this panics, `failed` counts it and `lead` ends the flight as panicked.
        let built = build();
        let entry = match built {
            Ok(entry) => Arc::new(entry),
            Err(error) => {
                let error = Arc::new(error);
                let shared: Arc<dyn Any + Send + Sync> = error.clone();
                lead.land(FlightOutcome::Failed(shared));
                return Err(Error::Build(error));
            }
        };
        std::mem::forget(failed);
        if let Some(plan) = self.plan_instead(key, entry.kind) {
            // Another process stored it meanwhile.
            self.inner.memory.insert(*key, Arc::clone(&plan));
            lead.land(FlightOutcome::Entry(Arc::clone(&plan)));
            return Ok(Obtained::new(plan, Source::Disk));
        }
        self.inner.memory.insert(*key, Arc::clone(&entry));
        let unstored = self.store(key, &entry).err().map(Arc::new);
        self.back_fill(key, &entry);
        lead.land(FlightOutcome::Entry(Arc::clone(&entry)));
        Ok(Obtained { entry, source: Source::Built, unstored })
    }

    fn lock(&self, key: &Key) -> Option<lock::KeyLock> {
        let folder = self.inner.folder.as_ref()?;
        let (path, entry) = (folder.layout.lock(key), folder.layout.entry(key));
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

/// Counts when it is dropped, as by a panic; forgotten when the build went well.
struct CountUnlessForgotten<'a>(&'a std::sync::atomic::AtomicU64);

impl Drop for CountUnlessForgotten<'_> {
    fn drop(&mut self) {
        count(self.0);
    }
}
