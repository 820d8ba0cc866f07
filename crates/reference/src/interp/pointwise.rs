//! Pointwise operations: each mode by the meaning that score expressions give to the operation of its name.

use qkvault_graph::DType;
use qkvault_graph::expr::{Binary, Compare, Logic, Unary};
use qkvault_graph::op::Pointwise;

use super::grid::indices;
use super::{Grid, InterpretError};
use crate::score::scalar;

/// What a mode does.
enum Kind {
    Unary(Unary),
    Binary(Binary),
    Compare(Compare),
    Logic(Logic),
    Not,
    Identity,
    Index,
    Select,
}

const fn kind(mode: Pointwise) -> Kind {
    match mode {
        Pointwise::Add => Kind::Binary(Binary::Add),
        Pointwise::Mul => Kind::Binary(Binary::Mul),
        Pointwise::Min => Kind::Binary(Binary::Min),
        Pointwise::Max => Kind::Binary(Binary::Max),
        Pointwise::Div => Kind::Binary(Binary::Div),
        Pointwise::Mod => Kind::Binary(Binary::Rem),
        Pointwise::Pow => Kind::Binary(Binary::Pow),
        Pointwise::Sub => Kind::Binary(Binary::Sub),
        Pointwise::Atan2 => Kind::Binary(Binary::Atan2),
        Pointwise::Sqrt => Kind::Unary(Unary::Sqrt),
        Pointwise::Abs => Kind::Unary(Unary::Abs),
        Pointwise::Ceil => Kind::Unary(Unary::Ceil),
        Pointwise::Cos => Kind::Unary(Unary::Cos),
        Pointwise::Exp => Kind::Unary(Unary::Exp),
        Pointwise::Floor => Kind::Unary(Unary::Floor),
        Pointwise::Log => Kind::Unary(Unary::Log),
        Pointwise::Neg => Kind::Unary(Unary::Neg),
        Pointwise::Rsqrt => Kind::Unary(Unary::Rsqrt),
        Pointwise::Sin => Kind::Unary(Unary::Sin),
        Pointwise::Tan => Kind::Unary(Unary::Tan),
        Pointwise::Erf => Kind::Unary(Unary::Erf),
        Pointwise::Reciprocal => Kind::Unary(Unary::Reciprocal),
        Pointwise::Relu => Kind::Unary(Unary::Relu),
        Pointwise::Tanh => Kind::Unary(Unary::Tanh),
        Pointwise::Sigmoid => Kind::Unary(Unary::Sigmoid),
        Pointwise::Elu => Kind::Unary(Unary::Elu),
        Pointwise::Gelu => Kind::Unary(Unary::Gelu),
        Pointwise::Softplus => Kind::Unary(Unary::Softplus),
        Pointwise::Swish => Kind::Unary(Unary::Swish),
        Pointwise::GeluTanh => Kind::Unary(Unary::GeluTanh),
        Pointwise::CmpEq => Kind::Compare(Compare::Eq),
        Pointwise::CmpNeq => Kind::Compare(Compare::Ne),
        Pointwise::CmpGt => Kind::Compare(Compare::Gt),
        Pointwise::CmpGe => Kind::Compare(Compare::Ge),
        Pointwise::CmpLt => Kind::Compare(Compare::Lt),
        Pointwise::CmpLe => Kind::Compare(Compare::Le),
        Pointwise::And => Kind::Logic(Logic::And),
        Pointwise::Or => Kind::Logic(Logic::Or),
        Pointwise::Not => Kind::Not,
        Pointwise::Identity => Kind::Identity,
        Pointwise::GenIndex => Kind::Index,
        Pointwise::Select => Kind::Select,
    }
}

/// `y = mode(x, b)`, or `t ? x : b`, with sizes of 1 broadcast. Arithmetic in i32 wraps; all else is in float64.
pub(super) fn pointwise(
    op: usize,
    (mode, axis, compute): (Pointwise, Option<u8>, DType),
    [x, b, t]: [Option<&Grid>; 3],
    dims: [usize; 4],
) -> Result<Grid, InterpretError> {
    let operands = [x, b, t].into_iter().flatten();
    for given in operands.clone().map(Grid::dims) {
        if given.iter().zip(dims).any(|(&n, all)| n != 1 && n != all) {
            let rule = "each extent of an operand is 1 or that of the result";
            return Err(InterpretError::Dims { op, given, with: dims, rule });
        }
    }
    let widest = operands.fold([1; 4], |widest, o| std::array::from_fn(|axis| widest[axis].max(o.dims()[axis])));
    if widest != dims {
        let rule = "each extent of the result is that of some operand";
        return Err(InterpretError::Dims { op, given: dims, with: widest, rule });
    }
    let lacks = |what| InterpretError::Operands { op, what };
    let x = x.ok_or(lacks("it has no first operand"))?;
    let second = || b.ok_or(lacks("a mode of two operands has one"));
    let whole = compute == DType::I32;
    let mut y = Grid::new(dims, f64::NAN);
    let mut each = |value: &dyn Fn([usize; 4]) -> f64| {
        for index in indices(dims) {
            y.set(index, value(index));
        }
    };
    let of = |grid: &Grid, index| grid.shared(index, dims);
    let truth = |t: bool| f64::from(u8::from(t));
    match kind(mode) {
        Kind::Unary(f) if whole && f.takes_int() => each(&|i| scalar::unary_int(f, of(x, i))),
        Kind::Unary(f) => each(&|i| scalar::unary(f, of(x, i))),
        Kind::Identity => each(&|i| of(x, i)),
        Kind::Not => each(&|i| truth(of(x, i) == 0.0)),
        Kind::Binary(f) => {
            let b = second()?;
            if whole && f.takes_int() {
                each(&|i| scalar::binary_int(f, of(x, i), of(b, i)));
            } else {
                each(&|i| scalar::binary(f, of(x, i), of(b, i)));
            }
        }
        Kind::Compare(f) => {
            let b = second()?;
            each(&|i| truth(scalar::compare(f, of(x, i), of(b, i))));
        }
        Kind::Logic(f) => {
            let b = second()?;
            each(&|i| truth(scalar::logic(f, of(x, i), of(b, i))));
        }
        Kind::Select => {
            let (b, t) = (second()?, t.ok_or(lacks("a selection has no condition"))?);
            each(&|i| if of(t, i) != 0.0 { of(x, i) } else { of(b, i) });
        }
        Kind::Index => {
            let axis = axis.map(usize::from).filter(|&axis| axis < 4).ok_or(lacks("an index needs an axis below 4"))?;
            each(&|i| i[axis] as f64);
        }
    }
    Ok(y)
}
