//! Families of data of a run.

use qkvault_reference::{Family, UnknownFamily};

/// The families of data of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Families {
    /// One of them.
    One(Family),
    /// One after the other.
    Mixed,
}

/// Reads families.
pub(super) fn read(text: &str) -> Result<Families, UnknownFamily> {
    if text == "mixed" { Ok(Families::Mixed) } else { text.parse().map(Families::One) }
}

impl Families {
    /// The family of a case. Batches of serving are every second or fourth case, so families change in groups of four.
    pub(super) const fn for_case(self, number: u64) -> Family {
        match self {
            Families::One(family) => family,
            Families::Mixed => Family::ALL[(number / 4) as usize % Family::ALL.len()],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_family_has_dense_cases_and_batches_of_serving() {
        assert_eq!((read("mixed"), read("below")), (Ok(Families::Mixed), Ok(Families::One(Family::Below))));
        for of in 0..4 {
            let found: std::collections::BTreeSet<Family> =
                (0..200).map(|n| Families::Mixed.for_case(4 * n + of)).collect();
            assert_eq!(found.len(), Family::ALL.len(), "{of}");
        }
    }
}
