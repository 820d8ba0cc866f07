//! What the tests of the C interface share: the library as C programs find it, and a C compiler.

#![allow(dead_code, reason = "each test file uses a part of it")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use qkvault_base::{MANIFEST, cudnn_dir};
use qkvault_skip::{Need, skip};

/// The folder of this package.
pub(crate) fn package() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The shared library that cargo built beside this test.
pub(crate) fn built() -> PathBuf {
    let own = std::env::current_exe().expect("a program has a path");
    let folder = own.parent().expect("it is in a folder");
    let library = folder.join("libqkvault_c.so");
    assert!(library.is_file(), "{} is not there: cargo builds it with the tests", library.display());
    library
}

/// A folder with the library under the names that programs look for.
pub(crate) fn installed() -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    for name in ["libqkvault.so", "libqkvault.so.1"] {
        std::os::unix::fs::symlink(built(), folder.path().join(name)).expect("a link");
    }
    folder
}

/// What programs in C are compiled with.
pub(crate) const C11: &[&str] = &["-std=c11", "-Wall", "-Wextra", "-Werror", "-pedantic", "-O1"];

/// What programs in C++ are compiled with.
pub(crate) const CXX17: &[&str] = &["-std=c++17", "-Wall", "-Wextra", "-Werror", "-pedantic", "-O1"];

/// Compiles a file with a compiler, with the header's folder, and returns what it said.
pub(crate) fn compile(compiler: &str, options: &[&str], file: &Path, into: &Path, more: &[&str]) -> Output {
    let mut command = Command::new(compiler);
    command.args(options).arg("-I").arg(package().join("include")).arg(file).arg("-o").arg(into).args(more);
    command.output().unwrap_or_else(|error| panic!("{compiler} does not start: {error}"))
}

/// Compiles and links a program with the library, and panics with what the compiler said if that fails.
pub(crate) fn program(compiler: &str, options: &[&str], file: &str, folder: &Path) -> PathBuf {
    let (file, into) = (package().join(file), folder.join("program"));
    let (search, run) = (format!("-L{}", folder.display()), format!("-Wl,-rpath,{}", folder.display()));
    let said = compile(compiler, options, &file, &into, &[&search, "-lqkvault", "-lm", &run]);
    assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
    into
}

/// The folder of a fetched slim cuDNN, or `None` if there is none; the test is then skipped.
pub(crate) fn cudnn(version: &str) -> Option<PathBuf> {
    let root = cudnn_dir();
    let is_it = |folder: &PathBuf| {
        let name = folder.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with(version) && name.ends_with("-slim") && folder.join(MANIFEST).exists()
    };
    let found = root.read_dir().into_iter().flatten().flatten().map(|entry| entry.path()).find(is_it);
    if found.is_none() {
        let get = format!("`cargo xtask fetch --cudnn {version}` gets it");
        skip(Need::Cudnn, &format!("no cuDNN {version} (slim) in {}; {get}", root.display()));
    }
    found
}

/// Whether this machine has the compiler.
pub(crate) fn has(compiler: &str) -> bool {
    Command::new(compiler).arg("--version").output().is_ok_and(|said| said.status.success())
}

/// Compares a text with a golden file, or writes it with `UPDATE_GOLDENS=1`.
pub(crate) fn golden(file: &str, text: &str) {
    let path = package().join(file);
    if std::env::var_os("UPDATE_GOLDENS").is_some_and(|value| value == "1") {
        std::fs::write(&path, text).expect("it is written");
        return;
    }
    let kept = std::fs::read_to_string(&path).unwrap_or_default();
    let first = kept.lines().zip(text.lines()).position(|(a, b)| a != b).unwrap_or(0) + 1;
    assert!(kept == text, "{file} is stale from line {first} on: run `cargo xtask header` and look at the difference");
}
