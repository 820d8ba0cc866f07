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
        let a = in_8_bits(attention, scaling);
        let d_o = Some(Tensor { dtype: DType::E5M2, ..a.o });
        Training::for_attention(&a, BackwardOptions { d_o, ..BackwardOptions::default() })
    }

    /// A forward in 8 bits and a backward in 16, from the description in 16 bits: for what is slower backward in 8 bits
    /// than in 16, which advice names (causal attention over 4096 keys and more on an H200).
    ///
    /// The forward is that of [`Training::fp8`]. The backward reads the Stats of the forward, and what that computed
    /// with: Q, K and V in 16 bits as they come back from 8 (`ConversionKind::Dequantize`), and O likewise. Scores of
    /// the tensors before their conversion are others, whose exponentials less these Stats are no probabilities: with
    /// them a model that trained well otherwise diverged as soon as its scores were large. A checked pair
    /// (`TrainingPair::checked`) cannot compare those of two types.
    ///
    /// ```
    /// use qkvault_exec::{ScaleRecipe, Scales, Training};
    /// use qkvault_graph::{Attention, BackwardOptions, DType, Fp8, Scaled};
    ///
    /// let attention = Attention::bshd(2, (8, 8), (8192, 8192), 128, DType::BF16).causal();
    /// let training = Training::fp8_forward(&attention, Fp8::Delayed, BackwardOptions::default())?;
    /// assert_eq!((training.forward().q.dtype, training.backward().q.dtype), (DType::E4M3, DType::BF16));
    /// // Gradients have no scales.
    /// let scales = Scales::new(&training, ScaleRecipe::default());
    /// assert_eq!(scales.tensors().collect::<Vec<_>>(), [Scaled::Q, Scaled::K, Scaled::V, Scaled::S, Scaled::O]);
    /// # Ok::<(), qkvault_graph::Refusal>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`Training::for_attention`].
    pub fn fp8_forward(attention: &Attention, scaling: Fp8, options: BackwardOptions) -> Result<Training, Refusal> {
        let Training { forward: _, backward } = Training::for_attention(attention, options)?;
        Ok(Training { forward: validate(in_8_bits(attention, scaling).with_stats())?, backward })
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

/// An attention with Q, K and V in e4m3, and with delayed scaling O too.
fn in_8_bits(attention: &Attention, scaling: Fp8) -> Attention {
    let mut a = attention.clone();
    let (narrow, outputs) = (DType::E4M3, if scaling == Fp8::Delayed { DType::E4M3 } else { attention.o.dtype });
    (a.q.dtype, a.k.dtype, a.v.dtype, a.o.dtype) = (narrow, narrow, narrow, outputs);
    a.fp8 = Some(scaling);
    a
}
