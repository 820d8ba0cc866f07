//! The division of work, compiled by the host's C++ compiler: a tile of rows reads the tiles of keys that its band lets
//! it see, wherever its origins are, and no tile before them.

use std::fmt::Write as _;

use qkvault_graph::{Attention, Band, Corner, DType, Origins, validate};

use crate::generate::written_for;

/// One thread stands for a block.
const ALONE: &str = "
#define __syncthreads()
static struct { int x; } threadIdx;
static int __shfl_up_sync(unsigned, int value, int) { return value; }
struct Point { int batch, head, query, key, queries, keys; };
";

/// Queries, keys, band and origins of an attention of one row a query.
struct BandCase {
    seq: (i64, i64),
    band: Band,
    origins: [i64; 2],
    bottom_right: bool,
}

fn cases() -> Vec<BandCase> {
    let mut state = 7_u64;
    let mut within = |least: i64, most: i64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        least + ((state >> 33) as i64) % (most - least + 1)
    };
    (0..40)
        .map(|n| {
            let seq = (within(1, 300), within(1, 700));
            let (left, right) = (within(20, 420), within(-100, 300));
            let band = match n % 3 {
                0 => Band { corner: Corner::TopLeft, left: Some(left), right: Some(right.max(1 - left)) },
                1 => Band { corner: Corner::TopLeft, left: None, right: Some(right) },
                _ => Band { corner: Corner::TopLeft, left: Some(left), right: None },
            };
            let origins = [within(0, 1500), within(0, 1000)];
            BandCase { seq, band, origins, bottom_right: n % 4 == 3 }
        })
        .collect()
}

/// Prints, for each tile of rows, its first tile, the number of tiles, and what each of its rows sees.
fn program(at: usize, case: &BandCase) -> (String, i64) {
    let BandCase { seq, band, origins: [query, key], bottom_right } = case;
    let corner = if *bottom_right { Corner::BottomRight } else { Corner::TopLeft };
    let mut a = Attention::bshd(1, (1, 1), *seq, 64, DType::F16).with_band(Band { corner, ..*band });
    // With origins, lengths and corners change nothing.
    if at.is_multiple_of(2) {
        a = a.with_lengths();
    }
    let a = validate(a.with_origins(Origins::Any)).expect("valid");
    assert!(a.origins.is_some());
    let (source, tile) = written_for(&a);
    let undefined: String = source
        .lines()
        .filter_map(|line| line.strip_prefix("#define ")?.split_whitespace().next())
        .fold(String::new(), |all, name| all + "#undef " + name + "\n");
    let text = format!(
        "namespace program{at} {{\n{source}\n{}\nstatic void tell(int queries, int keys) {{\n\
         Params p; p.query_origin = {query}; p.key_origin = {key};\n\
         for (int rows = 0; rows < queries; rows += ROWS) {{\n\
         Item item; item.rows_from = rows; item.queries = queries; item.keys = keys; set_tiles(p, item, ALONE);\n\
         printf(\"%d %d %d %d\\n\", {at}, rows, item.first, item.tiles);\n\
         for (int row = rows; row < rows + ROWS && row < queries; row++) {{\n\
         int from, to; seen(p, row, queries, keys, from, to); printf(\"%d %d %d %d\\n\", -1, row, from, to); }} }} }}\n}}\n{undefined}",
        include_str!("../cuda/work.cu"),
    );
    (text, tile)
}

#[test]
fn tiles_begin_at_the_window_and_hold_every_key_that_is_seen() {
    let cases = cases();
    let mut text = ALONE.to_owned();
    let mut tiles = Vec::new();
    for (at, case) in cases.iter().enumerate() {
        let (program, tile) = program(at, case);
        text.push_str(&program);
        tiles.push(tile);
    }
    text.push_str("int main() {\n");
    for (at, BandCase { seq: (queries, keys), .. }) in cases.iter().enumerate() {
        let _ = writeln!(text, "  program{at}::tell({queries}, {keys});");
    }
    text.push_str("}\n");
    let printed = qkvault_emulate::printed(&text).unwrap_or_else(|error| panic!("{error}"));
    let (mut case, mut range, mut seen, mut late) = (&cases[0], 0..0, 0, 0);
    for line in printed.lines() {
        let numbers: Vec<i64> = line.split(' ').map(|n| n.parse().expect("a number")).collect();
        let [kind, row, first, second] = numbers[..] else { panic!("{line}") };
        if let Ok(at) = usize::try_from(kind) {
            case = &cases[at];
            range = first * tiles[at]..(first + second) * tiles[at];
            late += usize::from(first > 0);
            // The row that reaches back furthest is the first one: its window begins in the first tile.
            let BandCase { band, origins: [query, key], .. } = case;
            let ahead = query - key;
            let begin = band.left.map_or(0, |left| (row + ahead - left + 1).max(0));
            assert_eq!(first, begin / tiles[at], "the first tile of rows {row} on");
            continue;
        }
        let BandCase { seq, band, origins: [query, key], .. } = case;
        let (queries, keys) = *seq;
        for col in 0..keys {
            let kept = band.keeps(row + query, col + key, queries, keys);
            assert_eq!((first..second).contains(&col), kept, "row {row}, key {col}");
            assert!(!kept || range.contains(&col), "key {col} of row {row} is in no tile of {range:?}");
            seen += usize::from(kept);
        }
    }
    assert!(seen > 10_000 && late > 20, "{seen} keys seen, {late} tiles of rows that begin late");
}
