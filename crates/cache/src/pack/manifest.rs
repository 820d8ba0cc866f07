//! The manifest: the list of the entries of a pack, readable without decompressing it.

use std::collections::HashSet;

use super::PackError;
use crate::format::{MAX_HEADER, MAX_LABEL, MAX_PAYLOAD, MIN_HEADER};
use crate::{EntryKind, Header, Key};

/// One entry of a pack.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ManifestEntry {
    /// Its key.
    pub key: Key,
    /// Plan or refusal.
    pub kind: EntryKind,
    /// Version of the library that wrote it.
    pub library: String,
    /// Label of the target.
    pub target: String,
    /// Label of the attention.
    pub what: String,
    /// Bytes in the decompressed body, where the entry is an entry file without compression.
    pub bytes: u64,
}

/// The entries of a pack, in the order of its body.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PackManifest {
    /// The entries.
    pub entries: Vec<ManifestEntry>,
}

/// Bytes of an entry before its labels.
const FIXED: usize = 32 + 4 + 8;

/// Most bytes of one entry in the manifest.
pub(crate) const MAX_LINE: u64 = (FIXED + 3 * MAX_LABEL) as u64;

impl ManifestEntry {
    pub(crate) fn from_header(header: &Header, bytes: u64) -> Self {
        ManifestEntry {
            key: header.key,
            kind: header.kind,
            library: header.library.clone(),
            target: header.target.clone(),
            what: header.what.clone(),
            bytes,
        }
    }
}

impl PackManifest {
    /// The bytes of all entries together.
    #[must_use]
    pub fn plain_len(&self) -> u64 {
        self.entries.iter().fold(0, |sum, entry| sum.saturating_add(entry.bytes))
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        for ManifestEntry { key, kind, library, target, what, bytes } in &self.entries {
            out.extend_from_slice(key.as_bytes());
            out.push(kind.code());
            // Labels come from checked headers, so their lengths fit one byte.
            for label in [library, target, what] {
                out.push(label.len() as u8);
            }
            out.extend_from_slice(&bytes.to_le_bytes());
            for label in [library, target, what] {
                out.extend_from_slice(label.as_bytes());
            }
        }
        out
    }

    /// Reads exactly `count` entries from exactly these bytes.
    pub(crate) fn decode(bytes: &[u8], count: u32) -> Result<Self, PackError> {
        let mut rest = bytes;
        let mut entries = Vec::new();
        let mut seen = HashSet::new();
        for at in 0..count as usize {
            let wrong = |detail: &str| PackError::Manifest { at, detail: detail.to_owned() };
            let mut take = |len: usize| match rest.split_at_checked(len) {
                Some((part, after)) => {
                    rest = after;
                    Ok(part)
                }
                None => Err(wrong("it is cut off")),
            };
            let fixed = take(FIXED)?;
            let (id, numbers) = fixed.split_at(32);
            let mut key = [0; 32];
            key.copy_from_slice(id);
            let kind = EntryKind::from_code(numbers[0]).ok_or_else(|| wrong("its kind is unknown"))?;
            let mut len = [0; 8];
            len.copy_from_slice(&numbers[4..]);
            let len = u64::from_le_bytes(len);
            let mut label = |n: usize| {
                let text = take(usize::from(numbers[n]))?;
                let text = std::str::from_utf8(text).map_err(|_| wrong("a label is not UTF-8"))?;
                Ok::<_, PackError>(text.to_owned())
            };
            let (library, target, what) = (label(1)?, label(2)?, label(3)?);
            if !(MIN_HEADER as u64..=MAX_HEADER as u64 + MAX_PAYLOAD).contains(&len) {
                return Err(wrong(&format!("no entry has {len} bytes")));
            }
            if !seen.insert(key) {
                return Err(wrong("its key comes twice"));
            }
            entries.push(ManifestEntry { key: Key(key), kind, library, target, what, bytes: len });
        }
        if !rest.is_empty() {
            let detail = format!("{} bytes follow it", rest.len());
            return Err(PackError::Manifest { at: count as usize, detail });
        }
        Ok(PackManifest { entries })
    }
}
