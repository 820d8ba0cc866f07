//! The description of both passes: from one attention to a forward with Stats and its backward.

use crate::codes;
use qkvault_graph::{Attention, BackwardOptions, DType, Fp8, Refusal, Tensor, Valid, validate};

/// A forward and its backward from one description, so that the two cannot differ.
#[derive(Clone, Debug)]
pub struct Training {
    forward: Valid,
    backward: Valid,
}

impl Training {
    /// The two passes of an attention. Give the forward as for inference; this function adds the output of Stats.
    ///
    /// ```
    /// use qkvault_exec::Training;
    /// use qkvault_graph::{Attention, BackwardOptions, DType};
    ///
    /// let attention = Attention::bshd(4, (16, 16), (4096, 4096), 128, DType::BF16).causal();
    /// let training = Training::for_attention(&attention, BackwardOptions::default())?;
    /// assert!(training.forward().outputs.stats && training.backward().is_backward());
    /// # Ok::<(), qkvault_graph::Refusal>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`Refusal`] with all reasons that need no library: a backward in place of a forward, shapes and heads that do
    /// not match, a score expression without the derivatives that a backward needs.
    pub fn for_attention(attention: &Attention, options: BackwardOptions) -> Result<Training, Refusal> {
        if attention.is_backward() {
            return Err(codes::TRAINING_BACKWARD.reason("a backward").into());
        }
        let forward = attention.clone().with_stats();
        let backward = validate(forward.backward(options))?;
        Ok(Training { forward: validate(forward)?, backward })
    }

    /// The two passes of an attention in 8 bits, from its description in 16 bits: Q, K and V in e4m3, dO in e5m2, whose
    /// range gradients need. With delayed scaling O, dQ, dK and dV are e4m3 too, with others they keep the type of the
    /// description.
    ///
    /// For other formats describe the attention in 8 bits and call [`Training::for_attention`].
    ///
    /// # Errors
    ///
    /// As [`Training::for_attention`].
    pub fn fp8(attention: &Attention, scaling: Fp8) -> Result<Training, Refusal> {
        let mut a = attention.clone();
        let (narrow, outputs) = (DType::E4M3, if scaling == Fp8::Delayed { DType::E4M3 } else { attention.o.dtype });
        (a.q.dtype, a.k.dtype, a.v.dtype, a.o.dtype) = (narrow, narrow, narrow, outputs);
        a.fp8 = Some(scaling);
        let d_o = Some(Tensor { dtype: DType::E5M2, ..a.o });
        Training::for_attention(&a, BackwardOptions { d_o, ..BackwardOptions::default() })
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
