//! Counts the plans of a run that came from a pack.

use std::collections::HashSet;
use std::fs::File;
use std::path::Path;

use anyhow::Context as _;
use qkvault_cache::{UnpackOptions, verify_pack};
use serde_json::{Value, json};

use super::RunRow;

/// The keys of the pack that the vault was unpacked from.
pub(super) struct Pack {
    name: String,
    keys: HashSet<String>,
}

impl Pack {
    /// Reads a pack and checks all its bytes.
    pub(super) fn read(path: &Path) -> anyhow::Result<Pack> {
        let file = File::open(path).with_context(|| format!("{} could not be opened", path.display()))?;
        let manifest = verify_pack(file, &UnpackOptions::default())?;
        let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
        Ok(Pack { name, keys: manifest.entries.iter().map(|entry| entry.key.to_string()).collect() })
    }

    /// The counts as JSON: `plans` rows have a plan, `served` of them got it from the pack, `missing` rows failed.
    pub(super) fn record(&self, rows: &[RunRow], builds: u64) -> Value {
        let planned: Vec<&RunRow> = rows.iter().filter(|row| row.facts["key"].is_string()).collect();
        let served = planned.iter().filter(|row| {
            row.facts["built"] == false && row.facts["key"].as_str().is_some_and(|key| self.keys.contains(key))
        });
        json!({
            "name": self.name, "entries": self.keys.len(), "plans": planned.len(), "served": served.count(),
            "missing": rows.iter().filter(|row| row.status == "failed").count(), "builds": builds,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(status: &'static str, facts: Value) -> RunRow {
        RunRow { what: String::new(), status, cells: [(); 4].map(|()| String::new()), facts, why: None }
    }

    #[test]
    fn only_plans_of_the_pack_count_as_served() {
        let pack = Pack { name: "plans.qkvpack".into(), keys: ["aa", "bb"].map(str::to_owned).into() };
        let rows = [
            row("right", json!({ "key": "aa", "built": false })),
            row("right", json!({ "key": "bb", "built": true })),
            row("wrong", json!({ "key": "cc", "built": false })),
            row("failed", json!({ "reasons": "no plan" })),
            row("refused", json!({ "reasons": "no" })),
        ];
        let record = pack.record(&rows, 1);
        let expected =
            json!({ "name": "plans.qkvpack", "entries": 2, "plans": 3, "served": 1, "missing": 1, "builds": 1 });
        assert_eq!(record, expected);
    }
}
