//! A toolchain of FlashAttention-4 that is tried (`cargo xtask fa4-tests --toolchain`): pip says which packages it has,
//! and they are fetched as the pinned ones are, with the hashes of pip's index, into a folder that compiles no plan.

use std::path::PathBuf;
use std::str::FromStr;

use qkvault_fa4::{Fa4Toolchain, TOOLCHAIN};

use super::pins::{Parcel, Pins, Wheel};
use super::{FetchError, FetchOptions, FetchedLibraries, Licence, ensure_parcel, pip};

/// Which toolchain is tried.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ToolchainChoice {
    /// The newest versions that fit together.
    Newest,
    /// Packages with their versions; those of the pinned toolchain for the others.
    Named(Vec<(String, String)>),
}

impl FromStr for ToolchainChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<ToolchainChoice, String> {
        if text == "newest" {
            return Ok(ToolchainChoice::Newest);
        }
        let mut named: Vec<(String, String)> = Vec::new();
        for part in text.split(',') {
            // pip is given these words, so they are names and versions and nothing else.
            let plain = |word: &str, more: &str| {
                let inner = word.chars().all(|c| c.is_ascii_alphanumeric() || more.contains(c));
                inner && word.starts_with(|c: char| c.is_ascii_alphanumeric())
            };
            let (name, version) = part
                .split_once("==")
                .filter(|(name, version)| plain(name, "-_.") && plain(version, ".+!"))
                .ok_or_else(|| format!("'{part}' is no NAME==VERSION; write flash-attn-4==4.0.0b36, or newest"))?;
            let name = normal(name);
            if named.iter().any(|(known, _)| *known == name) {
                return Err(format!("{name} has two versions"));
            }
            named.push((name, version.to_owned()));
        }
        Ok(ToolchainChoice::Named(named))
    }
}

impl ToolchainChoice {
    /// What pip is asked for first.
    fn requirements(&self) -> Vec<String> {
        let pinned = TOOLCHAIN.packages();
        match self {
            // A bound that is a beta allows betas of that package.
            ToolchainChoice::Newest => pinned
                .map(|(name, _)| format!("{name}{}", if name == "flash-attn-4" { ">=4.0.0b0" } else { "" }))
                .into(),
            ToolchainChoice::Named(named) => {
                let kept = pinned.iter().filter(|(name, _)| named.iter().all(|(known, _)| known != name));
                let kept = kept.map(|(name, version)| format!("{name}=={version}"));
                named.iter().map(|(name, version)| format!("{name}=={version}")).chain(kept).collect()
            }
        }
    }
}

/// A toolchain that is tried, fetched.
#[derive(Debug)]
pub struct TriedToolchain {
    /// Its folder.
    pub fetched: FetchedLibraries,
    /// Its versions.
    pub toolchain: Fa4Toolchain,
}

/// Fetches a toolchain to try if it is missing, for the Python that the pinned one is fetched for; nothing if the
/// newest is the pinned one.
///
/// # Errors
///
/// pip finds no such packages, or they cannot be fetched.
pub fn ensure_tried(choice: &ToolchainChoice, options: &FetchOptions) -> Result<Option<TriedToolchain>, FetchError> {
    let (toolchain, parcel, dest) = parcel(choice, options)?;
    if *choice == ToolchainChoice::Newest && toolchain == TOOLCHAIN {
        return Ok(None);
    }
    let fetched = ensure_parcel(&parcel, &dest, options)?;
    match qkvault_base::distrust_library(&fetched.dir, |name| std::env::var_os(name)) {
        Some(why) => Err(FetchError::Untrusted { folder: fetched.dir, why }),
        None => Ok(Some(TriedToolchain { fetched, toolchain })),
    }
}

/// What pip finds for a choice: the versions, the wheels, and the folder that theirs is made in.
fn parcel(choice: &ToolchainChoice, options: &FetchOptions) -> Result<(Fa4Toolchain, Parcel, PathBuf), FetchError> {
    let pins = Pins::read(options.pins.as_deref())?;
    let python = qkvault_fa4::Python::first(pins.pythons("fa4")?)?.version();
    let pinned: Vec<String> = pins.engine("fa4", &python)?.wheels.into_iter().map(|wheel| wheel.name).collect();
    let mut requirements = choice.requirements();
    // Of what packages require, that which the pinned toolchain has too: no PyTorch.
    let found = loop {
        let found = pip::resolved(&requirements, &python, options)?;
        let required = found.iter().flat_map(|package| &package.metadata.requires_dist);
        let mut more: Vec<String> = required.filter_map(|line| needed(line, &pinned)).collect();
        more.retain(|line| !requirements.contains(line));
        more.sort_unstable();
        more.dedup();
        if more.is_empty() {
            break found;
        }
        requirements.extend(more);
    };
    let wheels: Vec<Wheel> = found
        .into_iter()
        .map(|pip::Resolved { download_info, metadata }| Wheel {
            name: normal(&metadata.name),
            version: metadata.version,
            file: download_info.url.rsplit('/').next().unwrap_or_default().replace("%2B", "+"),
            sha256: download_info.archive_info.hashes.sha256,
            bytes: 0,
            only: Vec::new(),
            python: Some(python.clone()),
        })
        .collect();
    // They are all asked for. A process tries one toolchain, so its versions may stay in memory.
    let version = |name: &str| -> &'static str {
        let wheel = wheels.iter().find(|wheel| wheel.name == name);
        wheel.map_or("", |wheel| wheel.version.clone().leak())
    };
    let [flash_attn, cutlass_dsl, quack] = TOOLCHAIN.packages().map(|(name, _)| version(name));
    let toolchain = Fa4Toolchain { flash_attn, cutlass_dsl, quack };
    let libraries = options.dest.clone().unwrap_or_else(qkvault_base::libraries_dir);
    let dir = toolchain.tried(&libraries, &python);
    let (Some(dest), Some(name)) = (dir.parent(), dir.file_name()) else { unreachable!("it is below a folder") };
    let folder = name.to_string_lossy().into_owned();
    let title = format!("FlashAttention-4 {flash_attn} to try it");
    let parcel = Parcel { folder, title, wheels, licence: Some(Licence::CutlassDsl), whole: true };
    Ok((toolchain, parcel, dest.to_owned()))
}

/// A package's name as the index compares it.
fn normal(name: &str) -> String {
    name.to_lowercase().replace(['_', '.'], "-")
}

/// A requirement of a package, if it is of the toolchain: what the pinned one has, and other parts of the compiler for
/// CUDA 13.
fn needed(line: &str, pinned: &[String]) -> Option<String> {
    let (requirement, marker) = line.split_once(';').unwrap_or((line, ""));
    let end = requirement.find(|c: char| !c.is_ascii_alphanumeric() && !"-_.".contains(c)).unwrap_or(requirement.len());
    let name = normal(&requirement[..end]);
    let part = name.starts_with("nvidia-cutlass-dsl") && !name.ends_with("cu12");
    let line = match marker.contains("extra") {
        true if marker.replace('\'', "\"").trim() == "extra == \"cu13\"" => requirement,
        true => return None,
        false => line,
    };
    (part || pinned.contains(&name)).then(|| line.trim().to_owned())
}

#[cfg(test)]
mod tests;
