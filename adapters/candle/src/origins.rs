//! Numbers of a launch: origins, where the positions of a call's queries and keys begin, and what dropout draws from.

use qkvault::graph::MAX_ORIGIN;

use crate::{Error, Options};

impl Options {
    /// The position of the first query, for a chunk of a longer sequence: `causal`, windows, `alibi_slopes` and the
    /// indices of expressions count from there, and of keys from [`Options::key_origin`], 0 if nothing else is said.
    /// Bounds are those of positions then: the last query need not stand at the last key. Tensors such as a bias are
    /// for the queries and keys of the call. At most 8388608; it is no part of a plan, so one plan serves all chunks.
    ///
    /// ```
    /// use candle_core::{DType, Device, Tensor};
    /// use candle_qkvault::{Options, attention};
    ///
    /// let q = Tensor::ones((1, 6, 2, 16), DType::BF16, &Device::Cpu)?;
    /// let causal = Options::new().causal(true).cpu_oracle(true);
    /// let chunk = attention(&q.narrow(1, 2, 3)?, &q, &q, &causal.query_origin(2))?; // rows 2 to 4 of the whole
    /// assert_eq!(chunk.dims(), [1, 3, 2, 16]);
    /// # Ok::<(), candle_core::Error>(())
    /// ```
    #[must_use]
    pub fn query_origin(self, position: usize) -> Options {
        self.origin(0, position)
    }

    /// The position of the first key; see [`Options::query_origin`].
    #[must_use]
    pub fn key_origin(self, position: usize) -> Options {
        self.origin(1, position)
    }

    /// Drops probabilities with this probability, which is a part of a plan, by random numbers of cuDNN's that a seed
    /// and an offset decide, which are not: give each layer and step others. The backward drops what its forward did.
    /// The oracle cannot draw those numbers, so that a CPU computes none.
    #[must_use]
    pub fn dropout(mut self, probability: f32, seed: i64, offset: i64) -> Options {
        let same = self.dropout.is_some_and(|(own, _)| own.to_bits() == probability.to_bits());
        self.dropout = Some((probability, [seed, offset]));
        if same { self } else { self.changed() }
    }

    fn origin(mut self, at: usize, position: usize) -> Options {
        let known = self.origins.is_some();
        self.origins.get_or_insert_default()[at] = position;
        if known { self } else { self.changed() }
    }

    /// Fails if an origin is larger than a launch takes. They change from call to call.
    pub(crate) fn check_origins(&self) -> Result<(), Error> {
        for (name, position) in ["query_origin", "key_origin"].into_iter().zip(self.origins.into_iter().flatten()) {
            if i32::try_from(position).map_or(true, |position| position > MAX_ORIGIN) {
                let text =
                    format!("{name} is {position}; positions of first queries and keys are at most {MAX_ORIGIN}");
                return Err(Error::Tensor(text));
            }
        }
        Ok(())
    }
}
