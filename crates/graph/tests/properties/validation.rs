//! Validation: valid attentions pass unchanged, and invalid ones get every reason at once.

use std::collections::BTreeSet;

use proptest::prelude::*;
use qkvault_graph::arbitrary::{self, FAULTS, Space};
use qkvault_graph::registry::{codes, entries};
use qkvault_graph::{Attention, DType, Origin, Refusal, Storage, Tensor, validate};

fn codes(refusal: &Refusal) -> BTreeSet<&str> {
    refusal.reasons().iter().map(|r| r.code.as_str()).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]

    #[test]
    fn random_attentions_are_valid_and_validation_is_idempotent(
        (a, wide) in (arbitrary::attention(Space::SMALL), arbitrary::attention(Space::WIDE)),
    ) {
        for a in [a, wide] {
            let valid = match validate(a.clone()) {
                Ok(valid) => valid,
                Err(refusal) => return Err(TestCaseError::fail(format!("{a:?}\n{refusal}"))),
            };
            let again = validate(valid.get().clone());
            prop_assert_eq!(again.as_ref(), Ok(&valid));
            prop_assert_eq!(valid.clone().into_inner(), valid.get().clone());
        }
    }

    #[test]
    fn every_problem_is_found_at_once((a, expected) in arbitrary::invalid(Space::SMALL)) {
        let refusal = validate(a).expect_err("it has a fault");
        let found = codes(&refusal);
        for code in &expected {
            prop_assert!(found.contains(code), "{} of {:?} is not in {:?}", code, expected, found);
        }
        for reason in refusal.reasons() {
            prop_assert_eq!(reason.origin, Origin::Description);
            for text in [&reason.field[..], &reason.given, &reason.needed, &reason.fix] {
                prop_assert!(!text.is_empty(), "{}", reason);
            }
        }
    }
}

/// The codes in the sources of validation.
fn codes_in_sources() -> BTreeSet<String> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/src/valid");
    let mut codes = BTreeSet::new();
    for file in std::fs::read_dir(folder).expect("the sources are here") {
        let source = std::fs::read_to_string(file.expect("an entry").path()).expect("a source file");
        let names: BTreeSet<&str> = source
            .split("codes::")
            .skip(1)
            .filter_map(|rest| rest.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').next())
            .collect();
        let constant = |code: &str| code.to_uppercase().replace(['.', '-'], "_");
        codes.extend(entries().map(|e| e.code).filter(|code| names.contains(&*constant(code))).map(str::to_owned));
    }
    codes
}

#[test]
fn every_rule_has_a_fault_that_fires_it() {
    let tested: BTreeSet<String> = FAULTS.iter().map(|f| f.code.to_owned()).collect();
    assert_eq!(tested.len(), FAULTS.len(), "one fault per code");
    assert_eq!(codes_in_sources(), tested);
    for fault in FAULTS {
        let mut a = Attention::bshd(4, (4, 2), (8, 8), 16, DType::F16);
        fault.put(&mut a);
        let refusal = validate(a).expect_err(fault.code);
        assert!(refusal.has(&fault.code.into()), "{}: {refusal}", fault.code);
    }
}

/// A small forward with one change, and the only code of its refusal; `None` for a valid one.
#[track_caller]
fn expect(code: Option<&str>, change: impl FnOnce(&mut Attention)) {
    let mut a = Attention::bshd(4, (4, 2), (8, 8), 16, DType::F16);
    change(&mut a);
    let found = validate(a).err();
    let found = found.as_ref().map(|r| codes(r).into_iter().collect::<Vec<_>>().join(" "));
    assert_eq!(found.as_deref(), code);
}

#[test]
fn extents_are_32_bit_integers_and_no_larger() {
    let most = i64::from(i32::MAX);
    let keys = |n: i64| {
        move |a: &mut Attention| {
            a.k = Tensor::bhsd(4, 1, n, 16, DType::F16);
            a.v = a.k;
        }
    };
    expect(None, keys(most));
    expect(Some("tensor.dims-limit"), keys(most + 1));
    let pool = |pages: i64, page_size: i64| {
        move |a: &mut Attention| {
            a.k.storage = Storage::Paged { pages, page_size };
            a.v = a.k;
            a.mask.lengths = qkvault_graph::Lengths::PerSequence;
        }
    };
    expect(None, pool(most, 16));
    expect(Some("tensor.pages-limit"), pool(most + 1, 16));
    expect(None, pool(1, 1));
    expect(Some("tensor.pages"), pool(0, 16));
    expect(Some("tensor.pages"), pool(4, 0));
    expect(None, pool(1, most));
    expect(Some("tensor.pages-limit"), pool(1, most + 1));
}

#[test]
fn scores_are_counted_in_63_bits() {
    // 4 batches of 4 heads leave 2^59 scores for each.
    let square = |s_q: i64, s_kv: i64| {
        move |a: &mut Attention| {
            a.q = Tensor::bhsd(4, 4, s_q, 1, DType::F16);
            a.o = a.q;
            a.k = Tensor::bhsd(4, 2, s_kv, 1, DType::F16);
            a.v = a.k;
        }
    };
    expect(None, square((1 << 29) - 1, 1 << 30));
    expect(Some("shape.scores"), square(1 << 29, 1 << 30));
    // By the batch and the heads separately: 2 and 8 leave the same number.
    let oblong = |s_q: i64, s_kv: i64| {
        move |a: &mut Attention| {
            a.q = Tensor::bhsd(2, 8, s_q, 1, DType::F16);
            a.o = a.q;
            a.k = Tensor::bhsd(2, 2, s_kv, 1, DType::F16);
            a.v = a.k;
        }
    };
    expect(None, oblong((1 << 29) - 1, 1 << 30));
    expect(Some("shape.scores"), oblong(1 << 29, 1 << 30));
    // A tensor that cannot be counted is reported alone.
    for axes in [[1_i64 << 31; 4], [0, 1 << 31, 1 << 31, 1 << 31]] {
        let code = if axes[0] == 0 { "tensor.dims" } else { "tensor.dims-limit" };
        expect(Some(code), move |a| a.q.dims = axes);
        expect(Some(code), move |a| a.k.dims = axes);
    }
}

/// Outputs must not overlap, and each is reported; inputs of a launch may.
#[test]
fn gradients_may_not_overlap_and_what_a_backward_reads_may() {
    use qkvault_graph::{BackwardOptions, Gradients, Pass};
    let found = |change: fn(&mut Attention, &mut Gradients)| {
        let forward = Attention::bshd(4, (4, 2), (8, 8), 16, DType::F16).with_stats();
        let mut a = forward.backward(BackwardOptions::default());
        let Pass::Backward(mut gradients) = a.pass else { panic!("a backward") };
        change(&mut a, &mut gradients);
        a.pass = Pass::Backward(gradients);
        let refusal = validate(a).err();
        let reasons = refusal.into_iter().flat_map(|r| r.reasons().to_vec());
        reasons.map(|r| format!("{} {}", r.code, r.field)).collect::<Vec<_>>()
    };
    assert_eq!(found(|_, g| g.d_q.strides = [1; 4]), ["tensor.overlap d_q.strides"]);
    assert_eq!(found(|_, g| g.d_k.strides = [1; 4]), ["tensor.overlap d_k.strides"]);
    assert_eq!(found(|_, g| g.d_v.strides = [1; 4]), ["tensor.overlap d_v.strides"]);
    assert_eq!(found(|_, g| g.d_q.dims[1] = 0), ["tensor.dims d_q.dims"]);
    assert_eq!(found(|_, g| g.d_o.strides = [1; 4]), [""; 0]);
    assert_eq!(found(|a, _| [a.q.strides, a.k.strides, a.v.strides, a.o.strides] = [[1; 4]; 4]), [""; 0]);
}

/// The layout of elements is checked only for valid tensors, so that an invalid tensor is reported once.
#[test]
fn an_invalid_tensor_is_not_also_reported_for_overlap_or_span() {
    expect(Some("tensor.strides"), |a| a.o.strides[1] = 0);
    expect(Some("tensor.head-dim-stride"), |a| a.o.strides = [1, 1, 1, 2]);
    expect(Some("tensor.dims-limit"), |a| {
        a.o.dims[2] = 1 << 31;
        a.o.strides = [1; 4];
    });
    expect(Some("tensor.dims"), |a| {
        a.o.dims[2] = 0;
        a.o.strides = [1; 4];
    });
    let stored = |storage| {
        move |a: &mut Attention| {
            for t in [&mut a.k, &mut a.v] {
                t.storage = storage;
                t.strides[0] = i64::MAX;
                t.strides[2] = i64::MAX / 2;
            }
            a.mask.lengths = qkvault_graph::Lengths::PerSequence;
        }
    };
    expect(Some("tensor.pages"), stored(Storage::Paged { pages: 4, page_size: 0 }));
    expect(Some("tensor.pages-limit"), stored(Storage::Paged { pages: 1 << 31, page_size: 4 }));
    expect(Some("tensor.tokens"), stored(Storage::Varlen { tokens: 0 }));
}

#[test]
fn types_that_do_not_fit_are_reported_for_the_first_of_them() {
    expect(Some("dtype.input"), |a| (a.q.dtype, a.k.dtype, a.v.dtype) = (DType::F32, DType::F32, DType::F32));
    expect(Some("dtype.output"), |a| a.o.dtype = DType::BF16);
}

#[test]
fn varlen_buffers_have_room_for_a_token_and_may_have_fewer_than_sequences() {
    let varlen = |batch: i64, tokens: i64| {
        move |a: &mut Attention| {
            a.q = Tensor::thd(batch, 4, 8, 16, tokens, DType::F16);
            a.o = a.q;
            a.k = Tensor::thd(batch, 2, 8, 16, tokens, DType::F16);
            a.v = a.k;
            a.mask.lengths = qkvault_graph::Lengths::PerSequence;
        }
    };
    expect(None, varlen(4, 4));
    expect(None, varlen(4, 1 << 40));
    expect(None, varlen(4, 3));
    expect(None, varlen(70_000, 1));
    expect(Some("tensor.tokens"), varlen(4, 0));
}

#[test]
fn spans_are_counted_in_bytes_and_varlen_views_must_fit_too() {
    let stride = |stride: i64| move |a: &mut Attention| a.v.strides[0] = stride;
    let most = (i64::MAX / 2 - a_sequence()) / 3;
    expect(None, stride(most));
    expect(Some("tensor.span"), stride(most + 1));
    let view = |rows: i64| {
        move |a: &mut Attention| {
            let k = Tensor::thd(4, 2, 8, 16, 4, DType::F16);
            a.k = Tensor { strides: [1, 16, rows, 1], dims: k.dims, dtype: k.dtype, storage: k.storage };
            a.v = a.k;
            a.mask.lengths = qkvault_graph::Lengths::PerSequence;
        }
    };
    expect(None, view(1 << 40));
    // Four rows fit, the eight rows of four declared sequences do not: exactly to the element, 31 rows on, with two
    // heads of 16.
    expect(Some("tensor.span"), view(1 << 59));
    let most = (i64::MAX / 2 - 32) / 31;
    expect(None, view(most));
    expect(Some("tensor.span"), view(most + 1));
}

/// Elements that the rows of one sequence of V span in the base attention of [`expect`].
fn a_sequence() -> i64 {
    7 * 2 * 16 + 16 + 15 + 1
}

#[test]
fn bounds_windows_and_probabilities_are_refused_just_outside() {
    use qkvault_graph::{Band, Corner};
    let band =
        |left, right| move |a: &mut Attention| a.mask.band = Some(Band { corner: Corner::BottomRight, left, right });
    expect(None, band(Some(1), Some(0)));
    expect(Some("band.left"), band(Some(0), Some(0)));
    expect(Some("band.right"), band(Some(1), Some(-1)));
    expect(Some("band.left band.right"), band(Some(0), Some(-1)));
    expect(None, band(Some(i64::MAX), Some(i64::MAX)));
    let dropout = |p: f32| move |a: &mut Attention| *a = a.clone().with_dropout(p);
    for sound in [0.0, -0.0, 0.999_999_9] {
        expect(None, dropout(sound));
    }
    for unsound in [-1e-9, 1.0, f32::NAN, f32::INFINITY] {
        expect(Some("dropout.probability"), dropout(unsound));
    }
}

#[test]
fn groups_divide_and_broken_dims_are_named_once() {
    expect(None, |a| a.k.dims[1] = 1);
    expect(Some("heads.group"), |a| a.k.dims[1] = 3);
    expect(Some("tensor.dims"), |a| a.k.dims = [0, -1, 0, 0]);
    expect(Some("tensor.dims tensor.head-dim-stride tensor.tokens"), |a| {
        a.k.dims[0] = 0;
        a.k.storage = Storage::Varlen { tokens: 0 };
        a.k.strides[3] = 2;
        a.mask.lengths = qkvault_graph::Lengths::PerSequence;
    });
}

#[test]
fn outputs_may_not_overlap_and_inputs_may() {
    expect(None, |a| a.k.strides = [1, 1, 1, 1]);
    expect(None, |a| a.o.strides = [16, 64, 256, 1]);
    expect(Some("tensor.overlap"), |a| a.o.strides = [16, 64, 255, 1]);
}

#[test]
fn contradictory_masks_are_those_that_no_key_of_any_query_passes() {
    use qkvault_graph::expr::{Expr, key, key_len, query, query_len};
    use qkvault_graph::{Band, Corner, Lengths};
    let diagonals = [("top left", query() - key()), ("bottom right", (query() - query_len()) - (key() - key_len()))];
    for (s_q, s_kv) in [(1, 1), (1, 4), (3, 3), (4, 2), (2, 5)] {
        for (from, to) in (-6..6).flat_map(|from| (from - 1..7).map(move |to| (from, to))) {
            for (corner, distance) in &diagonals {
                let keep: Expr = distance.ge(from) & distance.le(to);
                let band = |corner, left, right| Some(Band { corner, left, right });
                for band in [
                    None,
                    band(Corner::TopLeft, None, Some(0)),
                    band(Corner::BottomRight, Some(1), Some(0)),
                    band(Corner::BottomRight, Some(2), None),
                ] {
                    let seen = (0..s_q).any(|row| {
                        (0..s_kv).any(|col| {
                            let shift = if *corner == "top left" { 0 } else { s_kv - s_q };
                            let x = row - col + shift;
                            (i64::from(from)..=i64::from(to)).contains(&x)
                                && band.is_none_or(|b| b.keeps(row, col, s_q, s_kv))
                        })
                    });
                    let mut a = Attention::bshd(1, (1, 1), (s_q, s_kv), 8, DType::F16);
                    let keep = keep.build_mask_mod().expect("a predicate");
                    (a.mask.band, a.mask.mask_mod) = (band, Some(keep));
                    let refused = validate(a.clone()).err();
                    assert_eq!(
                        refused.is_some(),
                        !seen,
                        "{corner} {from}..={to} with {band:?} over {s_q}x{s_kv}: {refused:?}"
                    );
                    assert!(refused.is_none_or(|r| r.has(&codes::MASK_CONTRADICTION)));
                    // With lengths that a launch gets, a mask that some lengths let through is not a contradiction.
                    a.mask.lengths = Lengths::PerSequence;
                    assert!(!seen || validate(a).is_ok());
                }
            }
        }
    }
}
