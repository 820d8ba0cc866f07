//! Operands as kernels see them: by tensor maps, by their address, and a number for each row.

use qkvault_graph::{Role, Tensor};
use qkvault_kernels::recipe::LaunchValue;

use crate::args::{Arg, TensorView};
use crate::packed::{self, Lists};

/// The extents of an operand that kernels get beside a tensor map: of packed sequences those that no row has.
pub(crate) fn extents(view: &TensorView) -> Arg {
    let all = &view.extents;
    Arg::Extents(if all.len() == 5 { all[1..3].to_vec() } else { all.clone() })
}

/// An operand as kernels see it: sequence, head dim, heads, batch; or packed ([`packed::view`]).
pub(crate) fn view(role: Role, tensor: &Tensor, lists: Option<&Lists>) -> TensorView {
    if lists.is_some() {
        return packed::view(role, tensor);
    }
    let order = [2, 3, 1, 0];
    TensorView {
        role,
        dtype: tensor.dtype,
        extents: order.map(|axis| tensor.dims[axis]).to_vec(),
        strides: order.map(|axis| tensor.strides[axis]).to_vec(),
    }
}

/// An operand whose rows kernels read by their address.
pub(crate) fn tensor(role: Role, tensor: &Tensor, lists: Option<&Lists>) -> Arg {
    if lists.is_some() {
        let ([_, heads, _, columns], [_, head, row, _]) = (tensor.dims, tensor.strides);
        let extents = vec![packed::capacity(tensor), columns, heads];
        return Arg::Tensor { at: LaunchValue::Address(role), extents, strides: vec![row, head] };
    }
    let TensorView { extents, strides, .. } = view(role, tensor, None);
    Arg::Tensor { at: LaunchValue::Address(role), extents, strides: vec![strides[0], strides[2], strides[3]] }
}

/// Stats: sequence, heads, batch; of packed sequences rows and heads, which lie together.
pub(crate) fn stats(tensor: &Tensor, lists: Option<&Lists>) -> Arg {
    let role = Role::Stats;
    if let Some(lists) = lists {
        if let Some(stats) = &lists.stats {
            return stats.clone();
        }
        let extents = vec![packed::capacity(tensor), tensor.heads()];
        return Arg::Tensor { at: LaunchValue::Address(role), extents, strides: vec![tensor.strides[2]] };
    }
    let ([batch, heads, rows, _], [b, h, ..]) = (tensor.dims, tensor.strides);
    Arg::Tensor { at: LaunchValue::Address(role), extents: vec![rows, heads, batch], strides: vec![h, b] }
}
