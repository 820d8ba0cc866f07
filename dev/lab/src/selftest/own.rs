//! Random attentions that qkvault's own kernels take, from a seed: the forwards among the cases of cuDNN, dense ones
//! and batches of serving, with what kernels do not take left out; and those that FlashAttention-4's take, in both
//! directions.

use qkvault_graph::{Attention, DType, Fp8, MAX_DRAFTS, Pass, Storage, Tensor, validate};
use qkvault_kernels::{SM, takes};
use qkvault_reference::Family;

use super::{cases, serving};

/// Attentions that a case draws until kernels take one.
const DRAWS: u64 = 100;

/// The attention of one case.
pub(crate) fn attention(seed: u64, case: u64) -> Attention {
    // Consecutive numbers of serving share an attention.
    let draw = |n: u64| match case % 2 {
        0 => cases::attention(seed, case + (n << 32)),
        _ => serving::attention(seed, 4 * (case + (n << 32))),
    };
    let taken = |a: &Attention| validate(a.clone()).is_ok_and(|valid| takes(&valid, SM).is_ok());
    let rare = |a: Attention| if case % 8 < 2 { rare(a, case / 8) } else { a };
    let found = (0..DRAWS).map(|n| rare(near(draw(n)))).find(taken);
    found.unwrap_or_else(|| Attention::bshd(1, (8, 2), (1, 300), 64, DType::BF16))
}

/// The attention of one case over a cache in 8 bits; some are invariant, some have a tree of drafts.
pub(crate) fn cached(seed: u64, case: u64) -> Attention {
    let narrow = |n: u64| {
        let mut a = attention(seed, case + (n << 32));
        let dtype = if case % 4 == 3 { DType::E5M2 } else { DType::E4M3 };
        (a.k.dtype, a.v.dtype, a.fp8) = (dtype, dtype, Some(Fp8::Cache));
        a.invariant = case % 5 == 1;
        a.draft_tree = case % 5 == 3 && a.seq().0 <= MAX_DRAFTS;
        a
    };
    let taken = |a: &Attention| validate(a.clone()).is_ok_and(|valid| takes(&valid, SM).is_ok());
    let found = (0..DRAWS).map(narrow).find(taken);
    found.unwrap_or_else(|| Attention::bshd(1, (8, 2), (1, 300), 64, DType::BF16))
}

/// An attention with what others have too seldom: pages of few rows, padded rows as zeros.
fn rare(mut a: Attention, which: u64) -> Attention {
    if let (0 | 1, Storage::Paged { pages, page_size }) = (which % 4, a.k.storage) {
        let rows = if which.is_multiple_of(8) { 1 } else { 4 };
        let [b, h, s, _] = a.k.dims;
        for tensor in [&mut a.k, &mut a.v] {
            let d = tensor.dims[3];
            *tensor = Tensor::paged_nhd(b, h, s, d, pages * page_size / rows, rows, tensor.dtype);
        }
    }
    if matches!(which % 4, 1 | 2) {
        a.padded_rows = qkvault_graph::PaddedRows::Zero;
    }
    a
}

/// Cases of FlashAttention-4's kernels that share an attention, because compiling takes long: one of each family.
pub(super) const SHARED: u64 = Family::ALL.len() as u64;

/// An attention of FlashAttention-4's kernels: dense ones and batches of serving in turn. One of sixteen is whatever
/// was drawn, so that rules refuse some.
pub(crate) fn fa4_drawn(seed: u64, case: u64) -> Attention {
    let draw = |n: u64| {
        let mut a = match case % 2 {
            0 => cases::attention(seed, case + (n << 32)),
            _ => serving::attention(seed, 4 * (case / 2 + (n << 32))),
        };
        (a.outputs.max, a.outputs.sum_exp) = (false, false);
        if !any(case) {
            a.dropout = None;
        }
        a
    };
    let taken = |a: &Attention| {
        any(case) || validate(a.clone()).is_ok_and(|valid| qkvault_fa4::takes(&valid, qkvault_fa4::SM).is_ok())
    };
    let found = (0..DRAWS).map(draw).find(taken);
    found.unwrap_or_else(|| Attention::bshd(2, (8, 2), (300, 300), 128, DType::BF16).causal())
}

/// Whether a case is taken as it is drawn.
const fn any(case: u64) -> bool {
    case % 16 == 14
}

/// The forward of an attention, without what kernels never take.
fn near(mut a: Attention) -> Attention {
    a.pass = Pass::Forward;
    (a.dropout, a.outputs.max, a.outputs.sum_exp) = (None, false, false);
    for tensor in [&mut a.k, &mut a.v] {
        if matches!(tensor.storage, Storage::Varlen { .. }) {
            let [b, h, s, d] = tensor.dims;
            *tensor = Tensor::bshd(b, h, s, d, tensor.dtype);
        }
    }
    a
}

#[cfg(test)]
mod tests {
    use super::*;
    use qkvault_kernels::{KnownLists, ScoreTiles};

    #[test]
    fn every_case_is_taken_and_they_are_of_every_kind() {
        let all: Vec<Attention> = (0..1000).map(|case| attention(1, case)).collect();
        let count = |of: &dyn Fn(&Attention) -> bool| all.iter().filter(|a| of(a)).count();
        for a in &all {
            let valid = validate(a.clone()).expect("valid");
            assert_eq!(takes(&valid, SM), Ok(()), "{a}");
        }
        let plain = Attention::bshd(1, (8, 2), (1, 300), 64, DType::BF16);
        for (what, found) in [
            ("drawn", count(&|a| *a != plain)),
            ("paged", count(&|a| a.k.is_paged())),
            ("varlen queries", count(&|a| matches!(a.q.storage, Storage::Varlen { .. }))),
            ("one query", count(&|a| a.seq().0 == 1)),
            ("many queries", count(&|a| a.seq().0 > 128)),
            ("score_mod", count(&|a| a.score_mod.is_some())),
            ("mask_mod", count(&|a| a.mask.mask_mod.is_some())),
            ("sink", count(&|a| a.sink)),
            ("window", count(&|a| a.mask.band.is_some_and(|band| band.left.is_some()))),
            ("lengths", count(&|a| a.mask.lengths == qkvault_graph::Lengths::PerSequence)),
            ("pages of few rows", 2 * count(&|a| matches!(a.k.storage, Storage::Paged { page_size: ..16, .. }))),
            ("zeros", count(&|a| a.padded_rows == qkvault_graph::PaddedRows::Zero)),
            ("head_dim 256", count(&|a| a.head_dims().0 == 256)),
        ] {
            assert!(found >= 40, "{found} {what}");
        }
    }

    #[test]
    fn every_case_over_a_cache_is_taken_and_they_are_of_every_kind() {
        let all: Vec<Attention> = (0..400).map(|case| cached(1, case)).collect();
        let count = |of: &dyn Fn(&Attention) -> bool| all.iter().filter(|a| of(a)).count();
        for (what, found) in [
            ("caches", count(&|a| a.fp8 == Some(Fp8::Cache)) / 8),
            ("e5m2", count(&|a| a.k.dtype == DType::E5M2)),
            ("one query", count(&|a| a.seq().0 == 1)),
            ("many queries", count(&|a| a.seq().0 > 64)),
            ("invariant", count(&|a| a.invariant)),
            ("drafts", count(&|a| a.draft_tree)),
            ("paged", count(&|a| a.k.is_paged())),
        ] {
            assert!(found >= 40, "{found} {what}");
        }
    }

    #[test]
    fn every_case_of_flash_attention_4_is_taken_and_they_are_of_every_kind() {
        let all: Vec<Attention> = (0..700).map(|case| fa4_drawn(1, case)).collect();
        let count = |of: &dyn Fn(&Attention) -> bool| all.iter().filter(|a| of(a)).count();
        let mut refused = 0;
        for (case, a) in (0..).zip(&all) {
            let valid = validate(a.clone()).expect("valid");
            let answer = qkvault_fa4::takes(&valid, qkvault_fa4::SM);
            assert!(answer.is_ok() || any(case), "{a}: {answer:?}");
            refused += usize::from(answer.is_err());
        }
        assert!(refused >= 10, "{refused} refused");
        let plain = Attention::bshd(2, (8, 2), (300, 300), 128, DType::BF16).causal();
        let tiles = ScoreTiles { queries: 128, keys: 128, by_keys: false };
        let known =
            |a: &Attention| validate(a.clone()).is_ok_and(|valid| KnownLists::for_attention(&valid, tiles).is_some());
        let dense = |a: &Attention| {
            let tensors = a.mask.mask_mod.iter().flat_map(|e| e.tensors());
            tensors.filter(|spec| spec.dims[2] > 1 && spec.dims[3] > 1).count() > 0
        };
        for (what, found, least) in [
            ("drawn", count(&|a| *a != plain), 500),
            ("backward", count(&|a| a.is_backward()), 60),
            ("forward", count(&|a| !a.is_backward()), 60),
            ("window", count(&|a| a.mask.band.is_some_and(|band| band.left.is_some())), 10),
            ("grouped", count(&|a| a.q.heads() != a.k.heads()), 60),
            ("varlen", count(&|a| matches!(a.q.storage, Storage::Varlen { .. })), 60),
            ("varlen backward", count(&|a| a.is_backward() && matches!(a.q.storage, Storage::Varlen { .. })), 8),
            ("paged", count(&|a| a.k.is_paged()), 60),
            ("one query", count(&|a| a.seq().0 == 1), 40),
            ("lengths", count(&|a| a.mask.lengths == qkvault_graph::Lengths::PerSequence), 150),
            ("score_mod", count(&|a| a.score_mod.is_some()), 20),
            ("mask_mod", count(&|a| a.mask.mask_mod.is_some()), 60),
            ("lists in the plan", count(&|a| known(a) && !a.is_backward()), 15),
            ("lists in the plan, backward", count(&|a| known(a) && a.is_backward()), 15),
            ("an element of a mask for each score", count(&dense), 8),
        ] {
            assert!(found >= least, "{found} {what}");
        }
    }
}
