//! The environment in which cuDNN and NVRTC compile: the variables that change code, and their values.

mod list;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;

use serde::{Deserialize, Serialize};

pub use list::{COMPILER_VARIABLES, CompilerVariable, EnvEffect};

/// Prefixes of cuDNN's and NVRTC's variables. A variable with such a prefix that is not in [`COMPILER_VARIABLES`]
/// counts as one that changes code.
pub const COMPILER_PREFIXES: [&str; 2] = ["CUDNN_", "NVRTC_"];

/// The variables that are set and change, or may change, what cuDNN and NVRTC compile, by name.
///
/// A variable with an empty value is set: cuDNN reads `CUDNN_USE_EX2_EMULATION=` as a value.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct CompilerEnv(BTreeMap<String, String>);

/// Why a variable is a part of a [`CompilerEnv`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// It is listed as one that changes code or may do so.
    Seen(&'static CompilerVariable),
    /// It was not tested, and its name has a prefix of cuDNN or NVRTC.
    Unknown,
}

/// Whether a variable of this name belongs in a [`CompilerEnv`], and why.
#[must_use]
pub fn changes_code(name: &str) -> Option<Cause> {
    match COMPILER_VARIABLES.iter().find(|known| known.is(name)) {
        Some(known) => known.effect.in_keys().then_some(Cause::Seen(known)),
        None => COMPILER_PREFIXES.iter().any(|prefix| name.starts_with(prefix)).then_some(Cause::Unknown),
    }
}

impl CompilerEnv {
    /// The environment without any such variable.
    pub const NONE: CompilerEnv = CompilerEnv(BTreeMap::new());

    /// Keeps the variables that change code. If a name occurs twice, the first counts, as in a C program.
    ///
    /// Bytes of a value that are not UTF-8 are written as escapes and backslashes are doubled, so that different values
    /// stay different.
    #[must_use]
    pub fn from_variables(variables: impl IntoIterator<Item = (OsString, OsString)>) -> CompilerEnv {
        let mut found = BTreeMap::new();
        for (name, value) in variables {
            if let Some(name) = name.to_str().filter(|name| changes_code(name).is_some()) {
                let value = || value.as_encoded_bytes().escape_ascii().to_string();
                found.entry(name.to_owned()).or_insert_with(value);
            }
        }
        CompilerEnv(found)
    }

    /// Whether no such variable is set.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Names and values, by name.
    pub fn pairs(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, value)| (&**name, &**value))
    }

    /// The value of a variable, if it is set.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(|value| &**value)
    }

    /// The row of the first variable under which nothing is compiled.
    #[must_use]
    pub fn refused(&self) -> Option<&'static CompilerVariable> {
        self.0.keys().find_map(|name| match changes_code(name) {
            Some(Cause::Seen(known)) if known.effect == EnvEffect::Refused => Some(known),
            _ => None,
        })
    }

    /// The first name whose value differs from the other's.
    #[must_use]
    pub fn first_difference(&self, other: &CompilerEnv) -> Option<String> {
        let names: std::collections::BTreeSet<&String> = self.0.keys().chain(other.0.keys()).collect();
        names.into_iter().find(|name| self.get(name) != other.get(name)).cloned()
    }

    /// One sentence for the user about each variable: its effect, and that plans have separate keys while it is set.
    pub fn notes(&self) -> impl Iterator<Item = String> {
        self.pairs().map(|(name, value)| {
            let why = match changes_code(name) {
                Some(Cause::Seen(CompilerVariable { effect: EnvEffect::Suspected, .. })) => {
                    "may change what cuDNN compiles, though no change was seen".to_owned()
                }
                Some(Cause::Seen(known)) => format!("changes what cuDNN compiles ({})", known.seen),
                Some(Cause::Unknown) | None => {
                    "is not known to this version of qkvault and may change what cuDNN compiles".to_owned()
                }
            };
            format!("{name}={value} {why}; plans have separate keys while it is set; unset it for the usual plans")
        })
    }
}

impl fmt::Display for CompilerEnv {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let pairs: Vec<String> = self.pairs().map(|(name, value)| format!("{name}={value}")).collect();
        f.pad(&pairs.join(" "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn from_pairs(pairs: &[(&str, &str)]) -> CompilerEnv {
        CompilerEnv::from_variables(pairs.iter().map(|(name, value)| (name.into(), value.into())))
    }

    #[test]
    fn b2_variables_that_change_code_are_kept_and_others_are_left_out() {
        let env = from_pairs(&[
            ("CUDNN_USE_EX2_EMULATION", "0"),
            ("CUDNN_LOGLEVEL_DBG", "3"),
            ("CUDNN_PATH", "/opt/cudnn"),
            ("CUDNN_FRONTEND_LOG_INFO", "1"),
            ("CUDNN_OF_THE_FUTURE", ""),
            ("NVRTC_OF_THE_FUTURE", "x"),
            ("HOME", "/root"),
            ("MY_CUDNN_THING", "1"),
        ]);
        let names: Vec<&str> = env.pairs().map(|(name, _)| name).collect();
        assert_eq!(names, ["CUDNN_OF_THE_FUTURE", "CUDNN_USE_EX2_EMULATION", "NVRTC_OF_THE_FUTURE"]);
        assert_eq!(env.get("CUDNN_OF_THE_FUTURE"), Some(""), "an empty value is a value");
        assert_eq!(env.to_string(), "CUDNN_OF_THE_FUTURE= CUDNN_USE_EX2_EMULATION=0 NVRTC_OF_THE_FUTURE=x");
        let notes: Vec<String> = env.notes().collect();
        assert!(notes[0].contains("CUDNN_OF_THE_FUTURE= is not known"), "{notes:?}");
        assert!(notes[1].contains("CUDNN_USE_EX2_EMULATION=0 changes"), "{notes:?}");
        assert_eq!(from_pairs(&[("CUDNN_LOGLEVEL_DBG", "3")]), CompilerEnv::NONE);
        assert_eq!(env.refused(), None);
        let note = from_pairs(&[("CUDNN_SKIPHEUR_DBG", "1")]).notes().next().expect("it is in keys");
        assert!(note.contains("may change"), "{note}");
        let linking = from_pairs(&[("CUDNN_NVRTC_RUNTIME_LINKING", "1")]);
        assert_eq!(linking.refused().map(|row| row.name), Some("CUDNN_NVRTC_RUNTIME_LINKING"));
    }

    #[test]
    fn values_of_different_bytes_stay_different() {
        use std::os::unix::ffi::OsStringExt as _;
        let values =
            [b"a".to_vec(), b"a ".to_vec(), vec![0xff], b"\\xff".to_vec(), "é".into(), vec![], b"a\n".to_vec()];
        let mut seen = std::collections::BTreeSet::new();
        for value in &values {
            let env = CompilerEnv::from_variables([("CUDNN_X".into(), OsString::from_vec(value.clone()))]);
            assert!(seen.insert(env), "{value:?}");
        }
    }

    #[test]
    fn the_first_difference_is_named() {
        let (a, b) =
            (from_pairs(&[("CUDNN_A", "1"), ("CUDNN_B", "1")]), from_pairs(&[("CUDNN_A", "1"), ("CUDNN_B", "2")]));
        assert_eq!(a.first_difference(&b).as_deref(), Some("CUDNN_B"));
        assert_eq!(a.first_difference(&CompilerEnv::NONE).as_deref(), Some("CUDNN_A"));
        assert_eq!(a.first_difference(&a), None);
    }
}
