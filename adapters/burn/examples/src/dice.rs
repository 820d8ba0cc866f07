//! Random numbers of a case.

/// A stream of random numbers, the same for a seed everywhere.
#[derive(Clone, Debug)]
pub struct Dice(u64);

impl Dice {
    /// The stream of a seed.
    #[must_use]
    pub fn new(seed: u64) -> Dice {
        Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x5bd1_e995)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `n`.
    pub fn below(&mut self, n: usize) -> usize {
        (self.next() % n.max(1) as u64) as usize
    }

    /// One of a list.
    pub fn of<T: Copy>(&mut self, list: &[T]) -> T {
        list[self.below(list.len())]
    }

    /// True once in so many times.
    pub fn yes(&mut self, one_in: usize) -> bool {
        self.below(one_in) == 0
    }

    /// Numbers between -1.7 and 1.7.
    pub fn numbers(&mut self, count: usize) -> Vec<f32> {
        let number = |_| ((self.next() >> 40) as f32 / (1u64 << 24) as f32 - 0.5) * 3.4;
        (0..count).map(number).collect()
    }
}
