//! The part of the scores that a block of queries and a block of keys have in common with a band, and the band in the
//! coordinates of that part.

use qkvault_graph::{Attention, Band, Corner, Lengths};

/// A block of scores: queries and keys, each as first and one past the last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Block {
    pub(crate) rows: (i64, i64),
    pub(crate) keys: (i64, i64),
}

/// The smallest block that has every score that the band shows, and the band counted from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tile {
    pub(crate) block: Block,
    pub(crate) band: Option<Band>,
}

/// The tile of a block; `None` if the band hides all of it.
///
/// A band of fixed lengths, or one from the top left, moves by numbers that are known here. Trimmed to what is seen,
/// both bounds stay those of a band: the first query sees the first key, or a later one.
pub(crate) fn tile(a: &Attention, Block { rows, keys }: Block) -> Option<Tile> {
    let whole = |band| Some(Tile { block: Block { rows, keys }, band });
    let Some(Band { corner, left, right }) = a.mask.band else { return whole(None) };
    let (s_q, s_kv) = a.seq();
    let delta = match (corner, a.mask.lengths) {
        (Corner::TopLeft, _) => 0,
        (Corner::BottomRight, Lengths::Full) => s_kv - s_q,
        // The diagonal follows from lengths that a launch gets; so does the end of the keys.
        (Corner::BottomRight, Lengths::PerSequence) => return whole(a.mask.band),
    };
    // Query i sees keys from i + low to i + high.
    let (low, high) = (left.map(|left| delta - left + 1), right.map(|right| delta + right));
    let first_key = low.map_or(keys.0, |low| keys.0.max(rows.0 + low));
    let end_key = high.map_or(keys.1, |high| keys.1.min(rows.1 + high));
    let first_row = high.map_or(rows.0, |high| rows.0.max(first_key - high));
    let end_row = low.map_or(rows.1, |low| rows.1.min(end_key - low));
    if first_key >= end_key || first_row >= end_row {
        return None;
    }
    // Rows that are left out may have been the only ones that see some of the keys.
    let first_key = low.map_or(first_key, |low| first_key.max(first_row + low));
    let end_key = high.map_or(end_key, |high| end_key.min(end_row + high));
    let block = Block { rows: (first_row, end_row), keys: (first_key, end_key) };
    let moved = first_row - first_key;
    let band =
        Band { corner: Corner::TopLeft, left: low.map(|low| 1 - low - moved), right: high.map(|high| high + moved) };
    Some(Tile { block, band: Some(from_the_last(a, block, band)) })
}

/// The band from the bottom right, if it then is the usual one, in which the last query sees the last key.
fn from_the_last(a: &Attention, block: Block, band: Band) -> Band {
    let delta = (block.keys.1 - block.keys.0) - (block.rows.1 - block.rows.0);
    match band.right {
        Some(right) if right == delta && a.mask.lengths == Lengths::Full => {
            Band { corner: Corner::BottomRight, left: band.left.map(|left| left + delta), right: Some(0) }
        }
        _ => band,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use qkvault_graph::DType;

    proptest! {
        #[test]
        fn a_tile_shows_what_the_band_shows_of_its_block(
            (s_q, s_kv) in (1..20_i64, 1..20_i64),
            left in prop::option::of(1..25_i64),
            right in prop::option::of(0..25_i64),
            bottom_right in any::<bool>(),
            cuts in (0..20_i64, 1..20_i64, 0..20_i64, 1..20_i64),
        ) {
            let corner = if bottom_right { Corner::BottomRight } else { Corner::TopLeft };
            let band = Band { corner, left, right };
            let mut a = Attention::bshd(1, (1, 1), (s_q, s_kv), 8, DType::BF16);
            a.mask.band = (left.is_some() || right.is_some()).then_some(band);
            let rows = (cuts.0.min(s_q - 1), (cuts.0.min(s_q - 1) + cuts.1).min(s_q));
            let keys = (cuts.2.min(s_kv - 1), (cuts.2.min(s_kv - 1) + cuts.3).min(s_kv));
            let seen = |i: i64, j: i64| a.mask.band.is_none_or(|b| b.keeps(i, j, s_q, s_kv));
            let found = tile(&a, Block { rows, keys });
            for (i, j) in (rows.0..rows.1).flat_map(|i| (keys.0..keys.1).map(move |j| (i, j))) {
                let inside = found.is_some_and(|Tile { block: Block { rows: r, keys: k }, band }| {
                    let within = (r.0..r.1).contains(&i) && (k.0..k.1).contains(&j);
                    let kept = |b: Band| b.keeps(i - r.0, j - k.0, r.1 - r.0, k.1 - k.0);
                    within && band.is_none_or(kept)
                });
                prop_assert_eq!(inside, seen(i, j), "({}, {}) of {:?} in {:?}", i, j, band, found);
            }
            if let Some(Tile { block, band: Some(band) }) = found {
                prop_assert!(band.left.is_none_or(|l| l >= 1) && band.right.is_none_or(|r| r >= 0), "{:?}", band);
                prop_assert!(block.rows.0 < block.rows.1 && block.keys.0 < block.keys.1);
            }
        }
    }
}
