//! One weight for two bounds: caches that are limited by number and by bytes, over a cache that has one limit.

/// The most that a cache may hold, by number and by bytes. Whichever comes first is the limit.
///
/// ```
/// use qkvault_base::CacheBounds;
///
/// let bounds = CacheBounds { number: 3, bytes: 600 };
/// // Three of up to 200 bytes fit, and of 300 bytes two.
/// assert!(3 * bounds.weight(200) <= bounds.capacity());
/// assert!(2 * bounds.weight(300) <= bounds.capacity() && 3 * bounds.weight(300) > bounds.capacity());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheBounds {
    /// The largest number.
    pub number: u64,
    /// The largest sum of bytes.
    pub bytes: u64,
}

/// What the capacity is at least and, for a number below it, at most.
const FINE: u64 = 1 << 40;

impl CacheBounds {
    /// What the weights of all that is held may sum up to.
    #[must_use]
    pub fn capacity(self) -> u64 {
        self.each() * self.number()
    }

    /// The weight of something of this size: what it takes of the bound that it takes more of. It is at least 1.
    #[must_use]
    pub fn weight(self, bytes: u64) -> u64 {
        let share = u128::from(bytes) * u128::from(self.capacity());
        let share = u64::try_from(share / u128::from(self.bytes.max(1))).unwrap_or(u64::MAX);
        share.max(self.each())
    }

    /// The weight of something of no size. So many of them fill the capacity exactly.
    fn each(self) -> u64 {
        (FINE / self.number()).max(1)
    }

    /// The number, without what no cache has.
    fn number(self) -> u64 {
        self.number.clamp(1, u64::MAX / 2)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_fit_as_the_number_says() {
        for number in [1, 2, 3, 7, 1000, 1024, 1_000_003, FINE - 1, FINE, 3 * FINE] {
            for bytes in [number, 1 << 30, u64::MAX] {
                let bounds = CacheBounds { number, bytes: bytes.max(number) };
                for size in [0, bounds.bytes / number] {
                    let weight = bounds.weight(size);
                    assert!(weight >= 1 && weight.checked_mul(number).is_some_and(|all| all <= bounds.capacity()));
                    assert!(weight.saturating_mul(number + 1) > bounds.capacity(), "{bounds:?} {size}");
                }
            }
        }
    }

    #[test]
    fn as_many_bytes_fit_as_the_other_bound_says() {
        let bounds = CacheBounds { number: 1000, bytes: 1 << 20 };
        assert!(4 * bounds.weight(1 << 18) <= bounds.capacity());
        assert!(4 * bounds.weight((1 << 18) + 1) > bounds.capacity());
        assert!(bounds.weight((1 << 20) + 1) > bounds.capacity() && bounds.weight(u64::MAX) > bounds.capacity());
    }

    #[test]
    fn nothing_overflows() {
        for bounds in [CacheBounds { number: 0, bytes: 0 }, CacheBounds { number: u64::MAX, bytes: u64::MAX }] {
            assert!(bounds.capacity() >= 1 && bounds.weight(0) >= 1 && bounds.weight(u64::MAX) >= 1);
        }
    }
}
