//! Writing a pack: the entries that a predicate selects are read, checked, and streamed into one zstd frame.

use std::io::{self, Seek, Write};
use std::path::{Path, PathBuf};

use super::{ManifestEntry, PackError, PackHeader, PackLimits, PackManifest, SealKey, WRITTEN_WINDOW_LOG, memory};
use crate::format::{Codec, encode};
use crate::{Header, Listed, Rejection, StoreError, Vault};

/// Options of packing.
#[derive(Clone, Debug)]
pub struct PackOptions {
    /// zstd level, 1 to 19. Default: 3. With the long window, level 19 gives a quarter less at many times the time.
    pub level: i32,
    /// Key to seal the pack with. Default: none.
    pub seal: Option<SealKey>,
}

impl Default for PackOptions {
    fn default() -> Self {
        PackOptions { level: 3, seal: None }
    }
}

/// The result of packing.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct PackReport {
    /// Entries in the pack.
    pub entries: u64,
    /// Bytes of the entries, decompressed.
    pub plain_bytes: u64,
    /// Bytes of the pack.
    pub packed_bytes: u64,
    /// Bad files that were left out, with the causes.
    pub skipped: Vec<(PathBuf, Rejection)>,
}

/// Bytes of the compressed body that are kept in memory before it goes to a temporary file.
const SPOOL: usize = 64 << 20;

impl Vault {
    /// Packs the entries for which `select` returns true, of the vault's own folder and of its layers, into `out`. Of a
    /// key in several folders, it packs the entry that a look-up finds. Bad files are left out and listed in the
    /// report.
    ///
    /// The same entries give the same bytes at any time and for any order of the folder.
    ///
    /// # Errors
    ///
    /// [`PackError`] if `out` or a temporary file cannot be written, or the entries do not fit a pack.
    pub fn pack(
        &self,
        mut select: impl FnMut(&Header) -> bool,
        options: &PackOptions,
        out: &mut dyn Write,
    ) -> Result<PackReport, PackError> {
        let mut report = PackReport::default();
        let mut wanted = Vec::new();
        let mut keys = std::collections::HashSet::new();
        for Listed { key, path, header, .. } in self.ls() {
            match header {
                // As in `get`, a bad file does not hide a good one in a later folder.
                Err(rejection) => report.skipped.push((path, rejection)),
                Ok(header) => {
                    if keys.insert(key) && select(&header) {
                        wanted.push(header);
                    }
                }
            }
        }
        // Plans for one target and of one family lie side by side, within the window.
        wanted.sort_by(|a, b| (&a.target, &a.what, a.key).cmp(&(&b.target, &b.what, b.key)));
        let plain: u64 = wanted.iter().map(|header| header.header_len as u64 + header.payload_len).sum();

        let spool = tempfile::SpooledTempFile::new(SPOOL);
        let mut body = zstd::stream::write::Encoder::new(spool, options.level).map_err(PackError::io("compress"))?;
        let window = u64::BITS - plain.leading_zeros();
        // A window no larger than the data, so that small packs are opened with little memory.
        body.window_log(window.clamp(17, WRITTEN_WINDOW_LOG)).map_err(PackError::io("compress"))?;
        body.long_distance_matching(true).map_err(PackError::io("compress"))?;
        body.include_checksum(true).map_err(PackError::io("compress"))?;

        let mut manifest = PackManifest::default();
        for header in wanted {
            // Read again in full: it may have changed or gone since it was listed.
            let mut bad = Vec::new();
            let good = self.show(&header.key).into_iter().find_map(|(listed, entry)| match entry {
                Ok(entry) => Some(entry),
                Err(rejection) => {
                    bad.push((listed.path, rejection));
                    None
                }
            });
            let Some(entry) = good else {
                report.skipped.append(&mut bad);
                continue;
            };
            let bytes = encode(&header.key, &entry, Codec::None).map_err(StoreError::from)?;
            body.write_all(&bytes).map_err(PackError::io("compress"))?;
            let packed =
                Header { kind: entry.kind, library: entry.library, target: entry.target, what: entry.what, ..header };
            manifest.entries.push(ManifestEntry::from_header(&packed, bytes.len() as u64));
        }
        let mut spool = body.finish().map_err(PackError::io("compress"))?;
        let body_len = spool.stream_position().map_err(PackError::io("compress"))?;
        spool.rewind().map_err(PackError::io("compress"))?;
        let mut hasher = blake3::Hasher::new();
        io::copy(&mut spool, &mut hasher).map_err(PackError::io("read the compressed body"))?;
        spool.rewind().map_err(PackError::io("compress"))?;

        let lines = manifest.encode();
        let found = manifest.entries.len();
        let entries = u32::try_from(found).map_err(|_| PackError::TooMany { found, limit: u32::MAX as usize })?;
        let header = PackHeader {
            entries,
            manifest_len: lines.len() as u64,
            body_len,
            plain_len: manifest.plain_len(),
            manifest_hash: *blake3::hash(&lines).as_bytes(),
            body_hash: *hasher.finalize().as_bytes(),
        };
        let head = header.encode(options.seal.as_ref());
        let packed = head.len() as u64 + header.manifest_len + body_len;
        // A pack that no reader takes helps nobody.
        memory::check(1 << WRITTEN_WINDOW_LOG, &manifest, packed, &PackLimits::default())?;
        out.write_all(&head).map_err(PackError::io("write the pack"))?;
        out.write_all(&lines).map_err(PackError::io("write the pack"))?;
        io::copy(&mut spool, out).map_err(PackError::io("write the pack"))?;
        out.flush().map_err(PackError::io("write the pack"))?;
        report.entries = u64::from(entries);
        report.plain_bytes = header.plain_len;
        report.packed_bytes = packed;
        Ok(report)
    }

    /// Packs into a file, as [`pack`](Self::pack) does into a stream. The file appears whole or not at all.
    ///
    /// # Errors
    ///
    /// [`PackError`], as for [`pack`](Self::pack).
    pub fn pack_file(
        &self,
        select: impl FnMut(&Header) -> bool,
        options: &PackOptions,
        path: &Path,
    ) -> Result<PackReport, PackError> {
        let folder = match path.parent() {
            Some(folder) if folder != Path::new("") => folder,
            _ => Path::new("."),
        };
        let mut builder = tempfile::Builder::new();
        #[cfg(unix)]
        {
            // A pack is made for others; the umask decides for whom.
            use std::os::unix::fs::PermissionsExt;
            builder.permissions(std::fs::Permissions::from_mode(0o666));
        }
        let file = builder.prefix(".pack-").tempfile_in(folder);
        let mut file = file.map_err(PackError::io("make a file for the pack"))?;
        let report = self.pack(select, options, &mut file)?;
        file.as_file().sync_all().map_err(PackError::io("write the pack"))?;
        file.persist(path).map_err(|error| PackError::Io { action: "name the pack", source: error.error })?;
        Ok(report)
    }
}
