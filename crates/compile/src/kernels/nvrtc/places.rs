//! Where NVRTC may be, from the environment and the file system; this module loads nothing.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use qkvault_base::{CacheDir, MANIFEST, dangling};

/// The SONAME of every NVRTC of CUDA 13.
const SONAME: &str = "libnvrtc.so.13";

/// Folders that may hold it, below a prefix, a CUDA toolkit, a fetched folder or site-packages.
const BELOW: [&str; 5] = ["", "lib", "lib64", "nvidia/cu13/lib", "nvidia/cuda_nvrtc/lib"];

/// Values of environment variables.
pub(super) type Variables<'a> = dyn Fn(&str) -> Option<OsString> + 'a;

/// The files to try, in order. A path that a user gave is the only one, even if there is nothing.
pub(super) fn to_try(path: Option<&Path>, variable: &Variables<'_>) -> Vec<PathBuf> {
    let set = |name: &str| variable(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    if let Some(path) = path.map(Path::to_owned).or_else(|| set("QKVAULT_NVRTC_PATH")) {
        return vec![within(&path).unwrap_or_else(|| if path.is_dir() { path.join(SONAME) } else { path })];
    }
    let libraries = CacheDir::find(|name| variable(name)).path.join("libraries");
    let fetched = [libraries.join("nvrtc"), libraries.join("cudnn")].into_iter().flat_map(|root| folders(&root, ""));
    let fetched = fetched.filter(|folder| folder.join(MANIFEST).exists());
    let python = ["VIRTUAL_ENV", "CONDA_PREFIX"].into_iter().filter_map(set);
    let python = python.flat_map(|prefix| folders(&prefix.join("lib"), "python3"));
    let python = python.map(|folder| folder.join("site-packages"));
    let toolkits = ["CUDA_HOME", "CUDA_PATH"].into_iter().filter_map(set);
    let found = fetched.chain(python).chain(toolkits).filter_map(|folder| within(&folder));
    found.chain([PathBuf::from(SONAME)]).collect()
}

/// The library at a path, which may be its file or a folder above it.
fn within(path: &Path) -> Option<PathBuf> {
    if path.is_file() {
        return Some(path.to_owned());
    }
    let files = || BELOW.iter().map(|below| path.join(below).join(SONAME));
    // A link that leads to nothing is named as such when it is not loaded.
    files().find(|file| file.exists()).or_else(|| files().find(|file| dangling(file).is_some()))
}

/// The folders in a folder whose names begin so, the last name first: newer versions before older ones.
fn folders(parent: &Path, prefix: &str) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(parent).into_iter().flatten().flatten();
    let begins = |entry: &std::fs::DirEntry| entry.file_name().to_string_lossy().starts_with(prefix);
    let mut found: Vec<PathBuf> =
        entries.filter(begins).map(|entry| entry.path()).filter(|path| path.is_dir()).collect();
    found.sort_unstable_by(|a, b| b.cmp(a));
    found
}
