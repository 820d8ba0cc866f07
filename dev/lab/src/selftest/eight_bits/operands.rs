//! Random operands of an 8-bit attention: scales of very different sizes, tensors of zeros and of the largest numbers.

use qkvault_graph::{Attention, DType, Role, Scaled, Valid};
use qkvault_reference::{Buffer, Family, Inputs, LengthChoice, RandomChoice, ReferenceError};

use crate::selftest::Draw;

/// Scales of probabilities, which are at most 1: `448` is the largest number of e4m3.
const SCALES_OF_S: [f64; 5] = [256.0, 256.0, 448.0, 16.0, 1.0];

/// Random operands of one case; with `empty` sequences may have no queries or keys.
pub(in crate::selftest) fn operands(
    a: &Valid,
    seed: u64,
    case: u64,
    empty: bool,
    family: Family,
) -> Result<Inputs, ReferenceError> {
    let mut draw = Draw::new(seed ^ 0x0073_6361_6c65_7300, case);
    let lengths = if empty { LengthChoice::Any } else { LengthChoice::Varied };
    let mut inputs = Inputs::random_with(a, seed ^ case, &RandomChoice { lengths, family, ..RandomChoice::default() })?;
    edges(a, &mut draw, &mut inputs);
    rescale(a, &mut draw, &mut inputs);
    let drawn_mask = a.dropout.is_some_and(|d| d.probability > 0.0);
    if a.is_backward() && !drawn_mask {
        inputs.add_forward(a)?;
    }
    Ok(inputs)
}

/// A power of two between `2^-most` and `2^most`, in a third of the draws times a number that is no power.
fn factor(draw: &mut Draw, most: i64) -> f64 {
    let power = 2f64.powi(draw.within(-most, most) as i32);
    if draw.chance(33) { power * (1.0 + draw.within(1, 99) as f64 / 100.0) } else { power }
}

/// Gives tensors other descales, and what follows from them scales that fit: stored numbers keep their sizes, and real
/// ones do not. Scores keep theirs, because their exponentials would all be zero or one.
fn rescale(a: &Attention, draw: &mut Draw, inputs: &mut Inputs) {
    let (qk, v, d_o) = (factor(draw, 20), factor(draw, 20), factor(draw, 20));
    // O and gradients in f16 have a narrower range.
    let (qk, v, d_o) = if a.o.dtype == DType::F16 { (1.0, 1.0, 1.0) } else { (qk, v, d_o) };
    let s = draw.one_of(&SCALES_OF_S);
    // Outputs that leave the range of their type, or fall below it.
    let shift = |draw: &mut Draw| if draw.chance(15) { draw.one_of(&[1.0 / 64.0, 8.0]) } else { 1.0 };
    let (o, d_q, d_k, d_v) = (shift(draw), shift(draw), shift(draw), shift(draw));
    let mut set = |role, by: f64| {
        if let Some(now) = inputs.get(role).map(|buffer| buffer.get(0)) {
            inputs.set_f32(role, (now * by) as f32);
        }
    };
    use Role::{Descale, ScaleOf};
    set(Descale(Scaled::Q), qk);
    set(Descale(Scaled::K), 1.0 / qk);
    set(Descale(Scaled::V), v);
    set(ScaleOf(Scaled::O), o / v);
    // A backward reads an O that was stored with the inverse.
    set(Descale(Scaled::O), v);
    set(Descale(Scaled::DO), d_o);
    let gradient = d_o * v;
    set(ScaleOf(Scaled::DP), 1.0 / gradient);
    set(Descale(Scaled::DP), gradient);
    set(ScaleOf(Scaled::DQ), d_q / (gradient / qk));
    set(ScaleOf(Scaled::DK), d_k / (gradient * qk));
    set(ScaleOf(Scaled::DV), d_v / d_o);
    inputs.set_f32(ScaleOf(Scaled::S), s as f32);
    inputs.set_f32(Descale(Scaled::S), (1.0 / s) as f32);
}

/// Makes V or dO a tensor of zeros, or one with the largest numbers of its type, in some cases.
fn edges(a: &Attention, draw: &mut Draw, inputs: &mut Inputs) {
    let tensors: &[Role] = if a.is_backward() { &[Role::V, Role::DO] } else { &[Role::V] };
    for &role in tensors {
        let kind = draw.within(0, 99);
        let Some(buffer) = inputs.get(role).filter(|_| kind < 12) else { continue };
        let (dtype, len) = (buffer.dtype(), buffer.len());
        let largest = dtype.largest_fp8().map_or(1.0, f64::from);
        let numbers: Vec<f64> = (0..len)
            .map(|at| match kind {
                0..4 => 0.0,
                _ if draw.chance(90) => buffer.get(at),
                4..8 => largest,
                _ => -largest,
            })
            .collect();
        inputs.insert(role, Buffer::from_values(dtype, numbers));
    }
}

/// Scales of a cache: of keys so that scores keep their size or nearly, of values of any size.
pub(in crate::selftest) fn cache_scales(inputs: &mut Inputs, seed: u64, case: u64) {
    let mut draw = Draw::new(seed ^ 0x0063_6163_6865_7300, case);
    let some = [0.03125, 0.015_625, 0.0213, 0.0401];
    inputs.set_f32(Role::Descale(Scaled::K), draw.one_of(&some));
    inputs.set_f32(Role::Descale(Scaled::V), draw.one_of(&[0.03125, 1.0, 0.77, 1e-3, 9.0]));
}

/// Scales with which the O of a forward over rows of the identity tells every probability apart from zero.
pub(in crate::selftest) fn philox_scales(a: &Attention, inputs: &mut Inputs) {
    if a.fp8.is_some() {
        inputs.set_f32(Role::Descale(Scaled::V), 512.0);
        inputs.set_f32(Role::ScaleOf(Scaled::O), if a.o.dtype.is_fp8() { 32.0 } else { 1.0 });
    }
}

#[cfg(test)]
mod tests {
    use qkvault_cudnn::QuirkSet;
    use qkvault_graph::{operands as list, validate};

    use super::*;
    use crate::selftest::eight_bits::attention;

    #[test]
    fn every_operand_is_bound_and_real_numbers_have_very_different_sizes() {
        let (mut cases, mut most, mut least) = (0, 0.0_f64, f64::INFINITY);
        for case in 0..40 {
            let Ok(a) = validate(attention(3, case, QuirkSet::NONE)) else { continue };
            if a.get().q.dims.iter().product::<i64>() > 1 << 18 || a.dropout.is_some() {
                continue;
            }
            let given = operands(&a, 3, case, false, Family::Normal).expect("random");
            for operand in list(&a).iter().filter(|o| !o.output) {
                assert!(given.get(operand.role).is_some(), "{case}: {}", operand.role);
            }
            let v = given.buffer(Role::Descale(Scaled::V)).expect("bound").get(0);
            (cases, most, least) = (cases + 1, most.max(v), least.min(v));
        }
        assert!(cases > 10 && most / least > 1e4, "{cases} cases, {least} to {most}");
    }
}
