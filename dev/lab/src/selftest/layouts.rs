//! Random layouts for the self-test. Each operand has its own: contiguous in any order, a part of a shared buffer, or
//! padded after heads, rows and sequences in steps of 16 bytes.

use qkvault_graph::{Attention, BackwardOptions, DType, Interleave, Order, Storage, Tensor};

use super::cases::Draw;

/// A dense tensor with a random layout.
pub(super) fn dense(draw: &mut Draw, dims: [i64; 4], dtype: DType) -> Tensor {
    let order = draw.one_of(&Order::ALL);
    let interleave = draw.one_of(&[Interleave::Parts, Interleave::Heads]);
    match draw.one_of(&[0, 0, 1, 2, 3, 3]) {
        0 => Tensor::dense(order, dims, dtype),
        1 => Tensor::parts::<3>(order, interleave, dims, dtype)[0].tensor,
        2 => Tensor::parts::<2>(order, interleave, dims, dtype)[0].tensor,
        _ => {
            let axes = match order {
                Order::Bshd => [1, 2, 0],
                Order::Sbhd => [1, 0, 2],
                Order::Bhsd => [2, 1, 0],
            };
            padded(draw, Tensor::dense(order, dims, dtype), &axes)
        }
    }
}

/// A varlen tensor with a random layout: contiguous, a part of a shared buffer, or padded after heads and rows.
pub(super) fn varlen(draw: &mut Draw, plain: Tensor) -> Tensor {
    let Tensor { dims: [_, h, s, d], .. } = plain;
    let part = |n: i64, head: i64| Tensor { strides: [s * n * h * d, head, n * h * d, 1], ..plain };
    match draw.one_of(&[0, 0, 1, 2, 3, 3]) {
        0 => plain,
        1 => part(3, d),
        2 => part(2, 2 * d),
        _ => {
            let apart = padded(draw, plain, &[1, 2]);
            Tensor { strides: [s * apart.strides[2], apart.strides[1], apart.strides[2], 1], ..apart }
        }
    }
}

/// A page pool with padding after heads, rows and pages.
pub(super) fn pool(draw: &mut Draw, pool: Tensor) -> Tensor {
    let rows_inside = pool.strides[2] < pool.strides[1];
    padded(draw, pool, if rows_inside { &[2, 1, 0] } else { &[1, 2, 0] })
}

/// Adds padding after each step along these axes, innermost first.
fn padded(draw: &mut Draw, t: Tensor, axes: &[usize]) -> Tensor {
    let (unit, extents) = (16 / t.dtype.size() as i64, t.extents());
    let (mut strides, mut reach) = (t.strides, t.head_dim());
    for &axis in axes {
        strides[axis] = reach + unit * draw.one_of(&[0, 0, 1, 2, 3, 8]);
        reach = strides[axis] * extents[axis];
    }
    Tensor { strides, ..t }
}

/// Options for a backward whose gradients have the layouts of their operands, as in frameworks, or random layouts.
pub(super) fn gradients(draw: &mut Draw, a: &Attention, options: BackwardOptions) -> BackwardOptions {
    if draw.chance(30) {
        return options;
    }
    let mut own = |t: &Tensor| {
        Some(match t.storage {
            Storage::Varlen { tokens } => {
                let [b, h, s, d] = t.dims;
                varlen(draw, Tensor::thd(b, h, s, d, tokens, t.dtype))
            }
            Storage::Dense | Storage::Paged { .. } => dense(draw, t.dims, t.dtype),
        })
    };
    BackwardOptions { d_o: own(&a.o), d_q: own(&a.q), d_k: own(&a.k), d_v: own(&a.v), ..options }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use qkvault_graph::{Operand, Pass, Role, Valid, operands, validate};
    use qkvault_reference::{Buffer, Inputs, LaunchJudge, View, backward};

    use super::*;

    /// The kind of layout of a tensor.
    fn kind(t: &Tensor) -> &'static str {
        let [b, h, s, d] = t.dims;
        let parts = [1, 2, 3].into_iter().flat_map(|n| {
            [Interleave::Parts, Interleave::Heads].into_iter().flat_map(move |by| {
                Order::ALL.map(|order| match n {
                    1 => Tensor::dense(order, [b, h, s, d], t.dtype),
                    2 => Tensor::parts::<2>(order, by, [b, h, s, d], t.dtype)[0].tensor,
                    _ => Tensor::parts::<3>(order, by, [b, h, s, d], t.dtype)[0].tensor,
                })
            })
        });
        match (t.order(), parts.into_iter().any(|part| part.strides == t.strides)) {
            (Some(order), _) => order.name(),
            (None, true) => "a part",
            (None, false) => "with room",
        }
    }

    #[test]
    fn every_operand_draws_every_layout_independently() {
        let mut counts: BTreeMap<(Role, &str), usize> = BTreeMap::new();
        let (mut backwards, mut apart) = (0, 0);
        for case in 0..2_000 {
            let a = super::super::cases::attention(3, case);
            for Operand { role, tensor, output: _ } in operands(&a) {
                if tensor.head_dim() > 1 && tensor.dtype.size() == 2 && role.offsets().is_some() {
                    *counts.entry((role, kind(&tensor))).or_default() += 1;
                    let walked = (0..3).filter(|&axis| tensor.dims[axis] > 1);
                    assert!(walked.into_iter().all(|axis| tensor.strides[axis] % 8 == 0), "{case}: {role} {tensor:?}");
                }
            }
            let Pass::Backward(g) = &a.pass else { continue };
            backwards += 1;
            apart += usize::from(g.d_q.strides != a.q.strides && g.d_k.strides != a.k.strides && g.d_v != g.d_k);
        }
        for role in [Role::Q, Role::K, Role::V, Role::O, Role::DO, Role::DQ, Role::DK, Role::DV] {
            for kind in ["bshd", "sbhd", "bhsd", "a part", "with room"] {
                let count = counts.get(&(role, kind)).copied().unwrap_or_default();
                assert!(count >= 25, "{role} {kind}: {count} of 2,000");
            }
        }
        assert!(2 * apart > backwards, "only {apart} of {backwards} backwards have gradients with their own layouts");
    }

    fn small(a: &Attention) -> bool {
        a.is_backward()
            && a.dropout.is_none()
            && a.seq().0 * a.seq().1 * a.q.heads() < 20_000
            && a.seq().0.min(a.seq().1) > 1
    }

    /// An output as a kernel would write it with other strides.
    fn moved(a: &Valid, inputs: &Inputs, role: Role, right: &Buffer, strides: [i64; 4]) -> Buffer {
        let view = View::new(a, role, inputs).expect("sound");
        let [b, h, s, d] = a.stored(role).expect("it has it").dims.map(|n| n as usize);
        let mut wrong = Buffer::poisoned(right.dtype(), right.len());
        for (b, h, s, d) in
            (0..b).flat_map(|b| (0..h).flat_map(move |h| (0..s).flat_map(move |s| (0..d).map(move |d| (b, h, s, d)))))
        {
            let at = [b, h, s, d].iter().zip(strides).map(|(&i, stride)| i * stride as usize).sum::<usize>();
            if at < wrong.len() {
                wrong.set(at, right.get(view.at(b, h, s, d)));
            }
        }
        wrong
    }

    #[test]
    fn a_gradient_with_another_tensors_strides_or_written_between_elements_is_wrong() {
        let (mut laid, mut between) = (0, 0);
        for case in 0..400 {
            let a = super::super::cases::attention(5, case);
            if !small(&a) {
                continue;
            }
            let Ok(a) = validate(a) else { continue };
            let inputs = Inputs::random(&a, case).expect("random");
            let exact = backward(&a, &inputs).expect("computes");
            let judge = LaunchJudge::new(&a, &inputs);
            for (role, of) in [(Role::DQ, Role::Q), (Role::DK, Role::K), (Role::DV, Role::V)] {
                let out = exact.get(role).expect("a backward has it");
                let mut buffer = out.buffer();
                assert_eq!(judge.judge(out, &buffer).fault, None, "{case}: {role}");
                let (own, other) = [role, of].map(|role| a.stored(role).expect("it has it").strides).into();
                if own != other && out.values().iter().any(|x| x.abs() > 0.1) {
                    let wrong = moved(&a, &inputs, role, &buffer, other);
                    assert!(judge.judge(out, &wrong).fault.is_some(), "{case}: {role} with the strides of {of}");
                    laid += 1;
                }
                if let Some(at) = out.defined().iter().position(|d| *d == qkvault_reference::Defined::Outside) {
                    buffer.set(at, 0.0);
                    assert!(judge.judge(out, &buffer).fault.is_some(), "{case}: {role} is written at {at}");
                    between += 1;
                }
            }
        }
        assert!(laid > 20 && between > 20, "{laid} with other strides, {between} written between elements");
    }
}
