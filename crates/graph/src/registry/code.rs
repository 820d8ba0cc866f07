//! The code of a reason: an entry of the registry, or a name that this version does not have.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::{Entry, entries};
use crate::{Origin, Reason};

/// The stable name of a reason, such as `heads.group`. Those of descriptions are in [`codes`](super::codes).
///
/// Reasons that a newer qkvault wrote, and statuses of cuDNN, may have names without an entry here; these names are
/// kept. Codes compare, hash and print by name.
#[derive(Clone, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
pub struct Code(Name);

#[derive(Clone)]
enum Name {
    Known(&'static Entry),
    Other(Box<str>),
}

impl Code {
    /// The code of an entry.
    #[must_use]
    pub const fn known(entry: &'static Entry) -> Code {
        Code(Name::Known(entry))
    }

    /// The name.
    #[must_use]
    pub const fn as_str(&self) -> &str {
        match &self.0 {
            Name::Known(entry) => entry.code,
            Name::Other(name) => name,
        }
    }

    /// Its entry; a code that was read has one only if it is a description's.
    #[must_use]
    pub const fn entry(&self) -> Option<&'static Entry> {
        match self.0 {
            Name::Known(entry) => Some(entry),
            Name::Other(_) => None,
        }
    }

    /// Makes a reason with this code, and with field, need and fix of its entry. Without an entry, the reason is one of
    /// cuDNN itself, without need and fix.
    #[must_use]
    pub fn reason(&self, given: impl Into<String>) -> Reason {
        let (code, given) = (self.clone(), given.into());
        match self.entry() {
            Some(entry) => Reason {
                code,
                origin: entry.origin,
                field: entry.field.into(),
                given,
                needed: entry.needed.to_owned(),
                fix: entry.fix.to_owned(),
                since: None,
            },
            None => Reason {
                code,
                origin: Origin::Library,
                field: "library".into(),
                given,
                needed: String::new(),
                fix: String::new(),
                since: None,
            },
        }
    }
}

impl From<&str> for Code {
    fn from(name: &str) -> Code {
        match entries().find(|entry| entry.code == name) {
            Some(entry) => Code::known(entry),
            None => Code(Name::Other(name.into())),
        }
    }
}

impl From<String> for Code {
    fn from(name: String) -> Code {
        Code::from(name.as_str())
    }
}

impl FromStr for Code {
    type Err = std::convert::Infallible;

    fn from_str(name: &str) -> Result<Code, Self::Err> {
        Ok(Code::from(name))
    }
}

impl From<Code> for String {
    fn from(code: Code) -> String {
        code.as_str().to_owned()
    }
}

impl PartialEq for Code {
    fn eq(&self, other: &Code) -> bool {
        self.as_str() == other.as_str()
    }
}

impl Eq for Code {}

impl PartialOrd for Code {
    fn partial_cmp(&self, other: &Code) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Code {
    fn cmp(&self, other: &Code) -> std::cmp::Ordering {
        self.as_str().cmp(other.as_str())
    }
}

impl Hash for Code {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.as_str().hash(state);
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl fmt::Debug for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

#[cfg(test)]
mod tests {
    use super::super::codes;
    use super::*;

    #[test]
    fn a_code_is_parsed_as_the_entry_with_its_name() {
        let json = serde_json::to_string(&codes::HEADS_GROUP).expect("serialises");
        assert_eq!(json, "\"heads.group\"");
        let read: Code = serde_json::from_str(&json).expect("parses");
        assert!(read == codes::HEADS_GROUP && read.entry().is_some());
    }

    #[test]
    fn codes_are_compared_and_hashed_by_their_text() {
        let read = |text: &str| Code::from(text);
        let codes = [read("heads.of-tomorrow"), codes::HEADS_GROUP.clone(), read("a.b"), read("a.b")];
        let mut sorted = codes.to_vec();
        sorted.sort();
        assert_eq!(
            sorted.iter().map(Code::as_str).collect::<Vec<_>>(),
            ["a.b", "a.b", "heads.group", "heads.of-tomorrow"]
        );
        assert!(codes[2].partial_cmp(&codes[0]) == Some(std::cmp::Ordering::Less));
        let hash = |code: &Code| {
            let mut hasher = std::hash::DefaultHasher::new();
            code.hash(&mut hasher);
            hasher.finish()
        };
        assert_eq!(hash(&codes[1]), hash(&read("heads.group")));
        assert_ne!(hash(&codes[1]), hash(&codes[2]));
    }

    #[test]
    fn a_code_of_a_newer_version_is_kept() {
        let read: Code = serde_json::from_str("\"heads.of-tomorrow\"").expect("parses");
        assert_eq!((read.as_str(), read.entry().is_none()), ("heads.of-tomorrow", true));
        assert_eq!(serde_json::to_string(&read).expect("serialises"), "\"heads.of-tomorrow\"");
        assert_eq!(read, Code::from("heads.of-tomorrow"));
    }
}
