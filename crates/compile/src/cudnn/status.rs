//! Whether a status of cuDNN concerns the request, or this machine at this moment, as a table.
//!
//! A status that concerns the request is a refusal: the answer is the same everywhere, and is stored. A status of the
//! machine or the moment (no memory, a missing library, a compiler that does not start, an unknown status) is an error:
//! it is reported with its cause and never stored, and no other engine is tried, because its plan would get the key of
//! the first.

use qkvault_sys::Status;

/// What a status concerns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum About {
    /// The request: the op graph, an engine's knobs, the target as data.
    Request,
    /// The machine or the moment.
    Here,
}

/// A range of statuses.
#[derive(Debug)]
pub(crate) struct Row {
    first: u32,
    last: u32,
    pub(crate) about: About,
    /// The meaning of a status of the machine, as the end of a sentence about what was done.
    pub(crate) meaning: &'static str,
    /// The fix.
    pub(crate) fix: &'static str,
    /// The source of these facts.
    #[cfg_attr(not(test), expect(dead_code, reason = "for readers of the table"))]
    source: &'static str,
}

/// cuDNN's documentation of its statuses; the thousands are its categories.
const HEADER: &str = "cudnn_graph_v9.h, cudnnStatus_t, of 9.27, and NVIDIA's reference of the backend API";

const fn request(first: u32, last: u32, source: &'static str) -> Row {
    Row { first, last, about: About::Request, meaning: "", fix: "", source }
}

const fn here(first: u32, last: u32, meaning: &'static str, fix: &'static str, source: &'static str) -> Row {
    Row { first, last, about: About::Here, meaning, fix, source }
}

/// The rows, in order. Other statuses concern the machine ([`UNKNOWN`]): a wrong error is asked again, but a wrong
/// refusal stays.
const STATUSES: [Row; 15] = [
    here(1000, 1001, "cuDNN is not initialised", "look at its first message (QKVAULT_LOG=cudnn=warn)", HEADER),
    here(
        1002,
        1003,
        "libraries of different cuDNN versions are in this process, or bytes of another version",
        "install one complete cuDNN, in its own folder",
        HEADER,
    ),
    here(
        1008,
        1008,
        "a library of cuDNN could not be loaded",
        "install the package of cuDNN again (`cargo xtask fetch`), or raise the limit on memory (ulimit -v)",
        "seen without libcudnn_engines_runtime_compiled and without libcuda.so.1 (crates/sys/src/needs.rs)",
    ),
    here(1004, 1999, "cuDNN does not run as it should", "look at its first message (QKVAULT_LOG=cudnn=warn)", HEADER),
    request(2000, 2999, "CUDNN_STATUS_BAD_PARAM and similar: the input is wrong, on any machine"),
    request(3000, 3004, "not supported: pattern, shape, data type, layout"),
    here(
        3005,
        3006,
        "this cuDNN does not work with this CUDA driver or run-time library",
        "update the driver, or use the cuDNN of its CUDA version",
        HEADER,
    ),
    here(
        3007,
        3007,
        "this machine's GPU, or that of a stored plan, differs from the target",
        "compile without a driver (`qkvault warm`), or for the GPU of this machine",
        "loading a plan on another GPU; engines for other GPUs report it only in the log (tests/goldens)",
    ),
    here(
        3008,
        3008,
        "a library that cuDNN needs at run time is missing",
        "install the CUDA libraries of this cuDNN, NVRTC among them (`cargo xtask fetch` gets both)",
        "seen without libnvrtc before 9.21, and with CUDNN_NVRTC_RUNTIME_LINKING=1 under 9.27",
    ),
    here(
        3009,
        3009,
        "a library of cuDNN itself is missing",
        "install the package of cuDNN again (`cargo xtask fetch`)",
        HEADER,
    ),
    request(
        3010,
        3014,
        "not supported: shared memory of the target, padding, launch parameters, CUDA graphs, dynamic shapes",
    ),
    here(
        COMPILATION_FAILED.0,
        COMPILATION_FAILED.0,
        "NVIDIA's compiler gave no kernel: it does so if memory is short, for unknown flags, without its builtins, and \
         for some attentions; cuDNN does not report which",
        "free memory or raise its limits (ulimit -v), unset CUDNN_* and NVRTC_* variables, and ask again; if it stays \
         on a machine with enough memory, cuDNN cannot compile this attention: report it, or use another cuDNN",
        "seen with all four (ulimit -v, CUDNN_JIT_FLAGS_DBG=1, no libnvrtc-builtins, tests/goldens), always with the same message",
    ),
    here(
        4003,
        4003,
        "there is not enough memory",
        "free memory or raise its limits (ulimit -v), and ask again",
        HEADER,
    ),
    here(4000, 4999, "something failed inside cuDNN", "ask again; if it stays, report it with cuDNN's message", HEADER),
    here(
        5000,
        5999,
        "the driver, or a library of CUDA, failed",
        "look at the driver (`nvidia-smi`), and ask again",
        HEADER,
    ),
];

/// The row of a status that no other row contains.
const UNKNOWN: Row = here(
    0,
    u32::MAX,
    "qkvault does not know this status",
    "ask again; if it stays, report it with cuDNN's message",
    "an unknown status may mean anything",
);

/// A kernel that was not compiled.
pub(crate) const COMPILATION_FAILED: Status = Status::INTERNAL_ERROR_COMPILATION_FAILED;

/// The row of a status.
pub(crate) fn row(status: Status) -> &'static Row {
    STATUSES.iter().find(|row| (row.first..=row.last).contains(&status.0)).unwrap_or(&UNKNOWN)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn about(status: Status) -> About {
        row(status).about
    }

    /// If one of these was stored as a refusal, a vault returned it for ever after a lack of memory.
    #[test]
    fn b1_a_status_of_the_machine_or_the_moment_is_not_a_refusal() {
        let here = [
            Status::NOT_INITIALIZED,
            Status::SUBLIBRARY_VERSION_MISMATCH,
            Status::SUBLIBRARY_LOADING_FAILED,
            Status::NOT_SUPPORTED_INCOMPATIBLE_CUDA_DRIVER,
            Status::NOT_SUPPORTED_INCOMPATIBLE_CUDART,
            Status::NOT_SUPPORTED_ARCH_MISMATCH,
            Status::NOT_SUPPORTED_RUNTIME_PREREQUISITE_MISSING,
            Status::NOT_SUPPORTED_SUBLIBRARY_UNAVAILABLE,
            Status::INTERNAL_ERROR,
            Status::INTERNAL_ERROR_COMPILATION_FAILED,
            Status::INTERNAL_ERROR_UNEXPECTED_VALUE,
            Status::INTERNAL_ERROR_HOST_ALLOCATION_FAILED,
            Status::INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED,
            Status::EXECUTION_FAILED,
            Status::EXECUTION_FAILED_CUDA_DRIVER,
        ];
        for status in here {
            assert_eq!(about(status), About::Here, "{status}");
        }
        for category in [1, 4, 5] {
            assert!((0..1000).all(|n| about(Status(category * 1000 + n)) == About::Here), "{category}000");
        }
        assert!(
            (3015..4000).chain(6000..7000).chain([0, 999]).all(|n| about(Status(n)) == About::Here),
            "unknown ones"
        );
    }

    #[test]
    fn a_status_of_the_request_is_a_refusal() {
        let asked = [
            Status::BAD_PARAM,
            Status::BAD_PARAM_SHAPE_MISMATCH,
            Status::NOT_SUPPORTED,
            Status::NOT_SUPPORTED_GRAPH_PATTERN,
            Status::NOT_SUPPORTED_SHAPE,
            Status::NOT_SUPPORTED_DATA_TYPE,
            Status::NOT_SUPPORTED_LAYOUT,
            Status::NOT_SUPPORTED_SHARED_MEMORY_INSUFFICIENT,
            Status::NOT_SUPPORTED_INVALID_DYNAMIC_SHAPE,
        ];
        for status in asked {
            assert_eq!(about(status), About::Request, "{status}");
        }
    }

    #[test]
    fn each_row_of_the_machine_has_a_meaning_and_a_fix() {
        for Row { first, last, about, meaning, fix, source } in STATUSES.iter().chain([&UNKNOWN]) {
            assert!(first <= last && !source.is_empty(), "{first}");
            assert_eq!(*about == About::Here, !meaning.is_empty() && !fix.is_empty(), "{first}");
        }
        assert!(row(Status::INTERNAL_ERROR_HOST_ALLOCATION_FAILED).meaning.contains("memory"));
    }
}
