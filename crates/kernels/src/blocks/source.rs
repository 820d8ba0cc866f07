//! CUDA C of what is known of a mask: whether a key is seen, and what bounds say of a tile.

use std::fmt::Write as _;

use qkvault_graph::expr::{Program, TensorSpec};
use qkvault_graph::{Band, Corner, DType, TILE, Valid};

use crate::bounds;
use crate::expression::{AS_IT_IS, element, offset, statements_with};

/// Neighbouring keys of a query that a thread looks at together, where a mask has an element for each score: 16 bytes
/// of 32-bit elements.
const TOGETHER: i64 = 4;

/// Whether a tensor has an element for each score, so that looking at scores costs what reading it does.
pub(super) fn is_dense(spec: &TensorSpec) -> bool {
    let [_, _, q, k] = spec.dims;
    q > 1 && k > 1
}

/// Whether a predicate reads such a tensor.
pub(crate) fn reads_dense(a: &Valid) -> bool {
    a.mask.mask_mod.as_ref().is_some_and(|e| e.program().tensors().iter().any(is_dense))
}

/// Neighbouring keys that a thread looks at together: several where each dense tensor has them at a multiple of their
/// size.
pub(super) fn keys_at_once(a: &Valid, tile_keys: i64) -> i64 {
    let ((_, s_kv), dense) = (a.seq(), dense(a));
    let together = |(_, spec): &(usize, &TensorSpec)| spec.dims[3] == s_kv;
    let aligned = [s_kv, tile_keys].iter().all(|n| n % TOGETHER == 0);
    if !dense.is_empty() && aligned && dense.iter().all(together) { TOGETHER } else { 1 }
}

/// The dense tensors of the predicate, with their numbers.
fn dense(a: &Valid) -> Vec<(usize, &TensorSpec)> {
    let tensors = a.mask.mask_mod.iter().flat_map(|e| e.program().tensors());
    (of_the_score(a).1..).zip(tensors).filter(|(_, spec)| is_dense(spec)).collect()
}

/// The scalars and tensors of the score modification, behind which those of the predicate are numbered.
fn of_the_score(a: &Valid) -> (usize, usize) {
    a.score_mod.as_ref().map_or((0, 0), |e| (e.scalars().len(), e.tensors().len()))
}

/// What is read of a run of keys at once, and the function that reads it.
pub(super) fn run_of_keys(a: &Valid, at_once: i64) -> String {
    let (mut fields, mut reads) = (String::new(), String::new());
    for (number, spec) in dense(a) {
        let ty = if spec.dtype == DType::I32 { "int" } else { "float" };
        let _ = writeln!(fields, "  {ty} tensor{number}[KEYS_AT_ONCE];");
        if at_once == 1 {
            let _ = writeln!(reads, "  run.tensor{number}[0] = {};", element(spec, number));
            continue;
        }
        let half = |word: &str, shift: u32| format!("(u16)(x.{word} >> {shift})");
        let halves = [half("x", 0), half("x", 16), half("y", 0), half("y", 16)];
        let words = ["x.x", "x.y", "x.z", "x.w"].map(str::to_owned);
        let (vector, list) = match spec.dtype {
            DType::F16 => ("uint2", halves.map(|x| format!("from_f16({x})"))),
            DType::BF16 => ("uint2", halves.map(|x| format!("from_bf16({x})"))),
            DType::I32 => ("uint4", words.map(|x| format!("(int){x}"))),
            _ => ("uint4", words.map(|x| format!("__uint_as_float({x})"))),
        };
        let _ = writeln!(
            reads,
            "  {{\n    const {vector} x = __ldg((const {vector}*)(p.tensor{number} + ({})));",
            offset(spec)
        );
        for (n, x) in list.iter().enumerate() {
            let _ = writeln!(reads, "    run.tensor{number}[{n}] = {x};");
        }
        reads.push_str("  }\n");
    }
    format!(
        "\n// A score's place: the sequence, the query head, the query, the key, and the lengths of the sequence.\n\
         struct Point {{ int batch, head, query, key, queries, keys; }};\n\
         // Elements of tensors that differ from score to score, of a run of keys.\n\
         struct Run {{\n{fields}}};\n\n\
         __device__ __forceinline__ void read_run(const Params& p, const Point& point, Run& run) {{\n{reads}}}\n"
    )
}

/// The function that says whether a key is seen, which is the `n`th of its run: by the band, the block mask and the
/// predicate.
pub(super) fn seen(a: &Valid) -> String {
    let program = a.mask.mask_mod.as_ref().map(|e| e.program());
    let (scalars, tensors) = of_the_score(a);
    let all = || (String::new(), "true".to_owned());
    let of_run = |spec: &TensorSpec, number: usize| {
        if is_dense(spec) { format!("run.tensor{number}[n]") } else { element(spec, number) }
    };
    let statements = |program: &Program| statements_with(program, scalars, tensors, "m", false, of_run, AS_IT_IS);
    let (body, root) = program.map_or_else(all, statements);
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
        "\n__device__ __forceinline__ bool seen(const Params& p, const Point& point, const Run& run, int n) {{\n\
         {band}{body}  return {root};\n}}\n\n"
    )
}

/// The function that says whether a tile may have a key that is hidden, and one that is seen, by the same.
pub(super) fn may_be_seen(a: &Valid) -> String {
    let program = a.mask.mask_mod.as_ref().map(|e| e.program());
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
