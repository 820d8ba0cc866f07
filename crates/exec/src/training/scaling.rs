//! Scales of 8-bit training: how the scale of each tensor follows from its largest magnitudes.
//!
//! Everything here is data and needs no GPU; `Fp8Training` of the safe layer keeps the numbers on one.

use std::collections::{BTreeMap, VecDeque};

use qkvault_graph::{
    DType, Fp8, MOST_HISTORY, MOST_MARGIN, Pass, Role, ScaleUpdate, Scaled, ScaledTensor, Valid, ValidScaleUpdate,
};

use crate::training::Training;

/// How scales follow from largest magnitudes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScaleRecipe {
    /// Steps whose largest magnitude counts, 1 to [`MOST_HISTORY`]; others are taken to be the nearest of these.
    pub history: u32,
    /// Powers of two of room above the largest magnitude, at most [`MOST_MARGIN`]; more are taken to be these.
    pub margin: u8,
}

/// Delayed scaling of Transformer Engine: the largest magnitude of 1,024 steps, no margin. Source: its
/// `common/recipe`, `DelayedScaling`.
impl Default for ScaleRecipe {
    fn default() -> ScaleRecipe {
        ScaleRecipe { history: 1024, margin: 0 }
    }
}

impl ScaleRecipe {
    /// The largest magnitude of the last step alone.
    pub const LAST: ScaleRecipe = ScaleRecipe { history: 1, margin: 0 };

    fn steps(self) -> u32 {
        self.history.clamp(1, MOST_HISTORY)
    }

    fn room(self) -> u8 {
        self.margin.min(MOST_MARGIN)
    }
}

/// One tensor: its type, its largest magnitudes and its scale.
#[derive(Clone, Debug, PartialEq)]
struct One {
    dtype: DType,
    recipe: ScaleRecipe,
    seen: VecDeque<f32>,
    scale: f32,
}

impl One {
    /// Forgets the oldest magnitude and adds the newest. A tensor of zeros, and one with a number that is infinite or
    /// none, says nothing about the next one.
    fn observe(&mut self, amax: f32) {
        if self.seen.len() >= self.recipe.steps() as usize {
            self.seen.pop_front();
        }
        self.seen.push_back(if amax.is_finite() && amax > 0.0 { amax } else { 0.0 });
        let largest = self.seen.iter().copied().fold(0.0, f32::max);
        if largest > 0.0 {
            let room = 2f32.powi(-i32::from(self.recipe.room()));
            let scale = largest_finite(self.dtype) / largest * room;
            // A magnitude so small that its scale is infinite keeps the largest scale whose inverse is a number.
            self.scale = scale.clamp(1.0 / f32::MAX, 2f32.powi(126));
        }
    }
}

/// The largest number of an 8-bit type; 1 for others, which are stored without a scale.
fn largest_finite(dtype: DType) -> f32 {
    dtype.largest_fp8().unwrap_or(1.0)
}

/// The scales of every tensor of an 8-bit training.
///
/// * Q, K, V and dO have the scales of their quantization. With delayed scaling they follow from the magnitudes before,
///   and each starts at 1. With current scaling a conversion computes them from the tensor itself, and these are the
///   last ones.
/// * O, dQ, dK and dV have delayed scales if they are 8-bit, and 1 otherwise.
/// * Gradients of scores (named dP) have delayed scales in both: nobody knows their magnitude before the launch. With
///   current scaling it is that of the step before.
/// * Probabilities have a constant scale, the largest power of two with which 1 is a number of their type, because a
///   probability is at most 1. Kernels may round exponentials before their sum divides them, which are at most 1 too;
///   a scale from the largest probability would make those saturate.
///
/// ```
/// use qkvault_exec::{ScaleRecipe, Scales, Training};
/// use qkvault_graph::{Attention, DType, Fp8, Role, Scaled};
///
/// let attention = Attention::bshd(2, (8, 8), (512, 512), 128, DType::BF16).causal();
/// let training = Training::fp8(&attention, Fp8::Delayed)?;
/// let mut scales = Scales::new(&training, ScaleRecipe::default());
/// assert_eq!(scales.number(Role::ScaleOf(Scaled::S)), Some(256.0));
/// // A step had queries of up to 3.5: they are stored with twice that room in the next one.
/// scales.observe(Scaled::Q, 3.5);
/// assert_eq!(scales.number(Role::ScaleOf(Scaled::Q)), Some(128.0));
/// assert_eq!(scales.number(Role::Descale(Scaled::Q)), Some(1.0 / 128.0));
/// # Ok::<(), qkvault_graph::Refusal>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Scales {
    tensors: BTreeMap<Scaled, One>,
    current: bool,
    /// The margin of those that follow from magnitudes before.
    margin: u8,
}

impl Scales {
    /// The scales before the first step. A training in 16 bits or with block scales has none, a backward in 16 bits
    /// none of gradients.
    #[must_use]
    pub fn new(training: &Training, recipe: ScaleRecipe) -> Scales {
        let (forward, backward): (&Valid, &Valid) = (training.forward(), training.backward());
        let Some(scaling @ (Fp8::Delayed | Fp8::Current)) = forward.fp8 else { return Scales::NONE };
        let (io, current) = (forward.q.dtype, scaling == Fp8::Current);
        let one = |dtype, recipe| One { dtype, recipe, seen: VecDeque::new(), scale: 1.0 };
        let mut tensors: BTreeMap<Scaled, One> = [
            (Scaled::Q, one(io, recipe)),
            (Scaled::K, one(io, recipe)),
            (Scaled::V, one(io, recipe)),
            (Scaled::S, One { scale: of_probabilities(io), ..one(io, recipe) }),
            (Scaled::O, one(forward.o.dtype, recipe)),
        ]
        .into();
        if let (Pass::Backward(g), Some(_)) = (&backward.pass, backward.fp8) {
            let of_scores = if current { ScaleRecipe::LAST } else { recipe };
            tensors.extend([
                (Scaled::DO, one(g.d_o.dtype, recipe)),
                (Scaled::DP, one(g.d_o.dtype, of_scores)),
                (Scaled::DQ, one(g.d_q.dtype, recipe)),
                (Scaled::DK, one(g.d_k.dtype, recipe)),
                (Scaled::DV, one(g.d_v.dtype, recipe)),
            ]);
        }
        Scales { tensors, current, margin: if current { 0 } else { recipe.room() } }
    }

    const NONE: Scales = Scales { tensors: BTreeMap::new(), current: false, margin: 0 };

    /// The update on the GPU that does what [`Scales::observe`] does, of all tensors whose scales no conversion writes;
    /// `None` for a training without such tensors.
    #[must_use]
    pub fn update(&self) -> Option<ValidScaleUpdate> {
        let by_conversions = [Scaled::Q, Scaled::K, Scaled::V, Scaled::DO];
        let follows = |(of, one): &(&Scaled, &One)| {
            **of != Scaled::S && one.dtype.is_fp8() && !(self.current && by_conversions.contains(of))
        };
        let tensor =
            |(of, one): (&Scaled, &One)| ScaledTensor { of: *of, dtype: one.dtype, history: one.recipe.steps() };
        let tensors = self.tensors.iter().filter(follows).map(tensor).collect();
        ScaleUpdate { tensors, margin: self.margin }.validate().ok()
    }

    /// The tensors that have scales.
    pub fn tensors(&self) -> impl Iterator<Item = Scaled> + '_ {
        self.tensors.keys().copied()
    }

    /// The scale or descale of an operand in the next launches; `None` for another role.
    #[must_use]
    pub fn number(&self, role: Role) -> Option<f32> {
        match role {
            Role::ScaleOf(which) => Some(self.tensors.get(&which)?.scale),
            Role::Descale(which) => Some(1.0 / self.tensors.get(&which)?.scale),
            _ => None,
        }
    }

    /// Takes the largest magnitude that a step had, from which the next scale follows. The constant scale of
    /// probabilities stays, and so does that of outputs in 16 bits.
    pub fn observe(&mut self, which: Scaled, amax: f32) {
        if which == Scaled::S {
            return;
        }
        if let Some(one) = self.tensors.get_mut(&which).filter(|one| one.dtype.is_fp8()) {
            one.observe(amax);
        }
    }
}

/// The largest power of two that is a number of the type.
fn of_probabilities(dtype: DType) -> f32 {
    2f32.powf(largest_finite(dtype).log2().floor())
}

#[cfg(test)]
mod tests {
    use qkvault_graph::Attention;

    use super::*;

    fn scales(scaling: Fp8, recipe: ScaleRecipe) -> Scales {
        let attention = Attention::bshd(1, (2, 2), (64, 64), 128, DType::BF16);
        Scales::new(&Training::fp8(&attention, scaling).expect("sound"), recipe)
    }

    fn scale(of: &Scales, which: Scaled) -> f32 {
        of.number(Role::ScaleOf(which)).expect("it has one")
    }

    #[test]
    fn a_scale_fits_the_largest_magnitude_of_the_history() {
        let mut scales = scales(Fp8::Delayed, ScaleRecipe { history: 2, margin: 1 });
        assert_eq!(scale(&scales, Scaled::K), 1.0);
        let mut after = |amax: f32| {
            scales.observe(Scaled::K, amax);
            scale(&scales, Scaled::K)
        };
        assert_eq!([after(7.0), after(14.0), after(7.0), after(7.0)], [32.0, 16.0, 16.0, 32.0]);
        // Zeros, and numbers that are none, leave the others.
        assert_eq!([after(0.0), after(f32::NAN), after(f32::INFINITY)], [32.0, 32.0, 32.0]);
        // The inverse of every scale is a number.
        let least = after(1e-44);
        assert!(least.is_finite() && (1.0 / least) > 0.0, "{least}");
        assert_eq!(scale(&scales, Scaled::V), 1.0);
    }

    #[test]
    fn each_tensor_has_the_range_of_its_type() {
        let mut scales = scales(Fp8::Delayed, ScaleRecipe::default());
        for which in scales.tensors().collect::<Vec<_>>() {
            scales.observe(which, 2.0);
        }
        assert_eq!([Scaled::Q, Scaled::O, Scaled::DV].map(|which| scale(&scales, which)), [224.0; 3]);
        // dO is in e5m2, and so are the gradients of scores, which are stored in its type.
        assert_eq!([Scaled::DO, Scaled::DP].map(|which| scale(&scales, which)), [28_672.0; 2]);
        assert_eq!(scale(&scales, Scaled::S), 256.0);
    }

    #[test]
    fn current_scaling_stores_outputs_without_a_scale_and_scores_of_the_last_step() {
        let mut scales = scales(Fp8::Current, ScaleRecipe::default());
        for amax in [8.0, 2.0] {
            [Scaled::O, Scaled::DQ, Scaled::DP].into_iter().for_each(|which| scales.observe(which, amax));
        }
        assert_eq!([Scaled::O, Scaled::DQ, Scaled::DP].map(|which| scale(&scales, which)), [1.0, 1.0, 28_672.0]);
    }

    #[test]
    fn an_update_has_the_tensors_whose_scales_no_conversion_writes() {
        use Scaled::{DK, DO, DP, DQ, DV, K, O, Q, V};
        let recipe = ScaleRecipe { history: 7, margin: 2 };
        let of = |scales: &Scales| {
            let update = scales.update();
            update.map(|u| (u.tensors.iter().map(|t| (t.of, t.history)).collect::<Vec<_>>(), u.margin))
        };
        let all = [Q, K, V, O, DO, DP, DQ, DK, DV].map(|which| (which, 7));
        assert_eq!(of(&scales(Fp8::Delayed, recipe)), Some((all.to_vec(), 2)));
        // Outputs are in 16 bits, and gradients of scores have the scale of the step before.
        assert_eq!(of(&scales(Fp8::Current, recipe)), Some((vec![(DP, 1)], 0)));
        let attention = Attention::bshd(1, (2, 2), (64, 64), 128, DType::BF16);
        let forward = |scaling| {
            let training = Training::fp8_forward(&attention, scaling, qkvault_graph::BackwardOptions::default());
            Scales::new(&training.expect("sound"), recipe)
        };
        assert_eq!(of(&forward(Fp8::Delayed)), Some((all[..4].to_vec(), 2)));
        assert_eq!((of(&forward(Fp8::Current)), forward(Fp8::Current).tensors().count()), (None, 5));
    }

    #[test]
    fn a_training_in_16_bits_has_no_scales() {
        let attention = Attention::bshd(1, (2, 2), (64, 64), 128, DType::BF16);
        let training = Training::for_attention(&attention, qkvault_graph::BackwardOptions::default()).expect("sound");
        assert_eq!(Scales::new(&training, ScaleRecipe::default()).tensors().count(), 0);
    }
}
