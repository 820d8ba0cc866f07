//! The manifest of a fetched folder, written last. A folder without a manifest, or with other files than it lists, is
//! not complete.

use std::path::Path;

use qkvault_base::MANIFEST;
use serde::{Deserialize, Serialize};

use super::FetchError;
use super::pins::Parcel;

/// The contents of a fetched folder.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct FolderManifest {
    /// SHA-256 of every unpacked wheel, in the order of the list.
    wheels: Vec<String>,
    /// Every file.
    files: Vec<FileEntry>,
}

/// One file, relative to the folder.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct FileEntry {
    pub(crate) path: String,
    pub(crate) bytes: u64,
}

/// The state of a parcel's folder.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum FolderState {
    /// Complete, with this many bytes.
    Whole(u64),
    /// The folder does not exist.
    Absent,
    /// The folder cannot be used, for this reason.
    Broken(String),
}

impl FolderManifest {
    pub(crate) fn new(parcel: &Parcel, files: Vec<FileEntry>) -> Self {
        Self { wheels: parcel.wheels.iter().map(|wheel| wheel.sha256.clone()).collect(), files }
    }

    pub(crate) fn write(&self, dir: &Path) -> Result<(), FetchError> {
        let file = dir.join(MANIFEST);
        let text =
            toml::to_string(self).map_err(|error| FetchError::io("write", &file, std::io::Error::other(error)))?;
        std::fs::write(&file, text).map_err(|source| FetchError::io("write", &file, source))
    }

    /// The state of a folder for a parcel.
    pub(crate) fn state(parcel: &Parcel, dir: &Path) -> FolderState {
        if !dir.exists() {
            return FolderState::Absent;
        }
        let Ok(text) = std::fs::read_to_string(dir.join(MANIFEST)) else {
            return FolderState::Broken("it has no manifest".to_owned());
        };
        let Ok(manifest) = toml::from_str::<Self>(&text) else {
            return FolderState::Broken("its manifest cannot be read".to_owned());
        };
        if !manifest.wheels.iter().eq(parcel.wheels.iter().map(|wheel| &wheel.sha256)) {
            return FolderState::Broken("it was made from other wheels than the list has now".to_owned());
        }
        for FileEntry { path, bytes } in &manifest.files {
            let found = dir.join(path).metadata().map(|data| data.len()).unwrap_or_default();
            if found != *bytes {
                return FolderState::Broken(format!("{path} has {found} bytes instead of {bytes}"));
            }
        }
        FolderState::Whole(manifest.files.iter().map(|entry| entry.bytes).sum())
    }
}
