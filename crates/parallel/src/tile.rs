//! The part of the scores that a block of queries and a block of keys have in common with a band, and the band in the
//! coordinates of that part.

use qkvault_graph::{Attention, Band, Corner, Lengths};

/// A block of scores: queries and keys, each as first and one past the last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TileBlock {
    pub(crate) rows: (i64, i64),
    pub(crate) keys: (i64, i64),
}

/// The smallest block that has every score that the band shows, and the band counted from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tile {
    pub(crate) block: TileBlock,
    pub(crate) band: Option<Band>,
}

/// The tile of a block; `None` if the band hides all of it.
///
/// A band of fixed lengths, or one from the top left, moves by numbers that are known here. Trimmed to what is seen,
/// both bounds stay those of a band: the first query sees the first key, or a later one.
pub(crate) fn tile(a: &Attention, TileBlock { rows, keys }: TileBlock) -> Option<Tile> {
    let whole = |band| Some(Tile { block: TileBlock { rows, keys }, band });
    let Some(Band { corner, left, right }) = a.mask.band else { return whole(None) };
    let (s_q, s_kv) = a.seq();
    let delta = match (corner, a.mask.lengths) {
        (Corner::TopLeft, _) => 0,
        (Corner::BottomRight, Lengths::Full) => s_kv - s_q,
        // The diagonal follows from lengths that a launch gets; so does the end of the keys.
        (Corner::BottomRight, Lengths::PerSequence) => return whole(a.mask.band),
    };
    let block = trim(left.map(|left| delta - left + 1), right.map(|right| delta + right), TileBlock { rows, keys })?;
    let band = moved(Band { corner: Corner::TopLeft, left, right }, delta, block);
    Some(Tile { block, band: Some(from_the_last(a, block, band)) })
}

/// The tile of a block of tokens of packed documents; `None` if no query sees a key.
///
/// Under a band documents have as many queries as keys, so distances in a document are those of tokens, and at most the
/// longest document's. The band is counted in tokens from the block's first ones, without bounds that hide nothing.
pub(crate) fn packed_tile(a: &Attention, block: TileBlock) -> Option<Tile> {
    let Some(Band { corner: _, left, right }) = a.mask.band else { return Some(Tile { block, band: None }) };
    let longest = a.seq().0.min(a.seq().1);
    let (back, ahead) = (left.map_or(longest, |n| n.min(longest)), right.map_or(longest - 1, |n| n.min(longest - 1)));
    let TileBlock { rows, keys } = trim(Some(1 - back), Some(ahead), block)?;
    // A description has room for a token of each document.
    let block = TileBlock { rows: widen(rows, block.rows, a.batch()), keys: widen(keys, block.keys, a.batch()) };
    let Band { left, right, .. } = moved(Band { corner: Corner::TopLeft, left, right }, 0, block);
    let (rows, keys) = (block.rows.1 - block.rows.0, block.keys.1 - block.keys.0);
    let (left, right) = (left.filter(|left| *left < rows), right.filter(|right| *right < keys - 1));
    let band = (left.is_some() || right.is_some()).then_some(Band { corner: Corner::TopLeft, left, right });
    Some(Tile { block, band })
}

/// The smallest block that has every score in which query i sees keys from i + low to i + high.
fn trim(low: Option<i64>, high: Option<i64>, TileBlock { rows, keys }: TileBlock) -> Option<TileBlock> {
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
    Some(TileBlock { rows: (first_row, end_row), keys: (first_key, end_key) })
}

/// A run with at least so many tokens, where the run around it has them.
fn widen((first, end): (i64, i64), around: (i64, i64), least: i64) -> (i64, i64) {
    let first = first.min(end - least).max(around.0);
    (first, end.max(first + least).min(around.1))
}

/// A band whose diagonal begins at key `delta`, counted from the first query and key of a block.
fn moved(Band { corner, left, right }: Band, delta: i64, TileBlock { rows, keys }: TileBlock) -> Band {
    let moved = rows.0 - keys.0 + delta;
    Band { corner, left: left.map(|left| left - moved), right: right.map(|right| right + moved) }
}

/// The band from the bottom right, if it then is the usual one, in which the last query sees the last key.
fn from_the_last(a: &Attention, block: TileBlock, band: Band) -> Band {
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
    use qkvault_graph::{DType, Tensor};

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
            let found = tile(&a, TileBlock { rows, keys });
            for (i, j) in (rows.0..rows.1).flat_map(|i| (keys.0..keys.1).map(move |j| (i, j))) {
                let inside = found.is_some_and(|Tile { block: TileBlock { rows: r, keys: k }, band }| {
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

        #[test]
        fn a_tile_of_packed_documents_has_every_pair_that_a_document_may_show(
            (tokens, longest) in (1..24_i64, 1..24_i64),
            left in prop::option::of(1..25_i64),
            right in prop::option::of(0..25_i64),
            cuts in (0..24_i64, 1..24_i64, 0..24_i64, 1..24_i64),
        ) {
            let of = |heads| Tensor::thd(3, heads, longest, 8, tokens, DType::BF16);
            let mut a = Attention::forward(of(1), of(1), of(1), of(1)).with_lengths();
            a.mask.band = Some(Band { corner: Corner::BottomRight, left, right });
            let cut = |first: i64, count: i64| (first.min(tokens - 1), (first.min(tokens - 1) + count).min(tokens));
            let (rows, keys) = (cut(cuts.0, cuts.1), cut(cuts.2, cuts.3));
            let found = packed_tile(&a, TileBlock { rows, keys });
            for (i, j) in (rows.0..rows.1).flat_map(|i| (keys.0..keys.1).map(move |j| (i, j))) {
                let near = (i - j).abs() < longest;
                let seen = near && left.is_none_or(|left| j > i - left) && right.is_none_or(|right| j <= i + right);
                let inside = found.is_some_and(|Tile { block: TileBlock { rows: r, keys: k }, band }| {
                    let within = (r.0..r.1).contains(&i) && (k.0..k.1).contains(&j);
                    within && band.is_none_or(|b| b.keeps(i - r.0, j - k.0, r.1 - r.0, k.1 - k.0))
                });
                prop_assert!(inside || !seen, "({}, {}) in {:?}", i, j, found);
                prop_assert!(!inside || seen || !near, "({}, {}) in {:?}", i, j, found);
            }
        }
    }
}
