//! Sets of quirks: features that cuDNN accepts and computes wrongly, by code.
//!
//! A quirk is refused until a [`CompileOptions`](crate::CompileOptions) allows it by its code. The op graph and the
//! plan's key contain the quirks that are allowed and apply; a quirk that is allowed but does not apply changes
//! nothing.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::{Code, Entry, THEMES};

const COUNT: usize = by_place().1;

/// Every quirk, in the order of places, which is the order in keys.
pub const QUIRKS: [&Entry; COUNT] = {
    let (by_place, mut quirks, mut at) = (by_place().0, [THEMES[0][0].0; COUNT], 0);
    while at < COUNT {
        quirks[at] = match by_place[at] {
            Some(entry) => entry,
            None => panic!("a place between the first and the last quirk is free: a new quirk takes the next free one"),
        };
        at += 1;
    }
    quirks
};

/// The quirks of the registry by place, and their number.
const fn by_place() -> ([Option<&'static Entry>; 64], usize) {
    let (mut found, mut count, mut theme) = ([None; 64], 0, 0);
    while theme < THEMES.len() {
        let mut at = 0;
        while at < THEMES[theme].len() {
            let entry = THEMES[theme][at].0;
            if let Some(place) = entry.quirk {
                assert!(found[place as usize].is_none(), "two quirks have the same place");
                found[place as usize] = Some(entry);
                count += 1;
            }
            at += 1;
        }
        theme += 1;
    }
    (found, count)
}

/// A set of quirks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "Vec<String>", into = "Vec<&'static str>")]
pub struct QuirkSet(u64);

/// A name that is not the code of a quirk.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{given}' is not a quirk; only quirks can be allowed: {}", QUIRKS.map(|quirk| quirk.code).join(", "))]
pub struct BadQuirk {
    /// The name that was given.
    pub given: String,
}

impl QuirkSet {
    /// The empty set.
    pub const NONE: QuirkSet = QuirkSet(0);

    /// The quirks with these codes, which a user wrote.
    ///
    /// # Errors
    ///
    /// [`BadQuirk`] for the first code that is not a quirk's.
    pub fn from_codes<'a>(codes: impl IntoIterator<Item = &'a str>) -> Result<QuirkSet, BadQuirk> {
        codes.into_iter().try_fold(QuirkSet::NONE, |set, code| {
            let quirk = QUIRKS.into_iter().find(|quirk| quirk.code == code);
            quirk.map(|quirk| set.with(QuirkSet::alone(quirk))).ok_or_else(|| BadQuirk { given: code.to_owned() })
        })
    }

    /// The quirks among these codes; other codes are skipped.
    #[must_use]
    pub fn known<'a>(codes: impl IntoIterator<Item = &'a Code>) -> QuirkSet {
        codes.into_iter().map(QuirkSet::of_code).fold(QuirkSet::NONE, QuirkSet::with)
    }

    /// The set with only this quirk; the empty set for an entry that is not a quirk.
    const fn alone(entry: &Entry) -> QuirkSet {
        match entry.quirk {
            Some(place) => QuirkSet(1 << place),
            None => QuirkSet::NONE,
        }
    }

    /// The set with only the quirk of a code, which may have been read.
    fn of_code(code: &Code) -> QuirkSet {
        QUIRKS.into_iter().find(|quirk| quirk.code == code.as_str()).map_or(QuirkSet::NONE, QuirkSet::alone)
    }

    /// The quirks of both sets.
    #[must_use]
    pub const fn with(self, other: QuirkSet) -> QuirkSet {
        QuirkSet(self.0 | other.0)
    }

    /// Whether a quirk is in the set.
    #[must_use]
    pub fn contains(self, code: &Code) -> bool {
        self.0 & QuirkSet::of_code(code).0 != 0
    }

    /// Whether the set has no quirk.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The codes in the set, in the order of [`QUIRKS`].
    pub fn iter(self) -> impl Iterator<Item = &'static str> {
        QUIRKS.into_iter().filter(move |quirk| self.0 & QuirkSet::alone(quirk).0 != 0).map(|quirk| quirk.code)
    }
}

impl fmt::Display for QuirkSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.iter().collect::<Vec<_>>().join(","))
    }
}

impl FromStr for QuirkSet {
    type Err = BadQuirk;

    /// Reads codes separated by commas. An empty text is the empty set.
    fn from_str(text: &str) -> Result<QuirkSet, BadQuirk> {
        QuirkSet::from_codes(text.split(',').map(str::trim).filter(|code| !code.is_empty()))
    }
}

impl TryFrom<Vec<String>> for QuirkSet {
    type Error = BadQuirk;

    fn try_from(codes: Vec<String>) -> Result<QuirkSet, BadQuirk> {
        QuirkSet::from_codes(codes.iter().map(String::as_str))
    }
}

impl From<QuirkSet> for Vec<&'static str> {
    fn from(set: QuirkSet) -> Vec<&'static str> {
        set.iter().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::codes;
    use super::*;

    #[test]
    fn codes_are_read_and_written() {
        for code in QUIRKS.map(|quirk| quirk.code) {
            let set: QuirkSet = code.parse().expect("a quirk");
            assert!(set.contains(&Code::from(code)) && set.iter().count() == 1 && set.to_string() == code);
            let json = serde_json::to_string(&set).expect("serialises");
            assert_eq!(serde_json::from_str::<QuirkSet>(&json).expect("parses"), set);
        }
        let all = QUIRKS.map(|quirk| quirk.code);
        assert_eq!(QuirkSet::from_codes(all).expect("quirks").iter().collect::<Vec<_>>(), all);
        let error = "backward.single-row,head-dim.backward".parse::<QuirkSet>().expect_err("no quirk");
        assert!(error.to_string().starts_with("'head-dim.backward' is not a quirk;"), "{error}");
        let known = QuirkSet::known([&codes::HEAD_DIM_BACKWARD, &codes::BACKWARD_SINGLE_ROW]);
        assert_eq!(known.to_string(), "backward.single-row");
        assert!(!known.contains(&codes::HEAD_DIM_BACKWARD) && !known.contains(&Code::from("quirks.of-tomorrow")));
    }

    /// Keys of plans name quirks in this order, so these places never change. A new quirk comes after the last.
    #[test]
    fn places_of_quirks_never_move() {
        let first = [
            "backward.length-tail",
            "score-mod.one-query-narrow",
            "backward.single-row",
            "backward.tensor-gradient",
            "backward.sink-philox",
            "storage.paged-tile",
            "storage.paged-one-query-sink",
            "storage.varlen-one-query-stats",
            "engine.wrong",
            "cudnn.withdrawn",
            "band.window-wrong",
            "band.rows-without-keys",
            "backward.keys-tail-old",
            "backward.deterministic-sink",
            "backward.varlen-head-dim-old",
            "backward.varlen-no-queries-old",
            "backward.varlen-rows",
            "tensor.stride-alignment",
            "backward.varlen-key-gradients-old",
            "dropout.mask-odd",
            "fp8.hopper-varlen",
            "fp8.hopper-grouped-backward",
            "fp8.hopper-empty-tile",
            "fp8.hopper-bottom-right",
            "fp8.expression",
            "fp8.dropout-form",
            "fp8.head-dim-wide",
            "fp8.backward-band",
            "fp8.split-zeros",
            "mxfp8.varlen",
            "mxfp8.nan",
            "fp8.hopper-dropout",
            "fp8.hopper-d-sink",
            "fp8.hopper-queries",
            "fp8.hopper-few-keys",
            "fp8.hopper-padded-amax",
            "mxfp8.value-head-dim",
            "fp8.hopper-expression",
            "dropout.philox-old",
            "size.grid",
            "backward.far-rows",
            "queries.one-wrong",
            "backward.lowest-row",
            "fp8.hopper-keys-tail",
            "storage.varlen-no-keys-old",
            "queries.one-sink",
            "backward.varlen-head-dim",
            "storage.paged-one-query-heads",
        ];
        assert_eq!(QUIRKS.map(|quirk| quirk.code)[..first.len()], first);
    }
}
