//! Who shares which blobs, for a collection: read from the headers of all entries before anything is deleted.

use std::collections::HashMap;
use std::time::{Duration, SystemTime};

use crate::blobs::FoundBlob;
use crate::crew;
use crate::folder::Folder;
use crate::gc::{GcReport, look, remove_stale};
use crate::scan::Found;
use crate::{Candidate, Key, SharedParts};

/// The blobs of a folder and the entries that refer to them.
#[derive(Default)]
pub(crate) struct Shares {
    blobs: Vec<FoundBlob>,
    pub(crate) parts: SharedParts,
    /// Whether every entry told what it refers to. Where one did not, no blob is known to be unused.
    whole: bool,
}

impl Shares {
    /// Lists the blobs. To be done before the entries are listed: an entry that is written after that has stamped its blobs
    /// since they were listed, which keeps them.
    pub(crate) fn list(folder: &Folder, now: SystemTime, report: &mut GcReport) -> Shares {
        let mut shares = Shares { whole: true, ..Shares::default() };
        for found in folder.scan_blobs() {
            match found {
                Found::Blob(hash, path) => {
                    if let Some((bytes, touched)) = look(&path) {
                        report.blobs += 1;
                        report.bytes += bytes;
                        shares.parts.bytes.push(bytes);
                        shares.blobs.push(FoundBlob { hash, path, bytes, touched });
                    }
                }
                Found::Temp(path) => report.leftovers += u64::from(remove_stale(&path, now)),
                Found::Entry(..) | Found::Foreign | Found::Unlisted(..) => {}
            }
        }
        shares
    }

    /// Not every entry is known: no blob is removed.
    pub(crate) fn keep_all(&mut self) {
        self.whole = false;
    }

    /// Reads which blobs each entry refers to, if there are any blobs.
    pub(crate) fn read(&mut self, folder: &Folder, entries: &[Candidate]) {
        if self.blobs.is_empty() {
            return;
        }
        let places: HashMap<Key, u32> = self.blobs.iter().zip(0..).map(|(blob, at)| (blob.hash, at)).collect();
        let numbered: Vec<(usize, Key)> = entries.iter().map(|candidate| candidate.key).enumerate().collect();
        let read = crew::each(&numbered, crew::cores(), |(at, key)| {
            let path = folder.places.entry(key);
            Some(match folder.read_header(key, &path) {
                Ok(header) => (*at, header.shared, true),
                // A bad entry is never served, and one that is gone needs nothing.
                Err(why) => (*at, Vec::new(), why.is_about_content() || !path.exists()),
            })
        });
        self.parts.of = vec![Vec::new(); entries.len()];
        for (at, hashes, known) in read {
            self.whole &= known;
            // One that is listed twice counts once; one that is missing is nobody's.
            let mut blobs: Vec<u32> = hashes.iter().filter_map(|hash| places.get(hash).copied()).collect();
            blobs.sort_unstable();
            blobs.dedup();
            self.parts.of[at] = blobs;
        }
    }

    /// Removes the blobs that no entry refers to which `kept` keeps; how many, and their bytes.
    pub(crate) fn remove_unused(
        &self,
        folder: &Folder,
        kept: impl Iterator<Item = bool>,
        now: SystemTime,
        grace: Duration,
    ) -> (u64, u64) {
        if !self.whole {
            return (0, 0);
        }
        let mut used = vec![false; self.blobs.len()];
        for (blobs, _) in self.parts.of.iter().zip(kept).filter(|(_, kept)| *kept) {
            blobs.iter().for_each(|blob| used[*blob as usize] = true);
        }
        let unused = self.blobs.iter().zip(used).filter(|(_, used)| !used).map(|(blob, _)| blob);
        folder.remove_blobs(unused, now, grace)
    }
}
