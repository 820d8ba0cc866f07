//! `--shard I/N`: the part of the plans that one of several machines compiles.

use std::fmt;
use std::str::FromStr;

/// Part `I` of `N`. Which part a plan is in follows from its key alone, so that every machine splits alike, whatever
/// else it is given and in whichever order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PlanPart {
    /// From 1 to `of`.
    part: u64,
    of: u64,
}

/// Most parts: more than machines that anyone has.
const MOST: u64 = 1 << 20;

impl PlanPart {
    /// Whether a plan is in this part.
    pub(super) fn has(self, key: &[u8; 32]) -> bool {
        // A key is a hash: any of its bytes are evenly spread.
        let [a, b, c, d, e, f, g, h, ..] = *key;
        u64::from_be_bytes([a, b, c, d, e, f, g, h]) % self.of == self.part - 1
    }
}

impl FromStr for PlanPart {
    type Err = String;

    fn from_str(text: &str) -> Result<PlanPart, String> {
        let numbers = text.split_once('/').and_then(|(part, of)| Some((part.parse().ok()?, of.parse().ok()?)));
        match numbers {
            Some((part, of)) if (1..=of).contains(&part) && of <= MOST => Ok(PlanPart { part, of }),
            _ => Err(format!("a part is written I/N, with I from 1 to N and N at most {MOST}, such as 2/8")),
        }
    }
}

impl fmt::Display for PlanPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.part, self.of)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_is_in_exactly_one_part() {
        for of in [1_u64, 2, 3, 7, 64] {
            let parts: Vec<PlanPart> = (1..=of).map(|part| format!("{part}/{of}").parse().expect("a part")).collect();
            for seed in 0..200_u8 {
                let key: [u8; 32] = std::array::from_fn(|i| seed.wrapping_mul(31).wrapping_add(i as u8 * 7));
                assert_eq!(parts.iter().filter(|part| part.has(&key)).count(), 1, "{of}");
            }
        }
    }

    /// Machines with different builds of the program must split alike.
    #[test]
    fn the_part_of_a_key_never_changes() {
        let key = std::array::from_fn(|i| i as u8); // 0x0001020304050607 is 283686952306183
        let part = |text: &str| text.parse::<PlanPart>().expect("a part");
        assert!(part("4/10").has(&key) && part("184/1000").has(&key));
    }

    #[test]
    fn what_is_no_part_is_told_how_to_write_one() {
        for text in ["", "1", "0/4", "5/4", "1/0", "-1/4", "1/4/2", "a/b", "1/2000000", "1.5/2"] {
            let error = text.parse::<PlanPart>().expect_err(text);
            assert!(error.contains("I/N"), "{text}: {error}");
        }
        assert_eq!("3/8".parse::<PlanPart>().expect("a part").to_string(), "3/8");
    }
}
