//! A process before and after it loads the stand-in; this file is a test program of its own.

use libloading::os::unix::{Library, RTLD_NOW};
use qkvault_skip::{Need, skip};
use qkvault_sys::headless::{Driver, ensure, is_stand_in_loaded};

fn open_driver() -> Result<Library, libloading::Error> {
    // SAFETY: the library is the driver or the stand-in, and both are safe to load.
    unsafe { Library::open(Some("libcuda.so.1"), RTLD_NOW) }
}

fn call(library: &Library, name: &str) -> i32 {
    // SAFETY: `cuInit(unsigned)` and the stand-in's functions without parameters return an int; they ignore an extra
    // argument.
    unsafe {
        let function = library.get::<unsafe extern "C" fn(u32) -> i32>(name).expect("the stand-in has it");
        function(0)
    }
}

/// The steps are one test because they change the state of the process.
#[test]
fn a_process_without_a_driver_gets_the_stand_in() {
    assert!(!is_stand_in_loaded());
    if open_driver().is_ok() {
        assert_eq!(ensure().expect("a driver is there"), Driver::Real);
        assert!(!is_stand_in_loaded(), "the stand-in must not be loaded beside a driver");
        return skip(Need::Bare, "a machine without a driver, for all but the first step; this one has one");
    }
    let threads = (0..4).map(|_| std::thread::spawn(|| ensure().expect("no driver here"))).collect::<Vec<_>>();
    for thread in threads {
        assert_eq!(thread.join().expect("no panic"), Driver::StandIn);
    }
    assert!(is_stand_in_loaded());
    let library = open_driver().expect("the SONAME is served now");
    assert_eq!(call(&library, "cuInit"), 100, "CUDA_ERROR_NO_DEVICE");
    assert_eq!(call(&library, "cuModuleUnload"), 0);
    assert_eq!(ensure().expect("still there"), Driver::StandIn);
}
