//! The real cuDNN as a stated requirement of a test.

use std::path::PathBuf;

use qkvault_base::{MANIFEST, cudnn_dir};
use qkvault_compile::Compiler;
use qkvault_graph::{Profile, Target};
use qkvault_skip::{Need, skip};
use qkvault_sys::Search;

/// The folder of a fetched slim set, or what is missing and how to get it.
///
/// # Errors
///
/// The reason, in words.
pub fn fetched(version: &str) -> Result<PathBuf, String> {
    let root = cudnn_dir();
    let is_it = |dir: &PathBuf| {
        let name = dir.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with(version) && name.ends_with("-slim") && dir.join(MANIFEST).exists()
    };
    let found = root.read_dir().into_iter().flatten().flatten().map(|entry| entry.path()).find(is_it);
    found.ok_or_else(|| {
        format!("no cuDNN {version} (slim) in {}; `cargo xtask fetch --cudnn {version}` gets it", root.display())
    })
}

/// A compiler with the fetched slim cuDNN of this version, or `None`, with the reason printed, where there is none.
///
/// With `QKVAULT_REQUIRE_CUDNN=1` its absence is a failure.
///
/// # Panics
///
/// When cuDNN is required and not there, and when what was fetched cannot be used.
#[must_use]
pub fn compiler(version: &str) -> Option<Compiler> {
    let dir = found(version)?;
    Some(Compiler::open(&Search::at(dir)).unwrap_or_else(|e| panic!("a fetched set is whole: {e}")))
}

/// The folder of a fetched slim set, for a test whose processes open it, with the same requirement.
///
/// # Panics
///
/// When cuDNN is required and not there.
#[must_use]
pub fn found(version: &str) -> Option<PathBuf> {
    fetched(version).map_err(|reason| skip(Need::Cudnn, &reason)).ok()
}

/// A built-in GPU under the compiler's cuDNN.
///
/// # Panics
///
/// When there is no profile of this name.
#[must_use]
pub fn target(compiler: &Compiler, profile: &str) -> Target {
    compiler.target(&Profile::named(profile).unwrap_or_else(|e| panic!("{e}")))
}

/// A line for who reads the output of a test.
#[expect(clippy::print_stdout, reason = "a test that measures says what")]
pub fn say(line: &str) {
    println!("{line}");
}

#[cfg(test)]
mod tests {
    use super::*;

    /// That a promise makes its absence a failure is tested where skipping is.
    #[test]
    fn what_is_not_there_is_told_with_how_to_get_it() {
        assert!(fetched("9.99.0").is_err_and(|why| why.contains("no cuDNN 9.99.0") && why.contains("xtask fetch")));
    }
}
