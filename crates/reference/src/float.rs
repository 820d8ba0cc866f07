//! Element formats: conversion of every stored number to float64, and rounding to a format in one step.
//!
//! Rounding goes directly from float64 to the nearest number, ties to even, so nothing is rounded twice. Numbers too
//! large for the format become infinity in f16, bf16 and f32, and the largest finite number in the 8-bit formats, which
//! cuDNN's conversions saturate to. The formats e4m3 and e5m2 follow the OCP 8-bit floating point specification (e4m3
//! has no infinity and one NaN per sign). e8m0 follows the OCP microscaling specification (powers of two from 2^-127 to
//! 2^127, and one NaN).

use qkvault_graph::DType;

/// A binary format of sign, exponent and mantissa.
#[derive(Clone, Copy)]
struct FloatFormat {
    /// Explicit bits of the mantissa.
    mantissa: u32,
    /// Offset of the exponent field.
    bias: i32,
    /// Code of the largest finite number.
    largest: u32,
    /// Code for numbers beyond the largest finite one.
    overflow: u32,
    /// A code for NaN.
    nan: u32,
    /// The sign bit.
    sign: u32,
}

const F16: FloatFormat =
    FloatFormat { mantissa: 10, bias: 15, largest: 0x7bff, overflow: 0x7c00, nan: 0x7e00, sign: 15 };
const BF16: FloatFormat =
    FloatFormat { mantissa: 7, bias: 127, largest: 0x7f7f, overflow: 0x7f80, nan: 0x7fc0, sign: 15 };
const E4M3: FloatFormat = FloatFormat { mantissa: 3, bias: 7, largest: 0x7e, overflow: 0x7e, nan: 0x7f, sign: 7 };
const E5M2: FloatFormat = FloatFormat { mantissa: 2, bias: 15, largest: 0x7b, overflow: 0x7b, nan: 0x7f, sign: 7 };

impl FloatFormat {
    fn encode(self, x: f64) -> u32 {
        let sign = u32::from(x.is_sign_negative()) << self.sign;
        if x.is_nan() {
            return sign | self.nan;
        }
        let a = x.abs();
        let lowest = 1 - self.bias;
        // Numbers below float64's normal range are below every format's smallest half.
        let exponent = ((a.to_bits() >> 52) as i32 - 1023).max(lowest);
        if exponent > 1000 {
            return sign | self.overflow;
        }
        let quantum = exponent - self.mantissa as i32;
        // Scaling by a power of two is exact here, so this is the only rounding.
        let steps = (a * power(-quantum)).round_ties_even() as u32;
        // The exponent field of a subnormal is 0. The hidden bit of a normal number, and a carry out of the mantissa,
        // add 1 to the field.
        let code = (((exponent - lowest) as u32) << self.mantissa) + steps;
        sign | if code > self.largest { self.overflow } else { code }
    }

    fn decode(self, bits: u32) -> f64 {
        let sign = if bits >> self.sign & 1 == 1 { -1.0 } else { 1.0 };
        let code = bits & ((1 << self.sign) - 1);
        if code > self.largest {
            return if code == self.overflow { sign * f64::INFINITY } else { f64::NAN };
        }
        let (field, low) = ((code >> self.mantissa) as i32, code & ((1 << self.mantissa) - 1));
        let (exponent, steps) = if field == 0 { (1, low) } else { (field, low + (1 << self.mantissa)) };
        sign * f64::from(steps) * 2f64.powi(exponent - self.bias - self.mantissa as i32)
    }
}

/// A power of two within float64's normal range.
fn power(exponent: i32) -> f64 {
    debug_assert!((-1022..1024).contains(&exponent));
    f64::from_bits(((1023 + exponent) as u64) << 52)
}

/// The bits of `x` in a 16-bit or 8-bit format; use [`round`] for other formats.
pub(crate) fn encode_small(dtype: DType, x: f64) -> u32 {
    match dtype {
        DType::F16 => F16.encode(x),
        DType::BF16 => BF16.encode(x),
        DType::E4M3 => E4M3.encode(x),
        DType::E5M2 => E5M2.encode(x),
        DType::E8M0 => encode_e8m0(x),
        DType::U8 => u32::from(x.round_ties_even() as u8),
        DType::Bool => u32::from(x != 0.0),
        DType::F32 | DType::I32 | DType::I64 => unreachable!("{dtype} is wider than 16 bits"),
    }
}

/// The number that these bits of a 16-bit or 8-bit format represent.
pub(crate) fn decode_small(dtype: DType, bits: u32) -> f64 {
    match dtype {
        DType::F16 => half::f16::from_bits(bits as u16).to_f64(),
        DType::BF16 => f64::from(f32::from_bits(bits << 16)),
        DType::E4M3 => E4M3.decode(bits),
        DType::E5M2 => {
            // The format has infinities, although rounding never produces one.
            if bits & 0x7f == 0x7c { f64::INFINITY.copysign(0.5 - f64::from(bits >> 7)) } else { E5M2.decode(bits) }
        }
        DType::E8M0 => {
            if bits == 0xff {
                f64::NAN
            } else {
                2f64.powi(bits as i32 - 127)
            }
        }
        DType::U8 => f64::from(bits),
        DType::Bool => f64::from(u8::from(bits != 0)),
        DType::F32 | DType::I32 | DType::I64 => unreachable!("{dtype} is wider than 16 bits"),
    }
}

/// The nearest power of two; zero and negative numbers become the smallest.
fn encode_e8m0(x: f64) -> u32 {
    if x.is_nan() {
        return 0xff;
    }
    if x <= 0.0 {
        return 0;
    }
    let bits = x.to_bits();
    let up = i32::from(bits >> 51 & 1 == 1);
    ((bits >> 52) as i32 - 1023 + up + 127).clamp(0, 254) as u32
}

/// `x` rounded to this element type.
#[must_use]
pub fn round(dtype: DType, x: f64) -> f64 {
    match dtype {
        DType::F32 => f64::from(x as f32),
        DType::I32 => f64::from(x.round_ties_even() as i32),
        DType::I64 => x.round_ties_even(),
        _ => decode_small(dtype, encode_small(dtype, x)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_of_every_small_format_comes_back() {
        for (dtype, codes) in [(DType::F16, 1 << 16), (DType::BF16, 1 << 16), (DType::E4M3, 256), (DType::E5M2, 256)] {
            for bits in 0..codes {
                let x = decode_small(dtype, bits);
                if x.is_finite() {
                    assert_eq!(encode_small(dtype, x), bits, "{dtype} {bits:#x} is {x}");
                } else {
                    assert_eq!(
                        decode_small(dtype, encode_small(dtype, f64::NAN)).to_bits() >> 62,
                        f64::NAN.to_bits() >> 62
                    );
                }
            }
        }
        for bits in 0..255 {
            assert_eq!(encode_small(DType::E8M0, decode_small(DType::E8M0, bits)), bits);
        }
        assert!(decode_small(DType::E8M0, 255).is_nan() && decode_small(DType::E4M3, 0xff).is_nan());
    }

    #[test]
    fn half_formats_round_as_the_half_crate_does_where_float32_is_exact() {
        for i in 0..200_000_u32 {
            let x = f32::from_bits(i.wrapping_mul(0x9e37_79b9));
            if x.is_nan() {
                continue;
            }
            assert_eq!(encode_small(DType::F16, f64::from(x)) as u16, half::f16::from_f32(x).to_bits(), "{x}");
            assert_eq!(encode_small(DType::BF16, f64::from(x)) as u16, half::bf16::from_f32(x).to_bits(), "{x}");
        }
    }

    #[test]
    fn rounding_is_to_nearest_even_in_one_step() {
        // Between 1 and the next bf16, 1 + 2^-7: the tie goes to the even mantissa, anything above it goes up.
        let tie = 1.0 + 2f64.powi(-8);
        assert_eq!(round(DType::BF16, tie), 1.0);
        assert_eq!(round(DType::BF16, tie + 2f64.powi(-50)), 1.0 + 2f64.powi(-7));
        assert_eq!(round(DType::F16, 1.0 + 2f64.powi(-11) + 2f64.powi(-52)), 1.0 + 2f64.powi(-10));
        assert_eq!(round(DType::F16, 65519.999), 65504.0);
        assert_eq!(round(DType::F16, 65520.0), f64::INFINITY);
        assert_eq!(round(DType::BF16, f64::NEG_INFINITY), f64::NEG_INFINITY);
        assert_eq!(round(DType::F32, 0.1), f64::from(0.1_f32));
    }

    /// Of the finite numbers of a format the nearest, and of two equally near ones that with an even code.
    fn nearest(dtype: DType, x: f64) -> u32 {
        let codes = (0..128).filter(|&code| decode_small(dtype, code).is_finite());
        // Beyond the largest number all are equally far in float64.
        let a = x.abs().min(decode_small(dtype, encode_small(dtype, f64::MAX)));
        let off = |code: &u32| (decode_small(dtype, *code) - a).abs();
        let nearer = |a: &u32, b: &u32| off(a).total_cmp(&off(b)).then((a % 2).cmp(&(b % 2)));
        codes.min_by(nearer).expect("some are finite") | u32::from(x.is_sign_negative()) << 7
    }

    #[test]
    fn every_16_bit_number_becomes_the_nearest_8_bit_one() {
        for (from, to) in [DType::F16, DType::BF16].into_iter().flat_map(|f| [(f, DType::E4M3), (f, DType::E5M2)]) {
            for bits in 0..1 << 16 {
                let x = decode_small(from, bits);
                let found = encode_small(to, x);
                if x.is_nan() {
                    assert!(decode_small(to, found).is_nan(), "{from} {bits:#x}");
                } else if x.is_infinite() {
                    assert_eq!(found, encode_small(to, f64::MAX.copysign(x)), "{from} {bits:#x}");
                } else {
                    assert_eq!(found, nearest(to, x), "{from} {bits:#x}, {x} in {to}");
                }
            }
        }
    }

    #[test]
    fn eight_bit_formats_saturate_and_have_their_known_limits() {
        assert_eq!(round(DType::E4M3, 448.0), 448.0);
        assert_eq!(round(DType::E4M3, 1e9), 448.0);
        assert_eq!(round(DType::E4M3, f64::NEG_INFINITY), -448.0);
        assert_eq!(round(DType::E4M3, 464.0), 448.0);
        assert_eq!(round(DType::E5M2, 1e9), 57344.0);
        assert_eq!(round(DType::E4M3, 2f64.powi(-9)), 2f64.powi(-9));
        assert_eq!(round(DType::E4M3, 2f64.powi(-10)), 0.0);
        assert_eq!(round(DType::E4M3, 2f64.powi(-10) * 1.01), 2f64.powi(-9));
        assert_eq!(round(DType::E4M3, 17.0), 16.0);
        assert_eq!(round(DType::E4M3, 19.0), 20.0);
        assert_eq!(round(DType::E5M2, 2f64.powi(-16)), 2f64.powi(-16));
        assert_eq!(round(DType::E8M0, 1.4), 1.0);
        assert_eq!(round(DType::E8M0, 1.6), 2.0);
        assert!(round(DType::E4M3, f64::NAN).is_nan());
        assert_eq!(decode_small(DType::E5M2, 0xfc), f64::NEG_INFINITY);
    }
}
