//! The report: what the records of a folder say, as one page and `launch.json`.

mod launch;
mod page;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use qkvault_cli::{Outcome, out};
use serde_json::Value;

/// Options of `report`.
#[derive(Debug, clap::Args)]
pub(super) struct ReportArgs {
    /// Folder with the records
    #[arg(value_name = "DIR")]
    records: PathBuf,
    /// Folder for the pages (default: that of the records)
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

/// The records of a folder by part.
pub(super) struct Records(BTreeMap<String, Value>);

impl Records {
    /// Reads every `PART.record.json` of a folder, whose name is that of a part.
    fn read(folder: &Path) -> anyhow::Result<Records> {
        let mut all = BTreeMap::new();
        for (part, _) in super::PARTS {
            let path = folder.join(format!("{part}.record.json"));
            match std::fs::read_to_string(&path) {
                Ok(text) => {
                    let record =
                        serde_json::from_str(&text).with_context(|| format!("{} is no JSON", path.display()))?;
                    all.insert(part.to_owned(), record);
                }
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
                Err(error) => return Err(error).with_context(|| format!("{} cannot be read", path.display())),
            }
        }
        Ok(Records(all))
    }

    /// The record of a part.
    pub(super) fn part(&self, part: &str) -> Option<&Value> {
        self.0.get(part)
    }

    /// The median at a path such as `cold/further_plan_ms`, or the number there.
    pub(super) fn number(&self, path: &str) -> Option<f64> {
        let (part, rest) = path.split_once('/')?;
        let value = rest.split('/').try_fold(self.part(part)?, |value, field| value.get(field))?;
        value.as_f64().or_else(|| value.get("median")?.as_f64())
    }
}

/// Runs the command.
pub(super) fn run(args: &ReportArgs) -> anyhow::Result<Outcome> {
    write(&args.records, args.out.as_ref().unwrap_or(&args.records))?;
    Ok(Outcome::Good)
}

/// Writes the page and launch.json of the records that a folder has.
pub(super) fn write(records: &Path, folder: &Path) -> anyhow::Result<()> {
    let records = Records::read(records)?;
    let write = |name: &str, text: &str| {
        let path = folder.join(name);
        std::fs::write(&path, text).with_context(|| format!("{} cannot be written", path.display()))
    };
    std::fs::create_dir_all(folder)?;
    if let Some(summary) = launch::summary(&records) {
        write("launch.json", &format!("{summary:#}\n"))?;
    }
    let page = page::page(&records);
    write("bench.md", &page)?;
    out::lines(&page);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The pages in docs/results are made from the records in docs/results/bench. `UPDATE_GOLDENS=1` makes them anew.
    #[test]
    fn the_pages_of_the_repository_are_those_of_its_records() {
        let results = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/results");
        let made = tempfile::tempdir().expect("a folder");
        write(&results.join("bench"), made.path()).expect("the records are complete");
        let files: Vec<_> =
            std::fs::read_dir(made.path()).expect("a folder").map(|e| e.expect("a file").path()).collect();
        assert!(files.len() == 2, "pages are missing: {files:?}");
        for file in files {
            let kept = results.join(file.file_name().expect("a name"));
            if std::env::var_os("UPDATE_GOLDENS").is_some() {
                std::fs::copy(&file, &kept).expect("copied");
            }
            let read = |path: &Path| std::fs::read_to_string(path).expect("it is there");
            assert!(read(&file) == read(&kept), "{} is not made from docs/results/bench", kept.display());
        }
    }
}
