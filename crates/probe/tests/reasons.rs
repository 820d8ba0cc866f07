//! Every code that the sources can give is listed, and the page of them is up to date.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use qkvault_probe::{CODES, RULES, codes_page};

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

#[test]
fn the_page_of_codes_is_up_to_date() {
    let path = repository().join("docs/reasons.md");
    let page = codes_page();
    if std::env::var_os("UPDATE_GOLDENS").is_some_and(|v| v == "1") {
        std::fs::write(&path, &page).expect("docs can be written");
    }
    let found = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(found == page, "docs/reasons.md is stale: UPDATE_GOLDENS=1 cargo test -p qkvault-probe --test reasons");
}

#[test]
fn codes_are_listed_once() {
    let rules = RULES.iter().copied().flatten().map(|r| r.code);
    let all: Vec<&str> = CODES.iter().map(|c| c.code).chain(rules).collect();
    assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), all.len());
}

/// The code of every call in the sources that makes a reason: the first text in it that looks like one.
fn given_in(source: &str, found: &mut BTreeSet<String>) {
    let shipped = source.split("#[cfg(test)]\nmod tests").next().unwrap_or_default();
    for call in ["problems.add(", "Reason::new(", "add(", "rules.from(", "Reason::new(\n", "over(", "needed("] {
        for rest in shipped.split(call).skip(1) {
            // Arguments before the code are few and short.
            let mut texts = rest.split('"');
            let (before, text) = (texts.next().unwrap_or_default(), texts.next().unwrap_or_default());
            let parts: Vec<&str> = text.split('.').collect();
            let word = |p: &&str| {
                p.chars().next().is_some_and(|c| c.is_ascii_lowercase())
                    && p.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-')
            };
            if before.len() < 160 && !before.contains(';') && parts.len() == 2 && parts.iter().all(word) {
                found.insert(text.to_owned());
            }
        }
    }
}

fn sources(folder: &Path, found: &mut BTreeSet<String>) {
    for entry in std::fs::read_dir(folder).expect("the sources are here") {
        let path = entry.expect("an entry").path();
        // Random descriptions and their faults give no reasons.
        if path.is_dir() && !path.ends_with("arbitrary") {
            sources(&path, found);
        } else if path.extension().is_some_and(|e| e == "rs") {
            given_in(&std::fs::read_to_string(&path).expect("a source file"), found);
        }
    }
}

#[test]
fn every_code_in_the_sources_is_listed() {
    let mut found = BTreeSet::new();
    for package in ["graph", "probe", "exec"] {
        sources(&repository().join("crates").join(package).join("src"), &mut found);
    }
    assert!(found.len() > 60, "the sources were not read: {found:?}");
    let rules = RULES.iter().copied().flatten().map(|r| r.code);
    let listed: BTreeSet<&str> = CODES.iter().map(|c| c.code).chain(rules).collect();
    // Fields that stand before a code in no call, but look like one.
    let fields = ["q.storage", "k.storage", "v.storage", "o.storage", "outputs.stats", "pass.deterministic"];
    let missing: Vec<&String> =
        found.iter().filter(|c| !listed.contains(c.as_str()) && !fields.contains(&c.as_str())).collect();
    assert!(missing.is_empty(), "not in rules/codes.rs: {missing:?}");
}
