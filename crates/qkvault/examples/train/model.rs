//! The model: embeddings, two attention layers with residuals, a head, the loss, and all gradients.

use qkvault::exec::Training;
use qkvault::graph::expr::{library, scalar, score};
use qkvault::graph::{Attention, BackwardOptions, Conversion, ConversionKind, DType, Fp8, Tensor, ValidConversion};
use qkvault_base::random::Rng;

use crate::Failure;
use crate::numbers::{Weights, checksum};
use crate::product::{Matrix, product};

/// Sizes and settings.
#[derive(Clone, Debug)]
pub(crate) struct Config {
    pub(crate) vocabulary: usize,
    pub(crate) width: usize,
    pub(crate) heads: usize,
    pub(crate) batch: usize,
    pub(crate) seq: usize,
    pub(crate) steps: usize,
    pub(crate) seed: u64,
    pub(crate) rate: f32,
    /// Steps of the learning rate's warm-up.
    pub(crate) warmup: usize,
    /// Cap of the first layer's scores.
    pub(crate) cap: f32,
    pub(crate) dtype: DType,
    /// Whether both layers are causal without a score expression.
    pub(crate) plain: bool,
    /// How the attention is scaled in 8 bits; `None` in 16 bits.
    pub(crate) fp8: Option<Fp8>,
    /// Whether only the forward is in 8 bits.
    pub(crate) mixed: bool,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            vocabulary: 64,
            width: 256,
            heads: 4,
            batch: 8,
            seq: 256,
            steps: 200,
            seed: 1,
            rate: 1e-3,
            warmup: 10,
            cap: 20.0,
            dtype: DType::BF16,
            plain: false,
            fp8: None,
            mixed: false,
        }
    }
}

impl Config {
    pub(crate) fn json(&self) -> serde_json::Value {
        let Config { vocabulary, width, heads, batch, seq, steps, seed, rate, warmup, cap, dtype, plain, fp8, mixed } =
            self;
        serde_json::json!({
            "vocabulary": vocabulary, "width": width, "heads": heads, "batch": batch, "seq": seq, "steps": steps,
            "seed": seed, "rate": rate, "warmup": warmup, "cap": cap, "dtype": dtype.to_string(), "plain": plain, "fp8": fp8,
            "mixed": mixed,
        })
    }

    /// The attentions of the two layers. A matrix product has rows (batch, sequence) and columns (head, head dim),
    /// which is BSHD.
    pub(crate) fn attentions(&self) -> Result<[Training; 2], Failure> {
        let [b, h, s, d] = [self.batch, self.heads, self.seq, self.width / self.heads].map(|n| n as i64);
        let causal = Attention::bshd(b, (h, h), (s, s), d, self.dtype).causal();
        if let Some(scaling) = self.fp8 {
            let options = BackwardOptions::default();
            let mixed = || Training::fp8_forward(&causal, scaling, options);
            let layer = if self.mixed { mixed()? } else { Training::fp8(&causal, scaling)? };
            return Ok([layer.clone(), layer]);
        }
        let pair = |attention| Training::for_attention(&attention, BackwardOptions::default());
        if self.plain {
            return Ok([pair(causal.clone())?, pair(causal)?]);
        }
        let capped = library::softcap(score(), scalar("cap")).build_score_mod()?;
        let alibi = library::alibi(score(), self.heads as i64).build_score_mod()?;
        Ok([pair(causal.clone().with_score_mod(capped))?, pair(causal.with_score_mod(alibi))?])
    }

    /// The conversions of a layer in 8 bits: Q, K and V to their type, dO to its type, and O, dQ, dK and dV back.
    pub(crate) fn conversions(&self) -> Result<Conversions, Failure> {
        let [b, h, s, d] = [self.batch, self.heads, self.seq, self.width / self.heads].map(|n| n as i64);
        let wide = Tensor::bshd(b, h, s, d, self.dtype);
        let kind = match self.fp8 {
            Some(Fp8::Current) => ConversionKind::Current { power_of_two: false },
            _ => ConversionKind::Delayed,
        };
        let narrow = Tensor { dtype: DType::E4M3, ..wide };
        Ok(Conversions {
            inputs: Conversion::to(DType::E4M3, wide, kind).validate()?,
            d_o: Conversion::to(DType::E5M2, wide, kind).validate()?,
            outputs: Conversion::from(narrow, self.dtype, ConversionKind::Dequantize).validate()?,
        })
    }
}

/// The conversions of a layer in 8 bits.
pub(crate) struct Conversions {
    pub(crate) inputs: ValidConversion,
    pub(crate) d_o: ValidConversion,
    pub(crate) outputs: ValidConversion,
}

/// The machine that computes the attention. It saves each layer's operands for the backward.
pub(crate) trait Machine {
    fn attend(&mut self, layer: usize, qkv: [&[f32]; 3]) -> Result<Vec<f32>, Failure>;
    /// Gradients of q, k and v.
    fn attend_back(&mut self, layer: usize, d_o: &[f32]) -> Result<[Vec<f32>; 3], Failure>;
    fn record(&self) -> serde_json::Value;
}

/// All weights: embedding, positions, four matrices of each layer, head.
pub(crate) struct Model {
    config: Config,
    weights: Vec<Weights>,
}

const EMBEDDING: usize = 0;
const POSITION: usize = 1;
const HEAD: usize = 10;

/// The indices of a layer's matrices for q, k, v and the output.
const fn layer(at: usize) -> [usize; 4] {
    let first = 2 + 4 * at;
    [first, first + 1, first + 2, first + 3]
}

impl Model {
    pub(crate) fn new(config: &Config) -> Model {
        let &Config { vocabulary, width, seq, .. } = config;
        let mut rng = Rng::new(config.seed);
        let mut weights =
            vec![Weights::draw(&mut rng, vocabulary, width, 1.0), Weights::draw(&mut rng, seq, width, 0.1)];
        let bound = (3.0 / width as f64).sqrt();
        weights.extend((0..8).map(|_| Weights::draw(&mut rng, width, width, bound)));
        weights.push(Weights::draw(&mut rng, width, vocabulary, bound));
        Model { config: config.clone(), weights }
    }

    pub(crate) fn checksum(&self) -> u64 {
        checksum(self.weights.iter().flat_map(|w| &w.values).map(|w| w.to_bits()))
    }

    fn matrix(&self, at: usize) -> Matrix<'_> {
        let Weights { values, columns, .. } = &self.weights[at];
        Matrix::new(values, *columns)
    }

    /// Runs one step: forward, backward, update. Returns the loss before the update.
    pub(crate) fn step(&mut self, step: usize, tokens: &[i32], on: &mut dyn Machine) -> Result<f32, Failure> {
        let (loss, gradients) = self.gradients(tokens, on)?;
        let Config { rate, warmup, .. } = self.config;
        let rate = rate * ((step + 1) as f32 / warmup as f32).min(1.0);
        for (weights, gradient) in self.weights.iter_mut().zip(&gradients) {
            weights.update(gradient, step, rate);
        }
        Ok(loss)
    }

    /// The loss, and the gradient of every weight matrix, in order.
    fn gradients(&self, tokens: &[i32], on: &mut dyn Machine) -> Result<(f32, Vec<Vec<f32>>), Failure> {
        let Config { width, seq, .. } = self.config;
        let mut x = self.embed(tokens);
        let mut kept = Vec::new();
        for at in 0..2 {
            let [q, k, v, o] = layer(at).map(|w| self.matrix(w));
            let input = Matrix::new(&x, width);
            let qkv = [product(input, q), product(input, k), product(input, v)];
            let mixed = on.attend(at, [&qkv[0], &qkv[1], &qkv[2]])?;
            let added = product(Matrix::new(&mixed, width), o);
            let sum = x.iter().zip(added).map(|(x, y)| x + y).collect();
            kept.push((std::mem::replace(&mut x, sum), mixed));
        }
        let last = Matrix::new(&x, width);
        let logits = product(last, self.matrix(HEAD));
        let (loss, d_logits) = self.loss(&logits, tokens);

        let mut gradients: Vec<Vec<f32>> = self.weights.iter().map(|_| Vec::new()).collect();
        let d_logits = Matrix::new(&d_logits, self.config.vocabulary);
        gradients[HEAD] = product(last.t(), d_logits);
        let mut d_x = product(d_logits, self.matrix(HEAD).t());
        for at in (0..2).rev() {
            let (input, mixed) = &kept[at];
            let (input, d_out) = (Matrix::new(input, width), Matrix::new(&d_x, width));
            let [.., o] = layer(at);
            gradients[o] = product(Matrix::new(mixed, width).t(), d_out);
            let d_mixed = product(d_out, self.matrix(o).t());
            let d_qkv = on.attend_back(at, &d_mixed)?;
            for (w, d) in layer(at).into_iter().zip(&d_qkv) {
                let d = Matrix::new(d, width);
                gradients[w] = product(input.t(), d);
                let through = product(d, self.matrix(w).t());
                d_x.iter_mut().zip(through).for_each(|(sum, part)| *sum += part);
            }
        }
        gradients[EMBEDDING] = vec![0.0; self.weights[EMBEDDING].values.len()];
        gradients[POSITION] = vec![0.0; self.weights[POSITION].values.len()];
        for (i, (row, &token)) in d_x.chunks_exact(width).zip(tokens).enumerate() {
            for (at, which) in [(EMBEDDING, token as usize), (POSITION, i % seq)] {
                let sums = &mut gradients[at][which * width..][..width];
                sums.iter_mut().zip(row).for_each(|(sum, part)| *sum += part);
            }
        }
        Ok((loss, gradients))
    }

    fn embed(&self, tokens: &[i32]) -> Vec<f32> {
        let Config { width, seq, .. } = self.config;
        let row = |at: usize, which: usize| &self.weights[at].values[which * width..][..width];
        let rows = tokens.iter().enumerate().flat_map(|(i, &token)| {
            row(EMBEDDING, token as usize).iter().zip(row(POSITION, i % seq)).map(|(e, p)| e + p)
        });
        rows.collect()
    }

    /// The mean cross entropy of predicting the previous token, for all positions but the first, and its gradient by
    /// the logits.
    fn loss(&self, logits: &[f32], tokens: &[i32]) -> (f32, Vec<f32>) {
        let Config { vocabulary, seq, batch, .. } = self.config;
        let count = (batch * (seq - 1)) as f32;
        let mut gradient = vec![0.0; logits.len()];
        let mut sum = 0.0_f64;
        for (i, row) in logits.chunks_exact(vocabulary).enumerate().filter(|(i, _)| i % seq > 0) {
            let target = tokens[i - 1] as usize;
            let most = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let total: f32 = row.iter().map(|x| (x - most).exp()).sum();
            sum += f64::from(total.ln() + most - row[target]);
            for (j, (d, x)) in gradient[i * vocabulary..][..vocabulary].iter_mut().zip(row).enumerate() {
                *d = ((x - most).exp() / total - f32::from(u8::from(j == target))) / count;
            }
        }
        ((sum / f64::from(count)) as f32, gradient)
    }
}
