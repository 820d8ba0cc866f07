//! Random attentions of every family of options, on any backend: the door's, and burn's plain one.

use std::sync::Arc;

use burn_qkvault::{AttentionBackend, Error, Options, Sequences, attention, attention_varlen};
use burn_tensor::backend::Backend;
use burn_tensor::{DType, Tensor};

use crate::dice::Dice;
use crate::plain::{Plain, plain};
use crate::tensors::{Family, Leaves, tokens};

/// One random attention.
#[derive(Clone, Debug)]
pub struct Case {
    pub(crate) seed: u64,
    pub(crate) family: Family,
    /// The element type of q, k, v and of a bias.
    pub dtype: DType,
    pub(crate) batch: usize,
    pub(crate) heads: (usize, usize),
    pub(crate) rows: usize,
    pub(crate) keys: usize,
    pub(crate) d: usize,
    pub(crate) scale: Option<f32>,
    pub(crate) left: Option<usize>,
    pub(crate) right: Option<usize>,
    pub(crate) softcap: Option<f32>,
    pub(crate) bias: Option<[usize; 4]>,
    pub(crate) mask: Option<[usize; 4]>,
    pub(crate) slopes: bool,
    pub(crate) sink: bool,
    /// Which of q, k, v, bias, slopes and sink get gradients.
    pub tracked: [bool; 6],
    /// Queries and keys of each sequence, of those that lie one after another.
    pub lengths: Option<Vec<[usize; 2]>>,
    /// Whether heads of a row lie side by side in memory.
    pub(crate) turned: bool,
    pub(crate) deterministic: bool,
}

impl Case {
    /// The case of a seed; a small one for the oracle on CPUs.
    #[must_use]
    pub fn new(seed: u64, small: bool) -> Case {
        let mut dice = Dice::new(seed);
        let (group, kv) = (dice.of(&[1, 1, 2, 4]), dice.of(&[1, 2, 4]));
        let heads = (group * kv, kv);
        let batch = 1 + dice.below(3);
        let (tiles, most) = if small { (2, 14) } else { (40, 300) };
        let rows = if dice.yes(2) { 8 * (1 + dice.below(tiles)) } else { 2 + dice.below(most) };
        let keys = if dice.yes(2) { rows } else { rows + 8 * dice.below(if small { 2 } else { 30 }) };
        let lengths = dice.yes(5).then(|| {
            let one = |_| {
                let rows = 1 + dice.below(if small { 9 } else { 200 });
                [rows, rows + dice.below(if small { 5 } else { 60 })]
            };
            (0..=batch).map(one).collect::<Vec<_>>()
        });
        let dense = lengths.is_none();
        let over = |dice: &mut Dice| [dice.of(&[1, batch]), dice.of(&[1, heads.0]), rows, keys];
        let bias = (dense && dice.yes(3)).then(|| over(&mut dice));
        let mask = (dense && dice.yes(4)).then(|| over(&mut dice));
        let sink = bias.is_none() && dice.yes(4);
        let (right, left) =
            (dice.yes(2).then_some(0), dice.yes(4).then(|| 1 + dice.below(if small { 5 } else { 100 })));
        Case {
            seed,
            family: dice.of(&[
                Family::Normal,
                Family::Normal,
                Family::Below,
                Family::Constant,
                Family::Dominant,
                Family::Zero,
            ]),
            dtype: dice.of(&[DType::BF16, DType::F16]),
            batch,
            heads,
            rows,
            keys,
            d: if small { dice.of(&[8, 16]) } else { dice.of(&[64, 64, 128, 128, 80, 32]) },
            scale: dice.yes(4).then_some(0.2),
            left,
            right,
            softcap: dice.yes(4).then_some(2.0),
            bias,
            mask,
            slopes: dice.yes(5),
            sink,
            // A gradient for every other bias and sink; of slopes on the CPU alone.
            tracked: [true, true, true, bias.is_some() && dice.yes(2), small && dice.yes(2), sink && dice.yes(2)],
            lengths,
            turned: dice.yes(2),
            deterministic: dice.yes(6),
        }
        .settled()
    }

    /// Two causal attentions that are timed: of 256 queries and 8 heads, and of 2,048 and 16.
    #[must_use]
    pub fn timed() -> [Case; 2] {
        [(8, 256, 64), (16, 2048, 128)].map(|(heads, rows, d)| Case {
            seed: 1,
            family: Family::Normal,
            dtype: DType::BF16,
            batch: 1,
            heads: (heads, heads),
            rows,
            keys: rows,
            d,
            scale: None,
            left: None,
            right: Some(0),
            softcap: None,
            bias: None,
            mask: None,
            slopes: false,
            sink: false,
            tracked: [true, true, true, false, false, false],
            lengths: None,
            turned: true,
            deterministic: false,
        })
    }

    /// The same with tensors whose rows of a head lie side by side, unless they are sequences one after another.
    #[must_use]
    pub fn unturned(&self) -> Case {
        Case { turned: self.lengths.is_some(), ..self.clone() }
    }

    fn settled(mut self) -> Case {
        self.tracked[4] &= self.slopes;
        if let Some(lengths) = &self.lengths {
            self.rows = lengths.iter().map(|one| one[0]).sum();
            self.keys = lengths.iter().map(|one| one[1]).sum();
            // (batch, token, head, head dim) in memory.
            (self.batch, self.turned) = (1, true);
        }
        self
    }

    /// The options of the case, over tensors of it.
    pub fn options<B: Backend>(&self, of: &Leaves<B>, base: Options<B>) -> Options<B> {
        let mut options = base.window_left(self.left).window_right(self.right).deterministic(self.deterministic);
        options = options.poison_outputs(true);
        if let Some(scale) = self.scale {
            options = options.softmax_scale(scale);
        }
        if let Some(cap) = self.softcap {
            options = options.softcap(cap);
        }
        if let Some(slopes) = &of.slopes {
            options = options.alibi_slopes(slopes.clone());
        }
        if let Some(bias) = &of.bias {
            options = options.bias(bias.clone());
        }
        if let Some(mask) = &of.mask {
            options = options.mask(mask.clone());
        }
        if let Some(sink) = &of.sink {
            options = options.sink(sink.clone());
        }
        options
    }

    /// The sequences of the case, if they lie one after another.
    ///
    /// # Errors
    ///
    /// None: the lengths are right.
    pub fn sequences(&self) -> Result<Option<Arc<Sequences>>, Error> {
        let Some(lengths) = &self.lengths else { return Ok(None) };
        let side = |at: usize| lengths.iter().map(|one| one[at]).collect::<Vec<usize>>();
        Ok(Some(Arc::new(Sequences::new(&side(0), &side(1))?)))
    }

    /// The door's attention: (batch, head, query, head dim).
    ///
    /// # Errors
    ///
    /// As [`attention`].
    pub fn attend<B: AttentionBackend>(&self, of: &Leaves<B>, base: Options<B>) -> Result<Tensor<B, 4>, Error> {
        let options = self.options(of, base);
        let [q, k, v] = of.qkv.clone();
        match self.sequences()? {
            None => attention(q, k, v, &options),
            Some(sequences) => {
                let [q, k, v] = [q, k, v].map(tokens);
                let o = attention_varlen(q, k, v, &sequences, &options)?;
                Ok(o.unsqueeze_dim::<4>(0).swap_dims(1, 2))
            }
        }
    }

    /// burn's plain attention over the case's tensors in float32.
    pub fn plainly<B: Backend>(&self, of: &Leaves<B>) -> Tensor<B, 4> {
        let [q, k, v] = of.qkv.clone();
        let own = Plain {
            scale: self.scale,
            left: self.left,
            right: self.right,
            softcap: self.softcap,
            slopes: of.slopes.clone(),
            bias: of.bias.clone(),
            mask: of.mask.clone(),
            sink: of.sink.clone(),
        };
        let Some(lengths) = &self.lengths else { return plain(q, k, v, &own) };
        let (mut rows, mut keys, mut parts) = (0, 0, Vec::new());
        for &[s, t] in lengths {
            let part = |own: &Tensor<B, 4>, at, n| own.clone().narrow(2, at, n);
            parts.push(plain(part(&q, rows, s), part(&k, keys, t), part(&v, keys, t), &own));
            (rows, keys) = (rows + s, keys + t);
        }
        Tensor::cat(parts, 2)
    }
}
