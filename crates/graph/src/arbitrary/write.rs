//! Converts a random term to a handle, when the dims of the scores are known.

use super::Term;
use crate::DType;
use crate::expr::{Axis, Expr, Logic, TensorSpec};
use crate::expr::{batch, head, int_scalar, key, key_len, query, query_len, scalar, score, tensor};

impl Term {
    /// The expression over scores of these dims (batch, query heads, queries, keys).
    #[must_use]
    pub fn write(&self, scores: [i64; 4]) -> Expr {
        let of = |term: &Term| term.write(scores);
        let dims = |axes: u8| std::array::from_fn(|axis| if axes >> axis & 1 == 1 { scores[axis] } else { 1 });
        match self {
            Term::Score => score(),
            Term::Index(Axis::Batch) => batch(),
            Term::Index(Axis::Head) => head(),
            Term::Index(Axis::Query) => query(),
            Term::Index(Axis::Key) => key(),
            Term::QueryLen => query_len(),
            Term::KeyLen => key_len(),
            Term::Float(x) => (*x).into(),
            Term::Int(n) => (*n).into(),
            Term::Bool(b) => (*b).into(),
            Term::Scalar(n) => scalar(&format!("x{n}")),
            Term::IntScalar(n) => int_scalar(&format!("n{n}")),
            Term::Tensor { axes, dtype, grad } => {
                let spec = TensorSpec::new(*dtype, dims(*axes));
                let name = format!("{dtype}_{axes}{}", if *grad { "_grad" } else { "" });
                tensor(&name, if *grad { spec.with_grad() } else { spec })
            }
            Term::IntTensor { axes } => tensor(&format!("ids_{axes}"), TensorSpec::new(DType::I32, dims(*axes))),
            Term::ToFloat(a) => of(a).to_float(),
            Term::Unary(op, a) => of(a).unary(*op),
            Term::Binary(op, a, b) => Expr::binary(*op, of(a), of(b)),
            Term::Compare(op, a, b) => of(a).compare(*op, of(b)),
            Term::Not(a) => !of(a),
            Term::Logic(Logic::And, a, b) => of(a).and(of(b)),
            Term::Logic(Logic::Or, a, b) => of(a).or(of(b)),
            Term::Select(keep, yes, no) => of(keep).select(of(yes), of(no)),
        }
    }
}
