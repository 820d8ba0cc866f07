//! The description of both passes: one attention in, a forward with Stats and its backward out.

use qkvault_graph::{Attention, BackwardOptions, Origin, Reason, Refusal, Valid, validate};

/// A forward and its backward, from one description, so that nothing is said twice and the two cannot differ.
#[derive(Clone, Debug)]
pub struct Training {
    forward: Valid,
    backward: Valid,
}

impl Training {
    /// The two passes of an attention. The forward is given as for inference; that it puts out Stats is seen to here.
    ///
    /// ```
    /// use qkvault_exec::Training;
    /// use qkvault_graph::{Attention, BackwardOptions, Band, DType};
    ///
    /// let attention = Attention::bshd(4, (16, 16), (4096, 4096), 128, DType::BF16).with_band(Band::CAUSAL);
    /// let training = Training::of(&attention, BackwardOptions::default())?;
    /// assert!(training.forward().outputs.stats && training.backward().is_backward());
    /// # Ok::<(), qkvault_graph::Refusal>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Every reason against either pass that needs no library to be known: a backward given in place of a forward, shapes and heads that
    /// do not go together, a score expression without the derivatives that a backward needs.
    pub fn of(attention: &Attention, options: BackwardOptions) -> Result<Training, Refusal> {
        if attention.is_backward() {
            return Err(Reason::new(
                Origin::Description,
                "training.backward",
                "pass",
                "a backward",
                "a forward, from which the backward follows",
                "give the forward; the gradients' formats go into the options",
            )
            .into());
        }
        let forward = attention.clone().with_stats();
        let backward = validate(forward.backward(options))?;
        Ok(Training { forward: validate(forward)?, backward })
    }

    /// The forward, with Stats.
    #[must_use]
    pub fn forward(&self) -> &Valid {
        &self.forward
    }

    /// The backward.
    #[must_use]
    pub fn backward(&self) -> &Valid {
        &self.backward
    }
}
