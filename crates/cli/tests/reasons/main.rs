//! Every code of the registry is used, every given code is in the registry, and its page is up to date.

mod page;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use qkvault_cli::codes::entries;
use qkvault_graph::Origin;

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

#[test]
fn the_page_of_codes_is_up_to_date() {
    let path = repository().join("docs/reasons.md");
    let page = page::page(&entries().collect::<Vec<_>>());
    if std::env::var_os("UPDATE_GOLDENS").is_some_and(|v| v == "1") {
        std::fs::write(&path, &page).expect("docs can be written");
    }
    let found = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(found == page, "docs/reasons.md is stale: UPDATE_GOLDENS=1 cargo test -p qkvault-cli --test reasons");
}

#[test]
fn the_page_of_codes_has_a_heading_for_each_and_short_lines() {
    let page = page::page(&entries().collect::<Vec<_>>());
    let headings: BTreeSet<&str> = page.lines().filter_map(|line| line.strip_prefix("### ")).collect();
    let codes: Vec<String> = entries().map(|entry| format!("`{}`", entry.code)).collect();
    assert_eq!(headings, codes.iter().map(String::as_str).collect());
    let long: Vec<&str> = page.lines().filter(|line| line.chars().count() > 120 && !line.contains("](")).collect();
    assert!(long.is_empty(), "{long:#?}");
    assert!(!page.contains("?."), "a question ends with its question mark");
}

/// The pages in evidence exist.
#[test]
fn pages_that_entries_name_exist() {
    for entry in entries() {
        for text in [entry.source, entry.evidence] {
            for rest in text.split("docs/results/").skip(1) {
                let name = rest.split(')').next().unwrap_or_default();
                let page = repository().join("docs/results").join(name);
                assert!(page.is_file(), "{}: no page {name}", entry.code);
            }
        }
    }
}

/// The name of the constant of `heads.group` and others.
fn constant(code: &str) -> String {
    code.to_uppercase().replace(['.', '-'], "_")
}

/// The constants of codes in the shipped sources of a folder, such as `codes::HEADS_GROUP`.
fn named_in(folder: &Path, found: &mut BTreeSet<String>) {
    for entry in std::fs::read_dir(folder).expect("the sources are here") {
        let path = entry.expect("an entry").path();
        // Random descriptions and their faults give no reasons, and the registry itself is under test.
        if path.is_dir() && !path.ends_with("arbitrary") && !path.ends_with("registry") {
            named_in(&path, found);
        } else if path.extension().is_some_and(|e| e == "rs") {
            let source = std::fs::read_to_string(&path).expect("a source file");
            let shipped = source.split("#[cfg(test)]\nmod tests").next().unwrap_or_default();
            let names = shipped.split("codes::").skip(1);
            let name = |rest: &str| rest.chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '_').collect();
            found.extend(names.map(name));
        }
    }
}

/// The compiler ensures that given reasons are in the registry: a reason is made from a code, and a code from an entry
/// or a status of cuDNN. Here, every entry must have a condition, or a source file that gives it.
#[test]
fn every_entry_is_used() {
    let mut named = BTreeSet::new();
    for package in
        ["graph", "cudnn", "probe", "exec", "compile", "models", "serving", "cli", "kernels", "fa4", "parallel"]
    {
        named_in(&repository().join("crates").join(package).join("src"), &mut named);
    }
    assert!(named.len() > 60, "the sources were not read: {named:?}");
    let never: Vec<&str> = entries()
        .filter(|entry| entry.condition().is_none() && !named.contains(&constant(entry.code)))
        .map(|entry| entry.code)
        .collect();
    assert!(never.is_empty(), "nothing gives these: {never:?}");
}

/// Reasons are made from constants of codes: a code as text would repeat the registry.
#[test]
fn no_source_writes_a_code_as_text() {
    fn texts_in(folder: &Path, found: &mut Vec<String>) {
        for entry in std::fs::read_dir(folder).expect("the sources are here") {
            let path = entry.expect("an entry").path();
            if path.is_dir() && !path.ends_with("arbitrary") && !path.ends_with("registry") {
                texts_in(&path, found);
            } else if path.extension().is_some_and(|e| e == "rs")
                && !path.ends_with("tests.rs")
                && !path.ends_with("codes.rs")
            {
                let source = std::fs::read_to_string(&path).expect("a source file");
                let shipped = source.split("#[cfg(test)]\nmod tests").next().unwrap_or_default();
                let texts = shipped.lines().filter(|line| !line.trim_start().starts_with("//"));
                for entry in entries() {
                    let text = format!("\"{}\"", entry.code);
                    found.extend(
                        texts.clone().filter(|l| l.contains(&text)).map(|l| format!("{}: {l}", path.display())),
                    );
                }
            }
        }
    }
    let mut found = Vec::new();
    let packages =
        ["graph", "cudnn", "probe", "exec", "compile", "models", "serving", "cli"].map(|name| format!("crates/{name}"));
    for package in packages.iter().map(String::as_str).chain(["dev/lab"]) {
        texts_in(&repository().join(package).join("src"), &mut found);
    }
    // Fields of a serving policy that have the same names as codes.
    found.retain(|line| !line.contains("serving/src/policy.rs"));
    assert!(found.is_empty(), "use the constant of `registry::codes`: {found:#?}");
}

#[test]
fn every_origin_has_entries() {
    let origins: BTreeSet<Origin> = entries().map(|entry| entry.origin).collect();
    assert_eq!(origins.len(), 5);
}
