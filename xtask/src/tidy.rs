//! `cargo xtask tidy`: checks what no compiler checks.
//!
//! * packages use only the packages that ARCHITECTURE.md allows;
//! * modules use only the modules of their crate that `rooms.rs` allows;
//! * every Rust file begins with a comment about its purpose, and is not too long;
//! * a test that cannot run uses `qkvault_skip`, so that skipped tests are counted, and those of GPUs are listed;
//! * few types share a name, and no function is called `of`;
//! * comments of Rust and lines of Markdown are not too long, links and named pages exist, `docs` is not too large, and
//!   pages have no more words than they should;
//! * no file has registry hosts, unfinished work or NVIDIA files.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};

use crate::{candle, cargo, rooms, skips, ui};

mod comments;
mod gpu_tests;
mod names;
mod pages;

pub(crate) use pages::links_of;

/// The packages that each package may use (`[dependencies]` only; tests may use more).
const MAY_USE: &[(&str, &[&str])] = &[
    ("qkvault-base", &[]),
    ("qkvault-graph", &["qkvault-base"]),
    ("qkvault-cudnn", &["qkvault-graph"]),
    ("qkvault-sys", &["qkvault-base"]),
    ("qkvault-cache", &["qkvault-base"]),
    ("qkvault-serving", &["qkvault-graph"]),
    ("qkvault-models", &["qkvault-base", "qkvault-graph", "qkvault-serving"]),
    ("qkvault-reference", &["qkvault-base", "qkvault-graph", "qkvault-cudnn"]),
    ("qkvault-probe", &["qkvault-graph", "qkvault-cudnn"]),
    ("qkvault-kernels", &["qkvault-graph"]),
    ("qkvault-fa4", &["qkvault-base", "qkvault-graph", "qkvault-kernels"]),
    (
        "qkvault-compile",
        &[
            "qkvault-base",
            "qkvault-graph",
            "qkvault-cudnn",
            "qkvault-probe",
            "qkvault-kernels",
            "qkvault-fa4",
            "qkvault-sys",
            "qkvault-cache",
        ],
    ),
    (
        "qkvault-exec",
        &[
            "qkvault-base",
            "qkvault-graph",
            "qkvault-cudnn",
            "qkvault-serving",
            "qkvault-kernels",
            "qkvault-sys",
            "qkvault-cache",
            "qkvault-compile",
        ],
    ),
    ("qkvault-emulate", &["qkvault-graph", "qkvault-kernels"]),
    (
        "qkvault-parallel",
        &["qkvault-base", "qkvault-compile", "qkvault-cudnn", "qkvault-exec", "qkvault-graph", "qkvault-reference"],
    ),
    ("qkvault-skip", &[]),
    ("xtask", &["qkvault-base", "qkvault-cli", "qkvault-fa4", "qkvault-skip", "qkvault-sys"]),
];

/// Packages that may use every other.
const MAY_USE_ALL: &[&str] =
    &["qkvault", "qkvault-c", "qkvault-cli", "qkvault-fuzz", "qkvault-lab", "qkvault-server", "qkvault-tests"];

/// Most columns of a line of text: hand-written Markdown outside tables and code blocks, and comments outside tables.
const MOST_COLUMNS: usize = 120;

/// Most lines of a hand-written file of code; tests may be longer.
const MOST_LINES: usize = 360;

/// Files that may be longer, with the reason.
const LONG: &[(&str, &str)] = &[("crates/sys/src/bindings.rs", "generated")];

/// Runs the command.
///
/// # Errors
///
/// The files have faults. The error lists each with its file and the fix.
pub fn run() -> Result<()> {
    let root = cargo::root();
    let files = tracked(&root)?;
    let mut found = dependencies(&root)?;
    found.extend(lints(&root)?);
    let listed = std::fs::read_to_string(root.join(skips::GOLDEN)).unwrap_or_default();
    let (mut texts, mut names) = (Vec::new(), names::TypeNames::default());
    for file in &files {
        let name = file.to_string_lossy().into_owned();
        if name.rsplit('.').next().is_some_and(|end| matches!(end, "so" | "whl" | "a" | "pyc")) || name.contains(".so.")
        {
            found.push(format!("{name}: no library, wheel or compiled file belongs in the repository"));
        }
        // A tracked file may be deleted or renamed in the working tree.
        let Ok(text) = std::fs::read_to_string(root.join(file)) else { continue };
        words(&name, &text, &mut found);
        pages::look(&root, &name, &text, &mut found);
        if name.ends_with(".rs") {
            shape(&name, &text, &mut found);
            comments::look(&name, &text, &mut found);
            names.look(&name, &text, &mut found);
            gpu_tests::look(&name, &text, &listed, &mut found);
            rooms::check(&name, &text, &mut found);
        }
        if name.ends_with(".md") {
            texts.push((name, text));
        }
    }
    names.check(&mut found);
    pages::words(&texts, &mut found);
    pages::size(&root, files.iter().filter_map(|file| file.to_str()), &mut found);
    if !found.is_empty() {
        bail!("tidy found {} faults:\n  {}", found.len(), found.join("\n  "));
    }
    ui::say(&format!("tidy: {} files", files.len()));
    Ok(())
}

fn tracked(root: &Path) -> Result<Vec<PathBuf>> {
    let output =
        Command::new("git").args(["ls-files", "-z"]).current_dir(root).output().context("git did not start")?;
    let text = String::from_utf8(output.stdout).context("file names are text")?;
    Ok(text.split('\0').filter(|name| !name.is_empty()).map(PathBuf::from).collect())
}

fn dependencies(root: &Path) -> Result<Vec<String>> {
    let mut found = Vec::new();
    let mut manifests = ["adapters/c", "xtask", "tests"].map(|folder| root.join(folder).join("Cargo.toml")).to_vec();
    for folder in ["crates", "dev"] {
        for entry in std::fs::read_dir(root.join(folder))? {
            manifests.push(entry?.path().join("Cargo.toml"));
        }
    }
    let rules: BTreeMap<&str, &[&str]> = MAY_USE.iter().copied().collect();
    for path in manifests.iter().filter(|p| p.is_file()) {
        let text = std::fs::read_to_string(path)?;
        let manifest: toml::Table = text.parse().with_context(|| format!("{} is not valid TOML", path.display()))?;
        let table = |key: &str| manifest.get(key).and_then(toml::Value::as_table);
        let name = table("package").and_then(|p| p.get("name")).and_then(toml::Value::as_str).unwrap_or_default();
        if MAY_USE_ALL.contains(&name) {
            continue;
        }
        let Some(allowed) = rules.get(name) else {
            found.push(format!("{}: package {name} has no row in tidy's table and in ARCHITECTURE.md", path.display()));
            continue;
        };
        for used in table("dependencies").into_iter().flat_map(toml::Table::keys) {
            if used.starts_with("qkvault") && !allowed.contains(&used.as_str()) {
                found.push(format!(
                    "{name} uses {used}: this changes the architecture; add it to ARCHITECTURE.md and tidy's table first"
                ));
            }
        }
    }
    Ok(found)
}

/// Finds packages without the workspace's lints, which forbid printing among other things.
fn lints(root: &Path) -> Result<Vec<String>> {
    let read = |path: PathBuf| -> Result<toml::Table> {
        let text = std::fs::read_to_string(&path).with_context(|| format!("{} is not there", path.display()))?;
        text.parse().with_context(|| format!("{} is not valid TOML", path.display()))
    };
    let mut found = Vec::new();
    let workspace = read(root.join("Cargo.toml"))?;
    let lints = workspace.get("workspace").and_then(|w| w.get("lints")).and_then(|l| l.get("clippy"));
    for lint in ["print_stdout", "print_stderr"] {
        if lints.and_then(|l| l.get(lint)).and_then(toml::Value::as_str) != Some("deny") {
            found.push(format!("Cargo.toml: the lint clippy::{lint} is not denied; libraries do not print"));
        }
    }
    let mut profile = workspace.get("profile").cloned();
    let packages = profile.as_mut().and_then(|p| p.get_mut("dev")?.get_mut("package")?.as_table_mut());
    // Candle's workspace has no such package, and cargo would say so each time.
    packages.and_then(|packages| packages.remove("proptest"));
    let candle = root.join(candle::MANIFEST);
    if candle.exists() && read(candle)?.get("profile") != profile.as_ref() {
        found.push(format!("{}: profiles are those of Cargo.toml, or all is built twice", candle::MANIFEST));
    }
    let folders = ["crates", "dev"].map(|folder| std::fs::read_dir(root.join(folder)));
    for entry in folders.into_iter().collect::<std::io::Result<Vec<_>>>()?.into_iter().flatten() {
        let path = entry?.path().join("Cargo.toml");
        if path.is_file() && read(path.clone())?.get("lints").and_then(|l| l.get("workspace")).is_none() {
            found.push(format!("{}: it does not use the workspace's lints", path.display()));
        }
    }
    Ok(found)
}

fn words(name: &str, text: &str, found: &mut Vec<String>) {
    // Built from parts, so that the check does not find this file.
    let hosts = ["pypi", "crates", "npmjs", "debian"].map(|host| {
        let end = match host {
            "pypi" | "debian" => "org",
            "crates" => "io",
            _ => "com",
        };
        format!("{host}.{end}")
    });
    let lock = name.ends_with("Cargo.lock") || name.starts_with("LICENSE");
    for host in hosts.iter().filter(|host| !lock && text.contains(host.as_str())) {
        found.push(format!("{name}: names the registry host {host}"));
    }
    let phrase = concat!("requirement", " not met");
    if name.ends_with(".rs") && !name.starts_with("dev/skip/") && text.contains(phrase) {
        found.push(format!("{name}: prints '{phrase}' itself; call qkvault_skip::skip, which also records it"));
    }
    let unfinished = [concat!("TO", "DO"), concat!("FIX", "ME"), concat!("to", "do!("), concat!("unimpl", "emented!(")];
    for word in unfinished.into_iter().filter(|word| name.ends_with(".rs") && text.contains(word)) {
        found.push(format!("{name}: unfinished work ({word})"));
    }
}

fn shape(name: &str, text: &str, found: &mut Vec<String>) {
    let first = text.lines().next().unwrap_or_default();
    if !first.starts_with("//!")
        && !first.starts_with("// @generated")
        && !first.starts_with("//")
        && !first.starts_with("#!")
    {
        found.push(format!("{name}: begins without a comment about its purpose"));
    }
    let lines = text.lines().count();
    let is_test = name.contains("/tests") || name.contains("/benches/");
    if lines > MOST_LINES && !is_test && !LONG.iter().any(|(file, _)| *file == name) {
        found.push(format!("{name}: {lines} lines; {MOST_LINES} is the most, split it by concern"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Descriptions, keys, the vault and rules do not use cuDNN, so that they build on a machine without it.
    #[test]
    fn packages_without_a_gpu_use_no_package_with_one() {
        let mut alone = vec!["qkvault-graph", "qkvault-cache", "qkvault-serving", "qkvault-models", "qkvault-probe"];
        for at in 0.. {
            let Some(name) = alone.get(at) else { break };
            let (_, uses) = MAY_USE.iter().find(|(package, _)| package == name).expect("it is in the table");
            alone.extend(*uses);
            assert!(alone.len() < 100, "packages use each other in a circle");
        }
        for library in ["qkvault-sys", "qkvault-compile", "qkvault-exec"] {
            assert!(!alone.contains(&library), "packages without a GPU use {library}: {alone:?}");
        }
        assert_eq!(dependencies(&cargo::root()).expect("manifests are here"), [""; 0]);
    }

    #[test]
    fn libraries_print_nothing() {
        assert_eq!(lints(&cargo::root()).expect("manifests are here"), [""; 0]);
        let empty = tempfile::tempdir().expect("a folder");
        for folder in ["crates/one", "dev"] {
            std::fs::create_dir_all(empty.path().join(folder)).expect("a folder");
        }
        std::fs::write(empty.path().join("Cargo.toml"), "[workspace.lints.clippy]\nprint_stdout = \"deny\"")
            .expect("a file");
        std::fs::write(empty.path().join("crates/one/Cargo.toml"), "[package]\nname = \"one\"").expect("a file");
        let candle = empty.path().join(candle::MANIFEST);
        std::fs::create_dir_all(candle.parent().expect("a folder")).expect("a folder");
        std::fs::write(candle, "[profile.dev]\ndebug = true").expect("a file");
        let found = lints(empty.path()).expect("it reads").join("\n");
        assert!(found.contains("print_stderr") && found.contains("one/Cargo.toml"), "{found}");
        assert!(found.contains("profiles are those of"), "{found}");
    }
}
