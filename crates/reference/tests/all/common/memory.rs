//! The results of an op graph as a device would leave them: each element at the address that the graph's strides and
//! offsets give it.

use qkvault_cudnn::OpGraph;
use qkvault_cudnn::op::{OpTensor, TensorKind};
use qkvault_graph::{Role, Valid};
use qkvault_reference::{ExactOutput, Grid, Inputs};

use super::lens;

/// The value at each address of an output's buffer; `None` where nothing is written.
///
/// Rows beyond a sequence's length are left out. Their content is undefined, and in a varlen buffer they overlap the
/// rows of another sequence.
pub(crate) fn written(
    a: &Valid,
    graph: &OpGraph,
    inputs: &Inputs,
    out: &ExactOutput,
    grid: &Grid,
) -> Result<Vec<Option<f64>>, String> {
    let role = out.role();
    let declared = graph.tensors.iter().find(|t| t.kind == TensorKind::Operand(role));
    let OpTensor { dims, strides, dtype, kind: _, offsets } = *declared.ok_or(format!("{role} is no operand"))?;
    let [batch, heads, seq, head_dim] = dims.map(|n| n as usize);
    let expected = out.operand().tensor;
    if (dims, dtype) != (expected.dims, expected.dtype) {
        return Err(format!("{role} is {dtype} {dims:?}, not {} {:?}", expected.dtype, expected.dims));
    }
    let starts = match offsets.map(|id| graph.tensor(id).kind) {
        None => (0..batch).map(|b| b as i64 * strides[0]).collect(),
        Some(TensorKind::Operand(by)) => {
            let buffer = inputs.get(by).ok_or(format!("{by} is not bound"))?;
            (0..batch).map(|b| buffer.int(b)).collect::<Vec<i64>>()
        }
        Some(other) => return Err(format!("{role} is found by {other:?}")),
    };
    let mut memory = vec![None; out.values().len()];
    for (b, &start) in starts.iter().enumerate() {
        let rows = match role {
            Role::O | Role::Stats | Role::Max | Role::SumExp | Role::DQ => lens(a, inputs, b)[0],
            Role::DK | Role::DV => lens(a, inputs, b)[1],
            _ => seq,
        };
        for (h, s) in (0..heads).flat_map(|h| (0..rows).map(move |s| (h, s))) {
            for d in 0..head_dim {
                let at = start + h as i64 * strides[1] + s as i64 * strides[2] + d as i64 * strides[3];
                let room = memory.len();
                let place = usize::try_from(at).ok().and_then(|at| memory.get_mut(at));
                let place = place.ok_or(format!("{role} {:?} lies at {at} of {room}", [b, h, s, d]))?;
                if place.replace(grid.at([b, h, s, d])).is_some() {
                    return Err(format!("{role} {:?} lies at {at}, where another element does", [b, h, s, d]));
                }
            }
        }
    }
    Ok(memory)
}
