//! cuDNN versions, and the two sets of libraries that NVIDIA publishes for each version.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A cuDNN version, major.minor.patch.
///
/// The build number in a wheel's name (the `42` of `9.27.0.42`) is not part of what `cudnnGetVersion` returns, so this
/// type does not hold it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct CudnnVersion {
    /// Major version; 9 for every version that qkvault supports.
    pub major: u16,
    /// Minor version.
    pub minor: u16,
    /// Patch level.
    pub patch: u16,
}

impl CudnnVersion {
    /// The only major version whose backend API qkvault calls.
    pub const SUPPORTED_MAJOR: u16 = 9;

    /// A version from its three numbers, major, minor and patch.
    #[must_use]
    pub const fn new(major: u16, minor: u16, patch: u16) -> CudnnVersion {
        CudnnVersion { major, minor, patch }
    }

    /// The version 9.`minor`.`patch`.
    #[must_use]
    pub const fn v9(minor: u16, patch: u16) -> CudnnVersion {
        CudnnVersion::new(9, minor, patch)
    }

    /// Converts a number that `cudnnGetVersion` returned: 92700 is 9.27.0.
    ///
    /// From major 9 on the number is `major * 10000 + minor * 100 + patch`. Before, it was
    /// `major * 1000 + minor * 100 + patch` (8907 is 8.9.7). The two forms cannot be confused, because the older one
    /// stays below 10000.
    #[must_use]
    pub const fn from_number(number: usize) -> CudnnVersion {
        let unit = if number < 10_000 { 1_000 } else { 10_000 };
        CudnnVersion::new((number / unit) as u16, (number % unit / 100) as u16, (number % 100) as u16)
    }

    /// The number that `cudnnGetVersion` returns for this version (of major 9 or later).
    #[must_use]
    pub const fn number(self) -> u32 {
        self.major as u32 * 10_000 + self.minor as u32 * 100 + self.patch as u32
    }
}

impl fmt::Display for CudnnVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{}.{}.{}", self.major, self.minor, self.patch))
    }
}

/// The error for a text that is not a cuDNN version.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{given}' is not a cuDNN version; write it as 9.27 or 9.27.0 (a build number may follow, as in 9.27.0.42)")]
pub struct BadVersion {
    /// The text that was given.
    pub given: String,
}

impl FromStr for CudnnVersion {
    type Err = BadVersion;

    /// Parses `9.27`, `9.27.0`, and wheel versions such as `9.27.0.42`.
    fn from_str(s: &str) -> Result<Self, BadVersion> {
        let bad = || BadVersion { given: s.into() };
        let numbers: Vec<u16> = s.split('.').map(|p| p.parse().map_err(|_| bad())).collect::<Result<_, _>>()?;
        match numbers[..] {
            [major, minor] if minor < 100 => Ok(CudnnVersion::new(major, minor, 0)),
            [major, minor, patch] | [major, minor, patch, _] if minor < 100 && patch < 100 => {
                Ok(CudnnVersion::new(major, minor, patch))
            }
            _ => Err(bad()),
        }
    }
}

impl TryFrom<String> for CudnnVersion {
    type Error = BadVersion;

    fn try_from(s: String) -> Result<Self, BadVersion> {
        s.parse()
    }
}

impl From<CudnnVersion> for String {
    fn from(v: CudnnVersion) -> String {
        v.to_string()
    }
}

/// Which of cuDNN's libraries are installed. A plan is compiled for one set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LibrarySet {
    /// The three libraries that attention needs: `libcudnn`, `libcudnn_graph` and `libcudnn_engines_runtime_compiled`.
    Slim,
    /// All libraries, including the precompiled engines.
    Full,
}

impl LibrarySet {
    /// The name of the set in folder names, options and reports.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            LibrarySet::Slim => "slim",
            LibrarySet::Full => "full",
        }
    }
}

impl fmt::Display for LibrarySet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.word())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn versions_read_print_and_compare() {
        let v: CudnnVersion = "9.19.0.56".parse().expect("a wheel version");
        assert_eq!(v, CudnnVersion::v9(19, 0));
        assert_eq!("9.27".parse(), Ok(CudnnVersion::v9(27, 0)));
        assert_eq!(CudnnVersion::v9(10, 2).number(), 91_002);
        assert!(CudnnVersion::v9(9, 1) < CudnnVersion::v9(10, 0));
        for bad in ["", "9", "9.x", "9.1.2.3.4", "9.1.200", "9.100", "v9.19.0", "9.-1.0"] {
            assert!(bad.parse::<CudnnVersion>().is_err(), "{bad}");
        }
    }

    #[test]
    fn numbers_of_both_ages_are_taken_apart() {
        assert_eq!(CudnnVersion::from_number(92_700), CudnnVersion::v9(27, 0));
        assert_eq!(CudnnVersion::from_number(91_402), CudnnVersion::v9(14, 2));
        assert_eq!(CudnnVersion::from_number(8_907), CudnnVersion::new(8, 9, 7));
    }

    proptest! {
        #[test]
        fn order_is_that_of_the_numbers(a in 90_000_u32..100_000, b in 90_000_u32..100_000) {
            let (x, y) = (CudnnVersion::from_number(a as usize), CudnnVersion::from_number(b as usize));
            prop_assert_eq!(x.cmp(&y), a.cmp(&b));
            prop_assert_eq!(x.number(), a);
            prop_assert_eq!(x.to_string().parse::<CudnnVersion>(), Ok(x));
        }
    }
}
