//! What the kernels take, each bound on both sides, and that a plan's key has what decides its code and launch.

use std::collections::BTreeSet;

use qkvault_fa4::codes;
use qkvault_fa4::graph::expr::{TensorSpec, int_scalar, key, library, query, scalar, score, select, tensor};
use qkvault_fa4::graph::{
    Attention, BackwardOptions, Band, Corner, DType, Origins, PaddedRows, Refusal, Tensor, Valid, validate,
};
use qkvault_fa4::{Fa4Program, SM, takes, unproven};

fn valid(attention: Attention) -> Valid {
    validate(attention).unwrap_or_else(|refusal| panic!("{refusal}"))
}

fn taken(attention: Attention) -> Result<(), Refusal> {
    takes(&valid(attention), SM)
}

fn plain(head_dim: i64) -> Attention {
    Attention::bshd(2, (8, 2), (300, 500), head_dim, DType::BF16)
}

fn backward(attention: Attention) -> Attention {
    attention.with_stats().backward(BackwardOptions::default())
}

/// Head dims of queries and values.
fn dims(heads: (i64, i64), head_dim: i64, head_dim_v: i64) -> Attention {
    let tensor = |heads, rows, columns| Tensor::bshd(2, heads, rows, columns, DType::BF16);
    let (q, o) = (tensor(heads.0, 300, head_dim), tensor(heads.0, 300, head_dim_v));
    Attention::forward(q, tensor(heads.1, 500, head_dim), tensor(heads.1, 500, head_dim_v), o)
}

/// pytorch #181235, #180718: a plan of 65,536 sequences was compiled, and then an error that asked for a report.
#[test]
fn more_sequences_than_a_grid_has_blocks_are_a_refusal() {
    for (dims, taken) in [((65_535, 1), true), ((65_536, 1), false), ((1, 65_536), false)] {
        let (batch, heads) = dims;
        let a = Attention::bshd(batch, (heads, heads), (4, 4), 64, DType::BF16);
        let a = validate(a).expect("valid");
        match Fa4Program::for_attention(&a, SM) {
            Ok(_) => assert!(taken, "{dims:?}"),
            Err(refusal) => assert!(!taken && refusal.has(&codes::FA4_GRID), "{dims:?}: {refusal}"),
        }
    }
}

/// Sums of dQ of a head are rows times columns, of which the kernels count 2^31 - 1.
#[test]
fn sums_that_kernels_cannot_count_are_a_refusal() {
    for (rows, taken) in [(1 << 22, true), ((1 << 23) - 128, true), (1 << 23, false), (1 << 24, false)] {
        let a = backward(Attention::bshd(1, (1, 1), (rows, 4), 256, DType::BF16));
        match Fa4Program::for_attention(&valid(a), SM) {
            Ok(_) => assert!(taken, "{rows}"),
            Err(refusal) => assert!(!taken && refusal.has(&codes::FA4_SEQUENCE), "{rows}: {refusal}"),
        }
    }
}

#[test]
fn dense_attentions_of_every_head_dim_are_taken_in_both_directions() {
    for head_dim in [8, 64, 72, 96, 128, 136, 192, 256] {
        for attention in [plain(head_dim), plain(head_dim).with_sink(), plain(head_dim).with_stats()] {
            taken(attention).unwrap_or_else(|refusal| panic!("{head_dim}: {refusal}"));
        }
        if head_dim % 32 != 0 {
            let refusal = taken(backward(plain(head_dim))).expect_err("gradients are wrong");
            assert!(refusal.has(&codes::FA4_HEAD_DIM), "{head_dim}: {refusal}");
            continue;
        }
        taken(backward(plain(head_dim))).unwrap_or_else(|refusal| panic!("{head_dim}: {refusal}"));
        let sink = BackwardOptions { d_sink: true, ..BackwardOptions::default() };
        taken(plain(head_dim).with_sink().with_stats().backward(sink)).expect("the gradient of a sink is taken");
    }
    taken(dims((8, 2), 192, 128)).expect("taken");
    taken(backward(dims((8, 8), 192, 128))).expect("taken");
    taken(plain(128).with_band(Band::CAUSAL_BOTTOM_RIGHT)).expect("taken");
    taken(plain(128).with_band(Band { corner: Corner::BottomRight, left: Some(9), right: Some(3) })).expect("taken");
    taken(Attention::bshd(2, (8, 2), (300, 300), 64, DType::F16).causal()).expect("square corners are one");
}

#[test]
fn score_modifications_are_taken_in_both_directions() {
    let bias = tensor("bias", TensorSpec::new(DType::F32, [1, 8, 1, 500]));
    let list = [library::softcap(score(), scalar("cap")), library::alibi(score(), 8), score() + bias];
    for modified in list {
        let modified = modified.build_score_mod().expect("a score");
        taken(plain(128).with_score_mod(modified.clone())).expect("taken");
        taken(backward(plain(128).with_score_mod(modified.clone()).with_band(Band::CAUSAL_BOTTOM_RIGHT)))
            .expect("taken");
        let window = Band { corner: Corner::BottomRight, left: Some(9), right: Some(0) };
        taken(backward(plain(64).with_score_mod(modified).with_band(window))).expect("taken");
    }
    // Its gradient is another kernel's, that of the bias is refused.
    let bias = tensor("bias", TensorSpec::new(DType::F32, [1, 8, 1, 500]).with_grad());
    taken(plain(128).with_score_mod((score() + bias).build_score_mod().expect("a score"))).expect("a forward");
}

#[test]
fn predicates_are_taken_in_both_directions_with_bands_of_both_corners() {
    let seen = (query() + int_scalar("n")).gt(key() * 2).build_mask_mod().expect("a predicate");
    let mut blocks = plain(64);
    blocks.block_mask = true;
    taken(backward(blocks)).expect("a block mask is taken");
    for band in [None, Some(Band::CAUSAL), Some(Band::CAUSAL_BOTTOM_RIGHT)] {
        let mut masked = plain(128).with_mask_mod(seen.clone());
        masked.mask.band = band;
        taken(masked.clone()).expect("taken");
        taken(backward(masked)).expect("taken");
    }
}

#[test]
fn everything_else_is_refused_with_its_code() {
    let bias = tensor("bias", TensorSpec::new(DType::F32, [1, 8, 1, 500]).with_grad());
    let bias = (score() + bias).build_score_mod().expect("a score");
    let many = (0..17).fold(score(), |sum, n| sum + scalar(&format!("n{n}"))).build_score_mod().expect("a score");
    let ordered = BackwardOptions { deterministic: true, ..BackwardOptions::default() };
    let seen = (query() + int_scalar("n")).gt(key() * 2).build_mask_mod().expect("a predicate");
    let low = select(&query().ge(16), score(), -1e9).build_score_mod().expect("a score");
    taken(plain(128).with_score_mod(low.clone())).expect("a forward is taken");
    let cases = [
        (backward(plain(128).with_score_mod(low)), &codes::FA4_LOWEST_ROW),
        (plain(264), &codes::FA4_HEAD_DIM),
        (plain(132), &codes::FA4_HEAD_DIM),
        (dims((8, 2), 128, 64), &codes::FA4_HEAD_DIM),
        (dims((8, 2), 64, 128), &codes::FA4_HEAD_DIM),
        (backward(dims((8, 2), 192, 128)), &codes::FA4_HEAD_DIM),
        (plain(128).with_dropout(0.1), &codes::FA4_DROPOUT),
        (backward(plain(128).with_score_mod(bias)), &codes::FA4_EXPRESSION),
        (plain(128).with_score_mod(many), &codes::FA4_EXPRESSION),
        (plain(128).with_mask_mod(seen.clone()).with_stats().backward(ordered), &codes::FA4_EXPRESSION),
        // Heads of a sequence lie between two sequences.
        (heads_first().with_lengths(), &codes::FA4_STORAGE),
        (packed(128).with_band(Band::CAUSAL), &codes::FA4_SEQUENCES),
        (packed(128).with_mask_mod(seen.clone()), &codes::FA4_SEQUENCES),
        (packed(128).with_stats().backward(ordered), &codes::FA4_SEQUENCES),
        (paged(72, 64), &codes::FA4_HEAD_DIM),
        (paged(128, 64).with_band(Band::CAUSAL), &codes::FA4_SEQUENCES),
        (paged(128, 64).with_mask_mod(seen.clone()), &codes::FA4_SEQUENCES),
        (pages_of_two_sizes(), &codes::FA4_STORAGE),
        (plain(128).with_band(Band::CAUSAL), &codes::FA4_BAND),
        (plain(128).with_band(Band::CAUSAL).with_origins(Origins::Any), &codes::FA4_BAND),
    ];
    for (attention, code) in cases {
        let what = attention.to_string();
        let refusal = taken(attention).expect_err(&what);
        assert!(refusal.has(code), "{what}: {refusal}");
    }
    assert!(takes(&valid(plain(128)), 100).expect_err("another GPU").has(&codes::FA4_GPU));
    let mut odd = plain(128);
    odd.q.strides[2] += 4;
    assert!(taken(odd).expect_err("rows at multiples of 8 bytes").has(&codes::FA4_STRIDES));
}

/// Queries of sequences one after another, and keys with room for the longest.
fn packed(head_dim: i64) -> Attention {
    let q = Tensor::thd(2, 8, 300, head_dim, 400, DType::BF16);
    let k = Tensor::bshd(2, 2, 500, head_dim, DType::BF16);
    Attention::forward(q, k, k, q).with_lengths()
}

fn heads_first() -> Attention {
    let q = Tensor::bhsd(2, 8, 300, 64, DType::BF16);
    Attention::forward(q, q, q, q)
}

fn zeros(mut a: Attention) -> Attention {
    a.padded_rows = PaddedRows::Zero;
    a
}

/// Keys and values in pages of so many rows.
fn paged(head_dim: i64, rows: i64) -> Attention {
    let pool = Tensor::paged_nhd(2, 2, 500, head_dim, 1000, rows, DType::BF16);
    let mut a = packed(head_dim);
    (a.k, a.v) = (pool, pool);
    a
}

fn pages_of_two_sizes() -> Attention {
    let mut a = paged(128, 64);
    a.v = Tensor::paged_nhd(2, 2, 500, 128, 1000, 32, DType::BF16);
    a
}

#[test]
fn pages_of_any_size_are_taken_with_what_else_sequences_with_lengths_may_have() {
    for (head_dim, rows) in [(16, 1), (64, 16), (96, 48), (128, 64), (128, 128), (240, 128), (256, 512)] {
        let a = paged(head_dim, rows).with_band(Band::CAUSAL_BOTTOM_RIGHT).with_stats();
        for a in [a.clone(), a.clone().with_sink(), zeros(a.clone()), paged(head_dim, rows)] {
            taken(a).unwrap_or_else(|refusal| panic!("{head_dim}, {rows}: {refusal}"));
        }
        assert_eq!(unproven(&valid(a)), None, "a GPU has judged it");
    }
    let softcap = library::softcap(score(), scalar("cap")).build_score_mod().expect("a score");
    taken(paged(128, 64).with_score_mod(softcap)).expect("taken");
    let mut roomy = paged(128, 64).with_stats();
    (roomy.q, roomy.o) = (plain(128).q, plain(128).q);
    taken(roomy).expect("queries with room for the longest");
}

#[test]
fn padded_rows_and_stats_of_dense_queries_are_taken_in_both_directions() {
    for a in [plain(128).with_lengths().with_stats(), zeros(plain(64).with_lengths()), zeros(packed(128).with_stats())]
    {
        taken(a.clone()).unwrap_or_else(|refusal| panic!("{a}: {refusal}"));
        taken(backward(a.clone())).unwrap_or_else(|refusal| panic!("backward of {a}: {refusal}"));
        assert_eq!(unproven(&valid(a)), None, "a GPU has judged it");
    }
}

#[test]
fn sequences_with_lengths_are_taken_where_their_rows_can_be_counted_through() {
    taken(plain(128).with_lengths()).expect("without Stats");
    let one = Tensor::bhsd(1, 1, 300, 64, DType::BF16);
    taken(Attention::forward(one, one, one, one).with_lengths()).expect("one sequence is behind none");
    for head_dim in [64, 128, 256] {
        let a = packed(head_dim).with_band(Band::CAUSAL_BOTTOM_RIGHT);
        taken(a.clone()).expect("a forward");
        taken(backward(a.clone())).expect("a backward");
        let with_sink = BackwardOptions { d_sink: true, ..BackwardOptions::default() };
        taken(a.with_sink().with_stats().backward(with_sink)).expect("the gradient of a sink");
        assert_eq!(unproven(&valid(packed(head_dim))), None, "a GPU has judged it");
    }
}

#[test]
fn a_plans_key_follows_from_everything_that_a_launch_does() {
    let key = |attention: Attention| {
        let attention = valid(attention);
        Fa4Program::for_attention(&attention, SM).expect("taken").key(attention.key(), (13, 0))
    };
    let longer = Attention::bshd(2, (8, 2), (300, 501), 128, DType::BF16);
    let others = [plain(64), plain(128).with_stats(), backward(plain(128)), longer, plain(128).with_sink()];
    let keys: BTreeSet<_> = others.into_iter().map(key).chain([key(plain(128))]).collect();
    assert_eq!(keys.len(), 6);
    assert_eq!(key(plain(128)), key(plain(128)));
}
