//! Validation, field by field: a mismatch is reported for its field and for no other; an invalid tensor is compared
//! with nothing.

use qkvault_graph::expr::{TensorSpec, key, query, score, tensor};
use qkvault_graph::registry::codes;
use qkvault_graph::{
    Attention, BackwardOptions, Band, Corner, DType, Gradients, Lengths, Order, PaddedRows, Pass, Storage, Tensor,
    validate,
};

/// Different sizes, so that none agree by chance.
fn forward() -> Attention {
    let t = |dims| Tensor::dense(Order::Bhsd, dims, DType::F16);
    Attention::forward(t([3, 4, 6, 16]), t([3, 2, 10, 16]), t([3, 4, 10, 24]), t([3, 4, 6, 24])).with_stats()
}

fn backward() -> Attention {
    forward().backward(BackwardOptions::default())
}

/// Codes and fields of the refusal.
fn refused(a: Attention) -> Vec<(String, String)> {
    let Err(refusal) = validate(a) else { return Vec::new() };
    refusal.reasons().iter().map(|r| (r.code.to_string(), r.field.clone().into_owned())).collect()
}

fn fields(a: Attention, code: &str) -> Vec<String> {
    refused(a).into_iter().filter(|(c, _)| c == code).map(|(_, field)| field).collect()
}

/// Gives a tensor another extent along an axis.
fn resize(t: &mut Tensor, axis: usize, to: i64) {
    let mut dims = t.dims;
    dims[axis] = to;
    *t = Tensor::dense(Order::Bhsd, dims, t.dtype);
}

fn gradients(a: &mut Attention) -> &mut Gradients {
    let Pass::Backward(gradients) = &mut a.pass else { panic!("a backward") };
    gradients
}

#[test]
fn operands_that_differ_in_a_size_they_share_are_named_by_that_field() {
    assert_eq!(refused(forward()), []);
    type Named = fn(&mut Attention) -> &mut Tensor;
    let (q, k, v, o): (Named, Named, Named, Named) = (|a| &mut a.q, |a| &mut a.k, |a| &mut a.v, |a| &mut a.o);
    // The tensor, the axis, and the fields that then differ.
    let cases: [(Named, usize, &[&str]); 12] = [
        (q, 0, &["k.dims[0]", "v.dims[0]", "o.dims[0]"]),
        (q, 1, &["o.dims[1]"]),
        (q, 2, &["o.dims[2]"]),
        (q, 3, &["k.dims[3]"]),
        (k, 0, &["k.dims[0]"]),
        (k, 2, &["v.dims[2]"]),
        (k, 3, &["k.dims[3]"]),
        (v, 0, &["v.dims[0]"]),
        (v, 3, &["o.dims[3]"]),
        (o, 0, &["o.dims[0]"]),
        (o, 1, &["o.dims[1]"]),
        (o, 2, &["o.dims[2]"]),
    ];
    for (which, axis, differ) in cases {
        let mut a = forward();
        let t = which(&mut a);
        // Twice as many heads still form groups.
        let to = 2 * t.dims[axis];
        resize(t, axis, to);
        assert_eq!(fields(a, "shape.mismatch"), differ, "axis {axis}");
    }
    // Heads of K and V need to divide only those of Q.
    for (heads, field) in [(3, true), (4, false), (1, false)] {
        for k in [true, false] {
            let mut a = forward();
            resize(if k { &mut a.k } else { &mut a.v }, 1, heads);
            let expected: &[&str] = match (field, k) {
                (false, _) => &[],
                (true, true) => &["k.dims[1]"],
                (true, false) => &["v.dims[1]"],
            };
            assert_eq!(fields(a, "heads.group"), expected, "{heads}");
        }
    }
}

#[test]
fn gradients_have_the_sizes_of_their_tensors() {
    assert_eq!(refused(backward()), []);
    type Named = fn(&mut Gradients) -> &mut Tensor;
    let all: [(&str, Named); 4] =
        [("d_o", |g| &mut g.d_o), ("d_q", |g| &mut g.d_q), ("d_k", |g| &mut g.d_k), ("d_v", |g| &mut g.d_v)];
    for (name, which) in all {
        for axis in 0..4 {
            let mut a = backward();
            let t = which(gradients(&mut a));
            let to = t.dims[axis] + 1;
            resize(t, axis, to);
            assert_eq!(refused(a), [("shape.mismatch".to_owned(), format!("{name}.dims[{axis}]"))]);
        }
    }
}

/// A size of zero is reported once, and not also as a mismatch, as a wrong group or as scores that cannot be counted.
#[test]
fn a_tensor_that_cannot_be_counted_is_compared_with_nothing() {
    for axis in 0..4 {
        for which in 0..4 {
            let mut a = forward().with_score_mod((score() + bias([3, 4, 6, 10])).build_score_mod().expect("a score"));
            a.mask.band = Some(Band::CAUSAL);
            a.mask.mask_mod = Some((key() - query()).le(-3).build_mask_mod().expect("a predicate"));
            let (name, t) = match which {
                0 => ("q", &mut a.q),
                1 => ("k", &mut a.k),
                2 => ("v", &mut a.v),
                _ => ("o", &mut a.o),
            };
            t.dims[axis] = 0;
            let found: Vec<String> = refused(a).into_iter().map(|(code, field)| format!("{code} {field}")).collect();
            assert_eq!(found, [format!("tensor.dims {name}.dims")], "axis {axis}");
        }
    }
}

fn bias(dims: [i64; 4]) -> qkvault_graph::expr::Expr {
    tensor("bias", TensorSpec::new(DType::F32, dims))
}

/// If a launch gets lengths, a diagonal that ends bottom right is at another place in each sequence: a band of the
/// other corner is not certainly a contradiction.
#[test]
fn bands_of_different_corners_contradict_each_other_only_at_fixed_lengths() {
    let with = |lengths, corner| {
        let mut a = Attention::bshd(1, (2, 2), (8, 16), 16, DType::F16);
        // Keys from the ninth after the query on; the bottom right diagonal is eight keys ahead.
        a.mask.mask_mod = Some((key() - query()).ge(9).build_mask_mod().expect("a predicate"));
        a.mask.band = Some(Band { corner, left: None, right: Some(0) });
        a.mask.lengths = lengths;
        fields(a, "mask.contradiction").len()
    };
    assert_eq!(with(Lengths::Full, Corner::BottomRight), 1);
    assert_eq!(with(Lengths::PerSequence, Corner::BottomRight), 0);
    assert_eq!([Lengths::Full, Lengths::PerSequence].map(|lengths| with(lengths, Corner::TopLeft)), [1, 1]);
}

/// Beyond 2^28 predicates are not recognised as bands, so a contradiction is not certain.
#[test]
fn predicates_are_recognised_as_bands_below_two_to_the_28() {
    let most = 1_i64 << 28;
    let with = |s_q: i64, s_kv: i64, keep: qkvault_graph::expr::Expr| {
        let mut a = Attention::bshd(1, (1, 1), (s_q, s_kv), 8, DType::F16);
        a.mask.mask_mod = Some(keep.build_mask_mod().expect("a predicate"));
        validate(a).map(|valid| valid.get().mask.band.is_some()).map_err(|r| r.has(&codes::MASK_CONTRADICTION))
    };
    for (s_q, s_kv, recognised) in
        [(most - 1, most - 1, true), (most, 8, false), (8, most, false), (most - 1, 8, true), (8, most - 1, true)]
    {
        assert_eq!(with(s_q, s_kv, key().le(query())), Ok(recognised), "{s_q} {s_kv}");
        let contradiction = key().lt(query()) & key().gt(query());
        assert_eq!(with(s_q, s_kv, contradiction).is_err(), recognised, "{s_q} {s_kv}");
    }
}

/// Rows of fixed sequences are not padding, so the choice for padded rows does not matter.
#[test]
fn padded_rows_matter_only_with_lengths() {
    let with = |lengths| {
        let mut a = forward();
        (a.mask.lengths, a.padded_rows) = (lengths, PaddedRows::Zero);
        validate(a).expect("sound").get().padded_rows
    };
    assert_eq!(with(Lengths::Full), PaddedRows::Undefined);
    assert_eq!(with(Lengths::PerSequence), PaddedRows::Zero);
}

/// A varlen gradient of a dense tensor would have other offsets.
#[test]
fn gradients_have_the_storage_of_their_tensors() {
    for at in 0..4 {
        let mut a = backward();
        let g = gradients(&mut a);
        let (name, t) = [("d_o", &mut g.d_o), ("d_q", &mut g.d_q), ("d_k", &mut g.d_k), ("d_v", &mut g.d_v)]
            .into_iter()
            .nth(at)
            .expect("four of them");
        t.storage = Storage::Varlen { tokens: 100 };
        a.mask.lengths = Lengths::PerSequence;
        assert_eq!(fields(a, "storage.gradient"), [format!("{name}.storage")]);
    }
}
