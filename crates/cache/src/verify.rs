//! Checking all stored entries, with one thread per core.

use std::path::{Path, PathBuf};

use crate::crew;
use crate::folder::Folder;
use crate::format::{check_stored, decode};
use crate::list::listed;
use crate::scan::ScannedFile;
use crate::{Header, Key, Listed, Rejection, Source, Vault};

/// How much of each entry [`Vault::verify`] checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Depth {
    /// The header and the length of the file.
    Header,
    /// The whole file against its checksums, without decompressing it. As fast as the disk.
    Stored,
    /// The whole file, decompressed, against the checksum of the payload too.
    Payload,
}

/// The result of a check of all entries.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct VerifyReport {
    /// Number of good entries.
    pub good: u64,
    /// Bytes of the files of good entries.
    pub good_bytes: u64,
    /// Bad entries with the causes, in the order of [`Vault::ls`].
    pub bad: Vec<(Listed, Rejection)>,
    /// Folders that could not be listed and were not checked, with the errors.
    pub unlisted: Vec<(PathBuf, String)>,
}

impl Vault {
    /// Checks every stored entry of the vault's own folder and of its layers, and changes nothing.
    #[must_use]
    pub fn verify(&self, depth: Depth) -> VerifyReport {
        let mut report = VerifyReport::default();
        let mut files = Vec::new();
        for (folder, source) in self.folders() {
            for found in folder.scan() {
                match found {
                    ScannedFile::Entry(key, path) => files.push((folder, source, key, path)),
                    ScannedFile::Unlisted(path, why) => report.unlisted.push((path, why)),
                    ScannedFile::Temp(_) | ScannedFile::Foreign => {}
                }
            }
        }
        let mut checked = crew::parallel_map(&files, crew::cores(), |(folder, source, key, path)| {
            // `None`: the file is gone.
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
