//! Checks that no constant changes its number between the headers of the fetched cuDNN versions.
//!
//! One file of declarations serves all versions, because NVIDIA only adds constants. This check fails if NVIDIA ever
//! changes one.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context as _, Result, bail};

use crate::ui;

/// Compares the header in `include` with those of the other fetched sets beside `set`.
pub(super) fn check(include: &Path, set: &Path) -> Result<()> {
    let newest = constants(&read(include)?);
    let others = set
        .parent()
        .context("the set has no parent folder")?
        .read_dir()
        .context("the folder of fetched sets cannot be read")?;
    for other in others.flatten().map(|entry| entry.path()).filter(|dir| dir != set) {
        for package in ["cudnn_jit", "cudnn"] {
            let Ok(text) = read(&other.join("nvidia").join(package).join("include")) else { continue };
            let other = other.file_name().unwrap_or_default().to_string_lossy();
            let older = constants(&text);
            let changed = differing(&newest, &older);
            if !changed.is_empty() {
                bail!(
                    "constants of cuDNN have changed their numbers; the declarations cannot serve both headers: {}",
                    changed.join(", ")
                );
            }
            ui::say(&format!("{} constants of the header of {other} have the same numbers", older.len()));
        }
    }
    Ok(())
}

fn read(include: &Path) -> Result<String> {
    let file = include.join("cudnn_graph.h");
    std::fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))
}

/// Every `CUDNN_NAME = number` of a header.
fn constants(header: &str) -> BTreeMap<String, i64> {
    let name_of = |before: &str| {
        let before = before.trim_end().trim_end_matches("CUDNN_DEPRECATED_ENUM").trim_end();
        let begin = before.rfind(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).map_or(0, |at| at + 1);
        before[begin..].starts_with("CUDNN_").then(|| before[begin..].to_owned())
    };
    let pairs = header.match_indices('=').filter_map(|(at, _)| {
        let value = header[at + 1..].trim_start();
        let end = value.find(|c: char| !(c.is_ascii_digit() || c == '-')).unwrap_or(value.len());
        Some((name_of(&header[..at])?, value[..end].parse().ok()?))
    });
    pairs.collect()
}

/// Constants that both headers have with different numbers. Counts may grow.
fn differing(newest: &BTreeMap<String, i64>, older: &BTreeMap<String, i64>) -> Vec<String> {
    let is_count = |name: &str| name.ends_with("_COUNT") || name.ends_with("_COUNTS");
    let changed = older.iter().filter_map(|(name, then)| {
        let now = newest.get(name)?;
        (now != then && !is_count(name)).then(|| format!("{name} was {then} and is {now}"))
    });
    changed.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: &str = "typedef enum {\n  CUDNN_A = 0, /**< first = best */\n  CUDNN_B CUDNN_DEPRECATED_ENUM = -1,\n  CUDNN_C=12,\n  CUDNN_X_COUNT = 3 } t;";

    #[test]
    fn constants_are_read() {
        let expected = [("CUDNN_A", 0), ("CUDNN_B", -1), ("CUDNN_C", 12), ("CUDNN_X_COUNT", 3)];
        assert_eq!(constants(HEADER), expected.map(|(name, value)| (name.to_owned(), value)).into());
    }

    #[test]
    fn a_changed_number_is_found_and_a_grown_count_is_not() {
        let older = constants(HEADER);
        let newer = constants(&HEADER.replace("=12", "=13").replace("COUNT = 3", "COUNT = 4"));
        assert_eq!(differing(&newer, &older), ["CUDNN_C was 12 and is 13"]);
    }
}
