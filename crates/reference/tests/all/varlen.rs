//! Varlen and paged operands, whose rows are found by offsets and page tables, have the same results as dense ones.

use crate::common;

use common::valid;
use qkvault_graph::{Attention, BackwardOptions, Band, DType, PaddedRows, Role, Tensor, Valid, Varlen};
use qkvault_reference::{
    Buffer, Inputs, LengthChoice, RandomChoice, ReferenceError, Unused, View, backward as backward_of, forward,
};

/// A dense attention and its varlen and paged forms, for these lengths.
fn trio(q: &[usize], kv: &[usize], room: i64, page_size: i64) -> [Valid; 3] {
    let (b, h, d, dtype) = (q.len() as i64, 2, 8, DType::BF16);
    let (s_q, s_kv) = (*q.iter().max().expect("some") as i64, *kv.iter().max().expect("some") as i64);
    let (s_q, s_kv) = (s_q.max(1), s_kv.max(1));
    let band = Band { left: Some(9), ..Band::CAUSAL_BOTTOM_RIGHT };
    let attention =
        |q: Tensor, kv: Tensor| valid(Attention::forward(q, kv, kv, q).with_band(band).with_lengths().with_stats());
    let dense = |s| Tensor::bshd(b, h, s, d, dtype);
    let tokens = |lens: &[usize]| (lens.iter().sum::<usize>() as i64 + room).max(1);
    let varlen = |lens, s| Tensor::thd(b, h, s, d, tokens(lens), dtype);
    let pages = b * ((s_kv + page_size - 1) / page_size) + 3;
    [
        attention(dense(s_q), dense(s_kv)),
        attention(varlen(q, s_q), varlen(kv, s_kv)),
        attention(varlen(q, s_q), Tensor::paged_hnd(b, h, s_kv, d, pages, page_size, dtype)),
    ]
}

/// Copies Q, K and V of the dense attention into the other layouts and compares the results.
fn check(q: &[usize], kv: &[usize], room: i64, page_size: i64) {
    let all = trio(q, kv, room, page_size);
    let lengths = LengthChoice::Exact { q: q.to_vec(), kv: kv.to_vec() };
    let choice = RandomChoice { lengths, unused: Unused::Poison, spread: room > 0, ..RandomChoice::default() };
    let inputs = all.each_ref().map(|a| Inputs::random_with(a, 3, &choice).expect("random"));
    let results: Vec<_> = all
        .iter()
        .zip(&inputs)
        .map(|(a, own)| {
            let mut own = own.clone();
            for (role, lens) in [(Role::Q, q), (Role::K, kv), (Role::V, kv)] {
                let (from, to) = (View::new(&all[0], role, &inputs[0]), View::new(a, role, &own));
                let (from, to) = (from.expect("sound"), to.expect("sound"));
                let source = inputs[0].get(role).expect("bound");
                let target = own.get_mut(role).expect("bound");
                for (b, &len) in lens.iter().enumerate() {
                    for (h, s) in (0..2).flat_map(|h| (0..len).map(move |s| (h, s))) {
                        (0..8).for_each(|d| target.set(to.at(b, h, s, d), source.get(from.at(b, h, s, d))));
                    }
                }
            }
            (forward(a, &own).expect("computes"), own)
        })
        .collect();
    for (other, _) in &results[1..] {
        for role in [Role::O, Role::Stats] {
            let (x, y) = (results[0].0.get(role).expect("there"), other.get(role).expect("there"));
            for (b, &len) in q.iter().enumerate() {
                for (h, s) in (0..2).flat_map(|h| (0..len).map(move |s| (h, s))) {
                    for d in 0..if role == Role::O { 8 } else { 1 } {
                        let (x, y) = (x.at(b, h, s, d), y.at(b, h, s, d));
                        assert!(x == y && !x.is_nan(), "{role} {:?}: {x} and {y}", [b, h, s, d]);
                    }
                }
            }
        }
    }
}

#[test]
fn tokens_far_outnumber_sequences() {
    check(&[40, 3], &[70, 9], 0, 16);
    check(&[40, 3], &[70, 9], 50, 16);
}

#[test]
fn one_sequence() {
    check(&[7], &[11], 0, 4);
    check(&[1], &[1], 5, 1);
}

#[test]
fn sequences_without_rows() {
    check(&[0, 4, 0, 2], &[3, 4, 0, 5], 0, 2);
    check(&[0, 0], &[0, 0], 2, 4);
    check(&[3, 5], &[0, 6], 4, 4);
}

/// flash-attention #1537: sequences of at most one row, most of them empty, were refused.
#[test]
fn fewer_tokens_than_sequences() {
    check(&[0, 0, 1, 0, 1, 0, 0, 0], &[0, 2, 1, 0, 3, 0, 0, 0], 0, 1);
    check(&[0, 0, 0, 1], &[0, 1, 0, 0], 0, 4);
}

/// In both directions sequences without rows take no part, wherever they stand.
#[test]
fn empty_sequences_may_be_left_out() {
    let few = [vec![2_usize, 1], vec![3, 4]];
    let many = few.each_ref().map(|lens| vec![0, lens[0], 0, 0, 0, lens[1], 0, 0]);
    let of = |batch: usize, backward: bool| {
        let [q, k] = [3, 7].map(|tokens| Tensor::thd(batch as i64, 2, 4, 8, tokens, DType::BF16));
        let a = Attention::forward(q, k, k, q).with_band(Band::CAUSAL_BOTTOM_RIGHT).with_lengths().with_stats();
        valid(if backward { a.backward(BackwardOptions::default()) } else { a })
    };
    for backward in [false, true] {
        let [few, many] = [&few, &many].map(|[q, kv]| {
            let attention = of(q.len(), backward);
            let lengths = LengthChoice::Exact { q: q.clone(), kv: kv.clone() };
            let inputs = Inputs::random_with(&attention, 3, &RandomChoice { lengths, ..RandomChoice::default() })
                .expect("random");
            let outputs = if backward { backward_of(&attention, &inputs) } else { forward(&attention, &inputs) };
            outputs.expect("computes")
        });
        assert_eq!(few.iter().count(), many.iter().count());
        for (few, many) in few.iter().zip(many.iter()) {
            assert_eq!(few.buffer().bytes(), many.buffer().bytes(), "{}", few.role());
            assert!((0..few.buffer().len()).any(|at| few.buffer().get(at) != 0.0), "{}", few.role());
        }
    }
}

#[test]
fn the_last_page_is_half_full_and_unused_pages_are_never_read() {
    check(&[5, 6, 1], &[16, 17, 5], 0, 8);
    check(&[2, 3], &[100, 33], 0, 64);
}

#[test]
fn offsets_are_64_bits_wide() {
    // A test cannot allocate a buffer whose second sequence begins beyond 2^31 elements. An offset that would wrap to a
    // valid one must be refused.
    let [_, varlen, _] = trio(&[2, 2], &[2, 2], 0, 2);
    let mut inputs = Inputs::random(&varlen, 1).expect("random");
    let wrapped = [0_i64, (1 << 32) + 32, (1 << 32) + 64].into_iter().flat_map(i64::to_ne_bytes).collect();
    inputs.insert(Role::Offsets(Varlen::K), Buffer::new(DType::I64, wrapped).expect("whole"));
    let refused = forward(&varlen, &inputs).expect_err("beyond the buffer");
    assert!(matches!(refused, ReferenceError::Offset { sequence: 1, .. }), "{refused}");
    assert!(refused.to_string().contains("elements"), "{refused}");
}

#[test]
fn wrong_offsets_lengths_and_pages_are_error_values() {
    let [dense, varlen, paged] = trio(&[2, 3], &[4, 5], 0, 2);
    let with = |a: &Valid, role, values: &[f64], dtype| {
        let lengths = LengthChoice::Exact { q: vec![2, 3], kv: vec![4, 5] };
        let mut inputs =
            Inputs::random_with(a, 1, &RandomChoice { lengths, ..RandomChoice::default() }).expect("random");
        inputs.insert(role, Buffer::from_values(dtype, values.iter().copied()));
        forward(a, &inputs).map(|_| ()).expect_err("wrong")
    };
    let offsets = |values: &[f64]| with(&varlen, Role::Offsets(Varlen::Q), values, DType::I64);
    assert!(matches!(offsets(&[-16.0, 32.0, 80.0]), ReferenceError::Offset { sequence: 0, given: -16, .. }));
    assert!(matches!(offsets(&[32.0, 0.0, 80.0]), ReferenceError::Offset { sequence: 0, .. }), "falling");
    assert!(matches!(offsets(&[0.0, 48.0, 80.0]), ReferenceError::Offset { sequence: 1, end: 96, room: 80, .. }));
    assert!(matches!(offsets(&[0.0, 32.0]), ReferenceError::TooShort { needed: 3, .. }));
    let length = |values: &[f64]| with(&dense, Role::SeqLenKv, values, DType::I32);
    assert!(matches!(length(&[4.0, 6.0]), ReferenceError::Length { sequence: 1, given: 6, most: 5, .. }));
    assert!(matches!(length(&[-1.0, 1.0]), ReferenceError::Length { sequence: 0, given: -1, .. }));
    assert!(matches!(with(&dense, Role::SeqLenKv, &[1.0, 1.0], DType::I64), ReferenceError::WrongType { .. }));
    let table = |values: &[f64]| with(&paged, Role::PageTableV, values, DType::I32);
    let refused = table(&[0.0, 1.0, 99.0, 0.0, 1.0, 99.0]);
    assert!(matches!(refused, ReferenceError::Page { sequence: 1, entry: 2, given: 99, pages: 9, .. }), "{refused}");
    assert!(matches!(with(&dense, Role::Q, &[0.0; 7], DType::BF16), ReferenceError::TooShort { .. }));
    assert!(matches!(forward(&dense, &Inputs::new()), Err(ReferenceError::Missing { .. })));
}

#[test]
fn zeroed_padding_reaches_tokens_that_no_sequence_has() {
    let [_, varlen, _] = trio(&[2, 3], &[4, 5], 6, 2);
    let mut a = varlen.into_inner();
    a.padded_rows = PaddedRows::Zero;
    let a = valid(a);
    let lengths = LengthChoice::Exact { q: vec![2, 3], kv: vec![4, 5] };
    let inputs =
        Inputs::random_with(&a, 1, &RandomChoice { lengths, spread: true, ..RandomChoice::default() }).expect("random");
    let outputs = forward(&a, &inputs).expect("computes");
    let (o, stats) = (outputs.buffer(Role::O).expect("O"), outputs.buffer(Role::Stats).expect("Stats"));
    assert!((0..o.len()).all(|at| !o.is_poison(at)));
    assert_eq!((0..o.len()).filter(|&at| o.get(at) == 0.0).count(), 6 * 16);
    assert_eq!((0..stats.len()).filter(|&at| stats.get(at) == f64::NEG_INFINITY).count(), 6 * 2);
}

#[test]
fn sequences_may_lie_apart() {
    let [_, varlen, _] = trio(&[2, 3], &[4, 5], 6, 2);
    let starts = |spread, seed| {
        let lengths = LengthChoice::Exact { q: vec![2, 3], kv: vec![4, 5] };
        let inputs = Inputs::random_with(&varlen, seed, &RandomChoice { lengths, spread, ..RandomChoice::default() })
            .expect("random");
        let offsets = inputs.get(Role::Offsets(Varlen::Q)).expect("bound");
        [offsets.int(0), offsets.int(1), offsets.int(2)]
    };
    // A row is 2 heads of 8 elements, and offsets count elements.
    assert_eq!(starts(false, 1), [0, 2 * 16, 5 * 16]);
    assert!((0..20).any(|seed| starts(true, seed)[1] > 2 * 16));
}
