//! A copy of the workspace with every mutant in it.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};

use super::constants::{self, Constants};
use super::mutant::{Mutant, Mutants};
use super::rewrite;

/// A part of the code that is mutated.
pub(super) struct Area {
    pub(super) name: &'static str,
    pub(super) package: &'static str,
    /// The folder of the package's sources, from the workspace's root.
    root: &'static str,
    /// Prefix of the paths of its files.
    pub(super) files: &'static str,
    /// Folders of the packages whose tests judge it.
    pub(super) judges: &'static [&'static str],
}

/// The areas, the most important first.
pub(super) static AREAS: [Area; 9] = [
    Area {
        name: "lowering",
        package: "qkvault-graph",
        root: "crates/graph/src",
        files: "crates/graph/src/lower/",
        judges: &["graph", "reference", "probe"],
    },
    Area {
        name: "validation",
        package: "qkvault-graph",
        root: "crates/graph/src",
        files: "crates/graph/src/valid/",
        judges: &["graph"],
    },
    Area {
        name: "registry",
        package: "qkvault-graph",
        root: "crates/graph/src",
        files: "crates/graph/src/registry/",
        judges: &["graph", "probe"],
    },
    Area {
        name: "answers",
        package: "qkvault-probe",
        root: "crates/probe/src",
        files: "crates/probe/src/",
        judges: &["probe"],
    },
    Area {
        name: "binding",
        package: "qkvault-exec",
        root: "crates/exec/src",
        files: "crates/exec/src/check.rs",
        judges: &["exec"],
    },
    Area {
        name: "arguments",
        package: "qkvault-exec",
        root: "crates/exec/src",
        files: "crates/exec/src/safe/matching.rs",
        judges: &["exec"],
    },
    Area {
        name: "kernels",
        package: "qkvault-kernels",
        root: "crates/kernels/src",
        files: "crates/kernels/src/",
        judges: &["kernels"],
    },
    Area { name: "fa4", package: "qkvault-fa4", root: "crates/fa4/src", files: "crates/fa4/src/", judges: &["fa4"] },
    Area {
        name: "compile",
        package: "qkvault-compile",
        root: "crates/compile/src",
        files: "crates/compile/src/",
        judges: &["compile"],
    },
];

/// Files of the areas without mutants: they only make pages, which tests compare with the checked-in ones.
const LEFT_OUT: [&str; 1] = ["crates/probe/src/page.rs"];

/// The module that every mutated package gets.
const SWITCH: &str = include_str!("switch.rs.txt");

/// The copy of the workspace.
pub(super) struct WorkspaceCopy {
    pub(super) root: PathBuf,
}

impl WorkspaceCopy {
    /// Copies every file that git tracks, and deletes other files. Leaves equal files untouched, so that cargo does not
    /// rebuild them.
    pub(super) fn make(workspace: &Path) -> Result<WorkspaceCopy> {
        let root = workspace.join("target/mutants/tree");
        let files = tracked(workspace)?;
        prune(&root, &root, &files.iter().map(String::as_str).collect())?;
        for file in files {
            if let Ok(target) = std::fs::read_link(workspace.join(&file)) {
                link(&target, &root.join(&file))?;
                continue;
            }
            let text = match std::fs::read(workspace.join(&file)) {
                Ok(text) => text,
                // A tracked file may be deleted or renamed in the working tree.
                Err(_) => continue,
            };
            if area(&file).is_none() && !is_crate_root(&file) {
                write(&root.join(&file), &text)?;
            }
        }
        Ok(WorkspaceCopy { root })
    }

    /// Writes the mutated files without the mutants of these keys, and returns the mutants.
    pub(super) fn mutate(&self, workspace: &Path, without: &BTreeSet<String>) -> Result<Vec<Mutant>> {
        let mut mutants = Mutants::without(without.clone());
        let files = tracked(workspace)?;
        let mut packages: Vec<(&Area, String)> = Vec::new();
        for area in &AREAS {
            let mut rows = Vec::new();
            let mine: Vec<&String> =
                files.iter().filter(|f| self::area(f).is_some_and(|r| r.name == area.name)).collect();
            let siblings = files.iter().filter(|f| self::area(f).is_some_and(|r| r.package == area.package));
            let mut known = Constants::default();
            for file in files.iter().filter(|f| f.ends_with(".rs")) {
                known.fixed.read(&read(workspace, file).unwrap_or_default(), self::area(file).is_some());
            }
            known.fixed.settle();
            for file in siblings {
                known.find(file, &module(area.root, file), &read(workspace, file)?)?;
            }
            for file in mine {
                let text = rewrite::rewrite(file, &read(workspace, file)?, &known, &mut mutants, &mut rows)?;
                write(&self.root.join(file), text.as_bytes())?;
            }
            let more = constants::affected(&rows);
            match packages.iter_mut().find(|(r, _)| r.package == area.package) {
                Some((_, text)) => *text += &more,
                None => packages.push((area, more)),
            }
        }
        for (area, more) in packages {
            let switch = switch(mutants.list.len(), &more);
            write(&self.root.join(area.root).join("mutant_switch.rs"), switch.as_bytes())?;
            let lib = format!("{}/lib.rs", area.root);
            let text = format!("{}\nmod mutant_switch;\n", read(workspace, &lib)?);
            write(&self.root.join(&lib), text.as_bytes())?;
        }
        Ok(mutants.list)
    }
}

/// The source of the module that reads which mutant is on.
pub(super) fn switch(mutants: usize, more: &str) -> String {
    SWITCH.replace("COUNT", &(mutants + 1).to_string()) + more
}

/// The area of a file.
pub(super) fn area(file: &str) -> Option<&'static Area> {
    let mutated = file.ends_with(".rs") && !LEFT_OUT.contains(&file);
    AREAS.iter().find(|area| mutated && file.starts_with(area.files))
}

fn is_crate_root(file: &str) -> bool {
    AREAS.iter().any(|area| file.strip_prefix(area.root) == Some("/lib.rs"))
}

/// The module path of a file: `crate::lower` for `crates/graph/src/lower/mod.rs`.
fn module(root: &str, file: &str) -> String {
    let inside = file.strip_prefix(root).unwrap_or(file).trim_end_matches(".rs").trim_end_matches("/mod");
    format!("crate{}", inside.replace('/', "::"))
}

fn read(workspace: &Path, file: &str) -> Result<String> {
    std::fs::read_to_string(workspace.join(file)).with_context(|| format!("{file} cannot be read"))
}

/// Writes a file, unless it has the same contents already.
fn write(path: &Path, text: &[u8]) -> Result<()> {
    if std::fs::read(path).is_ok_and(|old| old == text) {
        return Ok(());
    }
    let folder = path.parent().unwrap_or(path);
    std::fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}

/// Makes a link, unless it exists already. The copy does not compile without the link `crates/graph/profiles`.
fn link(target: &Path, path: &Path) -> Result<()> {
    if std::fs::read_link(path).is_ok_and(|old| old == target) {
        return Ok(());
    }
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    }
    std::os::unix::fs::symlink(target, path).with_context(|| format!("cannot link {}", path.display()))
}

/// Deletes files of an older copy that git no longer tracks. Otherwise a moved test would run twice, and a test that
/// reads a folder of goldens would fail without any mutant.
fn prune(root: &Path, folder: &Path, files: &BTreeSet<&str>) -> Result<()> {
    let Ok(entries) = std::fs::read_dir(folder) else { return Ok(()) };
    for entry in entries {
        let path = entry.with_context(|| format!("cannot read {}", folder.display()))?.path();
        let name = path.strip_prefix(root).unwrap_or(&path).to_string_lossy();
        if path.is_symlink() || name == "target" {
            continue;
        }
        if path.is_dir() {
            prune(root, &path, files)?;
        } else if !name.ends_with("/mutant_switch.rs") && !files.contains(name.as_ref()) {
            std::fs::remove_file(&path).with_context(|| format!("cannot delete {}", path.display()))?;
        }
    }
    Ok(())
}

fn tracked(root: &Path) -> Result<Vec<String>> {
    let output =
        Command::new("git").args(["ls-files", "-z"]).current_dir(root).output().context("git could not be started")?;
    let text = String::from_utf8(output.stdout).context("a file name is not UTF-8")?;
    Ok(text.split('\0').filter(|name| !name.is_empty()).map(str::to_owned).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_has_links_and_no_moved_files() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        std::fs::create_dir_all(root.join("crates/a/tests")).unwrap();
        for file in ["crates/a/tests/moved.rs", "crates/a/tests/kept.rs", "crates/a/golden.txt"] {
            std::fs::write(root.join(file), "x").unwrap();
        }
        link(Path::new("../../profiles"), &root.join("crates/a/profiles")).unwrap();
        link(Path::new("../../profiles"), &root.join("crates/a/profiles")).unwrap();
        prune(root, root, &BTreeSet::from(["crates/a/tests/kept.rs"])).unwrap();
        assert!(!root.join("crates/a/tests/moved.rs").exists() && !root.join("crates/a/golden.txt").exists());
        assert!(root.join("crates/a/tests/kept.rs").exists());
        assert_eq!(std::fs::read_link(root.join("crates/a/profiles")).unwrap(), Path::new("../../profiles"));
    }
}
