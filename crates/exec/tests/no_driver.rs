//! On a machine without a driver every entry point returns an error, and the stand-in never counts as a driver.

#![cfg(feature = "cudarc")]

use std::path::Path;

use qkvault_exec::testing::{driver, memory_kind, present_target};
use qkvault_exec::{Device, DeviceError, MemoryKind, NoDriver, SessionError, SessionOptions, raw};
use qkvault_skip::{Need, skip};
use qkvault_sys::{Library, Search};

/// One test, because its steps change the process: a loaded stand-in stays.
#[test]
fn there_is_no_gpu_without_a_driver_and_the_stand_in_is_none() {
    if driver().is_ok() {
        return skip(Need::Bare, "a machine without a driver; this one has one");
    }
    let Err(DeviceError::NoDriver(NoDriver::Absent { detail })) = Device::open(0) else {
        panic!("there is no driver");
    };
    assert!(detail.contains("libcuda.so.1"), "{detail}");
    let text = Device::open(7).expect_err("no driver").to_string();
    assert!(text.contains("nvidia-smi") && text.contains("qkvault warm"), "{text}");

    // A process that compiles loads the stand-in. Its cuInit returns 100, which counted as a driver before there was a
    // check.
    qkvault_sys::headless::ensure().expect("the stand-in loads");
    assert_eq!(driver(), Err(NoDriver::StandIn));
    let error = Device::open(0).expect_err("the stand-in is no driver");
    assert!(matches!(error, DeviceError::NoDriver(NoDriver::StandIn)), "{error}");
    assert!(error.to_string().contains("stand-in"));
    assert_eq!(memory_kind(0x1000), MemoryKind::Unknown);

    // The same with a cuDNN, if there is one.
    if let Ok(library) = Library::open(&Search::default()) {
        assert!(library.path().starts_with(Path::new("/")));
        let error = present_target(&library, 0).expect_err("no driver");
        assert!(error.to_string().contains("stand-in"), "{error}");
        // SAFETY: there is no context here at all, which is what is to be found out.
        let session = unsafe { raw::RawSession::on_current(&library, SessionOptions::default()) };
        assert!(matches!(session, Err(SessionError::NoDriver(NoDriver::StandIn))), "{session:?}");
    }
}
