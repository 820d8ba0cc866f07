//! Attentions with origins: a chunk of a longer attention has the numbers that the whole has there.

use crate::common;

use std::ops::Range;

use common::{near, read, valid};
use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use qkvault_graph::arbitrary::{Features, Space, attention};
use qkvault_graph::expr::{Node, Side};
use qkvault_graph::{
    Attention, BackwardOptions, Band, Corner, Origins, Role, ScoreExpr, Tensor, Valid, operand, operands, validate,
};
use qkvault_reference::{Buffer, ExactOutputs, Inputs, backward, forward};

/// Rows and columns of a chunk.
#[derive(Clone, Debug)]
struct Chunk {
    queries: Range<usize>,
    keys: Range<usize>,
}

/// Cuts that begin with 0 and end with `n`, at places given in thousandths.
fn cuts(n: i64, places: &[usize]) -> Vec<Range<usize>> {
    let n = n as usize;
    let mut all: Vec<usize> = places.iter().map(|p| p * n / 1000).chain([0, n]).collect();
    all.sort_unstable();
    all.dedup();
    all.windows(2).map(|pair| pair[0]..pair[1]).collect()
}

/// The chunk of these rows, with the keys that the band lets one of them see, and one at least.
fn chunk(whole: &Attention, queries: Range<usize>) -> Chunk {
    let (s_q, s_kv) = whole.seq();
    let Some(Band { corner, left, right }) = whole.mask.band else { return Chunk { queries, keys: 0..s_kv as usize } };
    let ahead = if corner == Corner::BottomRight { s_kv - s_q } else { 0 };
    let (first, last) = (queries.start as i64 + ahead, queries.end as i64 - 1 + ahead);
    let begin = left.map_or(0, |left| (first - left + 1).clamp(0, s_kv - 1));
    let end = right.map_or(s_kv, |right| (last + right + 1).clamp(begin + 1, s_kv));
    Chunk { queries, keys: begin as usize..end as usize }
}

/// The expression with the tensors of a chunk.
fn of_chunk(e: &ScoreExpr, chunk: &Chunk) -> ScoreExpr {
    let mut form = serde_json::to_value(e).expect("expressions serialise");
    for tensor in form["tensors"].as_array_mut().into_iter().flatten() {
        for (axis, n) in [(2, chunk.queries.len()), (3, chunk.keys.len())] {
            if tensor["dims"][axis] != 1 {
                tensor["dims"][axis] = n.into();
            }
        }
    }
    serde_json::from_value(form).expect("other extents")
}

/// The description of a chunk of a whole attention with dims of full length.
fn description(whole: &Attention, chunk: &Chunk) -> Attention {
    let (s_q, s_kv) = whole.seq();
    let cut = |t: Tensor, n: usize| Tensor::bshd(t.dims[0], t.dims[1], n as i64, t.dims[3], t.dtype);
    let (queries, keys) = (chunk.queries.len(), chunk.keys.len());
    let mut a =
        Attention::forward(cut(whole.q, queries), cut(whole.k, keys), cut(whole.v, keys), cut(whole.o, queries))
            .with_stats()
            .with_origins(Origins::Any);
    a.mask.band = whole.mask.band.map(|Band { corner, left, right }| {
        let ahead = if corner == Corner::BottomRight { s_kv - s_q } else { 0 };
        Band { corner: Corner::TopLeft, left: left.map(|l| l - ahead), right: right.map(|r| r + ahead) }
    });
    a.mask.mask_mod = whole.mask.mask_mod.as_ref().map(|e| of_chunk(e, chunk));
    a.score_mod = whole.score_mod.as_ref().map(|e| of_chunk(e, chunk));
    a.sink = whole.sink;
    if whole.is_backward() { a.backward(BackwardOptions::default()) } else { a }
}

/// The operands of a chunk: what the whole has there. Roles are those of the whole, whose order of operands it has.
fn inputs_of(whole: &Valid, chunk: &Valid, given: &Inputs, at: &Chunk) -> Inputs {
    let mut inputs = Inputs::new();
    for of_chunk in operands(chunk).iter().filter(|o| !o.output) {
        let (role, dims) = (of_chunk.role, of_chunk.tensor.dims.map(|n| n as usize));
        let origin = |range: &Range<usize>| Buffer::from_values(of_chunk.tensor.dtype, [range.start as f64]);
        let first = match role {
            Role::QueryOrigin => {
                inputs.insert(role, origin(&at.queries));
                continue;
            }
            Role::KeyOrigin => {
                inputs.insert(role, origin(&at.keys));
                continue;
            }
            Role::Q | Role::O | Role::DO | Role::Stats => [at.queries.start, 0],
            Role::K | Role::V => [at.keys.start, 0],
            Role::ScoreTensor(_) => [at.queries.start, at.keys.start],
            _ => [0, 0],
        };
        let whole_dims = operand(whole, role).expect("the whole has it").tensor.dims;
        let place = |axis: usize, i: usize, first: usize| if whole_dims[axis] == 1 { 0 } else { i + first };
        let mut numbers = Vec::new();
        let [b, h, s, d] = dims;
        // Stats lie row by row of a head; the others of a chunk lie token by token, or as tensors of expressions do.
        let by_token = matches!(role, Role::Q | Role::K | Role::V | Role::O | Role::DO);
        for i in 0..b {
            for (x, y) in
                (0..if by_token { s } else { h }).flat_map(|x| (0..if by_token { h } else { s }).map(move |y| (x, y)))
            {
                let (head, row) = if by_token { (y, x) } else { (x, y) };
                numbers.extend(
                    (0..d).map(|c| read(whole, given, role, [i, head, place(2, row, first[0]), place(3, c, first[1])])),
                );
            }
        }
        inputs.insert(role, Buffer::from_values(of_chunk.tensor.dtype, numbers));
    }
    inputs
}

/// Wholes without lengths, with every mask, expression and sink, and the places at which their rows are cut.
fn wholes() -> impl Strategy<Value = (Attention, u64, Vec<usize>)> {
    let features = Features { score_mod: true, mask_mod: true, sink: true, ..Features::NONE };
    let places = prop::collection::vec(0..1000_usize, 0..3);
    let whole = attention(Space::SMALL.with(features)).prop_map(|mut a| {
        a.mask.lengths = qkvault_graph::Lengths::Full;
        a.with_stats()
    });
    let reads_lengths = |e: &ScoreExpr| [Side::Query, Side::Key].into_iter().any(|side| e.contains(Node::Length(side)));
    let plain = move |a: &Attention| {
        // The canonical form writes lengths that the dims give as numbers where it can.
        let Ok(valid) = validate(a.clone()) else { return false };
        !valid.score_mod.iter().chain(&valid.mask.mask_mod).any(reads_lengths)
    };
    (whole.prop_filter("no lengths", plain), any::<u64>(), places)
}

fn over<S: Strategy>(cases: u32, strategy: &S, check: impl Fn(S::Value) -> Result<(), TestCaseError>) {
    let config = ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() };
    TestRunner::new(config).run(strategy, check).unwrap_or_else(|e| panic!("{e}"));
}

#[test]
fn rows_of_a_whole_are_those_of_a_chunk_with_origins() {
    over(400, &wholes(), |(whole, seed, queries)| {
        let whole = valid(whole);
        let given = Inputs::random(&whole, seed).expect("sound");
        let expected = forward(&whole, &given).expect("computed");
        for queries in cuts(whole.seq().0, &queries) {
            let chunk = chunk(&whole, queries);
            let a = valid(description(&whole, &chunk));
            let outputs = forward(&a, &inputs_of(&whole, &a, &given, &chunk)).expect("computed");
            for (b, h) in (0..a.q.dims[0] as usize).flat_map(|b| (0..a.q.dims[1] as usize).map(move |h| (b, h))) {
                for (row, of_whole) in chunk.queries.clone().enumerate() {
                    let at =
                        |outputs: &ExactOutputs, role, row, d| outputs.get(role).expect("written").at(b, h, row, d);
                    // Scores that a reciprocal makes huge carry their own last digits into every weight.
                    let steep = 1e-12 * at(&expected, Role::Stats, of_whole, 0).abs();
                    let same = |role, d| {
                        let (of_chunk, whole) = (at(&outputs, role, row, d), at(&expected, role, of_whole, d));
                        near(of_chunk, whole) || (of_chunk - whole).abs() <= steep
                    };
                    prop_assert!(same(Role::Stats, 0) && (0..a.o.dims[3] as usize).all(|d| same(Role::O, d)), "{}", a);
                }
            }
        }
        Ok(())
    });
}

#[test]
fn gradients_of_a_whole_are_sums_over_chunks_with_origins() {
    let compared = std::cell::Cell::new(0);
    over(300, &wholes(), |(whole, seed, queries)| {
        let Ok(whole) = validate(whole.backward(BackwardOptions::default())) else { return Ok(()) };
        compared.set(compared.get() + 1);
        let given = Inputs::random(&whole, seed).expect("sound");
        let expected = backward(&whole, &given).expect("computed");
        let outputs = [Role::DQ, Role::DK, Role::DV];
        let of = |role| expected.get(role).expect("written");
        let dims_of = |a: &Valid, role| operand(a, role).expect("an output").tensor.dims.map(|n| n as usize);
        let mut sums = outputs.map(|role| vec![0.0; places(dims_of(&whole, role)).count()]);
        for queries in cuts(whole.seq().0, &queries) {
            let chunk = chunk(&whole, queries);
            let a = valid(description(&whole, &chunk));
            let parts = backward(&a, &inputs_of(&whole, &a, &given, &chunk)).expect("computed");
            for (role, sum) in outputs.into_iter().zip(&mut sums) {
                let first = if role == Role::DQ { chunk.queries.start } else { chunk.keys.start };
                let [_, heads, rows, width] = dims_of(&whole, role);
                for [b, h, s, d] in places(dims_of(&a, role)) {
                    let at = ((b * heads + h) * rows + first + s) * width + d;
                    sum[at] += parts.get(role).expect("written").at(b, h, s, d);
                }
            }
        }
        for (role, sum) in outputs.into_iter().zip(&sums) {
            for (x, [b, h, s, d]) in sum.iter().zip(places(dims_of(&whole, role))) {
                let y = of(role).at(b, h, s, d);
                prop_assert!(near(*x, y), "{role} of {whole}: {x} for {y}");
            }
        }
        Ok(())
    });
    assert!(compared.get() > 150, "{} backwards", compared.get());
}

fn places([b, h, s, d]: [usize; 4]) -> impl Iterator<Item = [usize; 4]> {
    (0..b * h * s * d).map(move |n| [n / (h * s * d), n / (s * d) % h, n / d % s, n % d])
}

#[test]
fn origins_beyond_what_f32_counts_are_errors() {
    let a = valid(Attention::bshd(1, (1, 1), (4, 8), 8, qkvault_graph::DType::F16).causal().with_origins(Origins::Any));
    let mut inputs = Inputs::random(&a, 1).expect("sound");
    for (origin, good) in [(0, true), (1 << 23, true), ((1 << 23) + 1, false), (-1, false)] {
        inputs.set_i32(Role::KeyOrigin, &[origin]);
        assert_eq!(forward(&a, &inputs).is_ok(), good, "{origin}");
    }
    inputs.remove(Role::QueryOrigin);
    assert!(forward(&a, &inputs).is_err());
}
