//! Pointwise operations. Each mode means the same as the operation of that name in score expressions, but for what
//! cuDNN is known to compute otherwise: a graph that relies on the language's meaning there must fail.

use qkvault_cudnn::op::Pointwise;
use qkvault_graph::DType;
use qkvault_graph::expr::{Binary, Compare, Logic, Unary};

use super::{Grid, InterpretError};
use crate::score::scalar;

/// The result of an integer remainder by 0: a number that no graph expects.
const UNDEFINED: f64 = -1_234_567_891.0;

/// The computation of a mode.
enum ModeKind {
    Unary(Unary),
    Binary(Binary),
    Compare(Compare),
    Logic(Logic),
    Not,
    Identity,
    Index,
    Select,
}

const fn kind(mode: Pointwise) -> ModeKind {
    match mode {
        Pointwise::Add => ModeKind::Binary(Binary::Add),
        Pointwise::Mul => ModeKind::Binary(Binary::Mul),
        Pointwise::Min => ModeKind::Binary(Binary::Min),
        Pointwise::Max => ModeKind::Binary(Binary::Max),
        Pointwise::Div => ModeKind::Binary(Binary::Div),
        Pointwise::Mod => ModeKind::Binary(Binary::Rem),
        Pointwise::Pow => ModeKind::Binary(Binary::Pow),
        Pointwise::Sub => ModeKind::Binary(Binary::Sub),
        Pointwise::Atan2 => ModeKind::Binary(Binary::Atan2),
        Pointwise::Sqrt => ModeKind::Unary(Unary::Sqrt),
        Pointwise::Abs => ModeKind::Unary(Unary::Abs),
        Pointwise::Ceil => ModeKind::Unary(Unary::Ceil),
        Pointwise::Cos => ModeKind::Unary(Unary::Cos),
        Pointwise::Exp => ModeKind::Unary(Unary::Exp),
        Pointwise::Floor => ModeKind::Unary(Unary::Floor),
        Pointwise::Log => ModeKind::Unary(Unary::Log),
        Pointwise::Neg => ModeKind::Unary(Unary::Neg),
        Pointwise::Rsqrt => ModeKind::Unary(Unary::Rsqrt),
        Pointwise::Sin => ModeKind::Unary(Unary::Sin),
        Pointwise::Tan => ModeKind::Unary(Unary::Tan),
        Pointwise::Erf => ModeKind::Unary(Unary::Erf),
        Pointwise::Reciprocal => ModeKind::Unary(Unary::Reciprocal),
        Pointwise::Relu => ModeKind::Unary(Unary::Relu),
        Pointwise::Tanh => ModeKind::Unary(Unary::Tanh),
        Pointwise::Sigmoid => ModeKind::Unary(Unary::Sigmoid),
        Pointwise::Elu => ModeKind::Unary(Unary::Elu),
        Pointwise::Gelu => ModeKind::Unary(Unary::Gelu),
        Pointwise::Softplus => ModeKind::Unary(Unary::Softplus),
        Pointwise::Swish => ModeKind::Unary(Unary::Swish),
        Pointwise::GeluTanh => ModeKind::Unary(Unary::GeluTanh),
        Pointwise::CmpEq => ModeKind::Compare(Compare::Eq),
        Pointwise::CmpNeq => ModeKind::Compare(Compare::Ne),
        Pointwise::CmpGt => ModeKind::Compare(Compare::Gt),
        Pointwise::CmpGe => ModeKind::Compare(Compare::Ge),
        Pointwise::CmpLt => ModeKind::Compare(Compare::Lt),
        Pointwise::CmpLe => ModeKind::Compare(Compare::Le),
        Pointwise::And => ModeKind::Logic(Logic::And),
        Pointwise::Or => ModeKind::Logic(Logic::Or),
        Pointwise::Not => ModeKind::Not,
        Pointwise::Identity => ModeKind::Identity,
        Pointwise::GenIndex => ModeKind::Index,
        Pointwise::Select => ModeKind::Select,
    }
}

/// `y = mode(x, b)`, or `t ? x : b`; extents of 1 broadcast. Arithmetic in i32 wraps; all other is in float64.
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
    let truth = |t: bool| f64::from(u8::from(t));
    let mut one = |f: &(dyn Fn(f64) -> f64 + Sync)| {
        y.fill_rows(|at, out| {
            let x = x.row(at, dims);
            out.iter_mut().enumerate().for_each(|(i, y)| *y = f(x.at(i)));
        });
    };
    match kind(mode) {
        ModeKind::Unary(f) if whole && f.takes_int() => one(&|x| scalar::unary_int(f, x)),
        ModeKind::Unary(f) => one(&|x| scalar::unary(f, x)),
        ModeKind::Identity => one(&|x| x),
        ModeKind::Not => one(&|x| truth(x == 0.0)),
        // The result on a device is undefined.
        ModeKind::Binary(Binary::Rem) if whole => {
            let rem = |a, b| if b == 0.0 { UNDEFINED } else { scalar::binary_int(Binary::Rem, a, b) };
            two(&mut y, x, second()?, rem);
        }
        // Its power is one of a logarithm (seen: NaN of a negative base, H100, cuDNN 9.19).
        ModeKind::Binary(Binary::Pow) => two(&mut y, x, second()?, |a, b| (b * (a + 0.0).log2()).exp2()),
        ModeKind::Binary(f) if whole && f.takes_int() => two(&mut y, x, second()?, |a, b| scalar::binary_int(f, a, b)),
        ModeKind::Binary(f) => two(&mut y, x, second()?, |a, b| scalar::binary(f, a, b)),
        ModeKind::Compare(f) => two(&mut y, x, second()?, |a, b| truth(scalar::compare(f, a, b))),
        ModeKind::Logic(f) => two(&mut y, x, second()?, |a, b| truth(scalar::logic(f, a, b))),
        ModeKind::Select => {
            let (b, t) = (second()?, t.ok_or(lacks("a selection has no condition"))?);
            y.fill_rows(|at, out| {
                let [x, b, t] = [x, b, t].map(|grid| grid.row(at, dims));
                out.iter_mut().enumerate().for_each(|(i, y)| *y = if t.at(i) != 0.0 { x.at(i) } else { b.at(i) });
            });
        }
        ModeKind::Index => {
            let axis = axis.map(usize::from).filter(|&axis| axis < 4).ok_or(lacks("an index needs an axis below 4"))?;
            y.fill_with(|index| index[axis] as f64);
        }
    }
    Ok(y)
}

fn two(y: &mut Grid, a: &Grid, b: &Grid, f: impl Fn(f64, f64) -> f64 + Sync) {
    let dims = y.dims();
    y.fill_rows(|at, out| {
        let [a, b] = [a, b].map(|grid| grid.row(at, dims));
        out.iter_mut().enumerate().for_each(|(i, y)| *y = f(a.at(i), b.at(i)));
    });
}
