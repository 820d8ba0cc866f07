//! Conversions to and from 8 bits: numbers worked out by hand, and what holds for all of them.

use std::collections::BTreeMap;

use proptest::prelude::*;
use qkvault_graph::{Along, Attention, Conversion, ConversionKind, DType, Fp8, Role, Scaled, Tensor, Valid, validate};
use qkvault_reference::{Buffer, Inputs, convert, forward, round};

fn wide(numbers: &[f64]) -> (Tensor, Buffer) {
    (Tensor::bshd(1, 1, 1, numbers.len() as i64, DType::F32), Buffer::from_values(DType::F32, numbers.iter().copied()))
}

fn run(conversion: Conversion, inputs: impl IntoIterator<Item = (Role, Buffer)>) -> BTreeMap<Role, Buffer> {
    convert(&conversion.validate().expect("sound"), &inputs.into_iter().collect()).expect("computes")
}

/// Scale, descale and amax of numbers.
fn current(numbers: &[f64], dtype: DType, power_of_two: bool) -> [f64; 3] {
    let (tensor, buffer) = wide(numbers);
    let kind = ConversionKind::Current { power_of_two };
    let out = run(Conversion::to(dtype, tensor, kind), [(Role::Wide, buffer)]);
    [Role::NarrowScale, Role::NarrowDescale, Role::NarrowAmax].map(|role| out[&role].get(0))
}

#[test]
fn a_scale_of_its_own_brings_the_largest_number_to_the_largest_of_the_format() {
    assert_eq!(current(&[1.0, -7.0], DType::E4M3, false), [64.0, 1.0 / 64.0, 7.0]);
    assert_eq!(current(&[-8.0, 1.0], DType::E4M3, true), [32.0, 1.0 / 32.0, 8.0]);
    assert_eq!(current(&[3.5], DType::E5M2, false), [16384.0, 1.0 / 16384.0, 3.5]);
    // Nothing to scale by: zero, an infinity, a NaN.
    assert_eq!(current(&[0.0, -0.0], DType::E4M3, false), [1.0, 1.0, 0.0]);
    assert_eq!(current(&[1.0, f64::NEG_INFINITY], DType::E4M3, false), [1.0, 1.0, f64::INFINITY]);
    let [scale, descale, amax] = current(&[f64::NAN, 9.0], DType::E4M3, true);
    assert!(scale == 1.0 && descale == 1.0 && amax.is_nan());
    // A scale whose reciprocal would be less than the smallest normal number.
    let [scale, descale, _] = current(&[1e-45], DType::E4M3, false);
    assert_eq!([scale, descale], [2f64.powi(126), 2f64.powi(-126)]);
}

#[test]
fn a_given_scale_saturates_and_keeps_nans() {
    let (tensor, buffer) = wide(&[1.0, -1000.0, f64::INFINITY, f64::NAN, 0.3]);
    let conversion = Conversion::to(DType::E4M3, tensor, ConversionKind::Delayed);
    let out = run(conversion, [(Role::Wide, buffer), (Role::NarrowScale, Buffer::from_values(DType::F32, [2.0]))]);
    let narrow: Vec<f64> = (0..5).map(|at| out[&Role::Narrow].get(at)).collect();
    assert!(narrow[3].is_nan() && out[&Role::NarrowAmax].get(0).is_nan());
    assert_eq!([narrow[0], narrow[1], narrow[2], narrow[4]], [2.0, -448.0, 448.0, 0.625]);
    assert_eq!(out[&Role::NarrowDescale].get(0), 0.5);
}

#[test]
fn a_block_has_the_smallest_power_of_two_that_reaches_its_largest_number() {
    // Blocks: up to 448; just beyond it; nothing; the smallest number; a NaN; an infinity.
    let mut numbers = vec![0.0; 6 * 32];
    (numbers[3], numbers[40], numbers[100]) = (448.0, -449.0, 1e-44);
    (numbers[130], numbers[131], numbers[165], numbers[166]) = (f64::NAN, 5.0, f64::INFINITY, 3.0);
    let (tensor, buffer) = wide(&numbers);
    let blocks = Conversion::to(DType::E4M3, tensor, ConversionKind::Blocks(Along::HeadDim));
    let out = run(blocks, [(Role::Wide, buffer)]);
    let at = |block: usize| out[&Role::NarrowDescale].get(block / 4 * 512 + block % 4);
    assert_eq!([at(0), at(1), at(2), at(3)], [1.0, 2.0, 2f64.powi(-127), 2f64.powi(-127)]);
    assert!(at(4).is_nan());
    assert_eq!(at(5), 2f64.powi(120));
    let narrow = |at: usize| out[&Role::Narrow].get(at);
    assert_eq!([narrow(3), narrow(40), narrow(165), narrow(166)], [448.0, round(DType::E4M3, -224.5), 448.0, 0.0]);
    assert!(narrow(130).is_nan() && narrow(131).is_nan());
    // Other bytes of the tiles are powers too, so that nothing multiplied by them is a NaN.
    assert_eq!(out[&Role::NarrowDescale].get(511), 2f64.powi(-127));
}

/// An attention over what a conversion made is the one over its real numbers: data, scales and their order fit. The
/// graph rounds probabilities to e4m3 without a scale, to half a step: of 2^-3 of the number, and at least of 2^-9.
#[test]
fn attention_reads_what_a_conversion_writes() {
    let t = |h, s, d, dtype| Tensor::bshd(2, h, s, d, dtype);
    let (q, k, v, o) =
        (t(4, 70, 96, DType::BF16), t(2, 130, 96, DType::BF16), t(2, 130, 64, DType::BF16), t(4, 70, 64, DType::BF16));
    let half = validate(Attention::forward(q, k, v, o)).expect("sound");
    let mut inputs = Inputs::random(&half, 3).expect("random");
    // Neighbouring blocks of very different size, along rows and along columns.
    for role in [Role::Q, Role::K, Role::V] {
        let buffer = inputs.get_mut(role).expect("bound");
        (0..buffer.len()).for_each(|at| buffer.set(at, buffer.get(at) * 2f64.powi((at / 32 % 5) as i32 - 2)));
    }
    let mut a = half.get().clone();
    a.fp8 = Some(Fp8::Block);
    for tensor in [&mut a.q, &mut a.k, &mut a.v] {
        tensor.dtype = DType::E4M3;
    }
    let eight = validate(a).expect("sound");
    let mut narrow = Inputs::new();
    narrow.insert(Role::Scale, inputs.get(Role::Scale).expect("bound").clone());
    let mut real = inputs.widened();
    for (role, tensor, which, along) in [
        (Role::Q, q, Scaled::Q, Along::HeadDim),
        (Role::K, k, Scaled::K, Along::HeadDim),
        (Role::V, v, Scaled::V, Along::Sequence),
    ] {
        let to = Conversion::to(DType::E4M3, tensor, ConversionKind::Blocks(along));
        let mut out = run(to, [(Role::Wide, inputs.get(role).expect("bound").clone())]);
        let back = Conversion::from(to.narrow, DType::F32, ConversionKind::DequantizeBlocks(along));
        let stored = [Role::Narrow, Role::NarrowDescale].map(|role| (role, out[&role].clone()));
        real.insert(role, run(back, stored).remove(&Role::Wide).expect("written"));
        narrow.insert(role, out.remove(&Role::Narrow).expect("written"));
        narrow.insert(Role::Descale(which), out.remove(&Role::NarrowDescale).expect("written"));
    }
    let o_of = |a: &Valid, inputs: &Inputs| {
        forward(a, inputs).expect("computes").get(Role::O).expect("always").values().to_vec()
    };
    let (exact, stored) = (o_of(&half, &real), o_of(&eight, &narrow.widened()));
    assert!(exact.iter().zip(&stored).all(|(x, y)| (x - y).abs() <= 1e-12 * x.abs().max(1.0)));

    // The sums of the magnitudes of V: with the probabilities, and over all keys.
    let mut magnitudes = real.clone();
    let values = magnitudes.get_mut(Role::V).expect("bound");
    (0..values.len()).for_each(|at| values.set(at, values.get(at).abs()));
    let mut alike = magnitudes.clone();
    alike.set_f32(Role::Scale, 0.0);
    let (weighed, mean) = (o_of(&half, &magnitudes), o_of(&half, &alike));
    let keys = k.dims[2] as f64;
    let rounded = o_of(&eight, &narrow);
    let mut largest = 0.0_f64;
    for (at, (x, y)) in exact.iter().zip(&rounded).enumerate() {
        let bound = weighed[at] / 16.0 + mean[at] * keys / 1024.0;
        assert!((x - y).abs() <= bound, "{at}: {y} for {x}, at most {bound} off");
        largest = largest.max((x - y).abs() / bound);
    }
    // Rounding does something, and the bound is not far from it.
    assert!(largest > 0.1, "{largest}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    /// There and back, a number is off by at most half a step of the format, and by what is below its smallest number.
    #[test]
    fn there_and_back_a_number_is_off_by_half_a_step(
        numbers in prop::collection::vec(-30.0_f32..30.0, 1..120), kind in 0..4, e5m2 in any::<bool>(),
    ) {
        let numbers: Vec<f64> = numbers.iter().map(|&x| x.into()).collect();
        let (tensor, buffer) = wide(&numbers);
        let dtype = if e5m2 { DType::E5M2 } else { DType::E4M3 };
        let (there, back) = match kind {
            0 => (ConversionKind::Current { power_of_two: false }, ConversionKind::Dequantize),
            1 => (ConversionKind::Current { power_of_two: true }, ConversionKind::Dequantize),
            2 => (ConversionKind::Blocks(Along::HeadDim), ConversionKind::DequantizeBlocks(Along::HeadDim)),
            _ => (ConversionKind::Blocks(Along::Sequence), ConversionKind::DequantizeBlocks(Along::Sequence)),
        };
        let mut out = run(Conversion::to(dtype, tensor, there), [(Role::Wide, buffer)]);
        let narrow = [Role::Narrow, Role::NarrowDescale].map(|role| (role, out.remove(&role).expect("written")));
        let narrow_tensor = Tensor { dtype, ..tensor };
        let found = run(Conversion::from(narrow_tensor, DType::F32, back), narrow);
        let amax = numbers.iter().fold(0.0, |most: f64, x| most.max(x.abs()));
        let (step, least) = if e5m2 { (0.125, 2f64.powi(-30)) } else { (0.0625, 2f64.powi(-17)) };
        for (at, x) in numbers.iter().enumerate() {
            let off = (found[&Role::Wide].get(at) - x).abs();
            prop_assert!(off <= x.abs() * step * 1.0001 + amax * least, "{x}: off by {off}");
        }
    }
}
