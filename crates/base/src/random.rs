//! Random numbers that are the same on every machine and in every release, because records store only the seed:
//! splitmix64, with normal numbers by the Box-Muller transform.

/// A generator with 64 bits of state. The numbers for a given seed never change, because records store seeds.
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// A generator whose state starts at `seed`.
    #[must_use]
    pub const fn new(seed: u64) -> Rng {
        Rng(seed)
    }

    /// 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number uniform in [0, 1).
    pub fn unit(&mut self) -> f64 {
        (self.bits() >> 11) as f64 * 2f64.powi(-53)
    }

    /// An integer uniform in `low..=high`.
    ///
    /// # Panics
    ///
    /// When `high` is below `low`.
    pub fn within(&mut self, low: usize, high: usize) -> usize {
        assert!(low <= high, "nothing lies in {low}..={high}");
        low + (self.unit() * (high - low + 1) as f64) as usize
    }

    /// Two independent numbers from the standard normal distribution.
    pub fn normals(&mut self) -> [f64; 2] {
        let radius = (-2.0 * (1.0 - self.unit()).ln()).sqrt();
        let (sin, cos) = (std::f64::consts::TAU * self.unit()).sin_cos();
        [radius * cos, radius * sin]
    }

    /// Shuffles a list in place.
    pub fn shuffle<T>(&mut self, list: &mut [T]) {
        for i in (1..list.len()).rev() {
            list.swap(i, self.within(0, i));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_the_known_ones_and_well_spread() {
        // The first outputs of splitmix64 for seed 1234567, as its author published them.
        let mut rng = Rng::new(1_234_567);
        assert_eq!(
            [rng.bits(), rng.bits(), rng.bits()],
            [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423]
        );
        let n = 20_000;
        let (mut sum, mut squares) = (0.0, 0.0);
        for _ in 0..n / 2 {
            for x in rng.normals() {
                sum += x;
                squares += x * x;
            }
        }
        assert!((sum / f64::from(n)).abs() < 0.03 && (squares / f64::from(n) - 1.0).abs() < 0.05);
        let mut list: Vec<usize> = (0..100).collect();
        rng.shuffle(&mut list);
        assert!(list.iter().enumerate().filter(|&(i, &x)| i == x).count() < 10);
        list.sort_unstable();
        assert_eq!(list, (0..100).collect::<Vec<_>>());
    }
}
