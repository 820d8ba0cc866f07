//! Whom a status of cuDNN speaks of: what was asked, or this machine at this moment. A table, so that it is looked up and not argued.
//!
//! What speaks of the request is a refusal: asking again anywhere gives the same answer, and it is kept. What speaks of the machine or the
//! moment (no memory, a missing library, a compiler that does not start, a status that nobody knows) is an error: it is told with its cause,
//! never kept, and never a reason to take another engine, whose plan would then lie under the key of the first.

use qkvault_sys::Status;

/// Whom a status speaks of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum About {
    /// The request: the op graph, an engine's knobs, the target that is given as data.
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
    /// What it means where it speaks of the machine, as the end of a sentence about what was done.
    pub(crate) meaning: &'static str,
    /// What to do about it.
    pub(crate) fix: &'static str,
    /// Where that is known from.
    #[cfg_attr(not(test), expect(dead_code, reason = "for who reads or changes the table"))]
    source: &'static str,
}

/// cuDNN's own account of its statuses; the thousands are its categories.
const HEADER: &str = "cudnn_graph_v9.h, cudnnStatus_t, of 9.27, and NVIDIA's reference of the backend API";

const fn request(first: u32, last: u32, source: &'static str) -> Row {
    Row { first, last, about: About::Request, meaning: "", fix: "", source }
}

const fn here(first: u32, last: u32, meaning: &'static str, fix: &'static str, source: &'static str) -> Row {
    Row { first, last, about: About::Here, meaning, fix, source }
}

/// The rows, in order. What no row names speaks of the machine ([`UNKNOWN`]): an error too many is asked again, a refusal too many stays.
const STATUSES: [Row; 15] = [
    here(1000, 1001, "cuDNN is not initialised", "look at what it said first (QKVAULT_LOG=cudnn=warn)", HEADER),
    here(
        1002,
        1003,
        "libraries of different cuDNN versions are in this process, or bytes of another version",
        "install one cuDNN whole, in a folder of its own",
        HEADER,
    ),
    here(
        1008,
        1008,
        "a library of cuDNN's could not be loaded",
        "install the package of cuDNN again (`cargo xtask fetch`), or raise the limit on memory (ulimit -v)",
        "seen without libcudnn_engines_runtime_compiled and without libcuda.so.1 (crates/sys/src/needs.rs)",
    ),
    here(1004, 1999, "cuDNN does not run as it should", "look at what it said first (QKVAULT_LOG=cudnn=warn)", HEADER),
    request(2000, 2999, "CUDNN_STATUS_BAD_PARAM and its kind: what was given is wrong, on any machine"),
    request(3000, 3004, "not supported: pattern, shape, data type, layout"),
    here(
        3005,
        3006,
        "the CUDA driver or run-time library is none that this cuDNN works with",
        "update the driver, or use the cuDNN of its CUDA version",
        HEADER,
    ),
    here(
        3007,
        3007,
        "cuDNN takes this machine's GPU, or that of a stored plan, for another than the target",
        "compile where no driver is loaded (`qkvault warm`), and for the GPU that is here",
        "loading a plan on another GPU; engines for other GPUs say so in the log alone (tests/goldens)",
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
        "a library of cuDNN's own is missing",
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
        "NVIDIA's compiler gave no kernel, which it does for want of memory, for flags that it does not know, without its builtins, and for \
         some attentions; cuDNN does not tell which",
        "free memory or raise its limits (ulimit -v), unset CUDNN_* and NVRTC_* variables, and ask again; if it stays so on a machine with \
         memory to spare, cuDNN cannot compile this attention: report it, or take another cuDNN",
        "seen with all four (ulimit -v, CUDNN_JIT_FLAGS_DBG=1, no libnvrtc-builtins, tests/goldens), always in the same words",
    ),
    here(
        4003,
        4003,
        "there is not enough memory",
        "free memory or raise its limits (ulimit -v), and ask again",
        HEADER,
    ),
    here(4000, 4999, "something failed inside cuDNN", "ask again; if it stays, report it with cuDNN's words", HEADER),
    here(
        5000,
        5999,
        "the driver, or a library of CUDA's, failed",
        "look at the driver (`nvidia-smi`), and ask again",
        HEADER,
    ),
];

/// What a status is that no row names.
const UNKNOWN: Row = here(
    0,
    u32::MAX,
    "this status is not one that qkvault knows",
    "ask again; if it stays, report it with cuDNN's words",
    "a status of the future may say anything",
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

    /// Stored as a refusal, each of these was served for ever from a vault that want of memory had spoilt.
    #[test]
    fn b1_what_speaks_of_the_machine_or_the_moment_is_no_refusal() {
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
    fn what_speaks_of_the_request_is_a_refusal() {
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
    fn each_row_of_the_machine_says_what_it_means_and_how_to_fix_it() {
        for Row { first, last, about, meaning, fix, source } in STATUSES.iter().chain([&UNKNOWN]) {
            assert!(first <= last && !source.is_empty(), "{first}");
            assert_eq!(*about == About::Here, !meaning.is_empty() && !fix.is_empty(), "{first}");
        }
        assert!(row(Status::INTERNAL_ERROR_HOST_ALLOCATION_FAILED).meaning.contains("memory"));
    }
}
