//! Variables that cuDNN and NVRTC read while they compile, each with what was seen when it was set.

/// What setting a variable does to compiled plans.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum EnvEffect {
    /// Kernels, engines or outcomes change.
    ChangesCode,
    /// It makes cuDNN compile with something that no key names; nothing is compiled while it is set.
    Refused,
    /// It is read, no value that was tried changes anything, and its name says that it is meant to: kept apart as if it changed code.
    Suspected,
    /// It is read, no value that was tried changes anything, and nothing says that it is meant to.
    NoEffectSeen,
    /// It is read for logs.
    LogOnly,
    /// Other programs read it: nothing of cuDNN or NVRTC was seen to.
    NotRead,
}

impl EnvEffect {
    /// Whether plans that are compiled while such a variable is set have keys of their own.
    #[must_use]
    pub const fn in_keys(self) -> bool {
        matches!(self, ChangesCode | Refused | Suspected)
    }

    /// The word for tables.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            ChangesCode => "changes code",
            Refused => "refused",
            Suspected => "suspected",
            NoEffectSeen => "no effect seen",
            LogOnly => "log only",
            NotRead => "not read",
        }
    }
}

/// A variable that cuDNN or NVRTC reads, or that others read and only looks as if.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CompilerVariable {
    /// Its name; with `*` at its end, every name that begins so.
    pub name: &'static str,
    /// What it does.
    pub effect: EnvEffect,
    /// The cuDNN versions that were seen to read it.
    pub versions: &'static str,
    /// What was seen.
    pub seen: &'static str,
}

impl CompilerVariable {
    /// Whether a variable's name is this one.
    #[must_use]
    pub fn is(&self, name: &str) -> bool {
        match self.name.strip_suffix('*') {
            Some(start) => name.starts_with(start),
            None => name == self.name,
        }
    }
}

const fn row(name: &'static str, effect: EnvEffect, versions: &'static str, seen: &'static str) -> CompilerVariable {
    CompilerVariable { name, effect, versions, seen }
}

use EnvEffect::{ChangesCode, LogOnly, NoEffectSeen, NotRead, Refused, Suspected};

/// Every variable that was tried, and those that others read.
pub const COMPILER_VARIABLES: [CompilerVariable; 51] = [
    row(
        "CUDNN_ENABLE_BMM_SCALE_FUSION",
        ChangesCode,
        "9.27",
        "1: another kernel of the same size in one forward for sm_90, the same in others",
    ),
    row("CUDNN_JIT_FLAGS_DBG", ChangesCode, "9.14, 9.19, 9.27", "flags of NVRTC: other kernels, or none (status 4001)"),
    row(
        "CUDNN_RESCALE_THRESHOLD",
        ChangesCode,
        "9.19, 9.27",
        "another forward for sm_100; what is no number: nothing compiles",
    ),
    row("CUDNN_UNFUSE_FMA", ChangesCode, "9.27", "1: another forward for sm_100; anything else but 0: another engine"),
    row(
        "CUDNN_USE_EX2_EMULATION",
        ChangesCode,
        "9.19, 9.27",
        "0: another forward for sm_100; what is not 0 or 1: nothing compiles",
    ),
    row(
        "NVRTC_DISABLE_CONCURRENT_NVVM",
        ChangesCode,
        "9.14, 9.19, 9.27",
        "any value, nothing too: another decode for sm_90",
    ),
    row("NV_NVVM_VERSION", ChangesCode, "9.14, 9.19, 9.27", "0, 1, a word: no kernel (status 4001)"),
    row(
        "CUDNN_NVRTC_RUNTIME_LINKING",
        Refused,
        "9.27",
        "1: compiles with whichever libnvrtc the loader finds, or not at all",
    ),
    row("CUDNN_ENABLE_DEFAULT_KERNEL_CACHE", Suspected, "9.27", "the same kernels in what was tried"),
    row("CUDNN_FORCE_JIT_DBG", Suspected, "9.14, 9.19, 9.27", "the same kernels in what was tried"),
    row("CUDNN_FORT_FFMA_CONV1D_SELECT", Suspected, "9.27", "the same kernels in what was tried"),
    row(
        "CUDNN_FORT_SASS_*",
        Suspected,
        "9.27",
        "the same kernels in what was tried (CUDNN_FORT_SASS_DBG; of the others only the names are in the library)",
    ),
    row("CUDNN_GA10X_SMEM_DBG", Suspected, "9.14, 9.19, 9.27", "the same kernels in what was tried"),
    row("CUDNN_GCTX_ENABLE_DBG", Suspected, "9.27", "the same kernels in what was tried"),
    row("CUDNN_KERNEL_CACHE_SIZE_MB", Suspected, "9.27", "the same kernels in what was tried"),
    row("CUDNN_LIB_CONFIG", Suspected, "9.14, 9.19, 9.27", "the same kernels in what was tried"),
    row("CUDNN_PREFER_SM_COUNT_DBG", Suspected, "9.14, 9.19, 9.27", "the same kernels in what was tried"),
    row("CUDNN_SKIPHEUR_DBG", Suspected, "9.14, 9.19, 9.27", "the same kernels in what was tried"),
    row("CUDNN_STRICT_DBG", Suspected, "9.14, 9.19, 9.27", "the same kernels in what was tried"),
    row("NVRTC_APPEND_FLAGS", Suspected, "9.14, 9.19", "flags, good and bad: the same kernels in what was tried"),
    row("CUDNN_CONV_WSCAP_DBG", NoEffectSeen, "9.14, 9.19, 9.27", "about convolutions by its name"),
    row("CUDNN_FREECOUNT_DBG", NoEffectSeen, "9.14, 9.19, 9.27", "a count by its name"),
    row("CUDNN_MALLOCCOUNT_DBG", NoEffectSeen, "9.14, 9.19, 9.27", "a count by its name"),
    row("CUDNN_RNN_WS_SIZE_DBG", NoEffectSeen, "9.14, 9.19, 9.27", "about recurrent networks by its name"),
    row("NVIDIA_TF32_OVERRIDE", NoEffectSeen, "9.14, 9.19, 9.27", "16-bit attentions have the same kernels"),
    row("NVRTC_DISABLE_PCH", NoEffectSeen, "9.14, 9.19, 9.27", "about how headers are read"),
    row("NVRTC_INTERNAL_GLOBAL_LOCK", NoEffectSeen, "9.14, 9.19, 9.27", "about threads"),
    row("NVRTC_PCH_HEAP_SIZE", NoEffectSeen, "9.14, 9.19, 9.27", "about how headers are read"),
    row("LIBNVVM_DISABLE_CONCURRENT_API", NoEffectSeen, "9.14, 9.19, 9.27", "about threads"),
    row("AS_SECURE_LOG_FILE", NoEffectSeen, "9.14, 9.19, 9.27", "read by NVRTC"),
    row("CAN_FINALIZE_DEBUG", NoEffectSeen, "9.14, 9.19, 9.27", "read by NVRTC"),
    row("CUDA_CACHE_DISABLE", NoEffectSeen, "9.14, 9.19, 9.27", "read by NVRTC"),
    row("CUDA_PREFER_SPINLOCKS_ON_HOST", NoEffectSeen, "9.27", "read by cuDNN"),
    row("DUMP_KNOBS_TO_FILE", NoEffectSeen, "9.14, 9.19", "read by NVRTC"),
    row("EDG_*", NoEffectSeen, "9.14, 9.19, 9.27", "EDG_BASE, EDG_MODULES_PATH: where NVRTC finds its own files"),
    row("LLVM_IGNORED_ENV_VAR", NoEffectSeen, "9.27", "read by NVRTC"),
    row("LLVM_OVERRIDE_PRODUCER", NoEffectSeen, "9.14, 9.19, 9.27", "read by NVRTC"),
    row("MAKEFLAGS", NoEffectSeen, "9.27", "read by NVRTC"),
    row("NVRTCWIZ", NoEffectSeen, "9.14, 9.19", "read by NVRTC"),
    row("NVVM_IR_VER_CHK", NoEffectSeen, "9.14, 9.19, 9.27", "read by NVRTC"),
    row("CUDNN_CUSTOM_LUT_CALIBRATOR_LOG", LogOnly, "9.27", "a log by its name"),
    row("CUDNN_ERRSRC_DBG", LogOnly, "9.14, 9.19, 9.27", "where an error arose, by its name"),
    row(
        "CUDNN_LOG*",
        LogOnly,
        "9.14, 9.19, 9.27",
        "CUDNN_LOGLEVEL_DBG, CUDNN_LOGDEST_DBG, CUDNN_LOGINFO_DBG and others: cuDNN's log",
    ),
    row("CUDNN_FRONTEND_*", NotRead, "", "read by NVIDIA's front end"),
    row("CUDNN_HOME", NotRead, "", "where qkvault and others search"),
    row("CUDNN_PATH", NotRead, "", "where qkvault and others search"),
    row("CUDNN_ROOT*", NotRead, "", "where build systems search"),
    row("CUDNN_INCLUDE*", NotRead, "", "where build systems search"),
    row("CUDNN_LIB_DIR", NotRead, "", "where build systems search"),
    row("CUDNN_LIBRARY*", NotRead, "", "where build systems search"),
    row("CUDNN_VERSION", NotRead, "", "set by container images"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_variable_is_listed_once_and_says_what_was_seen() {
        for (i, one) in COMPILER_VARIABLES.iter().enumerate() {
            assert!(!one.seen.is_empty() && !one.seen.contains('|'), "{}", one.name);
            assert_eq!(one.versions.is_empty(), one.effect == NotRead, "{}", one.name);
            for other in &COMPILER_VARIABLES[i + 1..] {
                assert!(
                    !one.is(other.name.trim_end_matches('*')) && !other.is(one.name.trim_end_matches('*')),
                    "{}",
                    one.name
                );
            }
        }
    }
}
