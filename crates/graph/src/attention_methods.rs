//! Constructors and builder methods of an attention, and values that follow from its tensors: extents, default scale,
//! row tensor.

use crate::expr::{DeriveError, ScoreExpr, Vjp, vjp, vjp_with};
use crate::{
    Attention, BackwardOptions, Band, Corner, DType, Dropout, DropoutSource, Fp8, Gradients, Lengths, Mask, Origins,
    Outputs, PaddedRows, Pass, Refusal, ScoreModBprop, Storage, Tensor, Valid, validate,
};

impl Attention {
    /// A forward over these operands, without a mask, with O as the only output.
    #[must_use]
    pub fn forward(q: Tensor, k: Tensor, v: Tensor, o: Tensor) -> Attention {
        Attention {
            q,
            k,
            v,
            o,
            mask: Mask::default(),
            score_mod: None,
            score_mod_bprop: None,
            origins: None,
            sink: false,
            dropout: None,
            block_mask: false,
            outputs: Outputs::default(),
            padded_rows: PaddedRows::default(),
            invariant: false,
            draft_tree: false,
            fp8: None,
            pass: Pass::Forward,
        }
    }

    /// A forward over contiguous BSHD tensors: `heads` is (query heads, key/value heads), `seq` is (queries, keys).
    #[must_use]
    pub fn bshd(batch: i64, heads: (i64, i64), seq: (i64, i64), head_dim: i64, dtype: DType) -> Attention {
        let q = Tensor::bshd(batch, heads.0, seq.0, head_dim, dtype);
        let kv = Tensor::bshd(batch, heads.1, seq.1, head_dim, dtype);
        Attention::forward(q, kv, kv, q)
    }

    /// Adds a diagonal band: causal or a sliding window.
    #[must_use]
    pub fn with_band(mut self, band: Band) -> Attention {
        self.mask.band = Some(band);
        self
    }

    /// Hides the keys behind each query, which are counted from the first of both: [`Band::CAUSAL`], as in PyTorch's
    /// `is_causal`. Queries that are the last of their keys, as in a decode, need [`Band::CAUSAL_BOTTOM_RIGHT`].
    #[must_use]
    pub fn causal(self) -> Attention {
        self.with_band(Band::CAUSAL)
    }

    /// Causal, and each query sees so many keys at most, its own included: Hugging Face's `sliding_window`. Queries
    /// that are the last of their keys need [`Band::window`] with [`Corner::BottomRight`].
    #[must_use]
    pub fn window(self, keys: i64) -> Attention {
        self.with_band(Band::window(Corner::TopLeft, keys))
    }

    /// Adds per-sequence lengths, given at launch.
    #[must_use]
    pub fn with_lengths(mut self) -> Attention {
        self.mask.lengths = Lengths::PerSequence;
        self
    }

    /// Adds a score expression.
    #[must_use]
    pub fn with_score_mod(mut self, score_mod: ScoreExpr) -> Attention {
        self.score_mod = Some(score_mod);
        self
    }

    /// Adds the backward of the score modification, which replaces the derived one.
    #[must_use]
    pub fn with_score_mod_bprop(mut self, bprop: ScoreModBprop) -> Attention {
        self.score_mod_bprop = Some(bprop);
        self
    }

    /// The backward of the score modification: its author's if there is one, otherwise the derived one. `None` without
    /// a modification.
    ///
    /// # Errors
    ///
    /// Every derivative that does not exist ([`crate::expr::vjp`]), and a [`ScoreModBprop`] that reads a scalar or
    /// tensor that the modification does not read.
    #[must_use]
    pub fn score_mod_vjp(&self) -> Option<Result<Vjp, Vec<DeriveError>>> {
        let score_mod = self.score_mod.as_ref()?;
        Some(match &self.score_mod_bprop {
            None => vjp(score_mod),
            Some(own) => vjp_with(score_mod, &own.derivative),
        })
    }

    /// Lets positions of queries and keys begin at numbers that a launch gets.
    #[must_use]
    pub const fn with_origins(mut self, origins: Origins) -> Attention {
        self.origins = Some(origins);
        self
    }

    /// Makes the queries a tree of drafts ([`Attention::draft_tree`]).
    #[must_use]
    pub const fn with_draft_tree(mut self) -> Attention {
        self.draft_tree = true;
        self
    }

    /// Asks for the same bits whatever else is computed in a launch ([`Attention::invariant`]).
    #[must_use]
    pub const fn invariant(mut self) -> Attention {
        self.invariant = true;
        self
    }

    /// Adds a predicate that selects the keys that are seen.
    #[must_use]
    pub fn with_mask_mod(mut self, mask_mod: ScoreExpr) -> Attention {
        self.mask.mask_mod = Some(mask_mod);
        self
    }

    /// Adds the log-sum-exp as an output.
    #[must_use]
    pub fn with_stats(mut self) -> Attention {
        self.outputs.stats = true;
        self
    }

    /// Sets the outputs besides O.
    #[must_use]
    pub const fn with_outputs(mut self, outputs: Outputs) -> Attention {
        self.outputs = outputs;
        self
    }

    /// Adds a learnable sink.
    #[must_use]
    pub fn with_sink(mut self) -> Attention {
        self.sink = true;
        self
    }

    /// Adds dropout by cuDNN's Philox; for several GPUs, see [`DropoutSource::Places`].
    #[must_use]
    pub fn with_dropout(mut self, probability: f32) -> Attention {
        self.dropout = Some(Dropout::new(DropoutSource::Philox, probability));
        self
    }

    /// Checks the description, and returns it in canonical form: [`validate`] as a method.
    ///
    /// ```
    /// use qkvault_graph::{Attention, DType};
    ///
    /// // Mistral-7B: 32 query heads over 8 key/value heads, and 4096 keys seen by each query.
    /// let attention = Attention::bshd(1, (32, 8), (8192, 8192), 128, DType::BF16).window(4096).validate()?;
    /// println!("{attention}");
    /// # Ok::<(), qkvault_graph::Refusal>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`validate`]: every problem.
    pub fn validate(self) -> Result<Valid, Refusal> {
        validate(self)
    }

    /// Whether products are of 8-bit numbers ([`Fp8::has_narrow_products`]).
    #[must_use]
    pub fn has_narrow_products(&self) -> bool {
        self.fp8.is_some_and(Fp8::has_narrow_products)
    }

    /// The backward of this forward: the same description with the gradients added.
    ///
    /// The backward reads the forward's Stats. If the forward does not output them, validation refuses the backward.
    /// Gradients are no part of what an [invariant](Attention::invariant) forward promises: any engine computes them.
    #[must_use]
    pub fn backward(&self, options: BackwardOptions) -> Attention {
        let BackwardOptions { d_o, d_o_half, d_q, d_k, d_v, d_sink, deterministic } = options;
        // 8-bit products need 8-bit operands, whatever O's type is; the results are as wide as O.
        let (input, output) = match self.fp8 {
            None | Some(Fp8::Cache) => (self.o.dtype, self.q.dtype),
            Some(Fp8::Delayed) => (self.q.dtype, self.q.dtype),
            Some(Fp8::Current | Fp8::Block) => (self.q.dtype, self.o.dtype),
        };
        let stored = |t: Tensor, dtype| Tensor { dtype, ..t };
        let pass = Pass::Backward(Gradients {
            d_o: d_o.unwrap_or(stored(self.o, input)),
            d_o_half: d_o_half.or((self.fp8 == Some(Fp8::Block)).then_some(self.o)),
            d_q: d_q.unwrap_or(stored(self.q, output)),
            d_k: d_k.unwrap_or(stored(self.k, output)),
            d_v: d_v.unwrap_or(stored(self.v, output)),
            d_sink,
            deterministic,
        });
        Attention { pass, invariant: false, ..self.clone() }
    }

    /// The forward of this backward: the same description without gradients.
    #[must_use]
    pub fn as_forward(&self) -> Attention {
        Attention { pass: Pass::Forward, ..self.clone() }
    }

    /// Whether this is a backward.
    #[must_use]
    pub const fn is_backward(&self) -> bool {
        matches!(self.pass, Pass::Backward(_))
    }

    /// Number of sequences.
    #[must_use]
    pub const fn batch(&self) -> i64 {
        self.q.dims[0]
    }

    /// (query heads, key heads, value heads).
    #[must_use]
    pub const fn heads(&self) -> (i64, i64, i64) {
        (self.q.dims[1], self.k.dims[1], self.v.dims[1])
    }

    /// (queries, keys) per sequence; the largest numbers if lengths differ.
    #[must_use]
    pub const fn seq(&self) -> (i64, i64) {
        (self.q.dims[2], self.k.dims[2])
    }

    /// (head dim of Q and K, head dim of V and O).
    #[must_use]
    pub const fn head_dims(&self) -> (i64, i64) {
        (self.q.dims[3], self.v.dims[3])
    }

    /// The usual softmax scale, 1 / sqrt(head dim of Q). Bind it to the scale scalar unless the model has another one.
    #[must_use]
    pub fn default_scale(&self) -> f32 {
        1.0 / (self.q.dims[3] as f32).sqrt()
    }

    /// The tensor of Stats, Max or Sum_exp: f32, (b, h_q, s_q, 1), varlen by tokens if Q is varlen.
    #[must_use]
    pub const fn row_tensor(&self) -> Tensor {
        let [b, h, s, _] = self.q.dims;
        match self.q.storage {
            Storage::Varlen { tokens } => Tensor {
                dims: [b, h, s, 1],
                strides: [s * h, 1, h, 1],
                dtype: DType::F32,
                storage: Storage::Varlen { tokens },
            },
            Storage::Dense | Storage::Paged { .. } => Tensor::bhsd(b, h, s, 1, DType::F32),
        }
    }

    /// Floating-point operations of the two matrix products (five in a backward); a multiply-add counts as two. The
    /// part of the score matrix that a band hides is left out; lengths and predicates are ignored, and so is a band of
    /// positions with origins.
    #[must_use]
    pub fn flops(&self) -> f64 {
        let (s_q, s_kv) = self.seq();
        let seen: f64 = match self.mask.band.filter(|_| self.origins.is_none()) {
            None => s_q as f64 * s_kv as f64,
            Some(band) => (0..s_q)
                .map(|row| {
                    let delta = if band.corner == Corner::TopLeft { 0 } else { s_kv - s_q };
                    let last = band.right.map_or(s_kv - 1, |r| (row + delta).saturating_add(r).min(s_kv - 1));
                    let first = band.left.map_or(0, |l| (row + delta + 1).saturating_sub(l).max(0));
                    (last - first + 1).max(0) as f64
                })
                .sum(),
        };
        let (d_qk, d_v) = self.head_dims();
        let rows = (self.batch() * self.q.dims[1]) as f64;
        let per_score = match self.pass {
            Pass::Forward => d_qk + d_v,
            Pass::Backward(_) => 3 * d_qk + 2 * d_v,
        };
        2.0 * rows * seen * per_score as f64
    }
}
