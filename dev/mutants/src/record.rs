//! Writes verdicts one by one, so that an interrupted run loses none and can continue.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write as _;
use std::path::Path;
use std::sync::Mutex;

use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};

use super::mutant::Mutant;
use super::suite::make_folder_of;

/// The tests' result for a mutant.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "verdict")]
pub(super) enum MutantVerdict {
    /// A test fails, or does not end.
    Killed { by: String, late: bool },
    /// This number of tests reach it, and none fails.
    Survived { tests: usize },
    /// No test reaches it.
    Unreached,
    /// It does not compile.
    DoesNotCompile,
}

/// A mutant and its verdict.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct MutantRecord {
    #[serde(flatten)]
    pub(super) mutant: Mutant,
    #[serde(flatten)]
    pub(super) verdict: MutantVerdict,
}

/// All verdicts, by key. The last one of a key counts.
pub(super) struct Record {
    pub(super) known: BTreeMap<String, MutantRecord>,
    file: Mutex<File>,
}

impl Record {
    /// Opens the record, or starts a new one.
    pub(super) fn open(path: &Path, fresh: bool) -> Result<Record> {
        make_folder_of(path)?;
        let mut known = BTreeMap::new();
        if !fresh {
            let text = std::fs::read_to_string(path).unwrap_or_default();
            // Ignores a line that an interrupted run left incomplete.
            for entry in text.lines().filter_map(|line| serde_json::from_str::<MutantRecord>(line).ok()) {
                known.insert(entry.mutant.key.clone(), entry);
            }
        }
        let mut options = File::options();
        let options = options.create(true).write(true).append(!fresh).truncate(fresh);
        let file = options.open(path).with_context(|| format!("cannot write {}", path.display()))?;
        Ok(Record { known, file: Mutex::new(file) })
    }

    /// The verdict of a mutant, if the surrounding code has not changed.
    pub(super) fn verdict(&self, mutant: &Mutant) -> Option<&MutantVerdict> {
        self.known.get(&mutant.key).filter(|e| e.mutant.item == mutant.item).map(|e| &e.verdict)
    }

    /// Appends a verdict.
    pub(super) fn add(&self, mutant: &Mutant, verdict: MutantVerdict) -> Result<MutantRecord> {
        let entry = MutantRecord { mutant: mutant.clone(), verdict };
        let line = serde_json::to_string(&entry)? + "\n";
        let mut file = self.file.lock().unwrap_or_else(|e| e.into_inner());
        file.write_all(line.as_bytes()).context("the record cannot be written")?;
        Ok(entry)
    }
}
