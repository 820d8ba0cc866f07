//! Changes of operands: strides and capacity of one tensor at a time, shared sizes and element types of all tensors
//! that have them.

use super::{Effect, Get, List};
use crate::{Attention, DType, Gradients, Pass, Storage, Tensor};

impl List<'_> {
    /// Changes of a single tensor.
    pub(super) fn tensor(&mut self, name: &str, t: &Tensor, get: Get) {
        let Tensor { dims: _, strides, dtype: _, storage } = t;
        let varlen = matches!(storage, Storage::Varlen { .. });
        for (axis, stride) in strides.iter().enumerate().take(3) {
            let walked = t.extents()[axis] > 1 && !(varlen && axis == 0);
            let effect = if walked { Effect::Changes } else { Effect::Nothing };
            self.change(format!("{name}.strides[{axis}]"), effect, |a| get(a).strides[axis] = stride + 1);
        }
        match *storage {
            Storage::Dense => {}
            Storage::Varlen { tokens } => {
                self.change(format!("{name}.tokens"), Effect::Changes, |a| {
                    get(a).storage = Storage::Varlen { tokens: tokens + 1 };
                });
            }
            Storage::Paged { pages, page_size } => {
                let swapped = if pages == page_size { Effect::Nothing } else { Effect::Changes };
                for (what, effect, pages, page_size) in [
                    ("pages", Effect::Changes, pages + 1, page_size),
                    ("page_size", Effect::Changes, pages, page_size + 1),
                    ("pages and page_size", swapped, page_size, pages),
                ] {
                    self.change(format!("{name}.{what}"), effect, |a| {
                        get(a).storage = Storage::Paged { pages, page_size };
                    });
                }
            }
        }
    }

    /// Sizes, each in every tensor that has it, with unchanged strides: fewer elements never overlap more.
    pub(super) fn sizes(&mut self) {
        let (h_q, h_k, h_v) = self.base.heads();
        let ([b, _, s_q, d_qk], [_, _, s_kv, d_v]) = (self.base.q.dims, self.base.v.dims);
        // (name, axis, size, smaller size, those of Q, K, V and O that have it with their gradients).
        let sizes: [(&str, usize, i64, i64, &[usize]); 8] = [
            ("batch", 0, b, b - 1, &[0, 1, 2, 3]),
            ("queries", 2, s_q, s_q - 1, &[0, 3]),
            ("keys", 2, s_kv, s_kv - 1, &[1, 2]),
            ("head dim of q and k", 3, d_qk, d_qk - 1, &[0, 1]),
            ("head dim of v and o", 3, d_v, d_v - 1, &[2, 3]),
            ("query heads", 1, h_q, h_q - h_k.max(h_v), &[0, 3]),
            ("key heads", 1, h_k, 1, &[1]),
            ("value heads", 1, h_v, 1, &[2]),
        ];
        for (field, axis, now, to, which) in sizes {
            if to > 0 && to != now {
                self.change(field, Effect::Changes, |a| {
                    let groups = tensors(a).into_iter().enumerate().filter(|(i, _)| which.contains(i));
                    groups.flat_map(|(_, group)| group).for_each(|t| t.dims[axis] = to);
                });
            }
        }
    }

    /// Element types: shared ones together, the others one by one.
    pub(super) fn types(&mut self) {
        let other = |dtype: DType| match dtype {
            DType::F16 => DType::BF16,
            DType::E4M3 => DType::E5M2,
            DType::E5M2 => DType::E4M3,
            _ => DType::F16,
        };
        if self.base.fp8.is_none() {
            self.change("every dtype", Effect::Changes, |a| {
                tensors(a).into_iter().flatten().for_each(|t| t.dtype = other(t.dtype));
            });
            return;
        }
        self.change("dtype of q, k and v", Effect::Changes, |a| {
            [&mut a.q, &mut a.k, &mut a.v].into_iter().for_each(|t| t.dtype = other(t.dtype));
        });
        self.change("dtype of o", Effect::Changes, |a| a.o.dtype = other(a.o.dtype));
        let gradients = [
            ("dtype of gradient 0", 0, 1),
            ("dtype of gradient 1", 1, 1),
            ("dtype of gradient 2", 2, 1),
            ("dtype of gradient 3", 3, 1),
            ("dtype of d_o_half", 3, 2),
        ];
        for (field, i, at) in gradients {
            self.change(field, Effect::Changes, |a| {
                match tensors(a)[i].get_mut(at) {
                    Some(gradient) => gradient.dtype = other(gradient.dtype),
                    // A forward has no gradients, so another change of the key replaces this one.
                    None => a.sink = !a.sink,
                }
            });
        }
    }
}

/// Q, K, V and O, each with its gradient if there is one.
fn tensors(a: &mut Attention) -> [Vec<&mut Tensor>; 4] {
    let mut groups = [vec![&mut a.q], vec![&mut a.k], vec![&mut a.v], vec![&mut a.o]];
    if let Pass::Backward(Gradients { d_o, d_o_half, d_q, d_k, d_v, d_sink: _, deterministic: _ }) = &mut a.pass {
        for (group, gradient) in groups.iter_mut().zip([d_q, d_k, d_v, d_o]) {
            group.push(gradient);
        }
        groups[3].extend(d_o_half);
    }
    groups
}
