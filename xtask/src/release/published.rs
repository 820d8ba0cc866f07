//! The packages that are published, as their manifests tell them.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

use super::OUTSIDE;

/// A package that is published.
#[derive(Debug)]
pub(crate) struct Published {
    /// Its name in the registry.
    pub(crate) name: String,
    /// Its manifest, from the root.
    pub(crate) manifest: String,
    /// What the manifest says.
    pub(crate) table: toml::Table,
    /// Whether it has a workspace of its own.
    pub(crate) outside: bool,
}

impl Published {
    /// Every one: members of the workspace without `publish = false`, then those of workspaces beside it.
    ///
    /// # Errors
    ///
    /// A manifest cannot be read.
    pub(crate) fn all(root: &Path) -> Result<Vec<Published>> {
        let workspace = table(&root.join("Cargo.toml"))?;
        let members = workspace.get("workspace").and_then(|one| one.get("members")).and_then(toml::Value::as_array);
        let mut manifests = Vec::new();
        for member in members.into_iter().flatten().filter_map(toml::Value::as_str) {
            match member.strip_suffix("/*") {
                None => manifests.push(format!("{member}/Cargo.toml")),
                Some(folder) => {
                    for entry in std::fs::read_dir(root.join(folder)).with_context(|| folder.to_owned())? {
                        let name = entry?.file_name().to_string_lossy().into_owned();
                        manifests.push(format!("{folder}/{name}/Cargo.toml"));
                    }
                }
            }
        }
        manifests.retain(|manifest| root.join(manifest).is_file());
        manifests.sort();
        let inside = manifests.into_iter().map(|manifest| (manifest, false));
        let outside = OUTSIDE.into_iter().map(|manifest| (manifest.to_owned(), true));
        let mut found = Vec::new();
        for (manifest, outside) in inside.chain(outside) {
            let table = table(&root.join(&manifest))?;
            let package = table.get("package").with_context(|| format!("{manifest} has no package"))?;
            let name = package.get("name").and_then(toml::Value::as_str).with_context(|| manifest.clone())?.to_owned();
            if package.get("publish").and_then(toml::Value::as_bool) != Some(false) {
                found.push(Published { name, manifest, table, outside });
            }
        }
        Ok(found)
    }

    /// The address that the workspace has, if any.
    ///
    /// # Errors
    ///
    /// The manifest cannot be read.
    pub(crate) fn repository(root: &Path) -> Result<Option<String>> {
        workspace_value(root, "repository")
    }

    /// The folder that is packed.
    pub(crate) fn folder(&self, root: &Path) -> PathBuf {
        root.join(&self.manifest).parent().map(Path::to_path_buf).unwrap_or_default()
    }

    /// A field of `[package]`.
    pub(crate) fn field(&self, name: &str) -> Option<&toml::Value> {
        self.table.get("package")?.get(name)
    }
}

/// A field of `[workspace.package]`.
///
/// # Errors
///
/// The manifest cannot be read.
pub(super) fn workspace_value(root: &Path, field: &str) -> Result<Option<String>> {
    let table = table(&root.join("Cargo.toml"))?;
    let package = table.get("workspace").and_then(|workspace| workspace.get("package"));
    Ok(package.and_then(|package| package.get(field)).and_then(toml::Value::as_str).map(str::to_owned))
}

/// A manifest.
///
/// # Errors
///
/// It cannot be read, or is no TOML.
pub(super) fn table(path: &Path) -> Result<toml::Table> {
    let text = std::fs::read_to_string(path).with_context(|| format!("{} cannot be read", path.display()))?;
    text.parse().with_context(|| format!("{} is not valid TOML", path.display()))
}
