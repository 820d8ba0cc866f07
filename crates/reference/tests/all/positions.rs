//! Pieces of a sequence against the whole: masks and biases of the expression library treat a row alike, however many
//! queries a launch has.

use crate::common;

use std::ops::Range;

use common::lowered::{check_on, targets_of};
use common::{near, valid};
use proptest::prelude::*;
use qkvault_graph::expr::library::*;
use qkvault_graph::expr::{AlibiSlopes, Expr, Grad, TensorId, TensorSpec, scalar, score, tensor};
use qkvault_graph::{Attention, Band, Corner, DType, Role, ScoreExpr, Valid};
use qkvault_reference::{Buffer, Inputs, LengthChoice, RandomChoice, forward};

const HEADS: usize = 2;
const HEAD_DIM: usize = 8;

/// A function of the expression library, for a launch of `queries` rows over sequences of up to `keys`.
#[derive(Clone, Copy)]
enum Part {
    Keep(fn(usize, usize) -> Expr),
    Score(fn(usize, usize) -> Expr),
}

/// Every function of the expression library, by name, but those that count the rows of a launch (`top_left_*`).
const FUNCTIONS: &[(&str, Part)] = &[
    ("causal", Part::Keep(|_, _| causal())),
    ("sliding_window", Part::Keep(|_, _| sliding_window(3))),
    ("dilated_window", Part::Keep(|_, _| dilated_window(4, 2))),
    ("prefix_lm", Part::Keep(|_, _| prefix_lm("prefix", 1))),
    (
        "causal document_mask",
        Part::Keep(|q, kv| causal() & document_mask("of_query", "of_key", 1, q as i64, kv as i64)),
    ),
    ("causal padding", Part::Keep(|_, _| causal() & padding())),
    ("softcap", Part::Score(|_, _| softcap(score(), scalar("cap")))),
    ("alibi", Part::Score(|_, _| alibi(score(), HEADS as i64))),
    ("alibi_of", Part::Score(|_, _| alibi_of(score(), HEADS as i64, AlibiSlopes::for_heads(4).from_head(2)))),
    ("alibi_with one slope", Part::Score(|_, _| alibi_with(score(), 0.25))),
    ("softcap of alibi", Part::Score(|_, _| softcap(alibi(score(), HEADS as i64), 2.0))),
    ("alibi_with slopes of one's own", Part::Score(|_, _| alibi_with(score(), tensor("slopes", slopes())))),
    ("soft_window", Part::Score(|_, _| soft_window(score(), 2, scalar("slope")))),
    ("bias by key", Part::Score(|_, kv| bias(score(), "bias", TensorSpec::new(DType::F32, [1, 1, 1, kv as i64])))),
    (
        "relative_bias",
        Part::Score(|q, kv| {
            relative_bias(score(), "table", DType::F32, [HEADS as i64, q as i64, kv as i64], Grad::None)
        }),
    ),
];

fn slopes() -> TensorSpec {
    TensorSpec::new(DType::F32, [1, HEADS as i64, 1, 1])
}

#[test]
fn every_function_of_the_library_is_listed() {
    let is_listed = |name: &str| FUNCTIONS.iter().any(|(words, _)| words.split(' ').any(|word| word == name));
    let all = SCORE_MODS.iter().chain(MASK_MODS).filter(|name| !name.starts_with("top_left_"));
    assert_eq!(all.filter(|name| !is_listed(name)).collect::<Vec<_>>(), [&""; 0]);
}

/// A launch of the rows `piece` over the keys before their end. With `lengths`, its dims are those of all keys and the
/// lengths give their number.
fn launch(part: Part, piece: &Range<usize>, all: usize, lengths: bool) -> Valid {
    let (q, kv) = if lengths { (piece.len() + 1, all) } else { (piece.len(), piece.end) };
    let mut a = Attention::bshd(1, (HEADS as i64, 1), (q as i64, kv as i64), HEAD_DIM as i64, DType::F16).with_stats();
    match part {
        Part::Keep(of) => a.mask.mask_mod = Some(of(q, kv).build_mask_mod().expect("a predicate")),
        Part::Score(of) => {
            a.mask.band = Some(Band { corner: Corner::BottomRight, left: None, right: Some(0) });
            a.score_mod = Some(of(q, kv).build_score_mod().expect("a score"));
        }
    }
    valid(if lengths { a.with_lengths() } else { a })
}

/// The number for each (head, query, key) of the whole sequence, in the operand `name`.
fn number(name: &str, [h, q, k]: [usize; 3]) -> f64 {
    match name {
        "prefix" => 2.0,
        "of_query" => (q / 3) as f64,
        "of_key" => (k / 3) as f64,
        "bias" | "table" => ((h * 31 + q * 7 + k * 3) % 11) as f64 / 4.0 - 1.0,
        _ => 0.25 + h as f64,
    }
}

/// Binds the tensors and scalars of an expression for a launch whose first row is `first`.
fn operands(a: &Valid, first: usize, inputs: &mut Inputs) {
    let expressions: [Option<&ScoreExpr>; 2] = [a.score_mod.as_ref(), a.mask.mask_mod.as_ref()];
    let Some(e) = expressions.into_iter().flatten().next() else { return };
    for (at, spec) in e.tensors().iter().enumerate().filter(|(_, spec)| spec.alibi.is_none()) {
        let name = e.tensor_name(TensorId(at as u32));
        let before = if ["of_query", "table"].contains(&name) { first } else { 0 };
        let [_, h, q, k] = spec.dims.map(|n| n as usize);
        let places = (0..h).flat_map(|h| (0..q).flat_map(move |q| (0..k).map(move |k| [h, before + q, k])));
        let numbers: Vec<f64> = places.map(|place| number(name, place)).collect();
        inputs.insert(Role::ScoreTensor(at as u16), Buffer::from_values(spec.dtype, numbers));
    }
    for at in 0..e.scalars().len() {
        inputs.set_f32(Role::Scalar(at as u16), 0.75);
    }
}

/// Rows of a contiguous (batch, sequence, head, head dim), extended with zeros to the number wanted.
fn rows(from: &Buffer, row: usize, which: Range<usize>, wanted: usize) -> Buffer {
    let kept = which.start * row..which.end * row;
    let padding = std::iter::repeat_n(0.0, (wanted - which.len()) * row);
    Buffer::from_values(from.dtype(), kept.map(|at| from.get(at)).chain(padding).collect::<Vec<_>>())
}

fn exact(piece: &Range<usize>) -> RandomChoice {
    let lengths = LengthChoice::Exact { q: vec![piece.len()], kv: vec![piece.end] };
    RandomChoice { lengths, ..RandomChoice::default() }
}

/// O and Stats of each row of a launch, by (head, row).
fn computed(a: &Valid, piece: &Range<usize>, whole: &Inputs) -> Vec<Vec<f64>> {
    let mut inputs = Inputs::random_with(a, 1, &exact(piece)).expect("random");
    let (queries, keys) = (a.q.dims[2] as usize, a.k.dims[2] as usize);
    let [q, k, v] = [Role::Q, Role::K, Role::V].map(|role| whole.buffer(role).expect("bound"));
    inputs.insert(Role::Q, rows(q, HEADS * HEAD_DIM, piece.clone(), queries));
    inputs.insert(Role::K, rows(k, HEAD_DIM, 0..keys, keys));
    inputs.insert(Role::V, rows(v, HEAD_DIM, 0..keys, keys));
    inputs.set_f32(Role::Scale, 1.0);
    operands(a, piece.start, &mut inputs);
    let outputs = forward(a, &inputs).expect("computes");
    let (o, stats) = (outputs.get(Role::O).expect("always"), outputs.get(Role::Stats).expect("requested"));
    let row = |s: usize| {
        let of_head = |h| (0..HEAD_DIM).map(move |d| o.at(0, h, s, d)).chain([stats.at(0, h, s, 0)]);
        (0..HEADS).flat_map(of_head).collect()
    };
    (0..piece.len()).map(row).collect()
}

/// The ends of the pieces of a prompt; the first piece contains the prefix of 2.
fn ends() -> impl Strategy<Value = Vec<usize>> {
    prop::collection::btree_set(3..18_usize, 1..6).prop_map(|ends| ends.into_iter().collect())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn b9_a_prompt_in_pieces_has_the_rows_of_the_whole(ends in ends(), lengths in any::<bool>(), seed in any::<u64>()) {
        let all = *ends.last().expect("one at least");
        for &(name, part) in FUNCTIONS {
            let whole = launch(part, &(0..all), all, false);
            let inputs = Inputs::random(&whole, seed).expect("random");
            let expected = computed(&whole, &(0..all), &inputs);
            let starts = [0].into_iter().chain(ends.iter().copied());
            for piece in starts.zip(&ends).map(|(start, &end)| start..end) {
                let a = launch(part, &piece, all, lengths);
                for (row, found) in piece.clone().zip(computed(&a, &piece, &inputs)) {
                    for (x, y) in found.iter().zip(&expected[row]) {
                        prop_assert!(near(*x, *y), "{name}: row {row} of {piece:?}: {x} and {y}");
                    }
                }
            }
        }
    }

    #[test]
    fn b9_one_query_after_another_has_the_rows_of_the_whole(all in 3..12_usize, lengths in any::<bool>(), seed in any::<u64>()) {
        for &(name, part) in FUNCTIONS {
            let whole = launch(part, &(0..all), all, false);
            let inputs = Inputs::random(&whole, seed).expect("random");
            let expected = computed(&whole, &(0..all), &inputs);
            for (row, expected) in expected.iter().enumerate().skip(2) {
                let a = launch(part, &(row..row + 1), all, lengths);
                for (x, y) in computed(&a, &(row..row + 1), &inputs)[0].iter().zip(expected) {
                    prop_assert!(near(*x, *y), "{name}: row {row} of {all}: {x} and {y}");
                }
            }
        }
    }
}

#[test]
fn b9_what_lowering_emits_for_pieces_means_what_the_oracle_computes() {
    for (at, &(name, part)) in FUNCTIONS.iter().enumerate() {
        for (piece, lengths) in [(5..9, false), (5..9, true), (8..9, false), (8..9, true), (0..9, true)] {
            let a = launch(part, &piece, 9, lengths);
            let graphs = check_on(targets_of(&[19, 27]), &a, at as u64, &exact(&piece));
            let graphs = graphs.unwrap_or_else(|e| panic!("{name}, {piece:?}: {e}"));
            assert!(graphs >= 2, "{name}, {piece:?}: {graphs} graphs");
        }
    }
}

/// 16 keys with equal scores, so only the window decides their weights; V distinguishes them.
#[test]
fn b9_a_soft_window_over_one_query_keeps_the_newest_keys() {
    for lengths in [false, true] {
        let soft = soft_window(score(), 2, scalar("slope")).build_score_mod().expect("a score");
        let a = Attention::bshd(1, (1, 1), (1, 16), 16, DType::F16)
            .with_band(Band::CAUSAL_BOTTOM_RIGHT)
            .with_score_mod(soft);
        let a = valid(if lengths { a.with_lengths() } else { a });
        let mut inputs = Inputs::random_with(&a, 3, &exact(&(15..16))).expect("random");
        inputs.insert(Role::Q, Buffer::from_values(DType::F16, vec![0.0; 16]));
        let identity = (0..256).map(|at| f64::from(u8::from(at % 17 == 0)));
        inputs.insert(Role::V, Buffer::from_values(DType::F16, identity.collect::<Vec<_>>()));
        inputs.set_f32(Role::Scalar(0), 1.0);
        let outputs = forward(&a, &inputs).expect("computes");
        let weights: Vec<f64> = (0..16).map(|d| outputs.get(Role::O).expect("always").at(0, 0, 0, d)).collect();
        let newest = weights[13];
        assert!(weights[13..].iter().all(|&w| near(w, newest)), "the newest three are untouched: {weights:?}");
        assert!(weights.windows(2).take(13).all(|w| near(w[1], w[0] * 1_f64.exp())), "older ones fade: {weights:?}");
    }
}
