//! cuDNN versions and library sets, as facts of a target.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A cuDNN version, major.minor.patch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct CudnnVersion {
    /// Major version; 9 in everything known here.
    pub major: u16,
    /// Minor version.
    pub minor: u16,
    /// Patch level.
    pub patch: u16,
}

impl CudnnVersion {
    /// A version of major 9.
    #[must_use]
    pub const fn v9(minor: u16, patch: u16) -> CudnnVersion {
        CudnnVersion { major: 9, minor, patch }
    }

    /// From what `cudnnGetVersion` returns: `major * 10000 + minor * 100 + patch`.
    #[must_use]
    pub const fn from_number(n: usize) -> CudnnVersion {
        CudnnVersion { major: (n / 10_000) as u16, minor: (n / 100 % 100) as u16, patch: (n % 100) as u16 }
    }

    /// As `cudnnGetVersion` returns it.
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

/// A text that is no version.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{given}' is no cuDNN version; write it as 9.27 or 9.27.0")]
pub struct BadVersion {
    /// What came.
    pub given: String,
}

impl FromStr for CudnnVersion {
    type Err = BadVersion;

    /// Reads `9.27`, `9.27.0`, and wheel versions such as `9.27.0.42`, whose build number is not part of the version.
    fn from_str(s: &str) -> Result<Self, BadVersion> {
        let bad = || BadVersion { given: s.into() };
        let numbers: Vec<u16> = s.split('.').map(|p| p.parse().map_err(|_| bad())).collect::<Result<_, _>>()?;
        match numbers[..] {
            [major, minor] => Ok(CudnnVersion { major, minor, patch: 0 }),
            [major, minor, patch] | [major, minor, patch, _] if minor < 100 && patch < 100 => {
                Ok(CudnnVersion { major, minor, patch })
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

/// Which of cuDNN's libraries are there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LibrarySet {
    /// The graph library and the run-time compiled engines: all that attention needs.
    Slim,
    /// Everything.
    Full,
}

impl fmt::Display for LibrarySet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            LibrarySet::Slim => "slim",
            LibrarySet::Full => "full",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_read_print_and_compare() {
        let v: CudnnVersion = "9.19.0.56".parse().expect("a wheel version");
        assert_eq!(v, CudnnVersion::v9(19, 0));
        assert_eq!(CudnnVersion::from_number(92_700), CudnnVersion::v9(27, 0));
        assert_eq!(CudnnVersion::v9(10, 2).number(), 91_002);
        assert!(CudnnVersion::v9(9, 1) < CudnnVersion::v9(10, 0));
        for bad in ["", "9", "9.x", "9.1.2.3.4", "9.1.200"] {
            assert!(bad.parse::<CudnnVersion>().is_err(), "{bad}");
        }
    }
}
