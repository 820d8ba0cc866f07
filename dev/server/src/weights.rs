//! Random weights: each number is a hash of its tensor and its place, so that host and GPU make the same model.
//!
//! `kernels.cu` has the same functions; a test on a GPU compares them.

use half::bf16;

use crate::config::ModelShape;

/// A tensor of the model. Matrices are (outputs, inputs).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WeightTensor {
    /// The hidden state of each token.
    Embedding,
    /// Logits of each token.
    Head,
    /// The factors of the last norm.
    LastNorm,
    /// Queries, keys and values of a layer.
    Qkv(usize),
    /// The product behind the attention.
    Out(usize),
    /// Gate and up of the feed-forward network.
    GateUp(usize),
    /// Down of the feed-forward network.
    Down(usize),
    /// The factors of the norm before the attention.
    AttentionNorm(usize),
    /// The factors of the norm before the feed-forward network.
    FeedNorm(usize),
}

/// How a tensor is filled.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Fill {
    /// Numbers.
    pub count: usize,
    /// What the hash begins with.
    pub seed: u32,
    /// Numbers are between `middle - scale` and `middle + scale`.
    pub scale: f32,
    /// The middle.
    pub middle: f32,
}

/// A hash of 32 bits.
#[must_use]
pub const fn mix(mut x: u32) -> u32 {
    x ^= x >> 16;
    x = x.wrapping_mul(0x7feb_352d);
    x ^= x >> 15;
    x = x.wrapping_mul(0x846c_a68b);
    x ^ (x >> 16)
}

/// A number from -1 up to 1 from a hash.
#[must_use]
pub const fn unit(hash: u32) -> f32 {
    (hash >> 8) as f32 * (1.0 / 8_388_608.0) - 1.0
}

impl WeightTensor {
    /// How the tensor is filled, for a model of this seed.
    ///
    /// Products keep the size of what they multiply. Queries and keys are larger, so that a query prefers few keys and
    /// a wrong key changes the answer.
    #[must_use]
    pub fn fill(self, shape: &ModelShape, seed: u32) -> Fill {
        let ModelShape { vocab, hidden, heads, head_dim, inner, .. } = *shape;
        let (number, count, inputs, gain) = match self {
            WeightTensor::Embedding => (1, vocab * hidden, 1, 1.0),
            WeightTensor::Head => (2, vocab * hidden, hidden, 1.0),
            WeightTensor::LastNorm => (3, hidden, 0, 0.1),
            WeightTensor::Qkv(layer) => (16 + 8 * layer, shape.qkv() * hidden, hidden, 1.5),
            WeightTensor::Out(layer) => (17 + 8 * layer, hidden * heads * head_dim, heads * head_dim, 1.0),
            WeightTensor::GateUp(layer) => (18 + 8 * layer, 2 * inner * hidden, hidden, 1.0),
            WeightTensor::Down(layer) => (19 + 8 * layer, hidden * inner, inner, 1.0),
            WeightTensor::AttentionNorm(layer) => (20 + 8 * layer, hidden, 0, 0.1),
            WeightTensor::FeedNorm(layer) => (21 + 8 * layer, hidden, 0, 0.1),
        };
        // A uniform number between -s and s has a variance of s * s / 3.
        let scale = if inputs == 0 { gain } else { gain * (3.0 / inputs as f32).sqrt() };
        let middle = if inputs == 0 { 1.0 } else { 0.0 };
        Fill { count, seed: mix(seed ^ (number as u32).wrapping_mul(0x9e37_79b9)), scale, middle }
    }
}

impl Fill {
    /// The number at a place.
    #[must_use]
    pub fn at(&self, place: usize) -> bf16 {
        bf16::from_f32(self.middle + self.scale * unit(mix(self.seed ^ mix(place as u32))))
    }

    /// All numbers, as the CPU's model keeps them.
    #[must_use]
    pub fn numbers(&self) -> Vec<f32> {
        (0..self.count).map(|place| self.at(place).to_f32()).collect()
    }
}

/// The number that is added to a logit to sample a token: Gumbel noise of a seed, a position and a token, so that the
/// largest sum is a sample of the softmax, and the same seed gives the same answer in any batch.
#[must_use]
pub fn gumbel(seed: u32, position: u32, token: u32) -> f32 {
    let hash = mix(seed ^ mix(position ^ mix(token)));
    // Between 0 and 1, never either.
    let uniform = ((hash >> 9) as f32 + 0.5) * (1.0 / 8_388_608.0);
    -(-uniform.ln()).ln()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_keep_the_size_of_what_they_multiply_and_tensors_differ() {
        let shape = ModelShape::named("tiny").expect("it is there");
        let fill = WeightTensor::Down(1).fill(&shape, 7);
        let numbers = fill.numbers();
        let square: f32 = numbers.iter().map(|x| x * x).sum::<f32>() / numbers.len() as f32;
        assert!((square * shape.inner as f32 - 1.0).abs() < 0.1, "{square}");
        assert_ne!(fill.at(0), WeightTensor::Down(0).fill(&shape, 7).at(0));
        assert_ne!(fill.at(0), WeightTensor::Down(1).fill(&shape, 8).at(0));
        let norm = WeightTensor::LastNorm.fill(&shape, 7).numbers();
        assert!(norm.iter().all(|x| (0.89..=1.11).contains(x)));
    }

    #[test]
    fn noise_samples_the_softmax() {
        // Two tokens whose logits differ by ln 3: one is three times as likely.
        let first =
            (0..4000).filter(|&position| gumbel(5, position, 0) + 3.0_f32.ln() > gumbel(5, position, 1)).count();
        assert!((2900..3100).contains(&first), "{first}");
    }
}
