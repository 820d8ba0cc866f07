//! Errors of the driver in words: the name of the status, what usually causes it, and which file the driver is.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::path::PathBuf;

use super::open;

type GetErrorName = unsafe extern "C" fn(c_int, *mut *const c_char) -> c_int;

/// Statuses with their usual causes. Names and meanings are those of `CUresult` in NVIDIA's reference of the driver
/// API; causes of 34 are those of cudarc #274, and of 803 and 804 of NVIDIA's page on CUDA compatibility.
const CAUSES: &[(c_int, &str, &str)] = &[
    (2, "CUDA_ERROR_OUT_OF_MEMORY", "too little memory of the GPU is free; `nvidia-smi` lists who uses it"),
    (3, "CUDA_ERROR_NOT_INITIALIZED", "the driver was not initialised in this process, or not since a fork"),
    (4, "CUDA_ERROR_DEINITIALIZED", "the process is ending, and the driver has ended already"),
    (
        34,
        "CUDA_ERROR_STUB_LIBRARY",
        "it is the CUDA toolkit's stub, which programs are linked with and which runs nothing; take its folder (lib64/stubs) \
         out of LD_LIBRARY_PATH and out of the loader's configuration, so that the driver's own file is found",
    ),
    (
        46,
        "CUDA_ERROR_DEVICE_UNAVAILABLE",
        "another process has the GPU for itself; `nvidia-smi -q -d COMPUTE` tells its mode",
    ),
    (
        100,
        "CUDA_ERROR_NO_DEVICE",
        "the driver sees no GPU: `nvidia-smi` lists those of this machine, CUDA_VISIBLE_DEVICES can hide them, and a container \
         has those that it was started with (`--gpus all`)",
    ),
    (
        101,
        "CUDA_ERROR_INVALID_DEVICE",
        "there is no GPU of this number, or its MIG mode changed; `nvidia-smi -L` lists them",
    ),
    (
        209,
        "CUDA_ERROR_NO_BINARY_FOR_GPU",
        "the kernels are compiled for another GPU; warm the plans for the profile of this one",
    ),
    (
        214,
        "CUDA_ERROR_ECC_UNCORRECTABLE",
        "memory of the GPU is broken; `nvidia-smi -q -d ECC` tells more; reset the GPU",
    ),
    (
        222,
        "CUDA_ERROR_UNSUPPORTED_PTX_VERSION",
        "the driver is older than the compiler of the kernels; update the driver",
    ),
    (
        700,
        "CUDA_ERROR_ILLEGAL_ADDRESS",
        "a kernel used memory that is not its own; every later call fails too, so the process must end. An operand that \
         was freed or is shorter than described is the usual cause; `compute-sanitizer` names the kernel",
    ),
    (
        719,
        "CUDA_ERROR_LAUNCH_FAILED",
        "a kernel failed, and the process must end; `dmesg` has the driver's message (Xid)",
    ),
    (
        802,
        "CUDA_ERROR_SYSTEM_NOT_READY",
        "the driver is still starting, or the GPUs are joined by NVSwitch and the Fabric Manager does not run \
         (`systemctl status nvidia-fabricmanager`)",
    ),
    (
        803,
        "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH",
        "this file and the driver in the kernel are of different versions: after an update of the driver restart the \
         machine or the container; take a folder of CUDA's compatibility libraries (cuda/compat) or of another driver \
         out of LD_LIBRARY_PATH; `nvidia-smi` tells the version in the kernel",
    ),
    (
        804,
        "CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE",
        "this file is one of CUDA's compatibility libraries (cuda/compat), which this GPU cannot use; take its folder out of \
         LD_LIBRARY_PATH, or update the driver",
    ),
    (
        999,
        "CUDA_ERROR_UNKNOWN",
        "the driver in the kernel does not answer: /dev/nvidia-uvm is missing (in a container, or until `nvidia-modprobe -u` \
         makes it), the machine was suspended, or the GPU fell off the bus; `dmesg` has messages of NVRM",
    ),
];

/// A status as a user reads it.
pub(crate) fn words(status: c_int) -> String {
    told(status, &name(status), file().as_deref())
}

fn told(status: c_int, name: &str, file: Option<&std::path::Path>) -> String {
    let cause = CAUSES.iter().find(|(code, ..)| *code == status).map(|(.., cause)| *cause);
    let cause = cause.unwrap_or("`nvidia-smi` shows whether the driver works");
    let file = file.map_or_else(String::new, |file| format!(" from {}", file.display()));
    format!("{name} ({status}){file}: {cause}")
}

/// An error of cudarc as a user reads it: cudarc's own text is the debug form of a Rust type.
#[cfg(feature = "cudarc")]
pub(crate) fn of_cudarc(error: &cudarc::driver::DriverError) -> String {
    words(error.0 as c_int)
}

/// The name of a status, from the table, or as the driver tells it.
fn name(status: c_int) -> String {
    if let Some((_, name, _)) = CAUSES.iter().find(|(code, ..)| *code == status) {
        return (*name).to_owned();
    }
    let told = || {
        let library = open().ok()?;
        // SAFETY: every driver since CUDA 6 has this function with this signature.
        let function = unsafe { library.get::<GetErrorName>("cuGetErrorName") }.ok()?;
        let mut text = std::ptr::null();
        // SAFETY: the function takes any number and writes the address of a static text, or null.
        let done = unsafe { function(status, &raw mut text) };
        if done != 0 || text.is_null() {
            return None;
        }
        // SAFETY: a static text of the driver, which is never closed.
        Some(unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
    };
    told().unwrap_or_else(|| "an unknown CUDA error".to_owned())
}

/// The file that the driver was loaded from: the mapping in which its `cuInit` lies.
pub(crate) fn file() -> Option<PathBuf> {
    let library = open().ok()?;
    // SAFETY: the symbol is used as an address and never called.
    let address = unsafe { library.get::<unsafe extern "C" fn()>("cuInit") }.ok()?;
    let address = *address as *const c_void as usize;
    let maps = std::fs::read_to_string("/proc/self/maps").ok()?;
    mapped(&maps, address)
}

/// The file of an address, from the list of mappings that Linux keeps.
fn mapped(maps: &str, address: usize) -> Option<PathBuf> {
    let number = |text: &str| usize::from_str_radix(text, 16).ok();
    maps.lines().find_map(|line| {
        let (range, rest) = line.split_once(' ')?;
        let (from, to) = range.split_once('-')?;
        let inside = (number(from)?..number(to)?).contains(&address);
        // Permissions, offset, device and inode come before the path, which may have spaces.
        let path = rest.find('/').map(|at| PathBuf::from(&rest[at..]));
        if inside { path } else { None }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_status_has_its_name_number_file_and_cause() {
        for (status, name, cause) in CAUSES {
            let text = told(*status, name, Some(std::path::Path::new("/usr/lib/libcuda.so.1")));
            for words in [*name, &format!("({status})"), "/usr/lib/libcuda.so.1", *cause] {
                assert!(text.contains(words), "'{words}' is not in: {text}");
            }
            assert!(!text.contains("DriverError("), "Rust's debug form: {text}");
        }
        let codes: Vec<c_int> = CAUSES.iter().map(|(code, ..)| *code).collect();
        assert!(codes.is_sorted_by(|a, b| a < b), "{codes:?}");
        assert!(told(12_345, "an unknown CUDA error", None).contains("nvidia-smi"));
    }

    #[test]
    fn the_file_of_an_address_is_that_of_its_mapping() {
        let maps =
            "10-20 r-xp 00000000 fd:01 7   /lib/a.so\n20-3f r-xp 00000000 fd:01 8  /lib/b c.so\n40-50 rw-p 0 0:0 0 \n";
        assert_eq!(mapped(maps, 0x1f), Some("/lib/a.so".into()));
        assert_eq!(mapped(maps, 0x20), Some("/lib/b c.so".into()));
        assert_eq!((mapped(maps, 0x3f), mapped(maps, 0x45)), (None, None));
    }
}
