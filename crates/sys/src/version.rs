//! Which cuDNN: its version number and the set of libraries that came with it.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

/// A cuDNN version, as the library itself reports it.
///
/// The build number in a wheel's name (the `42` of `9.27.0.42`) is not part of what `cudnnGetVersion` tells, and so not part of this.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version {
    /// The first number; this crate speaks to major 9 only.
    pub major: u32,
    /// The second number, up by one every month or so.
    pub minor: u32,
    /// The third number.
    pub patch: u32,
}

impl Version {
    /// The only major version whose interface the declarations of this crate describe.
    pub const SUPPORTED_MAJOR: u32 = 9;

    /// A version from its three numbers.
    pub const fn new(major: u32, minor: u32, patch: u32) -> Self {
        Self { major, minor, patch }
    }

    /// Takes apart the number that `cudnnGetVersion` returns: 92700 is 9.27.0.
    ///
    /// From major 9 on it is `major * 10000 + minor * 100 + patch`; before, it was `major * 1000 + minor * 100 + patch` (8907 is 8.9.7).
    /// The two cannot be confused, because the older form stays below 10000.
    pub const fn from_number(number: usize) -> Self {
        let number = number as u32;
        let unit = if number < 10_000 { 1000 } else { 10_000 };
        Self { major: number / unit, minor: number % unit / 100, patch: number % 100 }
    }

    /// The number that `cudnnGetVersion` would return for this version (of major 9 or later).
    pub const fn number(self) -> u32 {
        self.major * 10_000 + self.minor * 100 + self.patch
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.major, self.minor, self.patch)
    }
}

/// The text was not a cuDNN version.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error(
    "'{given}' is not a cuDNN version: three numbers are expected, as in 9.27.0 (a fourth, the build, may follow and is not looked at)"
)]
pub struct ParseVersionError {
    /// What was given.
    pub given: String,
}

impl FromStr for Version {
    type Err = ParseVersionError;

    fn from_str(given: &str) -> Result<Self, Self::Err> {
        let refused = || ParseVersionError { given: given.to_owned() };
        let numbers = given.split('.').map(str::parse).collect::<Result<Vec<u32>, _>>().map_err(|_| refused())?;
        match numbers[..] {
            [major, minor, patch] | [major, minor, patch, _] => Ok(Self { major, minor, patch }),
            _ => Err(refused()),
        }
    }
}

/// Which of cuDNN's libraries are installed; part of what a plan is compiled for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LibrarySet {
    /// The three libraries that attention needs: `libcudnn`, `libcudnn_graph` and `libcudnn_engines_runtime_compiled`.
    Slim,
    /// Every library of the full distribution, precompiled engines included.
    Full,
}

impl LibrarySet {
    /// The word used in folder names, options and reports.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Slim => "slim",
            Self::Full => "full",
        }
    }
}

impl fmt::Display for LibrarySet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn number_of_both_ages_is_taken_apart() {
        assert_eq!(Version::from_number(92_700), Version::new(9, 27, 0));
        assert_eq!(Version::from_number(91_402), Version::new(9, 14, 2));
        assert_eq!(Version::from_number(8_907), Version::new(8, 9, 7));
    }

    #[test]
    fn text_is_read_with_and_without_build() {
        assert_eq!("9.19.0".parse(), Ok(Version::new(9, 19, 0)));
        assert_eq!("9.19.0.56".parse(), Ok(Version::new(9, 19, 0)));
        for bad in ["", "9", "9.19", "9.19.0.56.1", "9.x.0", "v9.19.0", "9.-1.0"] {
            assert!(bad.parse::<Version>().is_err(), "{bad:?} was taken for a version");
        }
    }

    proptest! {
        #[test]
        fn order_is_that_of_the_numbers(a in 90_000_u32..100_000, b in 90_000_u32..100_000) {
            let (x, y) = (Version::from_number(a as usize), Version::from_number(b as usize));
            prop_assert_eq!(x.cmp(&y), a.cmp(&b));
            prop_assert_eq!(x.number(), a);
            prop_assert_eq!(x.to_string().parse::<Version>(), Ok(x));
        }
    }
}
