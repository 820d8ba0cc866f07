//! The value of an expression at one point: the float64 reference for derivatives, interpreters and kernels.

use super::node::{Axis, Node, NodeId, ScalarId, Side, TensorId, Ty};
use super::program::Program;

/// A value inside an expression.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Value {
    /// A real number. Expressions compute in float64 here and in float32 on a device.
    Float(f64),
    /// An integer.
    Int(i32),
    /// A truth value.
    Bool(bool),
}

impl Value {
    /// Type of the value.
    #[must_use]
    pub const fn ty(self) -> Ty {
        match self {
            Value::Float(_) => Ty::Float,
            Value::Int(_) => Ty::Int,
            Value::Bool(_) => Ty::Bool,
        }
    }

    /// The number, if it is a float.
    #[must_use]
    pub const fn float(self) -> Option<f64> {
        if let Value::Float(x) = self { Some(x) } else { None }
    }

    /// The number, if it is an integer.
    #[must_use]
    pub const fn int(self) -> Option<i32> {
        if let Value::Int(n) = self { Some(n) } else { None }
    }

    /// The truth value, if it is one.
    #[must_use]
    pub const fn bool(self) -> Option<bool> {
        if let Value::Bool(t) = self { Some(t) } else { None }
    }
}

/// Everything that an expression can read at one point of the score matrix.
#[derive(Clone, Copy, Debug, Default)]
pub struct PointContext<'v> {
    /// The scaled score.
    pub score: f64,
    /// Gradient of the loss with respect to the value of the forward expression; only derivatives read it.
    pub upstream: f64,
    /// Batch, head, query and key.
    pub at: [i32; 4],
    /// Lengths of the queries and of the keys of this batch item.
    pub lengths: [i32; 2],
    /// Values of the scalars, in the order of [`Program::scalars`].
    pub scalars: &'v [Value],
    /// Elements of the tensors at this point, in the order of [`Program::tensors`].
    pub tensors: &'v [Value],
}

/// A point that lacks something that the expression reads.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum EvalError {
    /// No value for a scalar.
    #[error("no value for the scalar '{name}' (number {}); {given} scalar values were given", scalar.0)]
    MissingScalar {
        /// The scalar.
        scalar: ScalarId,
        /// Its display name.
        name: String,
        /// Number of values.
        given: usize,
    },
    /// No value for a tensor.
    #[error("no value for the tensor '{name}' (number {}); {given} tensor values were given", tensor.0)]
    MissingTensor {
        /// The tensor.
        tensor: TensorId,
        /// Its display name.
        name: String,
        /// Number of values.
        given: usize,
    },
    /// A value of another type than its scalar or tensor.
    #[error("'{name}' is {needed}, but its value is {given}")]
    WrongType {
        /// Display name of the scalar or tensor.
        name: String,
        /// Type of the value given.
        given: Ty,
        /// Type needed.
        needed: Ty,
    },
}

impl Program {
    /// The value at one point.
    ///
    /// Floats are computed in float64 with the semantics of [`super::Unary`] and [`super::Binary`], with float32
    /// constants; integers have 32 bits and wrap. The arm of a selection that is not taken has no influence.
    ///
    /// # Errors
    /// If the point lacks a scalar or tensor that the expression reads, or has it with another type.
    pub fn eval(&self, point: &PointContext<'_>) -> Result<Value, EvalError> {
        let mut values = Vec::with_capacity(self.nodes().len());
        self.eval_into(point, &mut values)
    }

    /// Like [`Program::eval`], with the value of every node in `values`, which is cleared first.
    ///
    /// # Errors
    /// The same as [`Program::eval`].
    pub fn eval_into(&self, point: &PointContext<'_>, values: &mut Vec<Value>) -> Result<Value, EvalError> {
        values.clear();
        for (&node, id) in self.nodes().iter().zip(0..) {
            let value = match computed(node, values) {
                Some(value) => value,
                None => self.leaf(node, point)?,
            };
            debug_assert_eq!(value.ty(), self.ty(NodeId(id)));
            values.push(value);
        }
        Ok(values[self.root().at()])
    }

    fn leaf(&self, node: Node, point: &PointContext<'_>) -> Result<Value, EvalError> {
        let PointContext { score, upstream, at, lengths, scalars, tensors } = *point;
        Ok(match node {
            Node::Score => Value::Float(score),
            Node::Upstream => Value::Float(upstream),
            Node::Index(axis @ (Axis::Batch | Axis::Head | Axis::Query | Axis::Key)) => Value::Int(at[axis.dim()]),
            Node::Length(Side::Query) => Value::Int(lengths[0]),
            Node::Length(Side::Key) => Value::Int(lengths[1]),
            Node::Float(value) => Value::Float(f64::from(value.value())),
            Node::Int(value) => Value::Int(value),
            Node::Bool(value) => Value::Bool(value),
            Node::Scalar(scalar) => {
                let name = || self.scalar_name(scalar).to_owned();
                let value = scalars.get(scalar.at()).copied();
                let value =
                    value.ok_or_else(|| EvalError::MissingScalar { scalar, name: name(), given: scalars.len() })?;
                typed(value, self.scalars()[scalar.at()].ty.ty(), name)?
            }
            Node::Tensor(tensor) => {
                let name = || self.tensor_name(tensor).to_owned();
                let value = tensors.get(tensor.at()).copied();
                let value =
                    value.ok_or_else(|| EvalError::MissingTensor { tensor, name: name(), given: tensors.len() })?;
                typed(value, self.tensors()[tensor.at()].ty().unwrap_or(Ty::Float), name)?
            }
            Node::ToFloat(_)
            | Node::Unary(..)
            | Node::Binary(..)
            | Node::Compare(..)
            | Node::Not(_)
            | Node::Logic(..)
            | Node::Select { .. } => unreachable!("programs are type-checked when they are made"),
        })
    }
}

fn typed(value: Value, needed: Ty, name: impl Fn() -> String) -> Result<Value, EvalError> {
    if value.ty() == needed { Ok(value) } else { Err(EvalError::WrongType { name: name(), given: value.ty(), needed }) }
}

/// The value of an operation; none for a leaf. The program's type check guarantees the types of the operands.
#[inline]
fn computed(node: Node, values: &[Value]) -> Option<Value> {
    let of = |id: NodeId| values[id.at()];
    let truth = |id: NodeId| of(id) == Value::Bool(true);
    match node {
        Node::ToFloat(a) => of(a).int().map(|n| Value::Float(f64::from(n))),
        Node::Unary(op, a) => match of(a) {
            Value::Float(x) => Some(Value::Float(op.apply(x))),
            Value::Int(n) => op.apply_int(n).map(Value::Int),
            Value::Bool(_) => None,
        },
        Node::Binary(op, a, b) => match (of(a), of(b)) {
            (Value::Float(a), Value::Float(b)) => Some(Value::Float(op.apply(a, b))),
            (Value::Int(a), Value::Int(b)) => op.apply_int(a, b).map(Value::Int),
            _ => None,
        },
        Node::Compare(op, a, b) => match (of(a), of(b)) {
            (Value::Float(a), Value::Float(b)) => Some(Value::Bool(op.apply(a, b))),
            (Value::Int(a), Value::Int(b)) => Some(Value::Bool(op.apply(a, b))),
            _ => None,
        },
        Node::Not(a) => Some(Value::Bool(!truth(a))),
        Node::Logic(op, a, b) => Some(Value::Bool(op.apply(truth(a), truth(b)))),
        Node::Select { keep, yes, no } => Some(of(if truth(keep) { yes } else { no })),
        Node::Score
        | Node::Upstream
        | Node::Index(_)
        | Node::Length(_)
        | Node::Float(_)
        | Node::Int(_)
        | Node::Bool(_)
        | Node::Scalar(_)
        | Node::Tensor(_) => None,
    }
}
