//! The table of forwards: a plain one with one property changed at a time, then rows that cover every pair of values.
//!
//! In the first part a refusal has one cause, the changed property. The second part finds combinations that fail. Both
//! are the same in every run. Values that a version does not support are left out.

use qkvault_base::random::Rng;
use qkvault_cudnn::{FUSED_OPS, Form};
use qkvault_graph::{Band, Corner, CudnnVersion, DType, Order, Outputs};

use crate::case::{Case, Extra, Layout};

const GPUS: [&str; 3] = ["h200", "a100", "b200"];
const DTYPES: [DType; 2] = [DType::BF16, DType::F16];
const HEADS: [(i64, i64); 3] = [(8, 2), (8, 8), (8, 1)];
const HEAD_DIM: [(i64, i64); 5] = [(128, 128), (64, 64), (80, 80), (256, 256), (192, 128)];
/// Queries and keys: whole tiles, odd sizes, a decode, a prompt chunk, and less than one tile.
const SEQ: [(i64, i64); 5] = [(512, 512), (1000, 1000), (1, 1024), (256, 1024), (77, 77)];
const BANDS: [Option<Band>; 6] = [
    Some(Band::CAUSAL),
    None,
    Some(Band::CAUSAL_BOTTOM_RIGHT),
    Some(Band::window(Corner::TopLeft, 128)),
    Some(Band::window(Corner::BottomRight, 128)),
    Some(Band { corner: Corner::BottomRight, left: Some(128), right: Some(16) }),
];
const OUTPUTS: [Outputs; 4] = [
    Outputs::new(false, false, false),
    Outputs::new(true, false, false),
    Outputs::new(false, true, true),
    Outputs::new(true, true, true),
];
const EXTRAS: [Extra; 7] =
    [Extra::Plain, Extra::Sink, Extra::Softcap, Extra::Alibi, Extra::Dropout, Extra::Prefix, Extra::Documents];
const LAYOUTS: [Layout; 4] =
    [Layout::Each(Order::Bshd), Layout::Each(Order::Sbhd), Layout::Each(Order::Bhsd), Layout::Parts];
/// The default form, and one that users may select.
const FORMS: [Form; 2] = [Form::Auto, Form::Fused];

/// The number of values in each column, in the order of [`Case`]'s fields. The first value of each column is the plain
/// one.
const COLUMNS: [usize; 11] = [
    DTYPES.len(),
    HEADS.len(),
    HEAD_DIM.len(),
    SEQ.len(),
    BANDS.len(),
    2,
    OUTPUTS.len(),
    EXTRAS.len(),
    LAYOUTS.len(),
    FORMS.len(),
    GPUS.len(),
];
const OUTPUT: usize = 6;
const FORM: usize = 9;

type Row = [usize; COLUMNS.len()];

fn case(row: Row) -> Case {
    let [dtype, heads, head_dim, seq, band, lengths, outputs, extra, layout, form, gpu] = row;
    Case {
        dtype: DTYPES[dtype],
        heads: HEADS[heads],
        head_dim: HEAD_DIM[head_dim],
        seq: SEQ[seq],
        band: BANDS[band],
        lengths: lengths == 1,
        outputs: OUTPUTS[outputs],
        extra: EXTRAS[extra],
        layout: LAYOUTS[layout],
        form: FORMS[form],
        gpu: GPUS[gpu],
    }
}

/// The rows for a version.
#[must_use]
pub fn rows(version: CudnnVersion) -> Vec<Case> {
    let mut columns = COLUMNS;
    if version < FUSED_OPS {
        columns[FORM] = 1;
    }
    let mut rows: Vec<Row> = vec![Row::default()];
    for (column, &values) in columns.iter().enumerate() {
        for value in 1..values {
            let mut row = Row::default();
            row[column] = value;
            rows.push(row);
        }
    }
    if version < FUSED_OPS {
        // Lowering refuses all outputs together; one row above is enough to show it.
        columns[OUTPUT] -= 1;
    }
    for row in pairs(&columns) {
        if !rows.contains(&row) {
            rows.push(row);
        }
    }
    rows.into_iter().map(case).collect()
}

/// Rows that cover every pair of values of different columns. Of some random rows, each step takes the one that covers
/// the most new pairs.
fn pairs(columns: &Row) -> Vec<Row> {
    let mut open: Vec<[(usize, usize); 2]> = Vec::new();
    for a in 0..columns.len() {
        for b in a + 1..columns.len() {
            open.extend((0..columns[a] * columns[b]).map(|n| [(a, n / columns[b]), (b, n % columns[b])]));
        }
    }
    let meets = |row: &Row, pair: &[(usize, usize); 2]| pair.iter().all(|&(column, value)| row[column] == value);
    let mut random = Rng::new(1);
    let mut rows = Vec::new();
    while let Some(&first) = open.first() {
        let tries = (0..200).map(|_| {
            let mut row = columns.map(|values| (random.bits() % values as u64) as usize);
            first.iter().for_each(|&(column, value)| row[column] = value);
            row
        });
        let best = tries.max_by_key(|row| open.iter().filter(|pair| meets(row, pair)).count());
        let Some(row) = best else { break };
        open.retain(|pair| !meets(&row, pair));
        rows.push(row);
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;
    use qkvault_graph::validate;

    #[test]
    fn every_row_is_valid_and_unique_and_every_pair_of_values_is_covered() {
        for version in [CudnnVersion::v9(19, 0), CudnnVersion::v9(27, 0)] {
            let rows = rows(version);
            assert!((60..=100).contains(&rows.len()), "{} rows", rows.len());
            let mut names: Vec<String> = rows.iter().map(ToString::to_string).collect();
            for row in &rows {
                validate(row.attention()).unwrap_or_else(|e| panic!("{row}: {e}"));
            }
            names.sort();
            names.dedup();
            assert_eq!(names.len(), rows.len());
            for extra in EXTRAS {
                for band in BANDS {
                    assert!(rows.iter().any(|r| (r.extra, r.band) == (extra, band)), "{extra:?} {band:?}");
                }
            }
        }
    }
}
