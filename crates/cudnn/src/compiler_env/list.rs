//! Environment variables that cuDNN and NVRTC read while they compile, with the observed effect of each.

/// What setting a variable does to compiled plans.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum EnvEffect {
    /// Kernels, engines or outcomes change.
    ChangesCode,
    /// cuDNN compiles with something that no key contains, so qkvault compiles nothing while it is set.
    Refused,
    /// It is read and no tested value changes anything, but its name suggests an effect: treated as if it changed code.
    Suspected,
    /// It is read and no tested value changes anything, and its name suggests no effect on code.
    NoEffectSeen,
    /// It is read for logs only.
    LogOnly,
    /// Other programs read it; cuDNN and NVRTC were not seen to read it.
    NotRead,
}

impl EnvEffect {
    /// Whether plans that are compiled while such a variable is set have separate keys.
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

/// A variable that cuDNN or NVRTC reads, or that only other programs read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CompilerVariable {
    /// Its name; a `*` at its end stands for every name with this beginning.
    pub name: &'static str,
    /// What it does.
    pub effect: EnvEffect,
    /// The cuDNN versions that read it.
    pub versions: &'static str,
    /// The observed effect.
    pub seen: &'static str,
}

impl CompilerVariable {
    /// Whether this row is for a variable with this name.
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

/// Every variable that was tested, and those that other programs read.
pub const COMPILER_VARIABLES: [CompilerVariable; 52] = [
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
        "another forward for sm_100; not a number: nothing compiles",
    ),
    row(
        "CUDNN_UNFUSE_FMA",
        ChangesCode,
        "9.27",
        "1: another forward for sm_100; any other value than 0: another engine",
    ),
    row(
        "CUDNN_USE_EX2_EMULATION",
        ChangesCode,
        "9.19, 9.27",
        "0: another forward for sm_100; any value other than 0 or 1: nothing compiles",
    ),
    row(
        "NVRTC_DISABLE_CONCURRENT_NVVM",
        ChangesCode,
        "9.14, 9.19, 9.27",
        "any value, also an empty one: another decode for sm_90",
    ),
    row("NV_NVVM_VERSION", ChangesCode, "9.14, 9.19, 9.27", "0, 1, a word: no kernel (status 4001)"),
    row(
        "CUDNN_NVRTC_RUNTIME_LINKING",
        Refused,
        "9.27",
        "1: compiles with whichever libnvrtc the loader finds, or not at all",
    ),
    row("CUDNN_ENABLE_DEFAULT_KERNEL_CACHE", Suspected, "9.27", "the same kernels in every test"),
    row("CUDNN_FORCE_JIT_DBG", Suspected, "9.14, 9.19, 9.27", "the same kernels in every test"),
    row("CUDNN_FORT_FFMA_CONV1D_SELECT", Suspected, "9.27", "the same kernels in every test"),
    row(
        "CUDNN_FORT_SASS_*",
        Suspected,
        "9.27",
        "the same kernels in every test (CUDNN_FORT_SASS_DBG; for the others, only the names are in the library)",
    ),
    row("CUDNN_GA10X_SMEM_DBG", Suspected, "9.14, 9.19, 9.27", "the same kernels in every test"),
    row("CUDNN_GCTX_ENABLE_DBG", Suspected, "9.27", "the same kernels in every test"),
    row("CUDNN_KERNEL_CACHE_SIZE_MB", Suspected, "9.27", "the same kernels in every test"),
    row("CUDNN_LIB_CONFIG", Suspected, "9.14, 9.19, 9.27", "the same kernels in every test"),
    row("CUDNN_PREFER_SM_COUNT_DBG", Suspected, "9.14, 9.19, 9.27", "the same kernels in every test"),
    row("CUDNN_SKIPHEUR_DBG", Suspected, "9.14, 9.19, 9.27", "the same kernels in every test"),
    row("CUDNN_STRICT_DBG", Suspected, "9.14, 9.19, 9.27", "the same kernels in every test"),
    row("NVRTC_APPEND_FLAGS", Suspected, "9.14, 9.19", "flags, good and bad: the same kernels in every test"),
    row("CUDNN_CONV_WSCAP_DBG", NoEffectSeen, "9.14, 9.19, 9.27", "its name suggests convolutions"),
    row("CUDNN_FREECOUNT_DBG", NoEffectSeen, "9.14, 9.19, 9.27", "its name suggests a count"),
    row("CUDNN_MALLOCCOUNT_DBG", NoEffectSeen, "9.14, 9.19, 9.27", "its name suggests a count"),
    row("CUDNN_RNN_WS_SIZE_DBG", NoEffectSeen, "9.14, 9.19, 9.27", "its name suggests recurrent networks"),
    row("NVIDIA_TF32_OVERRIDE", NoEffectSeen, "9.14, 9.19, 9.27", "16-bit attentions have the same kernels"),
    row("NVRTC_DISABLE_PCH", NoEffectSeen, "9.14, 9.19, 9.27", "affects how headers are read"),
    row("NVRTC_INTERNAL_GLOBAL_LOCK", NoEffectSeen, "9.14, 9.19, 9.27", "about threads"),
    row("NVRTC_PCH_HEAP_SIZE", NoEffectSeen, "9.14, 9.19, 9.27", "affects how headers are read"),
    row("LIBNVVM_DISABLE_CONCURRENT_API", NoEffectSeen, "9.14, 9.19, 9.27", "about threads"),
    row("AS_SECURE_LOG_FILE", NoEffectSeen, "9.14, 9.19, 9.27", "read by NVRTC"),
    row("CAN_FINALIZE_DEBUG", NoEffectSeen, "9.14, 9.19, 9.27", "read by NVRTC"),
    row("CUDA_CACHE_DISABLE", NoEffectSeen, "9.14, 9.19, 9.27", "read by NVRTC"),
    row("CUDA_PREFER_SPINLOCKS_ON_HOST", NoEffectSeen, "9.27", "read by cuDNN"),
    row("CUDNN_CUDA_GRAPH_RETENTION", NoEffectSeen, "9.28", "how graphs keep a plan's code alive, as its header says"),
    row("DUMP_KNOBS_TO_FILE", NoEffectSeen, "9.14, 9.19", "read by NVRTC"),
    row("EDG_*", NoEffectSeen, "9.14, 9.19, 9.27", "EDG_BASE, EDG_MODULES_PATH: where NVRTC finds its files"),
    row("LLVM_IGNORED_ENV_VAR", NoEffectSeen, "9.27", "read by NVRTC"),
    row("LLVM_OVERRIDE_PRODUCER", NoEffectSeen, "9.14, 9.19, 9.27", "read by NVRTC"),
    row("MAKEFLAGS", NoEffectSeen, "9.27", "read by NVRTC"),
    row("NVRTCWIZ", NoEffectSeen, "9.14, 9.19", "read by NVRTC"),
    row("NVVM_IR_VER_CHK", NoEffectSeen, "9.14, 9.19, 9.27", "read by NVRTC"),
    row("CUDNN_CUSTOM_LUT_CALIBRATOR_LOG", LogOnly, "9.27", "its name suggests a log"),
    row("CUDNN_ERRSRC_DBG", LogOnly, "9.14, 9.19, 9.27", "its name suggests the source of an error"),
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
    fn every_variable_is_listed_once_with_its_effect() {
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
