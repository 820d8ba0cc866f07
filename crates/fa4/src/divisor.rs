//! Numbers by which kernels divide by a number that is known at launch: multiply, shift, and no division.

/// A divisor as the kernels take it: the number, a multiplier and two shifts.
///
/// With `l` the least number such that `2^l` is at least the divisor `d`, the multiplier is
/// `2^32 · (2^l - d) / d + 1`, and the quotient of `n` is `(((n - t) >> s1) + t) >> s2` where `t` is the upper half of
/// the product, `s1 = min(l, 1)` and `s2 = l - s1` (Granlund and Montgomery, Division by Invariant Integers).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Divisor {
    pub(crate) divisor: u32,
    pub(crate) multiplier: u32,
    pub(crate) shift1: u8,
    pub(crate) shift2: u8,
}

impl Divisor {
    /// A divisor of at least 1.
    pub(crate) fn new(divisor: u32) -> Divisor {
        let bits = (32 - divisor.saturating_sub(1).leading_zeros()) as u8;
        let wide = u64::from(divisor.max(1));
        let multiplier = (((1_u64 << bits) - wide) << 32) / wide + 1;
        let shift1 = bits.min(1);
        // The multiplier of a power of two is 1, and that of any other number is below 2^32.
        Divisor { divisor, multiplier: multiplier as u32, shift1, shift2: bits - shift1 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn quotient(of: u32, by: Divisor) -> u32 {
        let high = ((u64::from(of) * u64::from(by.multiplier)) >> 32) as u32;
        (((of - high) >> by.shift1) + high) >> by.shift2
    }

    #[test]
    fn the_numbers_divide() {
        for divisor in (1..3000).chain([4095, 4096, 4097, 65_535, 1 << 20, (1 << 31) - 1, 1 << 31]) {
            let numbers = Divisor::new(divisor);
            for n in (0..2000).chain([divisor - 1, divisor, divisor.saturating_mul(3), i32::MAX as u32]) {
                assert_eq!(quotient(n, numbers), n / divisor, "{n} / {divisor}");
            }
        }
    }
}
