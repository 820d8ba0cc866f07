//! Bands that cannot be one of a part, as predicates over positions of the whole.

use qkvault_graph::expr::{Expr, ScoreExpr, Side, int_scalar, key, query};
use qkvault_graph::{Attention, Band, Corner, Refusal};

use crate::Slice;
use crate::part::{AttentionPart, by_sequence, length, names, not_written};

/// The band of a part as a predicate, if the part has none of its own: over dealt keys, whose neighbours are not
/// neighbours in the whole; and in a pair of different tokens of packed documents, whose diagonal lies elsewhere in
/// each document.
pub(crate) fn predicate(whole: &Attention, part: &AttentionPart) -> Result<Option<ScoreExpr>, Refusal> {
    let Some(band) = whole.mask.band else { return Ok(None) };
    match part.slice {
        Some(Slice::Dealt { ranks, run, .. }) => dealt(whole, band, ranks, run),
        Some(Slice::Pair { queries, keys, .. }) if queries.0 != keys.0 => {
            let Some(Band { left, right, .. }) = part.tile.band else { return Ok(None) };
            // Documents are square, so both corners are the same; a bound that the tile has not hides nothing there.
            let band = Band {
                left: band.left.filter(|_| left.is_some()),
                right: band.right.filter(|_| right.is_some()),
                ..band
            };
            let first = |name: &str| by_sequence(whole, name);
            within(band, query() + first(names::FIRST_QUERIES), key() + first(names::FIRST_KEYS))
        }
        _ => Ok(None),
    }
}

fn dealt(whole: &Attention, band: Band, ranks: u32, run: u32) -> Result<Option<ScoreExpr>, Refusal> {
    let bottom_right = band.corner == Corner::BottomRight;
    let diagonal = match bottom_right {
        true => query() + (length(whole, Side::Key) - length(whole, Side::Query)),
        false => query(),
    };
    // A single query at the end sees every key that there is, and those beyond the length are hidden anyway.
    let all_seen = bottom_right && whole.seq().0 == 1;
    let band = Band { right: band.right.filter(|_| !all_seen), ..band };
    within(band, diagonal, dealt_key(ranks, run))
}

/// Whether a key is within the bounds around the diagonal; `None` without bounds.
fn within(band: Band, diagonal: Expr, key: Expr) -> Result<Option<ScoreExpr>, Refusal> {
    let right = band.right.map(|right| key.le(&diagonal + Expr::from(right as i32)));
    let left = band.left.map(|left| key.gt(&diagonal - Expr::from(left as i32)));
    let Some(seen) = right.into_iter().chain(left).reduce(|a, b| a & b) else { return Ok(None) };
    seen.build_mask_mod().map(Some).map_err(|e| not_written("mask.band", &e.to_string()))
}

/// The position of a key of one rank in the whole cache.
pub(crate) fn dealt_key(ranks: u32, run: u32) -> Expr {
    let (ranks, run) = (ranks as i32, run as i32);
    if run == 1 {
        return key() * ranks + int_scalar(names::RANK);
    }
    (key().floor_div(run) * ranks + int_scalar(names::RANK)) * run + key() % run
}

/// Both predicates at once.
pub(crate) fn both(a: &ScoreExpr, b: &ScoreExpr) -> Result<ScoreExpr, Refusal> {
    a.and(b).map_err(|e| not_written("mask.mask_mod", &e.to_string()))
}
