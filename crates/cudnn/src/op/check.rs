//! Checks the structure of op graphs, before they are interpreted or compiled.
//!
//! In this order: ids are in range; every role occurs once; operations read operands, scalars, constants and earlier
//! results; every virtual tensor is written once; every constant is read; constants and scalars have one element; dims
//! and strides are positive; a named engine has each knob once.

use super::{Knob, NamedEngine, Op, OpGraph, TensorId, TensorKind};
use crate::Role;

/// A fault of an op graph.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GraphFault {
    /// An operation or tensor names a tensor that does not exist.
    #[error("operation {op:?} names tensor {id:?}, but there are {len} tensors")]
    OutOfRange {
        /// Index of the operation; `None` for the offsets of a tensor.
        op: Option<usize>,
        /// The tensor named.
        id: TensorId,
        /// The number of tensors.
        len: usize,
    },
    /// Two tensors have the same role.
    #[error("two tensors have the role {role}")]
    RoleTwice {
        /// The role.
        role: Role,
    },
    /// A virtual tensor is read before an operation writes it.
    #[error("operation {op} reads tensor {id:?}, which nothing before it writes")]
    ReadBeforeWrite {
        /// Index of the operation.
        op: usize,
        /// The tensor.
        id: TensorId,
    },
    /// A tensor is written twice, or cannot be a result (a scalar, a constant).
    #[error("operation {op} writes tensor {id:?}, which {why}")]
    BadWrite {
        /// Index of the operation.
        op: usize,
        /// The tensor.
        id: TensorId,
        /// Why it must not be written.
        why: &'static str,
    },
    /// A dim or a stride is not positive.
    #[error(
        "tensor {id:?} has dims {dims:?} and strides {strides:?}; every entry must be positive, except that an operand's stride may be 0"
    )]
    NotPositive {
        /// The tensor.
        id: TensorId,
        /// Its dims.
        dims: [i64; 4],
        /// Its strides.
        strides: [i64; 4],
    },
    /// No operation reads a constant. cuDNN would not know it, and refuse every launch, which gives its number.
    #[error("no operation reads the constant {id:?}")]
    Unread {
        /// The tensor.
        id: TensorId,
    },
    /// A named engine has a knob twice.
    #[error("the named engine has the knob {knob:?} twice")]
    KnobTwice {
        /// The knob.
        knob: Knob,
    },
    /// A scalar or constant has more than one element.
    #[error("tensor {id:?} is a number on the host, but its dims are {dims:?}")]
    NotScalar {
        /// The tensor.
        id: TensorId,
        /// Its dims.
        dims: [i64; 4],
    },
}

/// Checks the structure of an op graph.
///
/// # Errors
///
/// The first fault, in the order of the module documentation.
pub fn check(graph: &OpGraph) -> Result<(), GraphFault> {
    let len = graph.tensors.len();
    let in_range = |op: Option<usize>, id: TensorId| {
        if (id.0 as usize) < len { Ok(()) } else { Err(GraphFault::OutOfRange { op, id, len }) }
    };
    for tensor in &graph.tensors {
        tensor.offsets.map_or(Ok(()), |id| in_range(None, id))?;
    }
    for (i, op) in graph.ops.iter().enumerate() {
        op.inputs().into_iter().chain(op.outputs()).try_for_each(|id| in_range(Some(i), id))?;
    }
    // Roles are compared by unique id, which cuDNN would confuse: numbered roles beyond a thousand share ids.
    let mut roles = std::collections::BTreeSet::new();
    for tensor in &graph.tensors {
        if let TensorKind::Operand(role) | TensorKind::Scalar(role) = tensor.kind
            && !roles.insert(role.uid())
        {
            return Err(GraphFault::RoleTwice { role });
        }
    }
    order(graph)?;
    unread(graph)?;
    for (i, t) in graph.tensors.iter().enumerate() {
        let id = TensorId(i as u32);
        // A stride of zero repeats memory, which is valid only for operands: results are written once.
        let least = i64::from(!matches!(t.kind, TensorKind::Operand(_)));
        if t.dims.iter().any(|&n| n < 1) || t.strides.iter().any(|&n| n < least) {
            return Err(GraphFault::NotPositive { id, dims: t.dims, strides: t.strides });
        }
        let host = matches!(t.kind, TensorKind::Scalar(_) | TensorKind::Constant(_));
        if host && t.dims != [1; 4] {
            return Err(GraphFault::NotScalar { id, dims: t.dims });
        }
    }
    graph.engine.as_ref().map_or(Ok(()), knobs)
}

fn unread(graph: &OpGraph) -> Result<(), GraphFault> {
    let read: std::collections::BTreeSet<TensorId> = graph.ops.iter().flat_map(Op::inputs).collect();
    let constants = graph.tensors.iter().zip(0..).filter(|(t, _)| matches!(t.kind, TensorKind::Constant(_)));
    let unread = constants.map(|(_, i)| TensorId(i)).find(|id| !read.contains(id));
    unread.map_or(Ok(()), |id| Err(GraphFault::Unread { id }))
}

fn knobs(NamedEngine { index: _, knobs }: &NamedEngine) -> Result<(), GraphFault> {
    let mut seen = std::collections::BTreeSet::new();
    let twice = knobs.iter().find(|(knob, _)| !seen.insert(*knob));
    twice.map_or(Ok(()), |&(knob, _)| Err(GraphFault::KnobTwice { knob }))
}

/// Checks that reads come after writes, and that every result is written once.
fn order(graph: &OpGraph) -> Result<(), GraphFault> {
    let mut written = vec![false; graph.tensors.len()];
    for (i, op) in graph.ops.iter().enumerate() {
        for id in Op::inputs(op) {
            if graph.tensor(id).kind == TensorKind::Virtual && !written[id.0 as usize] {
                return Err(GraphFault::ReadBeforeWrite { op: i, id });
            }
        }
        for id in op.outputs() {
            let why = match graph.tensor(id).kind {
                TensorKind::Scalar(_) | TensorKind::Constant(_) => Some("is a number on the host"),
                TensorKind::Virtual | TensorKind::Operand(_) if written[id.0 as usize] => Some("is written already"),
                TensorKind::Virtual | TensorKind::Operand(_) => None,
            };
            if let Some(why) = why {
                return Err(GraphFault::BadWrite { op: i, id, why });
            }
            written[id.0 as usize] = true;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::DType;
    use crate::op::OpTensor;

    fn operand(role: Role) -> OpTensor {
        OpTensor { dims: [1; 4], strides: [1; 4], dtype: DType::F32, kind: TensorKind::Operand(role), offsets: None }
    }

    #[test]
    fn roles_that_would_share_an_id_are_refused() {
        assert_eq!(Role::ScoreTensor(7).uid(), Role::ScoreTensor(1_007).uid());
        let graph = OpGraph { tensors: [7, 1_007].map(|n| operand(Role::ScoreTensor(n))).into(), ..OpGraph::default() };
        assert_eq!(check(&graph), Err(GraphFault::RoleTwice { role: Role::ScoreTensor(1_007) }));
    }

    #[test]
    fn an_engine_with_a_knob_twice_is_found() {
        let with = |knobs: &[(Knob, i64)]| {
            let engine = Some(NamedEngine { index: 5, knobs: knobs.to_vec() });
            check(&OpGraph { engine, ..OpGraph::default() })
        };
        assert_eq!(with(&[(Knob::Stages, 2), (Knob::TileM, 2)]), Ok(()));
        let twice = [(Knob::Stages, 2), (Knob::TileM, 2), (Knob::Stages, 3)];
        assert_eq!(with(&twice), Err(GraphFault::KnobTwice { knob: Knob::Stages }));
    }

    #[test]
    fn a_graph_that_names_missing_tensors_still_prints() {
        let graph = OpGraph {
            tensors: vec![operand(Role::Q)],
            ops: vec![Op::Reshape { x: TensorId(7), y: TensorId(8) }],
            ..OpGraph::default()
        };
        assert!(check(&graph).is_err());
        assert!(graph.to_string().ends_with("%8? = reshape %7?\n"));
    }
}
