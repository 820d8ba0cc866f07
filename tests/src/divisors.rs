//! Compiles integer remainders and whole quotients. For a divisor that is known only at launch, lowering adds
//! operations that give 0 for a divisor of 0.

use qkvault_cudnn::op::{Op, Pointwise};
use qkvault_cudnn::{CompileOptions, lower};
use qkvault_graph::{Attention, BackwardOptions, DType, ScoreExpr, validate};
use rayon::prelude::*;

use crate::cudnn::{compiler, target};
use crate::golden::{VERSIONS, turn};

/// Expressions that divide, and whether they are predicates. A `$n` or `@n` may be 0.
const EXPRESSIONS: [(&str, bool); 10] = [
    ("query // 128 == key // 128", true),
    ("query // 100 >= key // 100 & key <= query", true),
    ("score + float((query - key) // 7) * 0.25", false),
    ("score * float(key // -16 + head // 3)", false),
    ("tensor @ids: i32[1, 1, 1, 512]; min(max(@ids, 0), 65535) // 64 <= query // 64", true),
    ("scalar $n: int; score + float(key % $n)", false),
    ("scalar $n: int; score * float(floor_rem(query, $n) + 1)", false),
    ("tensor @n: i32[1, 8, 1, 1]; score - float((query - key) % @n)", false),
    ("scalar $n: int; (query - key) % $n == 0", true),
    ("tensor @n: i32[2, 1, 1, 1]; floor_rem(key, @n) < 3", true),
];

/// Compiles the expressions of its turn in both directions with the fetched slim cuDNN of this version, for an H200 and
/// a B200.
///
/// # Panics
///
/// Panics if one does not compile, or has no guard.
pub fn check(version: &str) {
    let Some(compiler) = compiler(version) else { return };
    let mut rows = Vec::new();
    for (text, predicate) in EXPRESSIONS {
        let e: ScoreExpr = text.parse().unwrap_or_else(|e| panic!("{text}: {e}"));
        let plain = Attention::bshd(2, (8, 2), (512, 512), 64, DType::BF16).with_stats();
        let a = if predicate { plain.with_mask_mod(e) } else { plain.with_score_mod(e) };
        let back = a.backward(BackwardOptions::default());
        rows.extend([a, back].map(|a| ["h200", "b200"].map(|gpu| (text, gpu, a.clone()))).into_iter().flatten());
    }
    let faults: Vec<String> = turn(rows, version, &VERSIONS)
        .par_iter()
        .filter_map(|(text, gpu, a)| {
            let (target, policy) = (target(&compiler, gpu), CompileOptions::cudnn());
            let a = validate(a.clone()).unwrap_or_else(|e| panic!("{text}: {e}"));
            let graph = lower(&a, &target, &policy).unwrap_or_else(|e| panic!("{text}: {e}"));
            let is_guard = |op: &Op| matches!(op, Op::Pointwise { mode: Pointwise::CmpEq, .. });
            let may_be_zero = text.contains("$n") || text.contains("@n");
            if may_be_zero && !graph.ops.iter().any(is_guard) {
                return Some(format!("{text}: no guard"));
            }
            let refused = compiler.compile(&graph, &target, &policy).err();
            refused.map(|why| format!("{text}, backward: {}, on {gpu}: {why}", a.is_backward()))
        })
        .collect();
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}
