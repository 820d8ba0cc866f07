//! Random changes of inputs: of bits, bytes, numbers of every width, words that a format knows, and parts of other
//! inputs.

/// A generator of numbers (SplitMix64): all that is random here follows from its seed.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// A generator with its own numbers for each name and seed.
    #[must_use]
    pub fn new(name: &str, seed: u64) -> Random {
        let hash = blake3::hash(format!("{name} {seed}").as_bytes());
        let (first, _) = hash.as_bytes().split_at(8);
        Random(first.iter().fold(0, |sum, byte| sum << 8 | u64::from(*byte)))
    }

    /// The next number.
    pub fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `most`, or 0.
    pub fn below(&mut self, most: usize) -> usize {
        if most == 0 { 0 } else { (self.number() % most as u64) as usize }
    }

    /// One of these, if there are any.
    pub fn one<'a, T>(&mut self, of: &'a [T]) -> Option<&'a T> {
        of.get(self.below(of.len()))
    }
}

/// The longest input that changes make.
pub const LONGEST: usize = 64 << 10;

/// Numbers near which formats have their bounds.
const NUMBERS: [u64; 16] = [
    0,
    1,
    2,
    3,
    0x7f,
    0x80,
    0xff,
    0x100,
    0x7fff,
    0xffff,
    0x1_0000,
    0x7fff_ffff,
    0xffff_ffff,
    0x1_0000_0000,
    0x7fff_ffff_ffff_ffff,
    u64::MAX,
];

/// Numbers for texts, where they are words.
const WORDS: [&str; 12] = [
    "0",
    "1",
    "-1",
    "7",
    "65536",
    "2147483647",
    "4294967296",
    "9223372036854775807",
    "18446744073709551616",
    "1e308",
    "0.5",
    "nan",
];

/// Changes an input once to eight times. `other` is an input to take parts of, `words` are those that the format knows.
pub fn change(bytes: &mut Vec<u8>, other: &[u8], words: &[&str], random: &mut Random) {
    // Half of all inputs have a single change, so that what stands behind the first checks is met.
    let times = if random.below(2) == 0 { 0 } else { random.below(8) };
    for _ in 0..=times {
        once(bytes, other, words, random);
    }
    bytes.truncate(LONGEST);
}

fn once(bytes: &mut Vec<u8>, other: &[u8], words: &[&str], random: &mut Random) {
    let at = random.below(bytes.len() + 1);
    let end = (at + 1 + random.below(32)).min(bytes.len());
    match random.below(14) {
        0 | 1 => {
            if let Some(byte) = bytes.get_mut(at) {
                *byte ^= 1 << random.below(8);
            }
        }
        2 => {
            if let Some(byte) = bytes.get_mut(at) {
                *byte = random.number() as u8;
            }
        }
        3 => bytes.insert(at, random.number() as u8),
        4 => drop(bytes.drain(at..end)),
        5 => bytes.truncate(at),
        6 | 7 => overwrite(bytes, at, random),
        8 => {
            let part = bytes[at..end].to_vec();
            let times = if random.below(16) == 0 { 1 << 10 } else { 4 };
            for _ in 0..=random.below(times) {
                if bytes.len() < LONGEST {
                    bytes.splice(at..at, part.iter().copied());
                }
            }
        }
        9 | 10 => {
            let from = random.below(other.len() + 1);
            let part = &other[from..(from + 1 + random.below(64)).min(other.len())];
            let over = if random.below(2) == 0 { at..at } else { at..end };
            bytes.splice(over, part.iter().copied());
        }
        11 => {
            if let Some(word) = random.one(words) {
                bytes.splice(at..at, word.bytes());
            }
        }
        12 => decimal(bytes, at, random),
        _ => {
            let (a, b) = (random.below(bytes.len() + 1), at);
            let (a, b) = (a.min(b), a.max(b));
            bytes[a..b].reverse();
        }
    }
}

/// Writes a number of 2, 4 or 8 bytes over what is there, or adds a little to it.
fn overwrite(bytes: &mut [u8], at: usize, random: &mut Random) {
    let width = [2, 4, 8][random.below(3)];
    let Some(place) = bytes.get_mut(at..).and_then(|rest| rest.get_mut(..width)) else { return };
    let mut there = [0; 8];
    there[..width].copy_from_slice(place);
    let step = random.below(9) as u64;
    let base = if random.below(3) == 0 { u64::from_le_bytes(there) } else { NUMBERS[random.below(NUMBERS.len())] };
    let number = base.wrapping_add(step).wrapping_sub(4);
    if random.below(4) == 0 {
        place.copy_from_slice(&number.to_be_bytes()[8 - width..]);
    } else {
        place.copy_from_slice(&number.to_le_bytes()[..width]);
    }
}

/// Replaces the next number of a text by another.
fn decimal(bytes: &mut Vec<u8>, at: usize, random: &mut Random) {
    let Some(begin) = (at..bytes.len()).find(|place| bytes[*place].is_ascii_digit()) else { return };
    let end = (begin..bytes.len()).find(|place| !bytes[*place].is_ascii_digit()).unwrap_or(bytes.len());
    bytes.splice(begin..end, WORDS[random.below(WORDS.len())].bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_follow_from_the_seed_and_are_bounded() {
        let of = |seed| {
            let (mut random, mut bytes) = (Random::new("a", seed), b"q: bf16 [1,2,64,128]".to_vec());
            (0..5_000).for_each(|_| change(&mut bytes, b"other", &["word"], &mut random));
            bytes
        };
        assert_eq!(of(1), of(1));
        assert_ne!(of(1), of(2));
        assert!(of(3).len() <= LONGEST);
        let mut empty = Vec::new();
        (0..5_000).for_each(|_| once(&mut empty, &[], &[], &mut Random::new("b", 0)));
    }

    /// Each kind of change is drawn: what it makes is found.
    #[test]
    fn numbers_words_and_other_inputs_get_into_inputs() {
        let mut random = Random::new("c", 1);
        let mut seen = [false; 4];
        for _ in 0..2_000 {
            let mut bytes = b"heads: 32, dim: 128".to_vec();
            change(&mut bytes, b"other input", &["causal"], &mut random);
            let text = String::from_utf8_lossy(&bytes);
            let found = [text.contains("causal"), text.contains("ther in"), text.contains("9223372036854775807")];
            for (seen, found) in seen.iter_mut().zip(found) {
                *seen |= found;
            }
            seen[3] |= bytes.windows(4).any(|part| part == [0xff; 4]);
        }
        assert_eq!(seen, [true; 4]);
    }
}
