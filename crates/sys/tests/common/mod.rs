//! Helpers that the tests of this package share.

pub(crate) mod attention;

use std::path::{Path, PathBuf};
use std::process::Command;

use qkvault_base::{MANIFEST, cudnn_dir};
use qkvault_skip::{Need, SAID, skip};

/// Set in a process that runs one test alone, to the name of that test.
const ALONE: &str = "QKVAULT_TEST_CHILD";

/// Runs the body of a test in a process of its own, because a loaded cuDNN or stand-in stays loaded.
pub(crate) fn alone(test: &str, body: impl FnOnce()) {
    if std::env::var_os(ALONE).is_some_and(|name| name == test) {
        return body();
    }
    let program = std::env::current_exe().expect("a test has a program");
    let done = Command::new(program)
        .args(["--exact", test, "--nocapture"])
        .env(ALONE, test)
        .output()
        .expect("it can be started");
    let said = String::from_utf8_lossy(&done.stdout).into_owned() + &String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{test}, run alone, ended with {}:\n{said}", done.status);
    assert!(said.contains("1 passed"), "{test} is not the name of a test:\n{said}");
    for line in said.lines().filter(|line| line.starts_with(SAID)) {
        say(line);
    }
}

/// The folder of a fetched slim cuDNN, or `None` with the reason printed.
///
/// With `QKVAULT_REQUIRE=cudnn` a missing one is a failure.
pub(crate) fn fetched(version: &str) -> Option<PathBuf> {
    find(version, "slim").map_err(|reason| skip(Need::Cudnn, &reason)).ok()
}

/// The folder of a fetched full cuDNN, or `None` with the reason printed. It is never required, because it is over 1
/// GB.
pub(crate) fn fetched_full(version: &str) -> Option<PathBuf> {
    find(version, "full").map_err(|reason| skip(Need::FullCudnn, &reason)).ok()
}

fn find(version: &str, set: &str) -> Result<PathBuf, String> {
    let is_it = |dir: &PathBuf| {
        let name = dir.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with(version) && name.ends_with(&format!("-{set}")) && dir.join(MANIFEST).exists()
    };
    let root = cudnn_dir();
    let found = root.read_dir().into_iter().flatten().flatten().map(|entry| entry.path()).find(is_it);
    found.ok_or_else(|| {
        format!(
            "no cuDNN {version} ({set}) in {}; `cargo xtask fetch --cudnn {version} --{set}` gets it",
            root.display()
        )
    })
}

#[expect(clippy::print_stdout, reason = "a test that cannot run says so")]
fn say(line: &str) {
    println!("{line}");
}

/// Links the libraries of a fetched set into a new folder of the same shape, except for those whose names `leave_out`
/// picks.
pub(crate) fn copy_without(set: &Path, leave_out: impl Fn(&str) -> bool) -> tempfile::TempDir {
    // Beside the set, because hard links cannot cross file systems. A later fetch removes folders whose names begin
    // like this.
    let copy =
        tempfile::Builder::new().prefix(".unfinished-test-").tempdir_in(set.parent().expect("it is in a folder"));
    let copy = copy.expect("the fetch folder can be written");
    for below in ["nvidia/cudnn_jit/lib", "nvidia/cudnn_jit/include", "nvidia/cu13/lib"] {
        let Ok(files) = set.join(below).read_dir() else { continue };
        std::fs::create_dir_all(copy.path().join(below)).expect("the copy can be written");
        for file in files.flatten().filter(|file| !leave_out(&file.file_name().to_string_lossy())) {
            std::fs::hard_link(file.path(), copy.path().join(below).join(file.file_name()))
                .expect("the same file system");
        }
    }
    copy
}
