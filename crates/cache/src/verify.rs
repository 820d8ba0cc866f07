//! Checking all that is stored, with one thread per core.

use std::path::{Path, PathBuf};

use crate::crew;
use crate::folder::Folder;
use crate::format::{check_stored, decode};
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
                    Found::Temp(_) | Found::Foreign => {}
                }
            }
        }
        let mut checked = crew::parallel_map(&files, crew::cores(), |(folder, source, key, path)| {
            // `None`: it is gone, so there is nothing to be good or bad.
            listed(*source, *key, path.clone(), false, check(folder, key, path, depth))
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
        Depth::Payload => decode(&folder.read_path(path)?, Some(key)).map(|(header, _)| header),
    }
}
