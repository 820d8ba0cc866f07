//! Lists of the tiles of scores that a mask leaves whole or cuts, for attention kernels that skip the others: CUDA
//! source of a kernel that makes them at each launch, because a mask may read numbers and tensors of the launch. Scores
//! are looked at where bounds over their tile leave it open whether all are seen or none is.

use std::fmt::Write as _;

use qkvault_graph::SCRATCH_ALIGNMENT;
use qkvault_graph::expr::{Axis, Node, Program};
use qkvault_graph::{Band, Corner, DType, Lengths, Role, TILE, Valid};

use crate::bounds::{self, BOUNDS};
use crate::expression::{FUNCTIONS, element_type, statements};
use crate::generate::MACHINE;
use crate::params::Params;
use crate::recipe::{Launch, LaunchValue};

pub(crate) const BLOCKS: &str = include_str!("cuda/blocks.cu");
pub(crate) const EXTREMES: &str = include_str!("cuda/extremes.cu");

/// Threads of a block of the kernel.
const THREADS: u32 = 256;

/// Tiles of scores: so many queries by so many keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScoreTiles {
    /// Queries of a tile.
    pub queries: i64,
    /// Keys of a tile.
    pub keys: i64,
    /// Whether there is a list for each tile of keys, of tiles of queries; otherwise the reverse.
    pub by_keys: bool,
}

/// The kernel that makes the lists of an attention's mask, and where it puts them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockLists {
    /// CUDA C++ without includes.
    pub source: String,
    /// Options of NVRTC, without the architecture.
    pub options: Vec<String>,
    /// The launch, of module 0.
    pub launch: Launch,
    /// Sequences that have lists of their own: 1 if all have the same.
    pub batch: i64,
    /// Heads that have lists of their own: 1 if all have the same.
    pub heads: i64,
    /// Lists of a head: tiles of rows.
    pub rows: i64,
    /// The most tiles of a list: tiles of columns.
    pub columns: i64,
    /// Offsets in the scratch memory: for tiles that the mask cuts, how many each list has (i32 by sequence, head and
    /// row) and their numbers in order (i32 by sequence, head, row and column), then both for tiles that are whole.
    pub at: [u64; 4],
    /// The end of the last of them.
    pub end: u64,
}

impl BlockLists {
    /// The lists of an attention with a predicate or a block mask, dense tensors and one length for all sequences;
    /// `scratch` is where they begin in the scratch memory. `None` for any other attention.
    #[must_use]
    pub fn for_attention(a: &Valid, tiles: ScoreTiles, scratch: u64) -> Option<BlockLists> {
        let program = a.mask.mask_mod.as_ref().map(|e| e.program());
        let masked = program.is_some() || a.block_mask;
        if !masked || a.mask.lengths != Lengths::Full || a.origins.is_some() {
            return None;
        }
        let ((s_q, s_kv), [b, h, ..]) = (a.seq(), a.q.dims);
        let differs = |axis| a.block_mask || program.is_some_and(|program| reads(program, axis));
        let of = |axis, all| if differs(axis) { all } else { 1 };
        let (batch, heads) = (of(Axis::Batch, b), of(Axis::Head, h));
        let counts = |rows: i64, tile: i64| (rows - 1) / tile + 1;
        let (queries, keys) = (counts(s_q, tiles.queries), counts(s_kv, tiles.keys));
        let (rows, columns) = if tiles.by_keys { (keys, queries) } else { (queries, keys) };
        let lines = (batch * heads * rows).unsigned_abs() * 4;
        let mut end = scratch;
        let at = [lines, lines * columns.unsigned_abs(), lines, lines * columns.unsigned_abs()].map(|bytes| {
            let at = end.next_multiple_of(SCRATCH_ALIGNMENT);
            end = at + bytes;
            at
        });
        let params = params(a, at);
        let mut source = format!("#define HALF_TYPE \"bf16\"\n{MACHINE}{}{FUNCTIONS}{BOUNDS}", params.text());
        for (name, value) in [
            ("QUERIES", s_q),
            ("KEYS", s_kv),
            ("TILE_Q", tiles.queries),
            ("TILE_K", tiles.keys),
            ("BY_KEYS", tiles.by_keys.into()),
            ("HEADS", heads),
            ("ROWS", rows),
            ("COLUMNS", columns),
        ] {
            let _ = writeln!(source, "#define {name} {value}");
        }
        source.push_str(&seen(a, program));
        source.push_str(EXTREMES);
        source.push_str(&may_be_seen(a, program));
        source.push_str(BLOCKS);
        let count = |n: i64| u32::try_from(n).unwrap_or(u32::MAX);
        let launch = Launch {
            module: 0,
            function: "blocks".to_owned(),
            grid: [count(rows), count(heads), count(batch)],
            block: [THREADS, 1, 1],
            shared: 0,
            cluster: None,
            overlap: false,
            params: vec![params.param()],
        };
        let options = vec!["--std=c++17".to_owned()];
        Some(BlockLists { source, options, launch, batch, heads, rows, columns, at, end })
    }
}

/// Whether a predicate differs along an axis.
fn reads(program: &Program, axis: Axis) -> bool {
    program.contains(Node::Index(axis)) || program.tensors().iter().any(|spec| spec.dims[axis.dim()] > 1)
}

fn params(a: &Valid, at: [u64; 4]) -> Params {
    let mut p = Params::default();
    for (name, at) in ["cut_counts", "cut", "whole_counts", "whole"].into_iter().zip(at) {
        p.pointer("int", name, LaunchValue::Scratch(at));
    }
    if a.block_mask {
        p.pointer("const unsigned char", "block_mask", LaunchValue::Address(Role::BlockMask));
    }
    for (n, tensor) in a.score_tensors().enumerate() {
        p.pointer(element_type(tensor.dtype), &format!("tensor{n}"), LaunchValue::Address(tensor.role));
    }
    for (n, scalar) in a.scalars().enumerate() {
        let ty = if scalar.dtype == DType::I32 { "int" } else { "float" };
        p.number(ty, &format!("scalar{n}"), LaunchValue::Number(scalar.role));
    }
    p
}

/// The function that says whether a key is seen: by the band, the block mask and the predicate.
fn seen(a: &Valid, program: Option<&Program>) -> String {
    let (scalars, tensors) = of_the_score(a);
    let all = || (String::new(), "true".to_owned());
    let (body, root) = program.map_or_else(all, |program| statements(program, scalars, tensors, "m", false));
    let mut band = String::new();
    if a.block_mask {
        let row = format!("point.query / {TILE}");
        let (line, bit) = block(a, "point.batch", "point.head", [&row, "column"]);
        let _ = writeln!(
            band,
            "  const i64 line = {line};\n  const int column = point.key / {TILE};\n  if (!({bit})) return false;"
        );
    }
    if let Some(Band { corner, left, right }) = a.mask.band {
        let ahead = if corner == Corner::BottomRight { "KEYS - QUERIES" } else { "0" };
        let _ = writeln!(band, "  const int ahead = point.key - point.query - ({ahead});");
        if let Some(right) = right {
            let _ = writeln!(band, "  if (ahead > {right}) return false;");
        }
        if let Some(left) = left {
            let _ = writeln!(band, "  if (ahead <= -{left}) return false;");
        }
    }
    format!(
        "\n// A score's place: the sequence, the query head, the query, the key, and the lengths of the sequence.\n\
         struct Point {{ int batch, head, query, key, queries, keys; }};\n\n\
         __device__ __forceinline__ bool seen(const Params& p, const Point& point) {{\n{band}{body}  return {root};\n}}\n\n"
    )
}

/// The scalars and tensors of the score modification, behind which those of the predicate are numbered.
fn of_the_score(a: &Valid) -> (usize, usize) {
    a.score_mod.as_ref().map_or((0, 0), |e| (e.scalars().len(), e.tensors().len()))
}

/// The function that says whether a tile may have a key that is hidden, and one that is seen, by the same.
fn may_be_seen(a: &Valid, program: Option<&Program>) -> String {
    let (scalars, tensors) = of_the_score(a);
    let all = || (String::new(), "surely(true)".to_owned());
    let (body, root) = program.map_or_else(all, |program| bounds::statements(program, scalars, tensors, "m"));
    let mut text = String::from("  Truth may = surely(true);\n");
    if let Some(Band { corner, left, right }) = a.mask.band {
        let ahead = if corner == Corner::BottomRight { "KEYS - QUERIES" } else { "0" };
        let _ = writeln!(text, "  const Bounds ahead = bound_sub(bound_sub(tile.key, tile.query), exactly({ahead}));");
        // No key is so far from a query.
        let most = |n: i64| n.min(i64::from(i32::MAX));
        if let Some(right) = right.map(most) {
            let _ = writeln!(text, "  may = truth_and(may, truth_not(truth_lt(exactly({right}), ahead)));");
        }
        if let Some(left) = left.map(most) {
            let _ = writeln!(text, "  may = truth_and(may, truth_lt(exactly(-{left}), ahead));");
        }
        text.push_str("  if (!may.yes) return may;\n");
    }
    if a.block_mask {
        let (line, bit) = block(a, "tile.batch", "tile.head", ["row", "column"]);
        let _ = writeln!(
            text,
            "  Truth blocks{{false, false}};\n  \
             for (int row = tile.query.least / {TILE}; row <= tile.query.greatest / {TILE}; row++)\n    \
             for (int column = tile.key.least / {TILE}; column <= tile.key.greatest / {TILE}; column++) {{\n      \
             const i64 line = {line};\n      const bool is = {bit};\n      \
             blocks.no |= !is;\n      blocks.yes |= is;\n    }}\n  \
             may = truth_and(may, blocks);\n  if (!may.yes) return may;"
        );
    }
    format!(
        "\n__device__ __forceinline__ Truth may_be_seen(const Params& p, const Tile& tile, int lane) {{\n\
         {text}{body}  return truth_and(may, {root});\n}}\n\n"
    )
}

/// The line of the block mask of a row of its blocks, and its bit in a column.
fn block(a: &Valid, batch: &str, head: &str, [row, column]: [&str; 2]) -> (String, String) {
    let ([_, heads, s_q, _], (_, s_kv)) = (a.q.dims, a.seq());
    let tiles = |n: i64| (n - 1) / TILE as i64 + 1;
    let (rows, bytes) = (tiles(s_q), (tiles(s_kv) - 1) / 8 + 1);
    (
        format!("((i64){batch} * {heads} + {head}) * {rows} + {row}"),
        format!("p.block_mask[line * {bytes} + {column} / 8] >> {column} % 8 & 1"),
    )
}
