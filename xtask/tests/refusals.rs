//! Errors of the fetch command before it has a wheel: one paragraph each, with a fix, and exit code 1.

#[allow(dead_code, reason = "each test program uses its part")]
mod common;

use common::{WHEEL, World, bad, good, usual, zip};
use qkvault_skip::{Need, skip};

#[test]
fn the_licence_must_be_accepted_once() {
    let world = World::with_wheel(&zip(&usual()));
    world.downloaded();
    let with = |accept: &[&str]| {
        let mut command = world.xtask(&["fetch"]);
        command.args(accept).arg("--pins").arg(world.path("wheels.toml")).arg("--find-links").arg(world.path("links"));
        command
    };
    let output = bad(with(&[]));
    for part in ["--accept-nvidia-license", "QKVAULT_ACCEPT_NVIDIA_LICENSE=1", "https://"] {
        assert!(output.contains(part), "{part} is not in: {output}");
    }
    assert!(!world.set().exists());
    let mut zero = with(&[]);
    zero.env("QKVAULT_ACCEPT_NVIDIA_LICENSE", "0");
    bad(zero);
    let mut one = with(&[]);
    one.env("QKVAULT_ACCEPT_NVIDIA_LICENSE", "1");
    good(one);
    // The acceptance is recorded, so another fetch needs neither option nor variable.
    std::fs::remove_dir_all(world.set()).expect("it is there");
    world.downloaded();
    good(with(&[]));
    assert!(world.set().exists());
}

#[test]
fn the_error_of_an_unknown_version_lists_the_known_ones() {
    let world = World::with_wheel(&zip(&usual()));
    let mut command = world.fetch();
    command.args(["--cudnn", "9.98"]);
    let output = bad(command);
    assert!(output.contains("9.98") && output.contains("9.99.0.1"), "{output}");
    let mut full = world.fetch();
    full.arg("--full");
    assert!(bad(full).contains("(full)"));
}

#[test]
fn the_error_without_pip_has_the_fix() {
    let world = World::with_wheel(&zip(&usual()));
    let mut command = world.fetch();
    command.env("PATH", world.path("links"));
    let output = bad(command);
    for part in ["python3 -m pip", "uv tool run pip", "QKVAULT_CUDNN_PATH"] {
        assert!(output.contains(part), "{part} is not in: {output}");
    }
}

/// A machine without a network gets the same error as one whose index is empty.
#[test]
fn the_error_without_a_source_has_the_fix() {
    let world = World::with_wheel(&zip(&usual()));
    std::fs::remove_file(world.path("links").join(WHEEL)).expect("it is there");
    let mut command = world.fetch();
    command.env_remove("PIP_FIND_LINKS");
    let output = bad(command);
    if output.contains("no pip could be started") {
        return skip(Need::Pip, "no pip on this machine");
    }
    for part in ["pip download", "9.99.0.1-slim", "QKVAULT_CUDNN_PATH", "run this again"] {
        assert!(output.contains(part), "{part} is not in: {output}");
    }
    assert!(!world.set().exists());
}

#[test]
fn the_error_names_a_folder_that_cannot_be_made() {
    let world = World::with_wheel(&zip(&usual()));
    let mut command = world.fetch();
    let dest = world.path("wheels.toml").join("below-a-file");
    command.arg("--dest").arg(&dest);
    assert!(bad(command).contains(&dest.display().to_string()));
}

#[test]
fn the_error_of_an_invalid_list_has_the_line() {
    let world = World::with_wheel(&zip(&usual()));
    std::fs::write(world.path("wheels.toml"), "default = 9.27\n").expect("it can be written");
    let mut command = world.fetch();
    command.env("PATH", "");
    let done = command.output().expect("it can be started");
    assert_eq!(done.status.code(), Some(1));
    let output = String::from_utf8_lossy(&done.stderr).into_owned();
    assert!(output.contains("wheels.toml") && output.contains("line 1"), "{output}");
}

#[test]
fn wrong_usage_has_its_own_exit_code() {
    let world = World::with_wheel(&zip(&usual()));
    let choice = &["fa4-tests", "--toolchain", "latest"][..];
    for args in [&["fetch", "--slim", "--full"][..], &["fetch", "--nonsense"], choice, &["nonsense"], &[]] {
        let done = world.xtask(args).output().expect("it can be started");
        assert_eq!(done.status.code(), Some(2), "{args:?}");
    }
}
