//! Unpacking: the whole pack is checked, entry by entry, before the first entry is stored.

use std::io::{BufReader, Read, Seek};

use tempfile::SpooledTempFile;

use super::open::{OpenPack, open};
use super::{ManifestEntry, PackError, PackLimits, PackManifest, SealKey, WINDOW_LOG};
use crate::format::{Codec, check_stored, entry_of_plain};
use crate::read::ReadEntry;
use crate::{Entry, Vault};

/// Options of unpacking.
#[derive(Clone, Debug, Default)]
pub struct UnpackOptions {
    /// The key of the seal. With a key, packs without its seal are refused; without a key, sealed packs are refused.
    pub seal: Option<SealKey>,
    /// Whether packs without a seal are refused. Default: no. A vault may require it too
    /// ([`VaultOptions::require_seal`](crate::VaultOptions::require_seal)).
    pub require_seal: bool,
    /// Limits on what the pack declares.
    pub limits: PackLimits,
}

/// The result of unpacking.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct UnpackReport {
    /// Entries in the pack.
    pub entries: u64,
    /// Entries selected.
    pub selected: u64,
    /// Selected entries that were stored.
    pub stored: u64,
    /// Selected entries that the vault's own folder had already, of the same kind and library version.
    pub already: u64,
    /// Selected refusals and times that were not stored, because the vault has a plan under their key.
    pub kept: u64,
    /// Bytes of all entries, decompressed.
    pub plain_bytes: u64,
}

/// Checks a whole pack and stores nothing: header, seal, manifest, and every entry with all its checksums.
///
/// # Errors
///
/// [`PackError`] for the first check that fails.
pub fn verify_pack(mut input: impl Read, options: &UnpackOptions) -> Result<PackManifest, PackError> {
    let mut pack = open(&mut input, options)?;
    walk(&mut pack, |_, _| Ok(()))?;
    Ok(pack.manifest)
}

impl Vault {
    /// Stores the entries of a pack for which `select` returns true. The whole pack is checked before the first entry
    /// is stored. A refusal or times of the pack never replace or hide a plan that the vault or a layer has.
    ///
    /// # Errors
    ///
    /// [`PackError`] if the vault does not write, for the first check that fails, and for the first entry that cannot
    /// be stored; only the last leaves entries stored.
    pub fn unpack(
        &self,
        mut input: impl Read,
        mut select: impl FnMut(&ManifestEntry) -> bool,
        options: &UnpackOptions,
    ) -> Result<UnpackReport, PackError> {
        let folder = self.writable()?;
        let require_seal = options.require_seal || self.inner.settings.require_seal;
        let mut pack = open(&mut input, &UnpackOptions { require_seal, ..options.clone() })?;
        let mut report = UnpackReport {
            entries: pack.manifest.entries.len() as u64,
            plain_bytes: pack.manifest.plain_len(),
            ..UnpackReport::default()
        };
        walk(&mut pack, |_, _| Ok(()))?;
        walk(&mut pack, |line, entry| {
            if !select(line) {
                return Ok(());
            }
            report.selected += 1;
            match folder.load(&line.key) {
                ReadEntry::Good { entry: there, .. } if there.kind == entry.kind && there.library == entry.library => {
                    report.already += 1;
                }
                _ if self.plan_instead(&line.key, entry.kind).is_some() => report.kept += 1,
                _ => {
                    self.store(&line.key, &entry)?;
                    // Memory may hold an older entry of this key.
                    self.inner.memory.forget(&line.key);
                    report.stored += 1;
                }
            }
            Ok(())
        })?;
        Ok(report)
    }
}

/// Decompresses the body and calls `each` with its entries, each checked on its own and against the manifest.
fn walk(
    pack: &mut OpenPack,
    mut each: impl FnMut(&ManifestEntry, Entry) -> Result<(), PackError>,
) -> Result<(), PackError> {
    let OpenPack { manifest, body } = pack;
    body.rewind().map_err(PackError::io("read the pack"))?;
    let bad = |error: std::io::Error| PackError::Body { detail: error.to_string() };
    let mut plain = decoder(body).map_err(bad)?;
    for line in &manifest.entries {
        let bytes = read_exactly(&mut plain, line.bytes).map_err(bad)?;
        if bytes.len() as u64 != line.bytes {
            let detail = format!("it ends within the entry {}", line.key);
            return Err(PackError::Body { detail });
        }
        let wrong = |rejection| PackError::Entry { key: line.key, rejection };
        let header = check_stored(&bytes, Some(&line.key)).map_err(wrong)?;
        let ManifestEntry { key: _, kind, library, target, what, bytes: _ } = line;
        for (field, same) in [
            // A compressed entry inside the compressed stream would get around the limits on plain bytes and memory.
            ("codec", header.codec == Codec::None),
            ("kind", *kind == header.kind),
            ("library", *library == header.library),
            ("target", *target == header.target),
            ("what", *what == header.what),
        ] {
            if !same {
                return Err(PackError::EntryDiffers { key: line.key, field });
            }
        }
        let entry = entry_of_plain(header, bytes).map_err(wrong)?;
        each(line, entry)?;
    }
    let mut more = [0; 1];
    if plain.read(&mut more).map_err(bad)? != 0 {
        return Err(PackError::Body { detail: "more than the declared bytes".to_owned() });
    }
    // The decoder reads one frame; no check has read bytes behind it.
    let mut rest = plain.finish();
    match rest.read(&mut more).map_err(PackError::io("read the pack"))? {
        0 => Ok(()),
        _ => Err(PackError::Body { detail: "bytes follow the compressed stream".to_owned() }),
    }
}

/// Reads `len` bytes, or fewer at the end. The buffer grows with what arrives, and never beyond `len`.
fn read_exactly(input: &mut impl Read, len: u64) -> std::io::Result<Vec<u8>> {
    const FIRST: u64 = 1 << 20;
    let mut bytes = Vec::new();
    loop {
        let have = bytes.len() as u64;
        let most = (len - have).min(have.max(FIRST));
        // What is longer than memory is longer than an entry, and the manifest was checked.
        bytes.reserve_exact(usize::try_from(most).unwrap_or(0));
        let read = input.take(most).read_to_end(&mut bytes)?;
        if (read as u64) < most || bytes.len() as u64 == len {
            return Ok(bytes);
        }
    }
}

type PlainReader<'a> = zstd::stream::read::Decoder<'static, BufReader<&'a mut SpooledTempFile>>;

fn decoder(body: &mut SpooledTempFile) -> std::io::Result<PlainReader<'_>> {
    let mut decoder = zstd::stream::read::Decoder::with_buffer(BufReader::new(body))?;
    decoder.window_log_max(WINDOW_LOG)?;
    Ok(decoder.single_frame())
}
