//! Scale factors and largest magnitudes of 8-bit attention and caches, and the second 8-bit forms of a microscaled
//! backward.

use super::{List, dense, number};
use crate::{Along, Attention, DType, Fp8, Gradients, Pass, Role, Scaled, Storage, Tensor};

/// Elements that share a scale in the microscaled formats.
pub const BLOCK: usize = 32;

/// Adds the operands that only an 8-bit attention has.
pub(super) fn add(list: &mut List, a: &Attention, scaling: Fp8) {
    match (&a.pass, scaling) {
        (Pass::Forward, Fp8::Block) => {
            blocks(list, &[(Scaled::Q, a.q, Along::HeadDim), (Scaled::K, a.k, Along::HeadDim)]);
            blocks(list, &[(Scaled::V, a.v, Along::Sequence)]);
            amaxes(list, a, &[Scaled::O]);
        }
        (Pass::Backward(gradients), Fp8::Block) => block_backward(list, a, gradients),
        (_, Fp8::Cache) => inputs(list, Role::Descale, &[Scaled::K, Scaled::V]),
        (Pass::Forward, Fp8::Delayed | Fp8::Current) => {
            inputs(list, Role::Descale, &[Scaled::Q, Scaled::K, Scaled::V, Scaled::S]);
            inputs(list, Role::ScaleOf, &[Scaled::S, Scaled::O]);
            amaxes(list, a, &[Scaled::S, Scaled::O]);
        }
        (Pass::Backward(_), Fp8::Delayed | Fp8::Current) => {
            inputs(list, Role::Descale, &[Scaled::Q, Scaled::K, Scaled::V, Scaled::S]);
            inputs(list, Role::Descale, &[Scaled::O, Scaled::DO, Scaled::DP]);
            inputs(list, Role::ScaleOf, &[Scaled::S, Scaled::DP, Scaled::DQ, Scaled::DK, Scaled::DV]);
            amaxes(list, a, &[Scaled::DQ, Scaled::DK, Scaled::DV, Scaled::DP]);
        }
    }
}

/// A microscaled backward sums over the head dim and over the sequence, and a sum needs one scale. So Q, K and dO have
/// two 8-bit forms, and V has scales along its rows, unlike in the forward.
fn block_backward(list: &mut List, a: &Attention, gradients: &Gradients) {
    let d_o = gradients.d_o;
    for (role, t) in [(Role::QT, a.q), (Role::KT, a.k), (Role::DOT, d_o)] {
        list.input(role, t);
    }
    let by_rows = [(Scaled::Q, a.q), (Scaled::K, a.k), (Scaled::V, a.v), (Scaled::DO, d_o)];
    blocks(list, &by_rows.map(|(which, t)| (which, t, Along::HeadDim)));
    let by_columns = [(Scaled::QT, a.q), (Scaled::KT, a.k), (Scaled::DOT, d_o)];
    blocks(list, &by_columns.map(|(which, t)| (which, t, Along::Sequence)));
    amaxes(list, a, &[Scaled::DQ, Scaled::DK, Scaled::DV]);
}

fn blocks(list: &mut List, scaled: &[(Scaled, Tensor, Along)]) {
    for (which, t, along) in scaled {
        list.input(Role::Descale(*which), block_scales(t, *along));
    }
}

fn inputs(list: &mut List, role: fn(Scaled) -> Role, scaled: &[Scaled]) {
    scaled.iter().for_each(|&which| list.input(role(which), number(DType::F32)));
}

/// Largest magnitudes, if they are outputs.
fn amaxes(list: &mut List, a: &Attention, scaled: &[Scaled]) {
    scaled.iter().for_each(|&which| list.when(a.outputs.amax, Role::Amax(which), number(DType::F32), true));
}

/// The scale factors of a microscaled tensor, one per 32 elements, padded to whole 128 × 4 tiles, in cuDNN's order
/// (`F8_128x4`). Strides tell how many there are; the order of tiles is below them. Along the sequence, the tiles of
/// the first 128 elements of the head dim of all heads stand before those of the next 128.
#[must_use]
pub fn block_scales(t: &Tensor, along: Along) -> Tensor {
    let up = |n: i64, to: i64| (n + to - 1) / to * to;
    let groups = |n: i64| up((n + BLOCK as i64 - 1) / BLOCK as i64, 4);
    let [b, h, s, d] = t.dims;
    match along {
        Along::Sequence => {
            let [s, d] = [groups(s), up(d, 128)];
            Tensor {
                dims: [b, h, s, d],
                strides: [h * s * d, s * d, 1, s],
                dtype: DType::E8M0,
                storage: Storage::Dense,
            }
        }
        Along::HeadDim => dense([b, h, up(s, 128), groups(d)], DType::E8M0),
    }
}
