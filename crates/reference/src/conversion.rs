//! Conversions to and from 8 bits by their definition, bit for bit.

use std::collections::BTreeMap;

use qkvault_graph::{Along, BLOCK, Conversion, ConversionKind, DType, Role, Tensor, ValidConversion};

use crate::fp8::Blocks;
use crate::places::{address, places};
use crate::{Buffer, Inputs, ReferenceError, round};

/// The powers of two that a block may have: 2^-127 to 2^127.
const LEAST: i32 = -127;

/// Computes a conversion: every output as the bytes that a device holds afterwards, with [`POISON`](crate::POISON)
/// where the output's strides leave gaps.
///
/// ```
/// use qkvault_graph::{Conversion, ConversionKind, DType, Role, Tensor};
/// use qkvault_reference::{Buffer, Inputs, convert};
///
/// let wide = Tensor::bshd(1, 1, 2, 16, DType::BF16);
/// let kind = ConversionKind::Current { power_of_two: false };
/// let conversion = Conversion::to(DType::E4M3, wide, kind).validate()?;
/// let mut inputs = Inputs::new();
/// inputs.insert(Role::Wide, Buffer::from_values(DType::BF16, (0..32).map(|i| f64::from(i - 20))));
/// let outputs = convert(&conversion, &inputs)?;
/// assert_eq!([outputs[&Role::NarrowAmax].get(0), outputs[&Role::NarrowScale].get(0)], [20.0, f64::from(22.4_f32)]);
/// assert_eq!(outputs[&Role::Narrow].get(0), -448.0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
///
/// [`ReferenceError`] for an input that is missing, too short or of another type.
pub fn convert(conversion: &ValidConversion, inputs: &Inputs) -> Result<BTreeMap<Role, Buffer>, ReferenceError> {
    let Conversion { wide, narrow, kind } = **conversion;
    let (role, from, to) = match kind.narrows() {
        true => (Role::Wide, wide, narrow),
        false => (Role::Narrow, narrow, wide),
    };
    let list = conversion.bindings();
    let input = |role| {
        let binding = list.iter().find(|b| b.role == role).ok_or(ReferenceError::Missing { role })?;
        let (buffer, needed) = (inputs.typed(role, binding.dtype)?, binding.bytes as usize / binding.dtype.size());
        match buffer.len() < needed {
            true => Err(ReferenceError::TooShort { role, given: buffer.len(), needed }),
            false => Ok(buffer),
        }
    };
    let made = list.iter().filter(|b| b.output);
    let mut outputs: BTreeMap<Role, Buffer> =
        made.map(|b| (b.role, Buffer::poisoned(b.dtype, b.bytes as usize / b.dtype.size()))).collect();
    let source = input(role)?;
    let mut put = |role: Role, at: usize, x: f64| {
        if let Some(buffer) = outputs.get_mut(&role) {
            // One NaN, without a sign.
            buffer.set(at, if x.is_nan() { f64::NAN } else { x });
        }
    };
    let output = if kind.narrows() { Role::Narrow } else { Role::Wide };
    match kind {
        ConversionKind::Delayed | ConversionKind::Current { .. } => {
            let all = places(&from).map(|at| (source.get(address(&from, at)) as f32).abs());
            let amax = all.fold(0.0, |most: f32, x| if x.is_nan() || most.is_nan() { f32::NAN } else { most.max(x) });
            let scale = match kind {
                ConversionKind::Current { power_of_two } => made_scale(amax, narrow.dtype, power_of_two),
                _ => input(Role::NarrowScale)?.get(0) as f32,
            };
            put(Role::NarrowAmax, 0, amax.into());
            put(Role::NarrowScale, 0, scale.into());
            put(Role::NarrowDescale, 0, (1.0 / scale).into());
            for at in places(&from) {
                let product = source.get(address(&from, at)) as f32 * scale;
                put(output, address(&to, at), product.into());
            }
        }
        ConversionKind::Dequantize => {
            let descale = input(Role::NarrowDescale)?.get(0) as f32;
            for at in places(&from) {
                put(output, address(&to, at), (source.get(address(&from, at)) as f32 * descale).into());
            }
        }
        ConversionKind::Blocks(along) => {
            let blocks = layout(&narrow, along);
            let padded = list.iter().find(|b| b.role == Role::NarrowDescale).map_or(0, |b| b.bytes as usize);
            (0..padded).for_each(|at| put(Role::NarrowDescale, at, 2f64.powi(LEAST)));
            for at in places(&from).filter(|at| at[if along == Along::HeadDim { 3 } else { 2 }] % BLOCK == 0) {
                let block: Vec<[usize; 4]> = block(&from, along, at).collect();
                let exponent = exponent(block.iter().map(|&at| source.get(address(&from, at))), narrow.dtype);
                let factor = exponent.map_or(f64::NAN, |exponent| 2f64.powi(exponent));
                put(Role::NarrowDescale, blocks.at((at[0], at[1]), at[2], at[3]), factor);
                for at in block {
                    let product = source.get(address(&from, at)) as f32 * (1.0 / factor) as f32;
                    put(output, address(&to, at), product.into());
                }
            }
        }
        ConversionKind::DequantizeBlocks(along) => {
            let (blocks, factors) = (layout(&narrow, along), input(Role::NarrowDescale)?);
            for at in places(&from) {
                let factor = factors.get(blocks.at((at[0], at[1]), at[2], at[3]));
                put(output, address(&to, at), (source.get(address(&from, at)) as f32 * factor as f32).into());
            }
        }
        _ => {
            return Err(ReferenceError::NotModelled { what: "a conversion", why: "its kind is newer than the oracle" });
        }
    }
    Ok(outputs)
}

/// The scale that brings a largest magnitude to the largest number of a type.
fn made_scale(amax: f32, dtype: DType, power_of_two: bool) -> f32 {
    if !amax.is_finite() || amax == 0.0 {
        return 1.0;
    }
    let scale = (round(dtype, f64::MAX) as f32 / amax).min(2f32.powi(126));
    if power_of_two { 2f32.powi(f64::from(scale).log2().floor() as i32) } else { scale }
}

/// The smallest exponent with which none of these numbers exceeds the largest of a type; an infinity counts as 2^128.
/// `None` if one is NaN.
fn exponent(numbers: impl Iterator<Item = f64>, dtype: DType) -> Option<i32> {
    let largest = round(dtype, f64::MAX);
    let fold = |most: f64, x: f64| if x.is_nan() || most.is_nan() { f64::NAN } else { most.max(x.abs()) };
    let amax = numbers.fold(0.0, fold);
    let reaches = |e: &i32| amax.min(2f64.powi(128)) <= largest * 2f64.powi(*e);
    (!amax.is_nan()).then(|| (LEAST..=127).find(reaches).unwrap_or(127))
}

fn layout(t: &Tensor, along: Along) -> Blocks {
    Blocks::new(t.dims.map(|n| n as usize), along == Along::Sequence)
}

/// The elements of a block, of which this is the first.
fn block(t: &Tensor, along: Along, first: [usize; 4]) -> impl Iterator<Item = [usize; 4]> + use<> {
    let axis = if along == Along::HeadDim { 3 } else { 2 };
    let end = (first[axis] + BLOCK).min(t.dims[axis] as usize);
    (first[axis]..end).map(move |n| {
        let mut at = first;
        at[axis] = n;
        at
    })
}
