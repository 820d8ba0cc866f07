//! Listing the entries of a folder by names and metadata, in the order of the keys.

use std::fs::{self, DirEntry, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use crate::folder::Folder;
use crate::format::{MAX_HEADER, decode_header};
use crate::paths::{TEMP_PREFIX, key_of};
use crate::read::{open_for_reading, unreadable};
use crate::{Header, Key, Rejection};

/// One file in the folder of entries.
#[derive(Debug)]
pub(crate) enum ScannedFile {
    /// An entry, by its name.
    Entry(Key, PathBuf),
    /// A temporary file of a writer that runs or died.
    Temp(PathBuf),
    /// A file that the vault did not make and never touches.
    Foreign,
    /// A folder that could not be listed, with the error.
    Unlisted(PathBuf, String),
}

/// Bytes of a header that are read first; nearly every header is shorter.
const FIRST_READ: usize = 1024;

impl Folder {
    /// Lists all files in the folder of entries. A missing folder has none.
    pub(crate) fn scan(&self) -> impl Iterator<Item = ScannedFile> + use<> {
        let (parts, unlisted) = sorted(&self.layout.entries);
        // `file_type` does not follow a link to a folder.
        let parts = parts.into_iter().filter(|part| part.file_type().is_ok_and(|kind| kind.is_dir()));
        let found = parts.flat_map(|part| {
            let part = part.path();
            let (files, unlisted) = sorted(&part);
            files.into_iter().map(move |file| classify(&part, &file)).chain(unlisted)
        });
        found.chain(unlisted)
    }

    /// Lists the entries among the files.
    pub(crate) fn entries(&self) -> impl Iterator<Item = (Key, PathBuf)> + use<> {
        self.scan().filter_map(|found| match found {
            ScannedFile::Entry(key, path) => Some((key, path)),
            ScannedFile::Temp(_) | ScannedFile::Foreign | ScannedFile::Unlisted(..) => None,
        })
    }

    /// Reads and checks the header of an entry file, without the payload.
    pub(crate) fn read_header(&self, key: &Key, path: &Path) -> Result<Header, Rejection> {
        let file = open_for_reading(path).map_err(|error| unreadable(&error))?;
        let meta = file.metadata().map_err(|error| unreadable(&error))?;
        self.check_entry(path, &meta)?;
        let mut bytes = Vec::with_capacity(FIRST_READ);
        read_up_to(&file, FIRST_READ, &mut bytes)?;
        let header = match decode_header(&bytes, Some(key)) {
            Err(Rejection::HeaderLength { declared, present })
                if present == FIRST_READ && declared > present && declared <= MAX_HEADER =>
            {
                read_up_to(&file, declared - present, &mut bytes)?;
                decode_header(&bytes, Some(key))?
            }
            other => other?,
        };
        match header.file_len() == meta.len() {
            true => Ok(header),
            false => Err(Rejection::FileLength { expected: header.file_len(), found: meta.len() }),
        }
    }
}

/// Whether the entry of a key belongs into this subfolder. A look-up does not find it in another one.
fn is_part_of(part: &Path, key: &Key) -> bool {
    part.file_name().is_some_and(|name| *name == *format!("{:02x}", key.0[0]))
}

fn classify(part: &Path, file: &DirEntry) -> ScannedFile {
    let path = file.path();
    let is_file = file.file_type().is_ok_and(|kind| kind.is_file());
    match key_of(&path) {
        Some(key) if is_file && is_part_of(part, &key) => ScannedFile::Entry(key, path),
        _ if is_file && file.file_name().to_string_lossy().starts_with(TEMP_PREFIX) => ScannedFile::Temp(path),
        _ => ScannedFile::Foreign,
    }
}

/// The files of a folder by name, and the error that kept it from being listed whole.
fn sorted(folder: &Path) -> (Vec<DirEntry>, Option<ScannedFile>) {
    let mut unlisted = None;
    let mut failed = |error: io::Error| {
        if error.kind() != io::ErrorKind::NotFound {
            unlisted = Some(ScannedFile::Unlisted(folder.to_owned(), error.to_string()));
        }
    };
    let mut files = Vec::new();
    match fs::read_dir(folder) {
        Ok(listing) => listing.for_each(|file| match file {
            Ok(file) => files.push(file),
            Err(error) => failed(error),
        }),
        Err(error) => failed(error),
    }
    files.sort_by_key(DirEntry::file_name);
    (files, unlisted)
}

fn read_up_to(file: &File, len: usize, bytes: &mut Vec<u8>) -> Result<(), Rejection> {
    file.take(len as u64).read_to_end(bytes).map(drop).map_err(|error| unreadable(&error))
}
