//! The Python package: its declarations match the header, its wheel installs, and its own tests pass without a GPU.

mod kit;

use std::path::{Path, PathBuf};
use std::process::Command;

use qkvault_skip::{Need, skip};

/// The folder of the Python package.
fn python() -> PathBuf {
    kit::package().join("../python")
}

/// Runs Python, and returns what it printed.
fn run(words: &[&str], variables: &[(&str, &Path)]) -> String {
    let said = Command::new("python3").args(words).envs(variables.iter().copied()).output().expect("python3 starts");
    let [out, err] = [said.stdout, said.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
    assert!(said.status.success(), "python3 {words:?}: {}\n{out}\n{err}", said.status);
    out + &err
}

/// Whether Python with pip starts; the test is skipped otherwise.
fn has_pip() -> bool {
    let starts = Command::new("python3").args(["-m", "pip", "--version"]).output().is_ok_and(|o| o.status.success());
    if !starts {
        skip(Need::Pip, "`python3 -m pip` does not start");
    }
    starts
}

#[test]
fn the_declarations_for_ctypes_are_those_of_the_header() {
    if has_pip() {
        run(&[python().join("abi.py").to_str().expect("text"), "--check"], &[]);
    }
}

#[test]
fn the_wheel_installs_and_its_tests_pass() {
    if !has_pip() {
        return;
    }
    let Some(cudnn) = kit::cudnn("9.27") else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let text = |path: &Path| path.to_str().expect("text").to_owned();
    let (wheels, packages) = (folder.path().join("dist"), folder.path().join("packages"));
    let (library, version) = (text(&kit::built()), env!("CARGO_PKG_VERSION"));
    let (script, tests) = (text(&python().join("wheel.py")), text(&python().join("tests")));
    let build = ["--library", &library, "--version", version, "--out", &text(&wheels)];
    let wheel = run(&[&[script.as_str()][..], &build].concat(), &[]).trim().to_owned();
    assert!(wheel.contains("-py3-none-manylinux_2_"), "{wheel}");
    let again = std::fs::read(&wheel).expect("it is there");
    run(&[&[script.as_str()][..], &build].concat(), &[]);
    assert!(again == std::fs::read(&wheel).expect("it is there"), "equal inputs give equal wheels");

    let quiet = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--root-user-action=ignore"];
    let target = text(&packages);
    run(&[&quiet[..], &["--target", &target, &format!("{wheel}[oracle]")]].concat(), &[]);
    let variables = [("PYTHONPATH", packages.as_path()), ("QKVAULT_TEST_CUDNN", &cudnn), ("HOME", folder.path())];
    let said = run(&["-m", "unittest", "discover", "-v", "-s", &tests, "-p", "test_package.py"], &variables);
    assert!(said.contains("\nOK") && !said.contains("skipped"), "{said}");
    let said = run(&["-m", "unittest", "discover", "-v", "-s", &tests, "-p", "test_sequence.py"], &variables);
    assert!(said.contains("\nOK") && said.contains("Ran 1 test"), "{said}");
}
