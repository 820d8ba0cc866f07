//! Bad input of every kind: each problem is a reason with the place, what was given, what is needed and the fix, and
//! all are reported together.

use qkvault_graph::expr::{TensorSpec, key, query, scalar, score, tensor};
use qkvault_graph::{Attention, BackwardOptions, Band, CuSeqlens, DType, PageTable, Reason, Refusal, Tensor, validate};

fn base() -> Attention {
    Attention::bshd(2, (4, 2), (8, 16), 16, DType::F16).with_stats()
}

#[track_caller]
fn refused(a: Attention) -> Refusal {
    validate(a).expect_err("bad input")
}

/// The only reason of this code, with all its fields.
#[track_caller]
fn reason<'a>(refusal: &'a Refusal, code: &str) -> &'a Reason {
    let mut found = refusal.reasons().iter().filter(|r| r.code.as_str() == code);
    let reason = found.next().unwrap_or_else(|| panic!("{code} is not in {refusal}"));
    assert!(found.next().is_none(), "{code} twice in {refusal}");
    for fact in [&reason.field[..], &reason.given, &reason.needed, &reason.fix] {
        assert!(!fact.is_empty(), "{reason:?}");
    }
    reason
}

#[test]
fn an_expression_of_the_wrong_type() {
    let truth = query().le(key()).build().expect("a predicate is an expression");
    let refusal = refused(base().with_score_mod(truth));
    assert_eq!((reason(&refusal, "score-mod.type").field.as_ref(), refusal.reasons().len()), ("score_mod", 1));
    let number = (key() - query()).build().expect("a difference");
    assert_eq!(reason(&refused(base().with_mask_mod(number)), "score-mod.type").given, "int");
    // From `build`: every problem with its place.
    let errors = (score().sqrt() + query().le(key())).build_score_mod().expect_err("a truth value is not a number");
    assert!(errors.to_string().contains("the right operand of 'add' is bool"), "{errors}");
}

#[test]
fn a_tensor_that_does_not_broadcast() {
    let bias = |name, dims| tensor(name, TensorSpec::new(DType::F32, dims));
    let sum = score() + bias("good", [1, 4, 1, 16]) + bias("narrow", [2, 4, 8, 15]);
    let refusal = refused(base().with_score_mod(sum.build_score_mod().expect("a score")));
    let found = reason(&refusal, "score-mod.broadcast");
    assert!(found.field.contains("narrow") && found.needed.contains("16"), "{found}");
    assert_eq!(refusal.reasons().len(), 1);
}

#[test]
fn an_expression_that_does_not_read_the_score() {
    let distance = (key() - query()).to_float().build_score_mod().expect("a float");
    let found = refused(base().with_score_mod(distance.clone()));
    assert!(reason(&found, "score-mod.unread").fix.contains("add to the score"));
    let backward = base().with_score_mod(distance).backward(BackwardOptions::default());
    assert_eq!(refused(backward).reasons().len(), 1);
}

#[test]
fn a_requested_derivative_that_does_not_exist() {
    let learned = |name| tensor(name, TensorSpec::new(DType::F32, [1, 4, 1, 1]).with_grad());
    let by_score = score().floor();
    let cancels = score() - score() + scalar("offset");
    let by_tensor = learned("gate").gt(0.0).select(score(), score() * 2.0);
    for (expression, of) in [(by_score, "the score"), (cancels, "the score"), (by_tensor, "the tensor 'gate'")] {
        let forward = base().with_score_mod(expression.build_score_mod().expect("a score"));
        assert!(validate(forward.clone()).is_ok(), "a forward needs no derivative");
        let refusal = refused(forward.backward(BackwardOptions::default()));
        assert!(reason(&refusal, "score-mod.derivative").needed.contains(of), "{refusal}");
    }
    // One reason for each gradient that does not exist.
    let both = learned("gate").gt(0.0).select(score(), score() * 2.0) + learned("step").floor();
    let backward = base().with_score_mod(both.build_score_mod().expect("a score")).backward(BackwardOptions::default());
    let refusal = refused(backward);
    assert_eq!(refusal.reasons().len(), 2, "{refusal}");
    let keep = learned("learned").gt(0.5).build_mask_mod().expect("a predicate");
    assert!(reason(&refused(base().with_mask_mod(keep)), "mask-mod.gradient").field.contains("learned"));
}

#[test]
fn offsets_that_decrease() {
    let refusal = CuSeqlens::new(vec![0, 5, 3, 4]).expect_err("falls");
    assert_eq!(reason(&refusal, "offsets.falls").field, "cu_seqlens[2]");
}

#[test]
fn page_tables_of_the_wrong_batch() {
    let pool = Tensor::paged_nhd(2, 2, 8, 4, 5, 4, DType::F16);
    let lengths = CuSeqlens::from_lengths(&[8, 3]).expect("lengths");
    let refusal = PageTable::new(&pool, &lengths, &[vec![4, 0], vec![2], vec![1]]).expect_err("three rows");
    reason(&refusal, "pages.batch");
}

#[test]
fn contradictory_masks() {
    let ahead = query().lt(key()).build_mask_mod().expect("a predicate");
    reason(&refused(base().with_band(Band::CAUSAL).with_mask_mod(ahead)), "mask.contradiction");
}

#[test]
fn every_problem_of_a_description_at_once() {
    let mut a = base();
    a.k.dims[1] = 3;
    a.v.strides[3] = 2;
    let bias = tensor("bias", TensorSpec::new(DType::F32, [1, 3, 1, 1]).with_grad());
    a = a.with_score_mod((query().to_float() + bias.floor()).build_score_mod().expect("a float")).with_dropout(1.0);
    a.mask.mask_mod = score().gt(0.0).build().ok();
    a.outputs.stats = false;
    let refusal = refused(a.backward(BackwardOptions { d_sink: true, ..BackwardOptions::default() }));
    for code in [
        "heads.group",
        "tensor.head-dim-stride",
        "score-mod.unread",
        "score-mod.broadcast",
        "mask-mod.score",
        "dropout.probability",
        "backward.stats",
        "backward.sink",
    ] {
        assert!(refusal.has(&code.into()), "{code} is not in {refusal}");
    }
}
