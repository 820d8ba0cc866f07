//! Why not: refusals, their reasons, and the origin that gave each.

use std::borrow::Cow;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::Code;

/// A refusal: a non-empty list of reasons.
///
/// ```
/// use qkvault_graph::registry::codes;
/// use qkvault_graph::{Attention, DType, Origin, Reason, validate};
///
/// let refusal = validate(Attention::bshd(1, (32, 5), (512, 512), 128, DType::BF16)).unwrap_err();
/// let reason: &Reason = &refusal.reasons()[0];
/// assert_eq!((&reason.code, reason.origin), (&codes::HEADS_GROUP, Origin::Description));
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
    /// Stable name, such as `heads.group`: an entry of the registry, or a name of a newer version.
    pub code: Code,
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
    /// The reason with another field than the registry's.
    #[must_use]
    pub fn at(mut self, field: impl Into<Cow<'static, str>>) -> Reason {
        self.field = field.into();
        self
    }

    /// The reason with a need that depends on what was given.
    #[must_use]
    pub fn with_needed(mut self, needed: impl Into<String>) -> Reason {
        self.needed = needed.into();
        self
    }

    /// The reason with a fix that depends on what was given.
    #[must_use]
    pub fn with_fix(mut self, fix: impl Into<String>) -> Reason {
        self.fix = fix.into();
        self
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
    pub fn has(&self, code: &Code) -> bool {
        self.reasons.iter().any(|r| r.code == *code)
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
    use crate::registry::codes;

    #[test]
    fn reasons_are_owned_and_survive_a_round_trip() {
        let reason = codes::HEADS_GROUP.reason("3 heads for 8 query heads").at("k.dims[1]");
        let refusal = Refusal::of(vec![reason.clone(), reason]).expect("not empty");
        let json = serde_json::to_string(&refusal).expect("serialises");
        assert_eq!(serde_json::from_str::<Refusal>(&json).expect("parses"), refusal);
        let printed = "k.dims[1]: 3 heads for 8 query heads, but query heads must be a multiple of key heads";
        assert!(refusal.to_string().contains(printed), "{refusal}");
        assert!(refusal.has(&codes::HEADS_GROUP) && !refusal.has(&codes::TENSOR_DIMS));
    }

    /// What a newer version wrote is read by an older one, and written again as it was.
    #[test]
    fn a_reason_with_a_code_of_a_newer_version_is_kept() {
        let json = r#"[{"code":"score-mod.of-tomorrow","origin":"rule","field":"score_mod","given":"x","needed":"y","fix":"z","since":null}]"#;
        let refusal: Refusal = serde_json::from_str(json).expect("parses");
        assert_eq!(refusal.reasons()[0].code.as_str(), "score-mod.of-tomorrow");
        assert!(refusal.has(&Code::from("score-mod.of-tomorrow")) && refusal.reasons()[0].code.entry().is_none());
        assert_eq!(serde_json::to_string(&refusal).expect("serialises"), json);
    }

    #[test]
    fn a_refusal_without_a_reason_does_not_exist() {
        assert!(Refusal::of(vec![]).is_none());
        assert!(serde_json::from_str::<Refusal>("[]").is_err());
    }
}
