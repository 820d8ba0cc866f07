//! Quirks: what cuDNN takes and computes wrongly, by code, and sets of them that a policy takes all the same.
//!
//! A quirk is refused until a [`CompileOptions`](super::CompileOptions) allows it by its code. What was allowed and applied is in the op graph
//! and under the plan's key; a quirk that is allowed and does not apply changes nothing.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Codes of every quirk: those that lowering knows, and those that are rows of the probe's rules. New ones are added at the end.
pub const QUIRKS: [&str; 21] = [
    "backward.length-tail",
    "score-mod.one-query-narrow",
    "backward.single-row",
    "backward.tensor-gradient",
    "backward.sink-philox",
    "storage.paged-tile",
    "storage.paged-one-query-sink",
    "storage.varlen-one-query-stats",
    ENGINE_WRONG,
    "cudnn.withdrawn",
    "band.window-wrong",
    "band.rows-without-keys",
    "backward.keys-tail-old",
    "backward.deterministic-sink",
    "form.unified-wrong",
    "backward.varlen-head-dim-old",
    "backward.varlen-no-queries-old",
    "backward.varlen-rows",
    "tensor.stride-alignment",
    "backward.varlen-key-gradients-old",
    "dropout.mask-odd",
];

/// Engines that compute a graph wrongly: allowed, they are not passed over.
pub(super) const ENGINE_WRONG: &str = "engine.wrong";

/// A set of quirks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "Vec<String>", into = "Vec<&'static str>")]
pub struct QuirkSet(u32);

/// A code that no quirk has.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{given}' is no quirk; only what is computed wrongly can be allowed: {}", QUIRKS.join(", "))]
pub struct BadQuirk {
    /// What came.
    pub given: String,
}

impl QuirkSet {
    /// No quirk.
    pub const NONE: QuirkSet = QuirkSet(0);

    /// The quirks of these codes.
    ///
    /// # Errors
    ///
    /// [`BadQuirk`] for the first that is none.
    pub fn of<'a>(codes: impl IntoIterator<Item = &'a str>) -> Result<QuirkSet, BadQuirk> {
        codes.into_iter().try_fold(QuirkSet::NONE, |set, code| {
            let at = QUIRKS.iter().position(|known| *known == code);
            let at = at.ok_or_else(|| BadQuirk { given: code.to_owned() })?;
            Ok(QuirkSet(set.0 | 1 << at))
        })
    }

    /// The quirks of those of these codes that are quirks' codes.
    #[must_use]
    pub fn known<'a>(codes: impl IntoIterator<Item = &'a str>) -> QuirkSet {
        let sets = codes.into_iter().filter_map(|code| QuirkSet::of([code]).ok());
        sets.fold(QuirkSet::NONE, QuirkSet::with)
    }

    /// The quirks of both sets.
    #[must_use]
    pub const fn with(self, other: QuirkSet) -> QuirkSet {
        QuirkSet(self.0 | other.0)
    }

    /// Whether a quirk is in the set.
    #[must_use]
    pub fn contains(self, code: &str) -> bool {
        self.iter().any(|known| known == code)
    }

    /// Whether there is none.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The codes in the set, in the order of [`QUIRKS`].
    pub fn iter(self) -> impl Iterator<Item = &'static str> {
        QUIRKS.into_iter().enumerate().filter(move |(at, _)| self.0 >> at & 1 == 1).map(|(_, code)| code)
    }
}

impl fmt::Display for QuirkSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.iter().collect::<Vec<_>>().join(","))
    }
}

impl FromStr for QuirkSet {
    type Err = BadQuirk;

    /// Codes with commas between; an empty text is the empty set.
    fn from_str(text: &str) -> Result<QuirkSet, BadQuirk> {
        QuirkSet::of(text.split(',').map(str::trim).filter(|code| !code.is_empty()))
    }
}

impl TryFrom<Vec<String>> for QuirkSet {
    type Error = BadQuirk;

    fn try_from(codes: Vec<String>) -> Result<QuirkSet, BadQuirk> {
        QuirkSet::of(codes.iter().map(String::as_str))
    }
}

impl From<QuirkSet> for Vec<&'static str> {
    fn from(set: QuirkSet) -> Vec<&'static str> {
        set.iter().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_read_and_written() {
        for code in QUIRKS {
            let set: QuirkSet = code.parse().expect("a quirk");
            assert!(set.contains(code) && set.iter().count() == 1 && set.to_string() == code);
            let json = serde_json::to_string(&set).expect("serialises");
            assert_eq!(serde_json::from_str::<QuirkSet>(&json).expect("parses"), set);
        }
        assert_eq!(QuirkSet::of(QUIRKS).expect("quirks").iter().collect::<Vec<_>>(), QUIRKS);
        let error = "backward.single-row,head-dim.backward".parse::<QuirkSet>().expect_err("no quirk");
        assert!(error.to_string().starts_with("'head-dim.backward' is no quirk;"), "{error}");
        assert_eq!(QuirkSet::known(["x", "backward.single-row"]).to_string(), "backward.single-row");
    }
}
