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

/// The same where heads that share keys share tiles: heads are in front of the rows.
pub(crate) fn heads_first(view: TensorView) -> TensorView {
    let first = |mut list: Vec<i64>| {
        list[..3].rotate_right(1);
        list
    };
    TensorView { extents: first(view.extents), strides: first(view.strides), ..view }
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

/// Stats: sequence, heads, batch; of packed sequences rows and heads, which lie together. `group` heads share tiles:
/// then those of the keys are counted.
pub(crate) fn stats(tensor: &Tensor, lists: Option<&Lists>, group: i64) -> Arg {
    let ([batch, heads, rows, _], [b, h, row, _]) = (tensor.dims, tensor.strides);
    let heads = heads / group;
    if let Some(lists) = lists {
        let (at, rows, row) = match lists.stats {
            Some((at, rows)) => (LaunchValue::Scratch(at), rows, tensor.heads()),
            None => (LaunchValue::Address(Role::Stats), packed::capacity(tensor), row),
        };
        return Arg::Tensor { at, extents: vec![rows, heads], strides: vec![row] };
    }
    let strides = if group > 1 { vec![h, h * group, b] } else { vec![h, b] };
    Arg::Tensor { at: LaunchValue::Address(Role::Stats), extents: vec![rows, heads, batch], strides }
}
