//! FlashAttention-4's kernels on a real GPU: plans that were compiled ahead are loaded from a vault, launched over
//! poisoned outputs and compared with the oracle, forwards and backwards.
//!
//! The tests need a driver of CUDA 13, a cuDNN, and a vault folder `QKVAULT_TEST_VAULT` with the plans. `fill` compiles
//! them into it on any machine with the fetched toolchain (`cargo xtask fetch --engine fa4`), if `QKVAULT_TEST_FILL` is
//! set as well. Without a GPU the test is skipped, or fails with `QKVAULT_REQUIRE=gpu`.
#![cfg(feature = "cudarc")]

mod common;
mod kit;

use std::panic::{AssertUnwindSafe, catch_unwind};

use common::say;
use kit::fa4::HOPPER;
use kit::{Case, Gpu};
use qkvault_compile::{FA4, OnMiss};
use qkvault_cudnn::CompileOptions;
use qkvault_graph::expr::{self, Expr, ScoreExpr, TensorSpec, library, position, scalar, score};
use qkvault_graph::{
    Attention, BackwardOptions, Band, Corner, DType, Lengths, PaddedRows, Role, Tensor, Valid, validate,
};
use qkvault_reference::{Inputs, LengthChoice, RandomChoice, Unused};

/// Every family with its backwards: head dims, masks, groups, both element types, and lengths that end within a tile.
fn attentions() -> Vec<Valid> {
    let mut list = Vec::new();
    let corner = Corner::BottomRight;
    let bands = [
        None,
        Some(Band { corner, left: None, right: Some(0) }),
        Some(Band { corner, left: Some(70), right: Some(0) }),
        Some(Band { corner, left: Some(40), right: Some(25) }),
    ];
    let dims = [(128, 128, DType::BF16), (64, 64, DType::F16), (96, 96, DType::BF16), (192, 128, DType::BF16)];
    let dims = dims.into_iter().chain([(256, 256, DType::BF16), (72, 72, DType::F16)]);
    for (n, (d, d_v, dtype)) in dims.enumerate() {
        for (m, band) in bands.into_iter().enumerate() {
            // Both groups at head dim 128, one of them elsewhere, so that there are not too many kernels to compile.
            let groups: &[i64] = if n == 0 {
                &[1, 4]
            } else if (n + m) % 2 == 0 {
                &[4]
            } else {
                &[1]
            };
            for &group in groups {
                let (queries, keys) = ([331, 257, 128][(n + m) % 3], [331, 517, 190][(n + m) % 3]);
                let tensor = |heads, rows, columns| match m % 2 {
                    0 => Tensor::bshd(2, heads, rows, columns, dtype),
                    _ => Tensor::bhsd(2, heads, rows, columns, dtype),
                };
                let (q, o) = (tensor(2 * group, queries, d), tensor(2 * group, queries, d_v));
                let mut a = Attention::forward(q, tensor(2, keys, d), tensor(2, keys, d_v), o).with_stats();
                a.mask.band = band;
                if (group == 1 || d == d_v) && d % 32 == 0 {
                    let deterministic = (n + m) % 2 == 0;
                    list.push(a.backward(BackwardOptions { deterministic, ..BackwardOptions::default() }));
                    if m == 1 {
                        let options = BackwardOptions { d_sink: true, deterministic, ..BackwardOptions::default() };
                        list.push(a.clone().with_sink().backward(options));
                    }
                }
                list.push(if group == 4 && m == 1 { a.with_sink() } else { a });
            }
        }
    }
    let parts = [modified(), masked(), sequences(), padded(), pages()];
    let list = list.into_iter().chain(parts.into_iter().flatten());
    list.map(|a| validate(a).unwrap_or_else(|refusal| panic!("{refusal}"))).collect()
}

/// Score modifications with their derivatives: a softcap by a number of the launch, ALiBi, a bias in 16 bits with a
/// number and the places of a score, and a derivative that is infinite somewhere; under every band, in both directions.
fn modified() -> Vec<Attention> {
    let corner = Corner::BottomRight;
    let bands = [
        Some(Band { corner, left: None, right: Some(0) }),
        Some(Band { corner, left: Some(70), right: Some(0) }),
        Some(Band { corner, left: Some(40), right: Some(25) }),
        None,
    ];
    let dims = [(128, 128, 4), (64, 64, 1), (96, 96, 4), (192, 128, 1), (256, 256, 4)];
    let mut list = Vec::new();
    for (n, (d, d_v, group)) in dims.into_iter().enumerate() {
        for m in 0..4 {
            let (heads, dtype) = (2 * group, if d == 64 { DType::F16 } else { DType::BF16 });
            let (queries, keys) = ([331, 257, 128][(n + m) % 3], [331, 517, 190][(n + m) % 3]);
            let tensor = |heads, rows, columns| Tensor::bshd(2, heads, rows, columns, dtype);
            let (q, o) = (tensor(heads, queries, d), tensor(heads, queries, d_v));
            let mut a = Attention::forward(q, tensor(2, keys, d), tensor(2, keys, d_v), o).with_stats();
            a.mask.band = bands[(m + n / 2) % 4];
            let bias = expr::tensor("bias", TensorSpec::new(DType::BF16, [2, 1, queries, keys]));
            let far = (position() - expr::key()).to_float().abs();
            a = a.with_score_mod(match m {
                0 => built(library::softcap(score(), scalar("cap"))),
                1 => built(library::alibi(score(), heads)),
                2 => built(score() * 0.5 + bias * scalar("strength") + expr::head().to_float() * 0.1),
                _ => built((score() * score() + 0.01).sqrt() - far * 0.01),
            });
            let deterministic = m == 1;
            list.push(a.backward(BackwardOptions { deterministic, ..BackwardOptions::default() }));
            list.push(a);
        }
    }
    list
}

/// Predicates with lists of tiles: documents of one size, so that tiles are whole, cut and hidden; documents by ids of
/// tensors, with a softcap; what heads see differently within a window; a prefix by a number of the launch. Rows that
/// see no key, and tiles behind the last query and key, are among them.
fn masked() -> Vec<Attention> {
    let corner = Corner::BottomRight;
    let causal = Band { corner, left: None, right: Some(0) };
    let window = Band { corner, left: Some(200), right: Some(0) };
    let dims = [(128, 128, 4), (64, 64, 1), (96, 96, 4), (192, 128, 1), (256, 256, 2), (128, 128, 1)];
    let mut list = Vec::new();
    for (n, (d, d_v, group)) in dims.into_iter().enumerate() {
        // All of them at the first head dim, half of them elsewhere, so that there are not too many kernels to compile.
        for m in (0..4).filter(|m| n == 0 || (n + m) % 2 == 0) {
            let (heads, dtype) = (2 * group, if d == 64 { DType::F16 } else { DType::BF16 });
            let (queries, keys) = [(700, 700), (449, 834), (513, 130)][(n + m) % 3];
            let tensor = |heads, rows, columns| Tensor::bhsd(2, heads, rows, columns, dtype);
            let (q, o) = (tensor(heads, queries, d), tensor(heads, queries, d_v));
            let a = Attention::forward(q, tensor(2, keys, d), tensor(2, keys, d_v), o).with_stats();
            let seen = |e: Expr| e.build_mask_mod().expect("a predicate");
            let (of_query, of_key) = (expr::query().floor_div(170), expr::key().floor_div(170));
            let a = match m {
                0 => a.with_mask_mod(seen(of_query.eq(of_key))).with_band(causal),
                1 => a
                    .with_mask_mod(seen(library::document_mask("of_query", "of_key", 2, queries, keys)))
                    .with_score_mod(built(library::softcap(score(), scalar("cap")))),
                2 => {
                    a.with_mask_mod(seen(((expr::query() - expr::key()) % (expr::head() + 2)).eq(0))).with_band(window)
                }
                _ => a.with_mask_mod(seen(expr::key().lt(expr::int_scalar("prefix")) | of_query.ge(of_key))),
            };
            list.push(a.clone().backward(BackwardOptions::default()));
            list.push(a);
        }
    }
    for (d, band) in [(128, Some(causal)), (256, None)] {
        let q = Tensor::bshd(2, 4, 600, d, DType::BF16);
        let kv = Tensor::bshd(2, 2, 1500, d, DType::BF16);
        let mut a = Attention::forward(q, kv, kv, q).with_stats();
        (a.block_mask, a.mask.band) = (true, band);
        list.push(a.clone().backward(BackwardOptions::default()));
        list.push(a);
    }
    list
}

/// Sequences with lengths, one after another: every head dim and band, with fewer and more queries than keys, keys that
/// have room for the longest sequence, rows of a wider matrix, a softcap, places in expressions, gradients of sinks.
fn sequences() -> Vec<Attention> {
    let corner = Corner::BottomRight;
    let bands = [
        Some(Band { corner, left: None, right: Some(0) }),
        None,
        Some(Band { corner, left: Some(70), right: Some(0) }),
        Some(Band { corner, left: Some(40), right: Some(25) }),
    ];
    let dims = [(128, 128, 4), (128, 128, 1), (64, 64, 1), (96, 96, 4), (192, 128, 1), (256, 256, 4)];
    let mut list = Vec::new();
    for (n, (d, d_v, group)) in dims.into_iter().enumerate() {
        // All bands at the first head dim, two elsewhere, so that there are not too many kernels to compile.
        for m in (0..4).filter(|m| n == 0 || (n + m) % 2 == 0) {
            let (heads, dtype) = (2 * group, if d == 64 { DType::F16 } else { DType::BF16 });
            let (queries, keys) = [(331, 331), (257, 517), (190, 128)][(n + m) % 3];
            let varlen = |heads, rows, columns| Tensor::thd(7, heads, rows, columns, rows * 4 + 5, dtype);
            let wide = |t: Tensor| Tensor { strides: t.strides.map(|step| if step > 1 { step * 3 } else { 1 }), ..t };
            let columns = |t: Tensor, d| Tensor { strides: [t.strides[0], d, t.strides[2], 1], ..t };
            let key = |columns| match (n + m) % 2 {
                0 => varlen(2, keys, columns),
                _ => Tensor::bshd(7, 2, keys, columns, dtype),
            };
            let q = varlen(heads, queries, d);
            let q = if m == 1 { columns(wide(q), d) } else { q };
            let mut a =
                Attention::forward(q, key(d), key(d_v), varlen(heads, queries, d_v)).with_lengths().with_stats();
            a.mask.band = bands[m];
            let far = (position() - expr::key()).to_float().abs();
            a = match (n, m) {
                (0, 2) => a.with_score_mod(built(library::softcap(score(), scalar("cap")))),
                (0, 3) | (2, _) => a.with_score_mod(built(score() - far * 0.01)),
                _ => a,
            };
            let d_sink = m == 0;
            let a = if d_sink { a.with_sink() } else { a };
            if group == 1 || d == d_v {
                list.push(a.clone().backward(BackwardOptions { d_sink, ..BackwardOptions::default() }));
            }
            list.push(a);
        }
    }
    // Queries with room for the longest sequence.
    let q = Tensor::bshd(3, 8, 200, 128, DType::BF16);
    let k = Tensor::bshd(3, 2, 300, 128, DType::BF16);
    let a = Attention::forward(q, k, k, q).with_lengths();
    list.extend([a.clone().with_band(Band::CAUSAL_BOTTOM_RIGHT), a]);
    list
}

/// Sequences with lengths whose padded rows become zeros, and Stats of queries with room for the longest sequence, in
/// both directions: dense and varlen, with rows between sequences that belong to none.
fn padded() -> Vec<Attention> {
    let causal = Band { corner: Corner::BottomRight, left: None, right: Some(0) };
    let mut list = Vec::new();
    for (n, (d, group, varlen, zeros)) in
        [(128, 4, false, true), (128, 1, true, true), (64, 1, false, false), (96, 4, false, true)]
            .into_iter()
            .enumerate()
    {
        let (queries, keys) = [(331, 331), (257, 517)][n % 2];
        let tensor = |heads, rows| match varlen {
            true => Tensor::thd(5, heads, rows, d, rows * 4 + 5, DType::BF16),
            false => Tensor::bshd(5, heads, rows, d, DType::BF16),
        };
        let (q, k) = (tensor(2 * group, queries), tensor(2, keys));
        let mut a = Attention::forward(q, k, k, q).with_lengths().with_stats();
        if zeros {
            a.padded_rows = PaddedRows::Zero;
        }
        a.mask.band = (n != 2).then_some(causal);
        list.push(a.clone().backward(BackwardOptions::default()));
        list.push(a);
    }
    list
}

/// Keys and values in pages of every size, also such that no tile begins with one, in both orders of heads and rows;
/// with windows, sinks, expressions, Stats, queries one after another and with room for the longest sequence.
fn pages() -> Vec<Attention> {
    let corner = Corner::BottomRight;
    let bands = [
        Some(Band { corner, left: None, right: Some(0) }),
        None,
        Some(Band { corner, left: Some(70), right: Some(0) }),
    ];
    let dims = [(128, 128, 4, 16), (128, 128, 1, 64), (64, 64, 8, 128), (96, 96, 4, 48), (192, 128, 1, 64)];
    let dims = dims.into_iter().chain([(256, 256, 4, 128), (80, 80, 1, 1), (240, 240, 4, 256)]);
    let mut list = Vec::new();
    for (n, (d, d_v, group, rows)) in dims.enumerate() {
        for m in (0..3).filter(|m| n < 2 || n % 3 == *m) {
            let (queries, keys) = [(331, 331), (257, 517), (190, 1028)][(n + m) % 3];
            let dtype = if d == 64 { DType::F16 } else { DType::BF16 };
            let pool = |columns| match n % 2 {
                0 => Tensor::paged_nhd(5, 2, keys, columns, 5 * 1028 / rows + 5, rows, dtype),
                _ => Tensor::paged_hnd(5, 2, keys, columns, 5 * 1028 / rows + 5, rows, dtype),
            };
            let of_queries = |columns| match (n + m) % 3 {
                2 => Tensor::bshd(5, 2 * group, queries, columns, dtype),
                _ => Tensor::thd(5, 2 * group, queries, columns, queries * 4 + 5, dtype),
            };
            let mut a = Attention::forward(of_queries(d), pool(d), pool(d_v), of_queries(d_v)).with_lengths();
            a.mask.band = bands[m];
            let far = (position() - expr::key()).to_float().abs();
            a = match (n, m) {
                (0, 2) => a.with_score_mod(built(library::softcap(score(), scalar("cap")))),
                (1, 1) => a.with_score_mod(built(score() - far * 0.01)),
                _ => a,
            };
            let a = if (n + m) % 2 == 0 { a.with_stats() } else { a };
            list.push(if m == 0 { a.with_sink() } else { a });
        }
    }
    list
}

/// Lengths from 0 on, and no numbers outside of them: neither may change a result. Values are in the pages of keys,
/// because the kernels read one table.
fn inputs(attention: &Valid, seed: u64) -> Inputs {
    let choice = match attention.mask.lengths {
        Lengths::Full => RandomChoice::default(),
        Lengths::PerSequence => RandomChoice {
            lengths: LengthChoice::Any,
            unused: Unused::Finite,
            spread: false,
            ..RandomChoice::default()
        },
    };
    let mut inputs = Inputs::random_with(attention, seed, &choice).expect("random operands");
    if let Some(table) = inputs.buffer(Role::PageTableK).ok().cloned() {
        inputs.insert(Role::PageTableV, table);
    }
    if attention.mask.lengths == Lengths::PerSequence {
        inputs.poison_unused(attention, Unused::Poison).expect("fits");
    }
    inputs
}

fn built(e: Expr) -> ScoreExpr {
    e.build_score_mod().expect("a score")
}

#[test]
fn fill() {
    kit::fa4::fill(&attentions());
}

#[test]
fn fa4_kernels_compute_what_the_oracle_computes() {
    let Some(gpu) = Gpu::open() else { return };
    let attentions = attentions();
    // All of them, so that one run names every fault.
    let judge = |(seed, attention): (usize, &Valid)| {
        let judged = catch_unwind(AssertUnwindSafe(|| {
            let answer = gpu
                .engine
                .planner()
                .plan_by(FA4, attention, HOPPER, &CompileOptions::default(), OnMiss::Load)
                .expect("`fill` compiled it");
            let plan = answer.outcome.expect("a plan");
            let loaded = gpu.engine.session().load(&plan).unwrap_or_else(|error| panic!("{error}"));
            let mut case = Case::with(&gpu.stream, attention, inputs(attention, seed as u64));
            loaded.launch(&gpu.stream, case.bindings(&loaded)).unwrap_or_else(|error| panic!("{error}"));
            case.check(&gpu);
            // Again over the sums that the first launch left in the scratch memory.
            case.poison(&gpu);
            loaded.launch(&gpu.stream, case.bindings(&loaded)).expect("launches again");
            case.check(&gpu);
        }));
        judged.is_err().then(|| format!("{seed}: {}", **attention))
    };
    let wrong: Vec<String> = attentions.iter().enumerate().filter_map(judge).collect();
    say(&format!("{} attentions, {} wrong", attentions.len(), wrong.len()));
    assert!(wrong.is_empty(), "{wrong:#?}");
}
