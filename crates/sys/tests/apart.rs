//! On a machine with a driver, `force_stub_driver` loads the stand-in all the same. The driver is an almost empty
//! library with the driver's SONAME, and each case runs in a process of its own.

use std::path::Path;
use std::process::Command;

use qkvault_sys::headless::{Driver, ensure, force_stub_driver, is_stand_in_loaded};

const CASE: &str = "QKVAULT_TEST_CHILD";

/// The body of the child processes; it does nothing in the parent.
#[test]
fn child() {
    match std::env::var(CASE).as_deref() {
        Ok("apart") => {
            assert_eq!(force_stub_driver().expect("it loads"), Driver::StandIn);
            assert!(is_stand_in_loaded());
            assert_eq!(ensure().expect("it is cached"), Driver::StandIn);
        }
        Ok("driver") => {
            assert_eq!(ensure().expect("there is one"), Driver::Real);
            assert_eq!(force_stub_driver().expect("too late"), Driver::Real, "what is loaded stays");
            assert!(!is_stand_in_loaded());
        }
        _ => {}
    }
}

#[test]
fn plans_for_other_gpus_are_compiled_without_the_driver_of_this_one() {
    let folder = tempfile::tempdir().expect("a folder");
    make(folder.path());
    for case in ["apart", "driver"] {
        let status = Command::new(std::env::current_exe().expect("this program"))
            .args(["--exact", "child"])
            .env(CASE, case)
            .env("LD_LIBRARY_PATH", folder.path())
            .status();
        assert!(status.expect("it starts").success(), "{case}");
    }
}

/// Compiles a `libcuda.so.1` that is not the stand-in.
fn make(folder: &Path) {
    let source = folder.join("driver.rs");
    std::fs::write(&source, "#[unsafe(no_mangle)]\npub extern \"C\" fn cuInit(_flags: u32) -> i32 {\n    0\n}\n")
        .expect("written");
    let library = folder.join("libcuda.so.1");
    let status = Command::new(option_env!("RUSTC").unwrap_or("rustc"))
        .args(["--edition", "2024", "--crate-type", "cdylib", "-C", "link-arg=-Wl,-soname,libcuda.so.1", "-o"])
        .args([&library, &source])
        .status();
    assert!(status.expect("rustc is there").success());
}
