//! The places of a search, from the environment and the file system; this module loads nothing.

use std::path::{Path, PathBuf};

use crate::search::{At, Environment, SONAME, Search, SearchPlace};
use crate::tried::{SearchStep, UnusableReason};
use qkvault_base::{CacheDir, MANIFEST, dangling, python_packages, python_prefixes};
use qkvault_base::{CudnnVersion, LibrarySet};

/// Folders that may hold cuDNN, below a prefix, a CUDA toolkit or a site-packages folder, in order of preference.
const BELOW: &[&str] = &["", "lib", "lib64", "nvidia/cudnn/lib", "nvidia/cudnn_jit/lib"];

/// Variables that name a CUDA toolkit.
pub(crate) const TOOLKIT_VARIABLES: &[&str] = &["CUDA_HOME", "CUDA_PATH"];

/// A library that only the full set has.
const ONLY_IN_FULL: &str = "libcudnn_ops.so.9";

/// Every place of a search, in order.
pub(crate) fn in_order(search: &Search) -> Vec<SearchPlace> {
    let env = &search.environment;
    if let Some(path) = &search.path {
        return vec![SearchPlace { origin: SearchStep::Path, at: at(path) }];
    }
    if let Some(path) = env.get("QKVAULT_CUDNN_PATH") {
        return vec![SearchPlace { origin: SearchStep::Variable("QKVAULT_CUDNN_PATH"), at: at(Path::new(&path)) }];
    }
    let mut places = vec![SearchPlace {
        origin: SearchStep::Variable("QKVAULT_CUDNN_PATH"),
        at: At::Nothing(None, UnusableReason::NotSet),
    }];
    variables(env, &["CUDNN_PATH", "CUDNN_HOME"], &mut places);
    places.push(SearchPlace { origin: SearchStep::Process, at: At::Process });
    for name in ["VIRTUAL_ENV", "CONDA_PREFIX"] {
        match env.get(name) {
            Some(prefix) => site_packages(SearchStep::Environment(name), Path::new(&prefix), &mut places),
            None => places.push(SearchPlace {
                origin: SearchStep::Environment(name),
                at: At::Nothing(None, UnusableReason::NotSet),
            }),
        }
    }
    for prefix in python_prefixes(|name| env.get(name)) {
        site_packages(SearchStep::Python, &prefix, &mut places);
    }
    fetched(env, &mut places);
    variables(env, TOOLKIT_VARIABLES, &mut places);
    places.push(SearchPlace { origin: SearchStep::Loader, at: At::Name(SONAME) });
    places
}

fn variables(env: &Environment, names: &[&'static str], places: &mut Vec<SearchPlace>) {
    for &name in names {
        let at = env.get(name).map_or(At::Nothing(None, UnusableReason::NotSet), |path| at(Path::new(&path)));
        places.push(SearchPlace { origin: SearchStep::Variable(name), at });
    }
}

/// Resolves a path that a user gave: the file itself, or a folder with the library in it or in a usual place below it.
fn at(path: &Path) -> At {
    if path.is_dir() {
        let files = || BELOW.iter().map(|below| path.join(below).join(SONAME));
        let found = files().find(|file| file.exists()).map(At::File).or_else(|| files().find_map(broken));
        return found.unwrap_or_else(|| At::Nothing(Some(path.to_owned()), UnusableReason::NoLibrary));
    }
    if path.exists() {
        return At::File(path.to_owned());
    }
    broken(path.to_owned()).unwrap_or_else(|| At::Nothing(Some(path.to_owned()), UnusableReason::Absent))
}

/// A symbolic link that leads to nothing.
fn broken(link: PathBuf) -> Option<At> {
    let target = dangling(&link)?;
    Some(At::Nothing(Some(link), UnusableReason::Dangling { target }))
}

/// The wheels' folders below a Python prefix: `lib/python3.*/site-packages/nvidia/…`.
fn site_packages(origin: SearchStep, prefix: &Path, places: &mut Vec<SearchPlace>) {
    let before = places.len();
    for packages in python_packages(prefix) {
        for wheel in ["cudnn", "cudnn_jit"] {
            let file = packages.join("nvidia").join(wheel).join("lib").join(SONAME);
            let at = if file.exists() { Some(At::File(file)) } else { broken(file) };
            places.extend(at.map(|at| SearchPlace { origin: origin.clone(), at }));
        }
    }
    if places.len() == before {
        places.push(SearchPlace { origin, at: At::Nothing(Some(prefix.to_owned()), UnusableReason::NoLibrary) });
    }
}

/// The sets that `cargo xtask fetch` downloaded: slim sets before full ones, newer versions before older ones.
fn fetched(env: &Environment, places: &mut Vec<SearchPlace>) {
    let root = CacheDir::find(|name| env.get(name)).path.join("libraries").join("cudnn");
    let mut sets =
        sorted_dirs(&root).into_iter().filter_map(|dir| Some((fetched_name(&dir)?, dir))).collect::<Vec<_>>();
    sets.sort_by(|((a, a_set), _), ((b, b_set), _)| a_set.cmp(b_set).then(b.cmp(a)));
    if sets.is_empty() {
        places.push(SearchPlace { origin: SearchStep::Fetched, at: At::Nothing(Some(root), UnusableReason::Absent) });
    }
    for (_, dir) in sets {
        let at =
            if dir.join(MANIFEST).exists() { at(&dir) } else { At::Nothing(Some(dir), UnusableReason::Incomplete) };
        places.push(SearchPlace { origin: SearchStep::Fetched, at });
    }
}

/// Parses a folder name such as `9.27.0.42-slim`.
fn fetched_name(dir: &Path) -> Option<(CudnnVersion, LibrarySet)> {
    let (version, set) = dir.file_name()?.to_str()?.split_once('-')?;
    let set = [LibrarySet::Slim, LibrarySet::Full].into_iter().find(|known| known.word() == set)?;
    Some((version.parse().ok()?, set))
}

fn sorted_dirs(parent: &Path) -> Vec<PathBuf> {
    let mut dirs = std::fs::read_dir(parent)
        .into_iter()
        .flatten()
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|dir| dir.is_dir())
        .collect::<Vec<_>>();
    dirs.sort();
    dirs
}

/// The library set that a file belongs to, judged by its neighbours.
pub(crate) fn set_beside(file: &Path) -> LibrarySet {
    let full = file.parent().is_some_and(|dir| dir.join(ONLY_IN_FULL).exists());
    if full { LibrarySet::Full } else { LibrarySet::Slim }
}

/// The version of a library, from its file name (`libcudnn.so.9.19.0`, behind a link) or from the header in its
/// package.
pub(crate) fn version_beside(file: &Path) -> Option<CudnnVersion> {
    let named = version_named(file);
    named.or_else(|| {
        let header = file.parent()?.parent()?.join("include").join("cudnn_version.h");
        let text = std::fs::read_to_string(header).ok()?;
        let number = |name: &str| {
            text.lines().find_map(|line| line.strip_prefix("#define ")?.strip_prefix(name)?.trim().parse::<u16>().ok())
        };
        Some(CudnnVersion::new(number("CUDNN_MAJOR ")?, number("CUDNN_MINOR ")?, number("CUDNN_PATCHLEVEL ")?))
    })
}

/// The version in the name of a library's file, behind links.
pub(crate) fn version_named(file: &Path) -> Option<CudnnVersion> {
    file.canonicalize().ok().and_then(|file| numbers_after_so(&file)?.parse().ok())
}

/// The version in a file's name, if its major version is not the supported one.
pub(crate) fn foreign_major(file: &Path) -> Option<String> {
    let file = file.canonicalize().ok()?;
    let numbers = numbers_after_so(&file)?;
    let major = numbers.split('.').next()?.parse::<u16>().ok()?;
    (major != CudnnVersion::SUPPORTED_MAJOR).then_some(numbers)
}

/// The version in a file name: `9.19.0` for `libcudnn.so.9.19.0`, and for cuDNN's other libraries.
fn numbers_after_so(file: &Path) -> Option<String> {
    let (stem, numbers) = file.file_name()?.to_str()?.split_once(".so.")?;
    stem.starts_with("libcudnn").then(|| numbers.to_owned())
}

#[cfg(test)]
mod tests;
