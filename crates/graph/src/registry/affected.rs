//! The cuDNN versions and GPUs that an entry of the registry affects.

use std::fmt;

use crate::CudnnVersion;

/// A range of cuDNN versions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Versions {
    /// The first version of the range; `None` for no lower bound.
    pub from: Option<CudnnVersion>,
    /// The first version after the range; `None` for no upper bound.
    pub before: Option<CudnnVersion>,
}

/// A range of GPUs by compute capability, both ends included: 90 is compute capability 9.0, an H200.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gpus {
    /// The lowest.
    pub from: u32,
    /// The highest.
    pub to: u32,
}

/// A range of versions on a range of GPUs. An entry has a list of these.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Affected {
    /// The GPUs.
    pub gpus: Gpus,
    /// The versions on them.
    pub versions: Versions,
}

impl Versions {
    /// Every version.
    pub const ALL: Versions = Versions { from: None, before: None };

    /// Every version before `9.minor.patch`.
    #[must_use]
    pub const fn before(minor: u16, patch: u16) -> Versions {
        Versions::older_than(CudnnVersion::v9(minor, patch))
    }

    /// Every version before this one.
    #[must_use]
    pub const fn older_than(version: CudnnVersion) -> Versions {
        Versions { from: None, before: Some(version) }
    }

    /// `9.minor.patch` and every later version.
    #[must_use]
    pub const fn from(minor: u16, patch: u16) -> Versions {
        Versions::not_before(CudnnVersion::v9(minor, patch))
    }

    /// This version and every later one.
    #[must_use]
    pub const fn not_before(version: CudnnVersion) -> Versions {
        Versions { from: Some(version), before: None }
    }

    /// The versions from `from` on and before `before`, each as (minor, patch) of cuDNN 9.
    #[must_use]
    pub const fn between(from: (u16, u16), before: (u16, u16)) -> Versions {
        Versions { from: Some(CudnnVersion::v9(from.0, from.1)), before: Some(CudnnVersion::v9(before.0, before.1)) }
    }

    /// Whether a version is in the range.
    #[must_use]
    pub fn has(&self, version: CudnnVersion) -> bool {
        self.from.is_none_or(|from| version >= from) && self.before.is_none_or(|before| version < before)
    }

    /// These versions on these GPUs.
    #[must_use]
    pub const fn on(self, gpus: Gpus) -> Affected {
        Affected { gpus, versions: self }
    }
}

impl Gpus {
    /// Every GPU.
    pub const ALL: Gpus = Gpus { from: 0, to: u32::MAX };
    /// Before compute capability 8.0, for which cuDNN has no attention.
    pub const BEFORE_AMPERE: Gpus = Gpus { from: 0, to: 79 };
    /// Before compute capability 9.0: A100, L40S and similar GPUs.
    pub const BEFORE_HOPPER: Gpus = Gpus { from: 0, to: 89 };
    /// Compute capability 9.0: H100, H200.
    pub const HOPPER: Gpus = Gpus { from: 90, to: 90 };
    /// Compute capability 10.x: B200, B300. Consumer GPUs of the Blackwell generation have 12.x.
    pub const BLACKWELL: Gpus = Gpus { from: 100, to: 109 };
    /// Compute capability 12.0 and newer: the RTX PRO 6000 and consumer GPUs.
    pub const CONSUMER_BLACKWELL: Gpus = Gpus { from: 120, to: u32::MAX };

    /// Whether a compute capability is in the range.
    #[must_use]
    pub const fn has(&self, sm: u32) -> bool {
        self.from <= sm && sm <= self.to
    }
}

impl Affected {
    /// Every version on every GPU.
    pub const ALL: &'static [Affected] = &[Versions::ALL.on(Gpus::ALL)];

    /// Versions and GPUs in few words, such as `before 9.19.0 on 9.0`; empty if it is all of them.
    #[must_use]
    pub fn short(&self) -> String {
        let versions = self.versions.to_string().replace("cuDNN ", "");
        let gpus = self.gpus.to_string().replace("compute capability ", "").replace("every GPU", "");
        match (self.versions == Versions::ALL, self.gpus == Gpus::ALL) {
            (true, true) => String::new(),
            (true, false) => format!("on {gpus}"),
            (false, true) => versions,
            (false, false) => format!("{versions} on {gpus}"),
        }
    }

    /// Whether both ranges contain this version and this GPU.
    #[must_use]
    pub fn has(&self, version: CudnnVersion, sm: u32) -> bool {
        self.gpus.has(sm) && self.versions.has(version)
    }
}

impl fmt::Display for Versions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.from, self.before) {
            (None, None) => f.pad("every cuDNN"),
            (Some(from), None) => f.pad(&format!("cuDNN {from} and newer")),
            (None, Some(before)) => f.pad(&format!("cuDNN before {before}")),
            (Some(from), Some(before)) => f.pad(&format!("cuDNN {from} and newer, before {before}")),
        }
    }
}

impl fmt::Display for Gpus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Gpus { from, to } = *self;
        let name = |sm: u32| format!("{}.{}", sm / 10, sm % 10);
        f.pad(&match (from, to) {
            (0, u32::MAX) => "every GPU".to_owned(),
            (0, to) => format!("compute capability {} and older", name(to)),
            (from, u32::MAX) => format!("compute capability {} and newer", name(from)),
            (from, to) if from == to => format!("compute capability {}", name(from)),
            (from, to) if from % 10 == 0 && to == from + 9 => format!("compute capability {}.x", from / 10),
            (from, to) => format!("compute capability {} to {}", name(from), name(to)),
        })
    }
}

impl fmt::Display for Affected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Affected { gpus, versions } = self;
        write!(f, "{versions} on {gpus}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_contain_their_ends_and_print_readably() {
        let old_hopper = Versions::before(19, 0).on(Gpus::HOPPER);
        assert!(old_hopper.has(CudnnVersion::v9(18, 9), 90));
        assert!(!old_hopper.has(CudnnVersion::v9(19, 0), 90) && !old_hopper.has(CudnnVersion::v9(18, 9), 89));
        assert_eq!(old_hopper.to_string(), "cuDNN before 9.19.0 on compute capability 9.0");
        assert_eq!(Versions::ALL.on(Gpus::BLACKWELL).to_string(), "every cuDNN on compute capability 10.x");
        assert_eq!(Gpus::BEFORE_HOPPER.to_string(), "compute capability 8.9 and older");
        assert_eq!(Gpus::CONSUMER_BLACKWELL.to_string(), "compute capability 12.0 and newer");
        assert_eq!(Gpus { from: 100, to: 103 }.to_string(), "compute capability 10.0 to 10.3");
        let between = Versions::between((11, 0), (13, 0));
        assert!(between.has(CudnnVersion::v9(11, 0)) && !between.has(CudnnVersion::v9(13, 0)));
        assert_eq!(between.to_string(), "cuDNN 9.11.0 and newer, before 9.13.0");
    }
}
