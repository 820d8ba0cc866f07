//! Philox 4x32-10, and the dropout mask that it draws by the places of scores.
//!
//! The generator is that of Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (SC 2011): ten rounds over a
//! counter of four words under a key of two.

/// Four random words of a counter under a key.
#[must_use]
pub fn philox(mut counter: [u32; 4], mut key: [u32; 2]) -> [u32; 4] {
    let product = |a: u32, b: u32| {
        let both = u64::from(a) * u64::from(b);
        ((both >> 32) as u32, both as u32)
    };
    for _ in 0..10 {
        let [c0, c1, c2, c3] = counter;
        let ((high0, low0), (high1, low1)) = (product(0xd251_1f53, c0), product(0xcd9e_8d57, c2));
        counter = [high1 ^ c1 ^ key[0], low1, high0 ^ c3 ^ key[1], low0];
        key = [key[0].wrapping_add(0x9e37_79b9), key[1].wrapping_add(0xbb67_ae85)];
    }
    counter
}

/// What dropout by places ([`DropoutSource::Places`](qkvault_graph::DropoutSource::Places)) draws from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Places {
    /// The seed.
    pub seed: i64,
    /// The offset: its low half is a word of the counter, its high half joins the seed's.
    pub offset: i64,
    /// Query heads of the whole attention.
    pub heads: u32,
    /// What has a random number below this one is dropped.
    pub below: u32,
}

impl Places {
    /// Whether the probability at (batch, head, query, key) of the whole attention is kept. Four neighbouring keys have
    /// the words of one counter.
    #[must_use]
    pub fn keeps(&self, [batch, head, query, key]: [u32; 4]) -> bool {
        let halves = |n: i64| [n as u32, (n >> 32) as u32];
        let (seed, offset) = (halves(self.seed), halves(self.offset));
        let row = batch.wrapping_mul(self.heads).wrapping_add(head);
        let words = philox([key / 4, query, row, offset[0]], [seed[0], seed[1] ^ offset[1]]);
        words[key as usize % 4] >= self.below
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The known answers of Random123 (`kat_vectors`, philox4x32 with 10 rounds).
    #[test]
    fn known_answers() {
        let all = u32::MAX;
        for (counter, key, answer) in [
            ([0; 4], [0; 2], [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]),
            ([all; 4], [all; 2], [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]),
            (
                [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344],
                [0xa409_3822, 0x299f_31d0],
                [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1],
            ),
        ] {
            assert_eq!(philox(counter, key), answer, "{counter:x?} {key:x?}");
        }
    }

    #[test]
    fn as_many_are_dropped_as_the_probability_says_and_each_number_of_a_place_counts() {
        let of = |seed, offset| Places { seed, offset, heads: 3, below: 1 << 30 };
        let mask = |p: Places| -> Vec<bool> {
            let places = (0..2).flat_map(|b| (0..3).flat_map(move |h| (0..32).map(move |q| [b, h, q])));
            places.flat_map(|[b, h, q]| (0..64).map(move |k| p.keeps([b, h, q, k]))).collect()
        };
        let whole = mask(of(5, 7));
        let kept = whole.iter().filter(|kept| **kept).count() as f64 / whole.len() as f64;
        assert!((kept - 0.75).abs() < 0.02, "{kept}");
        for other in [of(6, 7), of(5, 8), of(5 + (1 << 32), 7), of(5, 7 + (1 << 32))] {
            let same = mask(other).iter().zip(&whole).filter(|(a, b)| a == b).count() as f64 / whole.len() as f64;
            assert!((same - 0.625).abs() < 0.02, "{other:?}: {same}");
        }
        let rows: std::collections::BTreeSet<&[bool]> = whole.chunks(64).collect();
        assert_eq!(rows.len(), 2 * 3 * 32);
    }
}
