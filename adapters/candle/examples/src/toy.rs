//! A model of two layers to train: predict the token before each position.

use candle_core::{DType, Device, Result, Tensor};
use candle_nn::{
    AdamW, Embedding, Linear, Module, Optimizer, ParamsAdamW, VarBuilder, VarMap, embedding, linear_no_bias,
};

/// Sizes of the model and of a step.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    /// Sequences of a step.
    pub batch: usize,
    /// Tokens of a sequence.
    pub seq: usize,
    /// Heads of a layer.
    pub heads: usize,
    /// Head dim.
    pub d: usize,
    /// Steps.
    pub steps: usize,
}

/// The attention of a layer over tensors of (batch, sequence, head, head dim), in the type of the model.
pub type Attend<'a> = &'a dyn Fn(usize, [&Tensor; 3]) -> Result<Tensor>;

const VOCABULARY: usize = 32;
const LAYERS: usize = 2;

struct Toy {
    embedding: Embedding,
    places: Embedding,
    layers: Vec<[Linear; 4]>,
    head: Linear,
}

impl Toy {
    fn new(vb: &VarBuilder<'_>, of: Sizes) -> Result<Toy> {
        let width = of.heads * of.d;
        let layer = |at: usize| {
            let make = |name: &str| linear_no_bias(width, width, vb.pp(format!("{at}.{name}")));
            Ok([make("q")?, make("k")?, make("v")?, make("o")?])
        };
        Ok(Toy {
            embedding: embedding(VOCABULARY, width, vb.pp("embedding"))?,
            places: embedding(of.seq, width, vb.pp("places"))?,
            layers: (0..LAYERS).map(layer).collect::<Result<_>>()?,
            head: linear_no_bias(width, VOCABULARY, vb.pp("head"))?,
        })
    }

    fn loss(&self, ids: &Tensor, of: Sizes, attend: Attend<'_>) -> Result<Tensor> {
        let Sizes { batch, seq, heads, d, .. } = of;
        let places = self.places.forward(&Tensor::arange(0, seq as u32, ids.device())?)?;
        let mut x = self.embedding.forward(ids)?.broadcast_add(&places)?;
        for (at, layer) in self.layers.iter().enumerate() {
            let split = |linear: &Linear| linear.forward(&x)?.reshape((batch, seq, heads, d));
            let o = attend(at, [&split(&layer[0])?, &split(&layer[1])?, &split(&layer[2])?])?;
            x = (&x + layer[3].forward(&o.reshape((batch, seq, heads * d))?)?)?;
        }
        let logits = self.head.forward(&x)?.narrow(1, 1, seq - 1)?.contiguous()?;
        let wanted = ids.narrow(1, 0, seq - 1)?.contiguous()?;
        candle_nn::loss::cross_entropy(&logits.flatten(0, 1)?, &wanted.flatten_all()?)
    }
}

/// Trains from the same weights and batches whatever the attention, and gives the loss of each step.
///
/// # Errors
///
/// As candle's operations, and those of the attention.
pub fn train(of: Sizes, device: &Device, attend: Attend<'_>) -> Result<Vec<f32>> {
    let variables = VarMap::new();
    let model = Toy::new(&VarBuilder::from_varmap(&variables, DType::F32, device), of)?;
    let mut seed = 1;
    for (_, own) in sorted(&variables) {
        let fan = own.dims().last().copied().unwrap_or(1) as f32;
        let numbers: Vec<f32> = (0..own.elem_count()).map(|_| random(&mut seed) / fan.sqrt()).collect();
        own.set(&Tensor::from_vec(numbers, own.shape(), device)?)?;
    }
    let params = ParamsAdamW { lr: 0.01, ..ParamsAdamW::default() };
    let mut optimizer = AdamW::new(sorted(&variables).into_iter().map(|(_, own)| own).collect(), params)?;
    let mut losses = Vec::new();
    for _ in 0..of.steps {
        let ids = (0..of.batch * of.seq).map(|_| ((random(&mut seed) + 2.0) * 1e4) as u32 % VOCABULARY as u32);
        let ids = Tensor::from_vec(ids.collect::<Vec<u32>>(), (of.batch, of.seq), device)?;
        let loss = model.loss(&ids, of, attend)?;
        optimizer.backward_step(&loss)?;
        losses.push(loss.to_scalar::<f32>()?);
    }
    Ok(losses)
}

fn sorted(variables: &VarMap) -> Vec<(String, candle_core::Var)> {
    let all = variables.data().lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let mut all: Vec<_> = all.iter().map(|(name, own)| (name.clone(), own.clone())).collect();
    all.sort_by(|a, b| a.0.cmp(&b.0));
    all
}

/// A number from -1.7 to 1.7, of variance about one.
pub fn random(seed: &mut u64) -> f32 {
    *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    ((*seed >> 40) as f32 / (1u64 << 24) as f32 - 0.5) * 3.46
}
