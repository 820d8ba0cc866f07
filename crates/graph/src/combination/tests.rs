//! Keys, operands and contradictions of combinations.

use std::collections::BTreeSet;

use super::*;
use crate::registry::codes;
use crate::{DType, Role, Storage};

fn o() -> Tensor {
    Tensor::bshd(2, 4, 8, 16, DType::BF16)
}

fn stats() -> Tensor {
    Tensor::bhsd(2, 4, 8, 1, DType::F32)
}

fn merge(parts: usize, sink: bool) -> Combination {
    let part = Partial { o: o(), stats: stats() };
    Combination::Merge { parts: vec![part; parts], rows: false, sink, o: o(), stats: Some(stats()) }
}

fn sum(parts: usize) -> Combination {
    Combination::Sum { parts: vec![o(); parts], rows: false, into: o() }
}

/// The same, told which rows count.
fn counted(mut of: Combination) -> Combination {
    if let Combination::Merge { rows, .. } | Combination::Sum { rows, .. } = &mut of {
        *rows = true;
    }
    of
}

#[test]
fn each_combination_has_a_key_and_operands_of_its_own() {
    let list = [
        merge(2, false),
        merge(2, true),
        merge(3, false),
        counted(merge(2, false)),
        sum(1),
        sum(2),
        counted(sum(2)),
        Combination::Copy { from: o(), to: o() },
        Combination::Fill { to: stats(), hidden: false },
        Combination::Fill { to: stats(), hidden: true },
        Combination::Keep { to: o(), heads: 4, below: 7 },
        Combination::Keep { to: o(), heads: 8, below: 7 },
        Combination::Keep { to: o(), heads: 4, below: 9 },
    ];
    let mut keys = BTreeSet::new();
    for combination in list {
        let valid = combination.validate().expect("sound");
        keys.insert(valid.key());
        let bound: Vec<_> = valid.bindings().iter().map(|b| (b.role, b.output)).collect();
        assert!(bound.windows(2).all(|pair| pair[0].0.uid() < pair[1].0.uid()), "{bound:?}");
        assert!(bound.iter().all(|(role, output)| *output == [Role::O, Role::Stats, Role::Into].contains(role)));
    }
    assert_eq!(keys.len(), 13);
}

#[test]
fn strides_that_are_never_used_do_not_count() {
    let of = |strides| Tensor { dims: [1, 4, 8, 16], strides, ..o() };
    let [one, other] = [[1, 16, 64, 1], [9999, 16, 64, 1]].map(|s| Combination::Copy { from: of(s), to: of(s) });
    assert_eq!(one.validate().expect("sound").key(), other.validate().expect("sound").key());
}

#[test]
fn every_contradiction_is_told_with_its_place() {
    let refused = |combination: Combination| {
        let refusal = combination.validate().expect_err("refused");
        refusal.reasons().iter().map(|reason| (reason.code.to_string(), reason.field.to_string())).collect::<Vec<_>>()
    };
    let code = |code: &crate::Code, field: &str| (code.to_string(), field.to_owned());
    assert_eq!(refused(sum(0)), [code(&codes::COMBINATION_PARTS, "parts")]);
    assert_eq!(refused(merge(MOST_PARTS + 1, false)), [code(&codes::COMBINATION_PARTS, "parts")]);
    let half = Tensor { dtype: DType::F16, ..o() };
    let mixed = Combination::Sum { parts: vec![o(), half], rows: false, into: o() };
    assert_eq!(refused(mixed), [code(&codes::COMBINATION_DTYPE, "parts.dtype")]);
    let eight = Tensor { dtype: DType::E4M3, ..o() };
    let narrow = Combination::Sum { parts: vec![o()], rows: false, into: eight };
    assert_eq!(refused(narrow), [code(&codes::COMBINATION_DTYPE, "into.dtype")]);
    let shorter = Tensor::bshd(2, 4, 7, 16, DType::BF16);
    let dims = Combination::Copy { from: shorter, to: o() };
    assert_eq!(refused(dims), [code(&codes::COMBINATION_DIMS, "from.dims")]);
    let packed = Tensor { storage: Storage::Varlen { tokens: 16 }, ..o() };
    let storage = Combination::Copy { from: packed, to: o() };
    assert_eq!(refused(storage), [code(&codes::COMBINATION_STORAGE, "from.storage")]);
    let hidden = Combination::Fill { to: o(), hidden: true };
    assert_eq!(refused(hidden), [code(&codes::COMBINATION_DTYPE, "to.dtype")]);
    let more = Combination::Keep { to: o(), heads: 3, below: 7 };
    assert_eq!(refused(more), [code(&codes::COMBINATION_DIMS, "to.dims")]);
    let wide = Partial { o: o(), stats: o() };
    let stats = Combination::Merge { parts: vec![wide], rows: false, sink: false, o: o(), stats: None };
    assert_eq!(
        refused(stats),
        [code(&codes::COMBINATION_DIMS, "parts.stats.dims"), code(&codes::COMBINATION_DTYPE, "parts.stats.dtype")]
    );
    // Rows that lie upon each other cannot be written, and may be read.
    let upon = Tensor { strides: [512, 16, 1, 1], ..o() };
    assert!(Combination::Copy { from: upon, to: o() }.validate().is_ok());
    assert!(Combination::Copy { from: o(), to: upon }.validate().is_err());
}
