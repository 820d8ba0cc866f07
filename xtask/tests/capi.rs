//! What `cargo xtask capi` installs: a program in C builds against it with pkg-config, and finds the library again.

use std::path::PathBuf;
use std::process::Command;

use qkvault_skip::{Need, skip};
use xtask::{capi, cargo};

/// The library that the tests of the workspace built beside this one; else it is built.
fn library() -> PathBuf {
    let own = std::env::current_exe().expect("a program has a path");
    let beside = own.with_file_name("libqkvault_c.so");
    if beside.is_file() { beside } else { capi::build(true).expect("it builds") }
}

/// What a program says on its standard output; it must succeed.
fn said(command: &mut Command) -> String {
    let done = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(done.status.success(), "{command:?}: {}", String::from_utf8_lossy(&done.stderr));
    String::from_utf8_lossy(&done.stdout).into_owned()
}

#[test]
fn a_program_in_c_builds_with_pkg_config_and_runs() {
    let starts = |program: &str| Command::new(program).arg("--version").output().is_ok_and(|o| o.status.success());
    if !starts("pkg-config") || !starts("cc") {
        return skip(Need::PkgConfig, "`pkg-config` or `cc` does not start; Debian has them as pkg-config and gcc");
    }
    let folder = tempfile::tempdir().expect("a folder");
    let prefix = folder.path().join("prefix");
    capi::install(&library(), &prefix).expect("it is installed");
    let pkg_config = |words: &[&str]| {
        let mut command = Command::new("pkg-config");
        said(command.args(words).arg("qkvault").env("PKG_CONFIG_PATH", prefix.join("lib/pkgconfig"))).trim().to_owned()
    };
    assert_eq!(pkg_config(&["--modversion"]), env!("CARGO_PKG_VERSION"));
    let flags = pkg_config(&["--cflags", "--libs"]);
    let (source, program) = (cargo::root().join("adapters/c/tests/check.c"), folder.path().join("check"));
    let mut compiler = Command::new("cc");
    compiler.arg("-std=c11").arg(source).arg("-o").arg(&program).args(flags.split_whitespace()).arg("-lm");
    said(&mut compiler);
    let mut run = Command::new(&program);
    run.arg(folder.path().join("vault")).env_clear().env("HOME", folder.path());
    assert!(!run.output().expect("it starts").status.success(), "the library is in no usual folder");
    assert_eq!(said(run.env("LD_LIBRARY_PATH", prefix.join("lib"))), "all checks passed\n");
}
