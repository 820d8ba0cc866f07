//! Documents in one sequence, masked or varlen, have the same results over the same memory.

use crate::common;

use common::lowered::check_on;
use common::{lowered, valid};
use proptest::prelude::*;
use qkvault_graph::expr::{Expr, head, key, library, query, scalar, score};
use qkvault_graph::{
    Attention, BackwardOptions, Band, Batch, Corner, CuSeqlens, DType, Documents, Role, ScoreExpr, Valid,
};
use qkvault_reference::{Buffer, ExactOutputs, Inputs, LengthChoice, RandomChoice, backward, forward};

/// Rows of documents, given by their lengths, and the attention over them.
#[derive(Clone, Debug)]
struct Case {
    rows: Vec<Vec<usize>>,
    heads: (i64, i64),
    band: Option<Band>,
    score: usize,
    keep: usize,
    sink: bool,
    deterministic: bool,
}

impl Case {
    fn row(&self) -> usize {
        self.rows[0].iter().sum()
    }

    fn score(&self) -> Option<ScoreExpr> {
        let heads = self.heads.0;
        let e = match self.score {
            0 => return None,
            1 => library::softcap(score(), scalar("cap")),
            2 => library::softcap(library::alibi(score(), heads), scalar("cap")),
            3 => library::soft_window(score(), 3, scalar("slope")),
            _ => score() * Expr::from(0.5) + (key() - query()).to_float() * (head() + 1).to_float() * Expr::from(0.01),
        };
        Some(e.build_score_mod().expect("well typed"))
    }

    fn dense(&self) -> Valid {
        let (b, s) = (self.rows.len(), self.row());
        let mask = library::document_mask("of_query", "of_key", b as i64, s as i64, s as i64);
        let mask = match self.keep {
            0 => mask,
            1 => mask & (query() - key()).ne(2),
            _ => (key() - query()).lt(5) & mask & (query() - key()).lt(9),
        };
        let s = s as i64;
        let mut a = Attention::bshd(b as i64, self.heads, (s, s), 8, DType::F16).with_stats();
        a.mask.mask_mod = Some(mask.build_mask_mod().expect("a predicate"));
        (a.mask.band, a.sink, a.score_mod) = (self.band, self.sink, self.score());
        valid(a)
    }

    fn documents(&self) -> Documents {
        let longest = self.rows.iter().flatten().max().copied().unwrap_or(1) as i64;
        Documents { longest, most: self.rows.iter().map(Vec::len).sum::<usize>() as i64 }
    }

    /// A number for each token: equal within a document, different between the up to 17 documents of a row, in no
    /// order.
    fn ids(&self) -> Vec<i32> {
        let of = |(n, tokens): (usize, &usize)| std::iter::repeat_n((n as i32 * 7 + 3) % 17, *tokens);
        self.rows.iter().flat_map(|row| row.iter().enumerate().flat_map(of)).collect()
    }

    /// Inputs for the dense attention with its documents.
    fn dense_inputs(&self, a: &Valid, seed: u64) -> Inputs {
        let mut inputs = Inputs::random(a, seed).expect("random");
        let first = a.score_mod.as_ref().map_or(0, |e| e.tensors().len());
        let keep = a.mask.mask_mod.as_ref().expect("a predicate");
        for name in ["of_query", "of_key"] {
            let role = Role::ScoreTensor((first + keep.tensor_named(name).expect("its own").at()) as u16);
            inputs.insert(role, Buffer::from_values(DType::I32, self.ids().into_iter().map(f64::from)));
        }
        if a.is_backward() {
            inputs.add_forward(a).expect("computes");
        }
        inputs
    }

    /// Inputs for the varlen attention: the same memory, with lengths and offsets.
    fn varlen_inputs(&self, a: &Valid, dense: &Inputs, seed: u64) -> Inputs {
        let mut inputs = Inputs::random_with(a, seed, &self.choice(a)).expect("random");
        let scalars = (0..9).map(Role::Scalar);
        let shared = [Role::Q, Role::K, Role::V, Role::DO, Role::Sink, Role::Scale, Role::ScoreTensor(0)];
        for role in shared.into_iter().chain(scalars) {
            if inputs.get(role).is_some() {
                inputs.insert(role, dense.buffer(role).expect("there too").clone());
            }
        }
        if a.is_backward() {
            inputs.add_forward(a).expect("computes");
        }
        inputs
    }

    fn choice(&self, a: &Valid) -> RandomChoice {
        let most = Batch::new(a.batch()).expect("a count");
        let documents = CuSeqlens::from_documents(&self.ids(), self.row(), most).expect("contiguous");
        let lengths: Vec<usize> = documents.lengths().map(|n| n as usize).collect();
        RandomChoice { lengths: LengthChoice::Exact { q: lengths.clone(), kv: lengths }, ..RandomChoice::default() }
    }
}

fn bands() -> impl Strategy<Value = Option<Band>> {
    prop_oneof![
        Just(None),
        Just(Some(Band::CAUSAL)),
        Just(Some(Band::CAUSAL_BOTTOM_RIGHT)),
        (1..6_i64).prop_map(|n| Some(Band::window(Corner::TopLeft, n))),
        (1..6_i64, 0..4_i64).prop_map(|(left, right)| Some(Band {
            corner: Corner::BottomRight,
            left: Some(left),
            right: Some(right)
        })),
    ]
}

fn cases() -> impl Strategy<Value = Case> {
    let cuts = || prop::collection::vec(any::<bool>(), 13);
    let rows = (prop::collection::vec(cuts(), 1..=2), 2..=14_usize).prop_map(|(rows, s)| {
        let row = |cuts: &Vec<bool>| {
            let mut lengths = vec![1];
            cuts.iter().take(s - 1).for_each(|&cut| match lengths.last_mut() {
                Some(last) if !cut => *last += 1,
                _ => lengths.push(1),
            });
            lengths
        };
        rows.iter().map(row).collect::<Vec<_>>()
    });
    let heads = prop::sample::select(vec![(2, 2), (4, 2), (3, 1)]);
    (rows, heads, bands(), 0..5_usize, 0..3_usize, any::<[bool; 2]>()).prop_map(
        |(rows, heads, band, score, keep, [sink, deterministic])| Case {
            rows,
            heads,
            band,
            score,
            keep,
            sink,
            deterministic,
        },
    )
}

/// Checks that both outputs hold the same numbers at the same places.
fn same(dense: &ExactOutputs, varlen: &ExactOutputs, role: Role) -> Result<(), TestCaseError> {
    let (x, y) = (dense.get(role).expect("there").values(), varlen.get(role).expect("there").values());
    prop_assert_eq!(x.len(), y.len());
    for (at, (x, y)) in x.iter().zip(y).enumerate() {
        prop_assert!((x - y).abs() <= 1e-12 * (1.0 + x.abs()), "{} at {}: {} and {}", role, at, x, y);
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn documents_masked_and_varlen_are_the_same_numbers(case in cases(), seed in any::<u64>()) {
        let dense = case.dense();
        let varlen = dense.varlen_documents(case.documents()).map_err(|r| TestCaseError::fail(r.to_string()))?;
        let inputs = case.dense_inputs(&dense, seed);
        let own = case.varlen_inputs(&varlen, &inputs, seed);
        let (x, y) = (forward(&dense, &inputs).expect("computes"), forward(&varlen, &own).expect("computes"));
        same(&x, &y, Role::O)?;
        // The dense Stats are ordered by heads, the varlen ones by tokens.
        let (s, heads) = (case.row(), case.heads.0 as usize);
        let (x, y) = (x.get(Role::Stats).expect("there").values(), y.get(Role::Stats).expect("there").values());
        for (at, y) in y.iter().enumerate() {
            let (token, h) = (at / heads, at % heads);
            let x = x[(token / s * heads + h) * s + token % s];
            prop_assert!(x == *y || (x - y).abs() < 1e-12, "{}: {} and {}", at, x, y);
        }

        let options = BackwardOptions { d_sink: case.sink, deterministic: case.deterministic, ..BackwardOptions::default() };
        let (dense_back, varlen_back) = (valid(dense.backward(options)), valid(varlen.backward(options)));
        let also = dense_back.varlen_documents(case.documents()).map_err(|r| TestCaseError::fail(r.to_string()))?;
        prop_assert_eq!(&also, &varlen_back);
        let inputs = case.dense_inputs(&dense_back, seed);
        let own = case.varlen_inputs(&varlen_back, &inputs, seed);
        let (x, y) = (backward(&dense_back, &inputs).expect("computes"), backward(&varlen_back, &own).expect("computes"));
        for role in [Role::DQ, Role::DK, Role::DV] {
            same(&x, &y, role)?;
        }
        if case.sink {
            same(&x, &y, Role::DSink)?;
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn varlen_documents_lower_to_what_they_mean(case in cases(), seed in any::<u64>(), back in any::<bool>()) {
        let mut a = case.dense().varlen_documents(case.documents()).expect("there is one");
        if back {
            a = valid(a.backward(BackwardOptions { deterministic: case.deterministic, ..BackwardOptions::default() }));
        }
        let graphs = check_on(lowered::targets_of(&[19, 27]), &a, seed, &case.choice(&a))?;
        prop_assert!(graphs > 0 || case.sink);
    }
}

#[test]
fn fewer_documents_than_a_plan_has_room_for_leave_empty_ones() {
    let case = Case {
        rows: vec![vec![3, 5], vec![8]],
        heads: (2, 1),
        band: Some(Band::CAUSAL),
        score: 1,
        keep: 0,
        sink: false,
        deterministic: false,
    };
    let dense = case.dense();
    let varlen = dense.varlen_documents(Documents { longest: 8, most: 7 }).expect("room for more");
    let inputs = case.dense_inputs(&dense, 4);
    let own = case.varlen_inputs(&varlen, &inputs, 4);
    assert_eq!(own.get(Role::SeqLenQ).map(|b| (0..7).map(|i| b.int(i)).collect()), Some(vec![3, 5, 8, 0, 0, 0, 0]));
    let (x, y) = (forward(&dense, &inputs).expect("computes"), forward(&varlen, &own).expect("computes"));
    same(&x, &y, Role::O).expect("the same numbers");
}
