//! Checking all that is stored, with one thread per core.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

use crate::crew;
use crate::folder::Folder;
use crate::format::check_stored;
use crate::list::listed;
use crate::scan::Found;
use crate::{Header, Key, Listed, Rejection, Source, Vault};

/// How much of each entry [`Vault::verify`] looks at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Depth {
    /// The header and the length of the file.
    Header,
    /// The whole file against its checksums: it is what was written. As fast as the disk.
    Stored,
    /// Also what it decompresses to, against the checksum of the payload.
    Payload,
}

/// What a check of all entries found.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct VerifyReport {
    /// Entries that are good.
    pub good: u64,
    /// Bytes of their files.
    pub good_bytes: u64,
    /// Entries that would not be served, with the reasons, in the order of [`Vault::ls`].
    pub bad: Vec<(Listed, Rejection)>,
    /// Blobs that are good.
    pub good_blobs: u64,
    /// Bytes of their files.
    pub good_blob_bytes: u64,
    /// Blobs that are not, with the reasons. Entries that refer to them are not served either.
    pub bad_blobs: Vec<(PathBuf, Rejection)>,
    /// Folders that could not be listed, so that what lies there was not checked, and why.
    pub unlisted: Vec<(PathBuf, String)>,
}

impl Vault {
    /// Checks every stored entry of all places, and changes nothing.
    pub fn verify(&self, depth: Depth) -> VerifyReport {
        let mut report = VerifyReport::default();
        let mut files = Vec::new();
        for (folder, source) in self.places() {
            for found in folder.scan() {
                match found {
                    Found::Entry(key, path) => files.push((folder, source, key, path)),
                    Found::Unlisted(path, why) => report.unlisted.push((path, why)),
                    Found::Blob(..) | Found::Temp(_) | Found::Foreign => {}
                }
            }
        }
        let blobs = self.verify_blobs(depth, &mut report);
        let mut checked = crew::each(&files, crew::cores(), |(folder, source, key, path)| {
            let header = check(folder, key, path, depth).and_then(|header| {
                let bad = header.shared.iter().find_map(|hash| blobs.lacks(*source, hash, depth));
                bad.map_or(Ok(header), Err)
            });
            // `None`: it is gone, so there is nothing to be good or bad.
            listed(*source, *key, path.clone(), false, header)
        });
        checked.sort_by_key(|listed| (layer(listed.source), listed.key));
        for listed in checked {
            match &listed.header {
                Ok(_) => {
                    report.good += 1;
                    report.good_bytes += listed.file_bytes;
                }
                Err(rejection) => {
                    let rejection = rejection.clone();
                    report.bad.push((listed, rejection));
                }
            }
        }
        report
    }

    fn verify_blobs(&self, depth: Depth, report: &mut VerifyReport) -> CheckedBlobs {
        let mut files = Vec::new();
        for (folder, source) in self.places().filter(|_| depth > Depth::Header) {
            for found in folder.scan_blobs() {
                match found {
                    Found::Blob(hash, path) => files.push((folder, source, hash, path)),
                    Found::Unlisted(path, why) => report.unlisted.push((path, why)),
                    Found::Entry(..) | Found::Temp(_) | Found::Foreign => {}
                }
            }
        }
        let checked = crew::each(&files, crew::cores(), |(folder, source, hash, path)| {
            let bytes = fs::symlink_metadata(path).ok()?.len();
            let good = match depth {
                Depth::Header | Depth::Stored => folder.check_blob(hash),
                Depth::Payload => folder.check_whole_blob(hash),
            };
            Some(((layer(*source), *hash), path.clone(), bytes, good))
        });
        let mut blobs = HashMap::new();
        for (key, path, bytes, good) in checked {
            match &good {
                Ok(()) => {
                    report.good_blobs += 1;
                    report.good_blob_bytes += bytes;
                }
                Err(why) => report.bad_blobs.push((path, why.clone())),
            }
            blobs.insert(key, good);
        }
        report.bad_blobs.sort_by(|a, b| a.0.cmp(&b.0));
        CheckedBlobs(blobs)
    }
}

/// Blobs that were checked, each once however many entries refer to it.
struct CheckedBlobs(HashMap<(Option<usize>, Key), Result<(), Rejection>>);

impl CheckedBlobs {
    /// Why an entry of this place cannot use a blob, if it cannot. Headers alone tell nothing about blobs.
    fn lacks(&self, source: Source, hash: &Key, depth: Depth) -> Option<Rejection> {
        match (depth, self.0.get(&(layer(source), *hash))) {
            (Depth::Header, _) | (_, Some(Ok(()))) => None,
            (_, Some(Err(why))) => Some(why.clone()),
            (_, None) => Some(Rejection::Blob { hash: *hash, detail: "is not there".to_owned() }),
        }
    }
}

fn layer(source: Source) -> Option<usize> {
    match source {
        Source::Layer(n) => Some(n),
        _ => None,
    }
}

fn check(folder: &Folder, key: &Key, path: &Path, depth: Depth) -> Result<Header, Rejection> {
    match depth {
        Depth::Header => folder.read_header(key, path),
        Depth::Stored => check_stored(&folder.read_path(path)?, Some(key)),
        Depth::Payload => folder.decode(&folder.read_path(path)?, key).map(|(header, _)| header),
    }
}
