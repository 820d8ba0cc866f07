//! Refusals, their reasons, and the origin of each reason.

use std::borrow::Cow;
use std::fmt;

use qkvault_base::Shown;
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
    /// The stable name, such as `heads.group`: an entry of the registry, or a name of a newer version.
    pub code: Code,
    /// The kind of the reason.
    pub origin: Origin,
    /// The field of the description, or the part of cuDNN, that the reason concerns.
    pub field: Cow<'static, str>,
    /// What was given.
    pub given: String,
    /// What is needed; empty if cuDNN's message in `given` is enough.
    pub needed: String,
    /// What to do about it.
    pub fix: String,
    /// The first cuDNN version that accepts it, if known.
    #[serde(deserialize_with = "crate::codec::present")]
    pub since: Option<crate::CudnnVersion>,
}

/// The kind of a reason: who refuses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Origin {
    /// The description contradicts itself.
    Description,
    /// A rule about what cuDNN supports.
    Rule,
    /// cuDNN supports it but computes it wrongly.
    Quirk,
    /// cuDNN itself refuses, with its own message.
    Library,
    /// qkvault does not build this yet.
    NotBuilt,
}

impl Reason {
    /// Replaces the field.
    #[must_use]
    pub fn at(mut self, field: impl Into<Cow<'static, str>>) -> Reason {
        self.field = field.into();
        self
    }

    /// Replaces what is needed, if it depends on what was given.
    #[must_use]
    pub fn with_needed(mut self, needed: impl Into<String>) -> Reason {
        self.needed = needed.into();
        self
    }

    /// Replaces the fix, if it depends on what was given.
    #[must_use]
    pub fn with_fix(mut self, fix: impl Into<String>) -> Reason {
        self.fix = fix.into();
        self
    }
}

impl Refusal {
    /// A refusal with these reasons; `None` for an empty list, because a refusal has at least one reason.
    #[must_use]
    pub fn from_reasons(reasons: Vec<Reason>) -> Option<Refusal> {
        (!reasons.is_empty()).then_some(Refusal { reasons })
    }

    /// Adds the reasons of another refusal.
    #[must_use]
    pub fn and(mut self, more: Refusal) -> Refusal {
        self.reasons.extend(more.reasons);
        self
    }

    /// The reasons; there is at least one.
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

/// The error for an empty list of reasons.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a refusal needs at least one reason")]
pub struct NoReason;

impl TryFrom<Vec<Reason>> for Refusal {
    type Error = NoReason;

    fn try_from(reasons: Vec<Reason>) -> Result<Refusal, NoReason> {
        Refusal::from_reasons(reasons).ok_or(NoReason)
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
        let Reason { code, origin, field, given, needed, fix, since: _ } = self;
        // Each may have come from a config, a pack or a remote.
        let (code, field, given) = (Shown(code.as_str()), Shown(field), Shown(given));
        write!(f, "[{origin} / {code}] {field}: {given}")?;
        if !needed.is_empty() {
            write!(f, "; needed: {}", Shown(needed))?;
        }
        if let Some(since) = self.since {
            write!(f, " (since cuDNN {since})")?;
        }
        if !fix.is_empty() {
            write!(f, "; fix: {}", Shown(fix))?;
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
    fn reasons_survive_a_round_trip_through_json() {
        let reason = codes::HEADS_GROUP.reason("3 heads for 8 query heads").at("k.dims[1]");
        let refusal = Refusal::from_reasons(vec![reason.clone(), reason]).expect("not empty");
        let json = serde_json::to_string(&refusal).expect("serialises");
        assert_eq!(serde_json::from_str::<Refusal>(&json).expect("parses"), refusal);
        let printed = "k.dims[1]: 3 heads for 8 query heads; needed: query heads must be a multiple of key heads";
        assert!(refusal.to_string().contains(printed), "{refusal}");
        assert!(refusal.has(&codes::HEADS_GROUP) && !refusal.has(&codes::TENSOR_DIMS));
    }

    /// An older version reads a reason that a newer one wrote, and writes the same text again.
    #[test]
    fn a_reason_with_a_code_of_a_newer_version_is_kept() {
        let json = r#"[{"code":"score-mod.of-tomorrow","origin":"rule","field":"score_mod","given":"x","needed":"y","fix":"z","since":null}]"#;
        let refusal: Refusal = serde_json::from_str(json).expect("parses");
        assert_eq!(refusal.reasons()[0].code.as_str(), "score-mod.of-tomorrow");
        assert!(refusal.has(&Code::from("score-mod.of-tomorrow")) && refusal.reasons()[0].code.entry().is_none());
        assert_eq!(serde_json::to_string(&refusal).expect("serialises"), json);
    }

    #[test]
    fn audit_8_a_reason_is_one_line_whatever_it_says() {
        let json = r#"[{"code":"x\u001b[2J","origin":"rule","field":"a\nb","given":"c\r\n0 refused\u009b","needed":"\u202ed","fix":"e\u0007","since":null}]"#;
        let refusal: Refusal = serde_json::from_str(json).expect("parses");
        let told = r"[rule / x\u{1b}[2J] a\nb: c\r\n0 refused\u{9b}; needed: \u{202e}d; fix: e\u{7}";
        assert_eq!(refusal.to_string(), told);
        assert_eq!(refusal.clone().and(refusal).to_string().lines().count(), 2);
    }

    #[test]
    fn a_refusal_without_a_reason_does_not_exist() {
        assert!(Refusal::from_reasons(vec![]).is_none());
        assert!(serde_json::from_str::<Refusal>("[]").is_err());
    }
}
