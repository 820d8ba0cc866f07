//! Blobs in a folder: kernels that several entries share, each once, under the hash of its bytes.
//!
//! A blob is written before the first entry that refers to it, and removed by `gc` alone, when no entry refers to it and
//! it was not asked for of late. An entry whose blob is missing or bad is not served, and is built again over it.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use quick_cache::Weighter;
use quick_cache::sync::Cache;

use crate::folder::Folder;
use crate::format::{HASH_LEN, Shared, check_blob, decode_blob, decode_with, encode_blob, text_of};
use crate::paths::{TEMP_PREFIX, entry_name};
use crate::read::{open_for_reading, unreadable};
use crate::{Entry, Header, Key, MAX_SKEW, Rejection, StoreError};

/// Most bytes of text of blobs that a folder keeps in memory: the kernels of some 200 families of plans.
pub(crate) const MAX_TEXTS: u64 = 16 << 20;

/// A blob that was written or asked for within this time belongs to somebody, whatever the entries say.
const GRACE: Duration = Duration::from_secs(60);

/// Texts of blobs that were read and checked, so that further entries of a family need not read them again.
pub(crate) struct Texts(Option<Cache<Key, Arc<[u8]>, Length>>);

#[derive(Clone)]
struct Length;

impl Weighter<Key, Arc<[u8]>> for Length {
    fn weight(&self, _: &Key, text: &Arc<[u8]>) -> u64 {
        (text.len() + HASH_LEN) as u64
    }
}

impl Texts {
    /// With 0 bytes nothing is kept.
    pub(crate) fn new(bytes: u64) -> Texts {
        Texts((bytes > 0).then(|| Cache::with_weighter(256, bytes, Length)))
    }
}

impl std::fmt::Debug for Texts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Texts").field(&self.0.as_ref().map(Cache::weight)).finish()
    }
}

/// A blob file, as a collection sees it.
pub(crate) struct FoundBlob {
    pub(crate) hash: Key,
    pub(crate) path: PathBuf,
    pub(crate) bytes: u64,
    pub(crate) touched: SystemTime,
}

impl Folder {
    /// Reads and checks an entry of this folder, with the blobs that it shares with others.
    pub(crate) fn decode(&self, bytes: &[u8], key: &Key) -> Result<(Header, Entry), Rejection> {
        decode_with(bytes, Some(key), |hash| self.text(hash))
    }

    /// The text of a blob, read and checked once.
    fn text(&self, hash: &Key) -> Result<Arc<[u8]>, Rejection> {
        if let Some(text) = self.texts.0.as_ref().and_then(|texts| texts.get(hash)) {
            return Ok(text);
        }
        let text: Arc<[u8]> = self.blob(hash, |file| decode_blob(file, hash)).map(|bytes| text_of(&bytes).into())?;
        if let Some(texts) = &self.texts.0 {
            texts.insert(*hash, Arc::clone(&text));
        }
        Ok(text)
    }

    /// Checks the file of a blob as it was written, without decompressing it.
    pub(crate) fn check_blob(&self, hash: &Key) -> Result<(), Rejection> {
        self.blob(hash, |file| check_blob(file, hash)).map(drop)
    }

    /// Checks a blob to its last byte.
    pub(crate) fn check_whole_blob(&self, hash: &Key) -> Result<(), Rejection> {
        self.blob(hash, |file| decode_blob(file, hash)).map(drop)
    }

    fn blob<T>(&self, hash: &Key, read: impl Fn(&[u8]) -> Result<T, Rejection>) -> Result<T, Rejection> {
        let path = self.places.blob(hash);
        let read = open_for_reading(&path)
            .map_err(|error| unreadable(&error))
            .and_then(|file| self.read(&path, &file))
            .and_then(|file| read(&file));
        read.map_err(|why| match why {
            Rejection::Unreadable { .. } if !path.exists() => {
                Rejection::Blob { hash: *hash, detail: "is not there".to_owned() }
            }
            why => Rejection::Blob { hash: *hash, detail: format!("is not good: {why}") },
        })
    }

    /// Stores an entry and what it shares with others. Gives the bytes written.
    pub(crate) fn store_shared(&self, key: &Key, entry: &Shared) -> Result<u64, StoreError> {
        let Shared { file, blobs } = entry;
        let mut written = file.len() as u64;
        for (hash, bytes) in blobs {
            written += self.keep_blob(hash, bytes)?;
        }
        self.store(key, file)?;
        // Again, now that the entry is there: a collection that has not seen the entry sees this stamp, or has taken the
        // blob away already, and then it is written again.
        for (hash, bytes) in blobs.iter().filter(|(hash, _)| !self.touch_blob(hash)) {
            written += self.keep_blob(hash, bytes)?;
        }
        Ok(written)
    }

    /// Makes sure that a blob is there, good, and stamped. Gives the bytes written.
    fn keep_blob(&self, hash: &Key, bytes: &[u8]) -> Result<u64, StoreError> {
        let mut written = 0;
        // Once is enough, unless collections take it away as fast as it is written.
        for _ in 0..8 {
            if self.touch_blob(hash) && self.check_whole_blob(hash).is_ok() {
                break;
            }
            let file = encode_blob(hash, bytes)?;
            self.place(&self.places.blob_shard(hash), &entry_name(hash), &file)?;
            written += file.len() as u64;
        }
        Ok(written)
    }

    /// Stamps a blob as asked for now, if it is there: whoever wants to remove it sees that.
    fn touch_blob(&self, hash: &Key) -> bool {
        let path = self.places.blob(hash);
        let stamped = open_for_reading(&path).and_then(|file| file.set_modified(SystemTime::now()));
        // If it was taken away between the two, the stamp may have come too late to be seen.
        stamped.is_ok() && path.exists()
    }

    /// Removes blobs that no entry refers to, unless somebody asked for them of late. How many went, and their bytes.
    pub(crate) fn remove_blobs<'a>(
        &self,
        unused: impl Iterator<Item = &'a FoundBlob>,
        now: SystemTime,
        grace: Duration,
    ) -> (u64, u64) {
        let (mut removed, mut freed) = (0, 0);
        for FoundBlob { hash: _, path, bytes, touched } in unused {
            if !is_recent(*touched, now, grace.max(GRACE)) && remove_blob(path, *touched) {
                removed += 1;
                freed += bytes;
            }
        }
        (removed, freed)
    }
}

/// Takes a blob away, looks whether somebody has stamped it since it was listed, and if so puts it back: a writer that has
/// stamped it counts on it, and one that finds it gone writes it again.
fn remove_blob(path: &Path, touched: SystemTime) -> bool {
    let aside = path.with_file_name(format!("{TEMP_PREFIX}{}-{:x}", std::process::id(), crate::quarantine::unique()));
    if fs::rename(path, &aside).is_err() {
        return false;
    }
    let again = fs::symlink_metadata(&aside).and_then(|meta| meta.modified());
    if again.is_ok_and(|again| again == touched) {
        return fs::remove_file(&aside).is_ok();
    }
    // With a stamp of its own, for it may replace one that was written and stamped meanwhile, and that another collection
    // must not take for the one it has listed.
    let stamped = open_for_reading(&aside).and_then(|file| file.set_modified(SystemTime::now()));
    if let Err(error) = stamped.and_then(|()| fs::rename(&aside, path)) {
        tracing::warn!(path = %aside.display(), %error, "a blob in use could not be put back");
    }
    false
}

fn is_recent(touched: SystemTime, now: SystemTime, grace: Duration) -> bool {
    match now.duration_since(touched) {
        Ok(age) => age < grace,
        Err(ahead) => ahead.duration() <= MAX_SKEW,
    }
}
