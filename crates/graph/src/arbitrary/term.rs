//! Random well-typed score expressions and predicates, as trees whose tensors are known only by their axes.

use proptest::prelude::*;

use crate::DType;
use crate::expr::{Axis, Binary, Compare, Logic, Unary};

/// An expression before the dims of the scores are known. Its constructors make only well-typed ones.
#[derive(Clone, Debug)]
#[allow(missing_docs, reason = "named like the operations of expressions")]
pub enum Term {
    Score,
    Index(Axis),
    QueryLen,
    KeyLen,
    Float(f32),
    Int(i32),
    Bool(bool),
    /// A float scalar.
    Scalar(u8),
    /// An integer scalar.
    IntScalar(u8),
    /// A float tensor over the axes whose bits are set.
    Tensor {
        axes: u8,
        dtype: DType,
        grad: bool,
    },
    /// An i32 tensor over the axes whose bits are set.
    IntTensor {
        axes: u8,
    },
    ToFloat(Box<Term>),
    Unary(Unary, Box<Term>),
    Binary(Binary, Box<Term>, Box<Term>),
    Compare(Compare, Box<Term>, Box<Term>),
    Not(Box<Term>),
    Logic(Logic, Box<Term>, Box<Term>),
    Select(Box<Term>, Box<Term>, Box<Term>),
}

type Level = (BoxedStrategy<Term>, BoxedStrategy<Term>, BoxedStrategy<Term>);

impl Term {
    /// Random float expressions that read the score, of at most this depth.
    pub fn score(depth: u32) -> BoxedStrategy<Term> {
        Term::levels(depth, true).0
    }

    /// Random predicates, which do not read the score.
    pub fn predicate(depth: u32) -> BoxedStrategy<Term> {
        Term::levels(depth.max(1), false).2
    }

    fn levels(depth: u32, reads_score: bool) -> Level {
        let mut level = leaves(reads_score);
        for _ in 0..depth {
            level = deeper(&level);
        }
        level
    }
}

fn leaves(reads_score: bool) -> Level {
    let dtype = prop::sample::select(vec![DType::F32, DType::F16, DType::BF16]);
    let values = prop_oneof![
        2 => (0..3_u8).prop_map(Term::Scalar),
        2 => (-4.0_f32..4.0).prop_map(Term::Float),
        1 => prop::sample::select(vec![0.0_f32, 1.0, -1.0, 0.5, 1e-30, -1e9]).prop_map(Term::Float),
        2 => (0..16_u8, dtype, any::<bool>())
            .prop_map(move |(axes, dtype, grad)| Term::Tensor { axes, dtype, grad: grad && reads_score }),
    ];
    let float = if reads_score { prop_oneof![3 => Just(Term::Score), 2 => values].boxed() } else { values.boxed() };
    let int = prop_oneof![
        4 => prop::sample::select(Axis::ALL.to_vec()).prop_map(Term::Index),
        1 => Just(Term::QueryLen),
        1 => Just(Term::KeyLen),
        2 => (-3..9_i32).prop_map(Term::Int),
        1 => (0..2_u8).prop_map(Term::IntScalar),
        1 => (0..16_u8).prop_map(|axes| Term::IntTensor { axes }),
    ];
    (float.boxed(), int.boxed(), any::<bool>().prop_map(Term::Bool).boxed())
}

fn deeper((float, int, bool): &Level) -> Level {
    fn pair<T: Clone + std::fmt::Debug + 'static>(
        ops: Vec<T>,
        side: &BoxedStrategy<Term>,
        join: impl Fn(T, Box<Term>, Box<Term>) -> Term + 'static,
    ) -> BoxedStrategy<Term> {
        (prop::sample::select(ops), side.clone(), side.clone())
            .prop_map(move |(op, a, b)| join(op, a.into(), b.into()))
            .boxed()
    }
    let select = |side: &BoxedStrategy<Term>| {
        (bool.clone(), side.clone(), side.clone()).prop_map(|(k, y, n)| Term::Select(k.into(), y.into(), n.into()))
    };
    // An integer remainder by the constant 0 is refused, so integers get no remainders; a floor division is by a
    // constant.
    let whole: Vec<Binary> = Binary::ALL
        .iter()
        .copied()
        .filter(|op| op.takes_int() && !matches!(op, Binary::Rem | Binary::FloorRem | Binary::FloorDiv))
        .collect();
    let fractions: Vec<Binary> = Binary::ALL.iter().copied().filter(|op| op.takes_float()).collect();
    let divisor = prop::sample::select(vec![2, 3, 4, 7, 128, -2, -5]);
    // A value that a launch gets may be too large for an exact division, which is refused, so it is limited.
    let held = |a: Term| {
        let bound = |n: i32| Box::new(Term::Int(n));
        let above = Term::Binary(Binary::Max, a.into(), bound(-1_000_000));
        Term::Binary(Binary::Min, above.into(), bound(1_000_000))
    };
    let dividend =
        prop_oneof![prop::sample::select(Axis::ALL.to_vec()).prop_map(Term::Index), int.clone().prop_map(held),];
    let next_float = prop_oneof![
        2 => float.clone(),
        3 => (prop::sample::select(Unary::ALL.to_vec()), float.clone()).prop_map(|(op, a)| Term::Unary(op, a.into())),
        4 => pair(fractions, float, Term::Binary),
        1 => select(float),
        1 => int.clone().prop_map(|a| Term::ToFloat(a.into())),
    ];
    let next_int = prop_oneof![
        3 => int.clone(),
        2 => pair(whole, int, Term::Binary),
        1 => (dividend, divisor)
            .prop_map(|(a, by)| Term::Binary(Binary::FloorDiv, a.into(), Term::Int(by).into())),
        1 => (prop::sample::select(vec![Unary::Neg, Unary::Abs]), int.clone())
            .prop_map(|(op, a)| Term::Unary(op, a.into())),
        1 => select(int),
    ];
    let next_bool = prop_oneof![
        1 => bool.clone(),
        4 => pair(Compare::ALL.to_vec(), int, Term::Compare),
        1 => pair(Compare::ALL.to_vec(), float, Term::Compare),
        2 => pair(Logic::ALL.to_vec(), bool, Term::Logic),
        1 => bool.clone().prop_map(|a| Term::Not(a.into())),
    ];
    (next_float.boxed(), next_int.boxed(), next_bool.boxed())
}
