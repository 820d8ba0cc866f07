//! Why not: refusals, their reasons, and the origin that gave each.

use std::borrow::Cow;
use std::fmt;

use serde::{Deserialize, Serialize};

/// A refusal: a non-empty list of reasons.
///
/// ```
/// use qkvault_graph::{Attention, DType, Origin, Reason, validate};
///
/// let refusal = validate(Attention::bshd(1, (32, 5), (512, 512), 128, DType::BF16)).unwrap_err();
/// let reason: &Reason = &refusal.reasons()[0];
/// assert_eq!((reason.code.as_ref(), reason.origin), ("heads.group", Origin::Description));
/// println!("{}: {} where {} is needed; {}", reason.field, reason.given, reason.needed, reason.fix);
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Vec<Reason>", into = "Vec<Reason>")]
pub struct Refusal {
    reasons: Vec<Reason>,
}

/// One reason of a refusal, with its facts as fields.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct Reason {
    /// Stable name of the rule, such as `heads.group`.
    pub code: Cow<'static, str>,
    /// Who said so.
    pub origin: Origin,
    /// The field of the description, or the place in the library, that it is about.
    pub field: Cow<'static, str>,
    /// What came.
    pub given: String,
    /// What is needed; empty where the library's words in `given` say all.
    pub needed: String,
    /// What to do about it.
    pub fix: String,
    /// The first cuDNN version that accepts it, as far as known.
    #[serde(deserialize_with = "crate::attention_form::present")]
    pub since: Option<crate::CudnnVersion>,
}

/// The origin that gave a reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Origin {
    /// The description contradicts itself.
    Description,
    /// A rule about what the library supports.
    Rule,
    /// The library supports it but computes it wrongly.
    Quirk,
    /// The library itself, in its own words.
    Library,
    /// qkvault does not build this yet.
    NotBuilt,
}

impl Reason {
    /// A reason with its four facts; `since` unknown.
    pub fn new(
        origin: Origin,
        code: &'static str,
        field: impl Into<Cow<'static, str>>,
        given: impl Into<String>,
        needed: impl Into<String>,
        fix: impl Into<String>,
    ) -> Reason {
        Reason {
            code: Cow::Borrowed(code),
            origin,
            field: field.into(),
            given: given.into(),
            needed: needed.into(),
            fix: fix.into(),
            since: None,
        }
    }
}

impl Refusal {
    /// A refusal of these reasons; `None` when there is none, since a refusal without a reason does not exist.
    #[must_use]
    pub fn of(reasons: Vec<Reason>) -> Option<Refusal> {
        (!reasons.is_empty()).then_some(Refusal { reasons })
    }

    /// Both refusals' reasons.
    #[must_use]
    pub fn and(mut self, more: Refusal) -> Refusal {
        self.reasons.extend(more.reasons);
        self
    }

    /// The reasons, at least one.
    #[must_use]
    pub fn reasons(&self) -> &[Reason] {
        &self.reasons
    }

    /// Whether a reason has this code.
    #[must_use]
    pub fn has(&self, code: &str) -> bool {
        self.reasons.iter().any(|r| r.code == code)
    }
}

impl From<Reason> for Refusal {
    fn from(reason: Reason) -> Refusal {
        Refusal { reasons: vec![reason] }
    }
}

/// A list of reasons that has none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a refusal needs at least one reason")]
pub struct NoReason;

impl TryFrom<Vec<Reason>> for Refusal {
    type Error = NoReason;

    fn try_from(reasons: Vec<Reason>) -> Result<Refusal, NoReason> {
        Refusal::of(reasons).ok_or(NoReason)
    }
}

impl From<Refusal> for Vec<Reason> {
    fn from(refusal: Refusal) -> Vec<Reason> {
        refusal.reasons
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Origin::Description => "description",
            Origin::Rule => "rule",
            Origin::Quirk => "quirk",
            Origin::Library => "library",
            Origin::NotBuilt => "not built",
        })
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[{} / {}] {}: {}", self.origin, self.code, self.field, self.given)?;
        if !self.needed.is_empty() {
            write!(f, ", but {}", self.needed)?;
        }
        if let Some(since) = self.since {
            write!(f, " (since cuDNN {since})")?;
        }
        if !self.fix.is_empty() {
            write!(f, "; {}", self.fix)?;
        }
        Ok(())
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, reason) in self.reasons.iter().enumerate() {
            if i > 0 {
                f.write_str("\n")?;
            }
            write!(f, "{reason}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Refusal {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_are_owned_and_survive_a_round_trip() {
        let reason = Reason::new(Origin::Rule, "x.y", "q.dims[3]", "100", "a multiple of 8", "pad to 104");
        let refusal = Refusal::of(vec![reason.clone(), reason]).expect("not empty");
        let json = serde_json::to_string(&refusal).expect("serialises");
        assert_eq!(serde_json::from_str::<Refusal>(&json).expect("parses"), refusal);
        assert!(refusal.to_string().contains("q.dims[3]: 100, but a multiple of 8; pad to 104"));
    }

    #[test]
    fn a_refusal_without_a_reason_does_not_exist() {
        assert!(Refusal::of(vec![]).is_none());
        assert!(serde_json::from_str::<Refusal>("[]").is_err());
    }
}
