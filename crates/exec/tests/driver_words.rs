//! What is said of a driver that is there and does not work: its file, and a cause for the status that it gives
//! (cudarc #274). Small libraries of that name stand for the toolkit's stub, compatibility libraries and a driver that
//! does not answer; each is met in a process of its own.

#![cfg(all(feature = "cudarc", target_os = "linux"))]

use std::path::Path;
use std::process::Command;

use qkvault_exec::Device;
use qkvault_skip::{Need, skip};

/// Tells a child what to do.
const CHILD: &str = "QKVAULT_TEST_CHILD";

#[test]
fn child() {
    if std::env::var_os(CHILD).is_some() {
        println!("<<{}>>", Device::open(0).expect_err("the driver does not work"));
    }
}

/// What opening a GPU says where this folder is the first that the loader searches.
fn said(folder: &Path) -> String {
    let child = Command::new(std::env::current_exe().expect("this program"))
        .args(["--exact", "child", "--nocapture"])
        .env(CHILD, "1")
        .env("LD_LIBRARY_PATH", folder)
        .output()
        .expect("it starts");
    let text = String::from_utf8_lossy(&child.stdout).into_owned();
    let found = text.split_once("<<").and_then(|(_, rest)| rest.rsplit_once(">>"));
    found.unwrap_or_else(|| panic!("{text}{}", String::from_utf8_lossy(&child.stderr))).0.to_owned()
}

/// A `libcuda.so.1` whose `cuInit` gives a status.
fn driver(folder: &Path, status: i32) -> bool {
    let (source, library) = (folder.join("driver.c"), folder.join("libcuda.so.1"));
    std::fs::write(&source, format!("int cuInit(unsigned flags) {{ return {status}; }}\n")).expect("it can be written");
    let flags = ["-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-o"];
    let done = Command::new("cc").args(flags).args([&library, &source]).status();
    let done = done.is_ok_and(|status| status.success());
    if done {
        std::os::unix::fs::symlink("libcuda.so.1", folder.join("libcuda.so")).expect("a link");
    } else {
        skip(Need::Cxx, "cc does not run");
    }
    done
}

#[test]
fn a_driver_that_does_not_start_is_named_with_its_file_and_a_cause_by_its_status() {
    for (status, words) in [
        (34, &["CUDA_ERROR_STUB_LIBRARY (34)", "stub", "LD_LIBRARY_PATH"]),
        (100, &["CUDA_ERROR_NO_DEVICE (100)", "nvidia-smi", "CUDA_VISIBLE_DEVICES now"]),
        (803, &["CUDA_ERROR_SYSTEM_DRIVER_MISMATCH (803)", "compat", "LD_LIBRARY_PATH"]),
        (999, &["CUDA_ERROR_UNKNOWN (999)", "/dev/nvidia-uvm", "dmesg"]),
    ] {
        let folder = tempfile::tempdir().expect("a folder");
        if !driver(folder.path(), status) {
            return;
        }
        let text = said(folder.path());
        let file = folder.path().join("libcuda.so.1").display().to_string();
        for words in words.iter().chain([&file.as_str()]) {
            assert!(text.contains(words), "'{words}' is not in: {text}");
        }
        assert!(!text.contains("DriverError("), "Rust's debug form: {text}");
    }
}

#[test]
fn a_driver_that_does_not_load_is_not_said_to_be_absent() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("libcuda.so.1");
    // NVIDIA's container runtime leaves empty files where it ran before.
    std::fs::write(&file, "").expect("it can be written");
    let text = said(folder.path());
    for words in ["cannot be used", &file.display().to_string(), "file too short", "LD_LIBRARY_PATH"] {
        assert!(text.contains(words), "'{words}' is not in: {text}");
    }
    assert!(!text.contains("there is no NVIDIA driver"), "{text}");
}

#[test]
fn a_link_to_a_driver_that_is_gone_is_named() {
    let folder = tempfile::tempdir().expect("a folder");
    let link = folder.path().join("libcuda.so.1");
    std::os::unix::fs::symlink("libcuda.so.535.1", &link).expect("a link");
    if qkvault_exec::testing::driver().is_ok() {
        return skip(Need::Bare, "a machine without a driver; the loader passes over the link and finds this one's");
    }
    let text = said(folder.path());
    let words = format!("{} is a symbolic link to libcuda.so.535.1, which does not exist", link.display());
    assert!(text.contains(&words), "{text}");
}
