//! What a release needs of manifests and pages, each as one question: equal versions, an address, links that lead
//! somewhere from the registry's page too, and what docs.rs builds.

use std::path::Path;

use anyhow::{Context as _, Result, bail, ensure};

use super::published::{Published, table, workspace_value};
use crate::tidy::links_of;

/// The README that the Python package index shows.
const PYTHON: &str = "adapters/python";

/// Whether the version is the same everywhere, and the changelog begins with it.
pub(super) fn version(root: &Path) -> Result<String> {
    let version = workspace_value(root, "version")?.context("Cargo.toml has no workspace.package.version")?;
    let mut wrong = other_versions("Cargo.toml", &table(&root.join("Cargo.toml"))?, &version);
    for one in Published::all(root)? {
        let own = one.field("version");
        let inherits = own.and_then(|own| own.get("workspace")).and_then(toml::Value::as_bool) == Some(true);
        if !inherits && own.and_then(toml::Value::as_str) != Some(&version) {
            wrong.push(format!("{}: version", one.manifest));
        }
        wrong.extend(other_versions(&one.manifest, &one.table, &version));
    }
    ensure!(wrong.is_empty(), "set {version} there too: {}", wrong.join(", "));
    let changes = std::fs::read_to_string(root.join("CHANGELOG.md")).context("CHANGELOG.md cannot be read")?;
    let newest = changes.lines().find_map(|line| line.strip_prefix("## ")).unwrap_or_default();
    let heads = newest.trim_start_matches('[').strip_prefix(&version);
    ensure!(
        heads.is_some_and(|rest| !rest.starts_with(|c: char| c.is_ascii_digit() || c == '.')),
        "CHANGELOG.md begins with `## {newest}`; write `## {version}: ` and the day"
    );
    Ok(version)
}

/// Dependencies of this project with another version than this one, in `[dependencies]` and those of a workspace.
fn other_versions(manifest: &str, table: &toml::Table, version: &str) -> Vec<String> {
    let workspace = table.get("workspace").and_then(|workspace| workspace.get("dependencies"));
    let lists = [table.get("dependencies"), workspace];
    let own = lists.into_iter().flatten().filter_map(toml::Value::as_table).flatten().filter(|(name, value)| {
        // A path without a version is never published.
        let named = name.starts_with("qkvault") && value.get("path").is_some();
        named && value.get("version").and_then(toml::Value::as_str).is_some_and(|own| own != version)
    });
    own.map(|(name, _)| format!("{manifest}: {name}")).collect()
}

/// Whether every package has the workspace's address.
pub(super) fn repository(root: &Path) -> Result<String> {
    let Some(address) = Published::repository(root)? else {
        bail!("no repository: `cargo xtask release --repository URL` writes it into every manifest")
    };
    ensure!(is_address(&address), "{address} is no https:// address; `--repository URL` writes another");
    let lacks = |one: &Published| match one.field("repository") {
        Some(toml::Value::String(own)) => *own != address,
        Some(own) => own.get("workspace").and_then(toml::Value::as_bool) != Some(true),
        None => true,
    };
    let wrong: Vec<String> =
        Published::all(root)?.iter().filter(|one| lacks(one)).map(|p| p.manifest.clone()).collect();
    ensure!(wrong.is_empty(), "without it: {}; `--repository {address}` writes it there", wrong.join(", "));
    Ok(address)
}

fn is_address(text: &str) -> bool {
    let rest = text.strip_prefix("https://").unwrap_or_default();
    rest.contains('/') && !rest.contains(|c: char| c.is_whitespace() || matches!(c, '"' | '\\'))
}

/// Writes an address into the workspace's manifest, and into those of all published packages.
pub(super) fn set_repository(root: &Path, address: &str) -> Result<()> {
    ensure!(is_address(address), "{address} is no address of a repository; write https://HOST/PATH");
    let value = format!("repository = \"{address}\"");
    edit(&root.join("Cargo.toml"), "[workspace.package]", &value)?;
    for one in Published::all(root)? {
        let line = if one.outside { &value } else { "repository.workspace = true" };
        edit(&root.join(&one.manifest), "[package]", line)?;
    }
    Ok(())
}

/// Puts the line of the address into a table of a manifest, after the licence's or in place of the one that is there.
fn edit(path: &Path, section: &str, line: &str) -> Result<()> {
    let text = std::fs::read_to_string(path).with_context(|| format!("{} cannot be read", path.display()))?;
    let (mut out, mut inside, mut written) = (String::new(), false, false);
    for old in text.lines() {
        if old.starts_with('[') {
            inside = old == section;
        }
        if inside && old.starts_with("repository") {
            continue;
        }
        out.extend([old, "\n"]);
        if inside && (old.starts_with("license ") || old.starts_with("license.")) {
            out.extend([line, "\n"]);
            written = true;
        }
    }
    ensure!(written, "{}: {section} has no licence to write the address after", path.display());
    std::fs::write(path, out).with_context(|| format!("{} could not be written", path.display()))
}

/// Whether links of READMEs are absolute or lead to files of their package: elsewhere a page of a registry has nothing.
pub(super) fn links(root: &Path) -> Result<String> {
    let mut wrong = Vec::new();
    let mut pages = vec![(PYTHON.to_owned(), "README.md".to_owned())];
    for one in Published::all(root)? {
        let folder = one.manifest.trim_end_matches("/Cargo.toml").to_owned();
        match one.field("readme").and_then(toml::Value::as_str) {
            Some(readme) if one.folder(root).join(readme).is_file() => pages.push((folder, readme.to_owned())),
            _ => wrong.push(format!("{}: no README", one.manifest)),
        }
    }
    for (folder, readme) in &pages {
        let text = std::fs::read_to_string(root.join(folder).join(readme)).with_context(|| readme.clone())?;
        // The wheel has no file of the folder.
        let within = (folder != PYTHON).then(|| root.join(folder));
        wrong.extend(broken(within.as_deref(), &text).map(|link| format!("{folder}/{readme}: {link}")));
    }
    ensure!(wrong.is_empty(), "make absolute, or leave out: {}", wrong.join(", "));
    Ok(format!("{} READMEs", pages.len()))
}

/// Links of a page that lead out of the folder that is packed, or nowhere.
fn broken<'t>(within: Option<&Path>, text: &'t str) -> impl Iterator<Item = &'t str> {
    let within = within.and_then(|folder| folder.canonicalize().ok());
    links_of(text).map(|(_, link)| link).filter(move |link| {
        let path = link.split_once('#').map_or(*link, |(path, _)| path);
        let leads = |folder: &Path| folder.join(path).canonicalize().is_ok_and(|to| to.starts_with(folder));
        !path.is_empty() && !path.contains("://") && !within.as_deref().is_some_and(leads)
    })
}

/// Whether every package says what docs.rs builds: by default it builds without features that are off.
pub(super) fn docs_rs(root: &Path) -> Result<String> {
    let all = Published::all(root)?;
    let says = |one: &&Published| {
        let docs = one.field("metadata").and_then(|metadata| metadata.get("docs")).and_then(|docs| docs.get("rs"));
        docs.and_then(|docs| docs.get("all-features")).and_then(toml::Value::as_bool).is_none()
    };
    let wrong: Vec<&str> = all.iter().filter(says).map(|one| one.manifest.as_str()).collect();
    ensure!(wrong.is_empty(), "`[package.metadata.docs.rs]` has no `all-features` in {}", wrong.join(", "));
    Ok(format!("{} packages", all.len()))
}

#[cfg(test)]
mod tests;
