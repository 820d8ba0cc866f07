//! Whose plans are taken: engines by name. What an engine is, a description does not know.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// The name of an engine in options and stored entries: 1 to 16 small letters, digits and hyphens.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EngineName([u8; EngineName::LONGEST]);

/// A text that is no name of an engine.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no name of an engine: it has 1 to 16 small letters, digits and hyphens")]
pub struct NoEngineName(String);

impl EngineName {
    const LONGEST: usize = 16;

    /// A name.
    ///
    /// # Panics
    ///
    /// If the text is no name; [`str::parse`] returns an error instead.
    #[must_use]
    pub const fn new(name: &str) -> EngineName {
        match EngineName::read(name) {
            Some(name) => name,
            None => panic!("no name of an engine: it has 1 to 16 small letters, digits and hyphens"),
        }
    }

    const fn read(name: &str) -> Option<EngineName> {
        let (from, mut bytes, mut at) = (name.as_bytes(), [0; EngineName::LONGEST], 0);
        if from.is_empty() || from.len() > EngineName::LONGEST {
            return None;
        }
        while at < from.len() {
            if !matches!(from[at], b'a'..=b'z' | b'0'..=b'9' | b'-') {
                return None;
            }
            bytes[at] = from[at];
            at += 1;
        }
        Some(EngineName(bytes))
    }

    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        let end = self.0.iter().position(|byte| *byte == 0).unwrap_or(EngineName::LONGEST);
        str::from_utf8(&self.0[..end]).expect("a name is ASCII")
    }
}

impl fmt::Display for EngineName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl fmt::Debug for EngineName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for EngineName {
    type Err = NoEngineName;

    fn from_str(text: &str) -> Result<EngineName, NoEngineName> {
        EngineName::read(text).ok_or_else(|| NoEngineName(text.chars().take(40).collect()))
    }
}

impl Serialize for EngineName {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(self.as_str())
    }
}

impl<'de> Deserialize<'de> for EngineName {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<EngineName, D::Error> {
        String::deserialize(from)?.parse().map_err(de::Error::custom)
    }
}

/// Whose plans are taken. It is written as a name: `auto`, or that of the engine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum EnginePolicy {
    /// Those of the engine that is fastest by measured times and has a plan.
    #[default]
    Auto,
    /// Those of one engine alone.
    Named(EngineName),
}

impl EnginePolicy {
    /// The word for [`EnginePolicy::Auto`].
    pub const AUTO: &'static str = "auto";

    /// Its name in options.
    #[must_use]
    pub fn name(&self) -> &str {
        match self {
            EnginePolicy::Auto => EnginePolicy::AUTO,
            EnginePolicy::Named(engine) => engine.as_str(),
        }
    }

    /// Whether it is [`EnginePolicy::Auto`].
    #[must_use]
    pub fn is_default(&self) -> bool {
        *self == EnginePolicy::default()
    }
}

impl From<EngineName> for EnginePolicy {
    fn from(engine: EngineName) -> EnginePolicy {
        EnginePolicy::Named(engine)
    }
}

impl FromStr for EnginePolicy {
    type Err = NoEngineName;

    fn from_str(text: &str) -> Result<EnginePolicy, NoEngineName> {
        if text == EnginePolicy::AUTO { Ok(EnginePolicy::Auto) } else { text.parse().map(EnginePolicy::Named) }
    }
}

impl Serialize for EnginePolicy {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(self.name())
    }
}

impl<'de> Deserialize<'de> for EnginePolicy {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<EnginePolicy, D::Error> {
        String::deserialize(from)?.parse().map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_policy_is_a_word() {
        for word in ["auto", "cudnn", "fa4", "a-16-letter-name"] {
            let policy: EnginePolicy = word.parse().expect("a name");
            assert_eq!(policy.name(), word);
            assert_eq!(serde_json::to_value(policy).expect("a word"), word);
            assert_eq!(serde_json::from_value::<EnginePolicy>(word.into()).expect("a word"), policy);
        }
        assert_eq!("auto".parse(), Ok(EnginePolicy::Auto));
        for word in ["", "cuDNN", "a name", "seventeen-letters"] {
            assert!(word.parse::<EnginePolicy>().is_err(), "{word:?}");
        }
    }
}
