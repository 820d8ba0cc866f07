//! Variables that cuDNN and NVRTC read while they compile, each with what was seen when it was set.

/// What setting a variable does to compiled plans.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum EnvEffect {
    /// Kernels, engines or outcomes change.
    ChangesCode,
    /// It makes cuDNN compile with something that no key names; nothing is compiled while it is set.
    Refused,
    /// It is read, and no value that was tried changes anything.
    NoEffectSeen,
    /// It is read for logs.
    LogOnly,
    /// Other programs read it: nothing of cuDNN or NVRTC was seen to.
    NotRead,
}

impl EnvEffect {
    /// The word for tables.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            ChangesCode => "changes code",
            Refused => "refused",
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

use EnvEffect::{ChangesCode, LogOnly, NoEffectSeen, NotRead, Refused};

/// Every variable that was tried.
pub const COMPILER_VARIABLES: [CompilerVariable; 14] = [
    row("CUDNN_ENABLE_BMM_SCALE_FUSION", ChangesCode, "9.27", "1: other kernels of the same size (sm_90)"),
    row("CUDNN_JIT_FLAGS_DBG", ChangesCode, "9.14, 9.19, 9.27", "flags of NVRTC: other kernels, or none"),
    row("CUDNN_NVRTC_RUNTIME_LINKING", Refused, "9.27", "1: NVRTC is whichever libnvrtc the loader finds, or none"),
    row("NVRTC_DISABLE_CONCURRENT_NVVM", ChangesCode, "9.14, 9.19, 9.27", "any value: another decode kernel for sm_90"),
    row("CUDNN_RESCALE_THRESHOLD", ChangesCode, "9.19, 9.27", "other forward kernels for sm_100; no number: no engine"),
    row("CUDNN_UNFUSE_FMA", ChangesCode, "9.27", "1: another kernel for sm_100; else another engine"),
    row("CUDNN_USE_EX2_EMULATION", ChangesCode, "9.19, 9.27", "0: another forward kernel for sm_100"),
    row("CUDNN_LOG*", LogOnly, "9.14, 9.19, 9.27", "cuDNN's log"),
    row("NVRTC_APPEND_FLAGS", NoEffectSeen, "9.14, 9.19", "flags, good and bad: the same kernels"),
    row("CUDNN_FRONTEND_*", NotRead, "", "read by NVIDIA's frontend"),
    row("CUDNN_PATH", NotRead, "", "where qkvault and others search"),
    row("CUDNN_HOME", NotRead, "", "where qkvault and others search"),
    row("CUDNN_ROOT*", NotRead, "", "where build systems search"),
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
