//! Fetched cuDNN libraries for tests that need one.

use std::path::PathBuf;

use qkvault_base::{MANIFEST, cudnn_dir};
use qkvault_compile::Compiler;
use qkvault_cudnn::{Profile, Target};
use qkvault_skip::{Need, skip};
use qkvault_sys::Search;

/// The folder of a fetched slim set.
///
/// # Errors
///
/// The set is not there. The text contains the command that fetches it.
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

/// A compiler with the fetched slim cuDNN of this version, or `None` if there is none; the test is then skipped.
///
/// With `QKVAULT_REQUIRE=cudnn` a missing cuDNN is a failure.
///
/// # Panics
///
/// Panics if cuDNN is required and missing, or if the fetched set cannot be used.
#[must_use]
pub fn compiler(version: &str) -> Option<Compiler> {
    let dir = found(version)?;
    Some(Compiler::open(&Search::at(dir)).unwrap_or_else(|e| panic!("a fetched set is whole: {e}")))
}

/// The folder of a fetched slim set, for a test whose child processes open it, or `None` if there is none.
///
/// With `QKVAULT_REQUIRE=cudnn` a missing cuDNN is a failure.
///
/// # Panics
///
/// Panics if cuDNN is required and missing.
#[must_use]
pub fn found(version: &str) -> Option<PathBuf> {
    fetched(version).map_err(|reason| skip(Need::Cudnn, &reason)).ok()
}

/// The target of a built-in GPU and the compiler's cuDNN. `sm_103` is a B200 with another compute capability: no
/// profile of a B300 exists, because nobody has captured one.
///
/// # Panics
///
/// Panics if there is no profile of this name.
#[must_use]
pub fn target(compiler: &Compiler, profile: &str) -> Target {
    let named = |name| Profile::named(name).unwrap_or_else(|e| panic!("{e}"));
    if profile != "sm_103" {
        return compiler.target(&named(profile));
    }
    let mut target = compiler.target(&named("b200"));
    target.device.device_ver = 1030;
    target
}

/// Prints a line of a test's output.
#[expect(clippy::print_stdout, reason = "a test prints its measurements")]
pub fn say(line: &str) {
    println!("{line}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_of_a_missing_set_has_the_command_that_fetches_it() {
        assert!(fetched("9.99.0").is_err_and(|why| why.contains("no cuDNN 9.99.0") && why.contains("xtask fetch")));
    }
}
