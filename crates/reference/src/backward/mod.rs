//! The backward from its definition: the chain rule applied row by row, with every sum in float64.
//!
//! `P` are the probabilities, `M` the factors of dropout (1 without), `dP = M ∘ (dO · Vᵀ)`, and `D` the row sums of
//! `P ∘ dP`. The gradient of the masked score is `P ∘ (dP - D)`. The slope of the score expression converts it to the
//! gradient of the scaled score. From that follow `dQ`, `dK` and `dV = (P ∘ M)ᵀ · dO`; the gradients of heads that
//! share a key or value head are summed. The gradient of a sink `z` is `-Σ exp(z - Stats) D`.
//!
//! [`backward`] recomputes everything from Q, K, V and dO. It does not read O and Stats, which are rounded results of
//! the forward. A device takes `D` from the rounded O. Where one key has nearly all of a row's probability, `dP` and
//! `D` are nearly equal, and their difference is mostly the rounding of O; [`backward_of_o`] computes that result. A
//! microscaled backward always reads O: its row sums are those of `dO ∘ O` by definition, because O came from a V with
//! other scales.
//!
//! Some roundings are properties of kernels and not modelled: of P and dS to 16 bits between two products, and of dK
//! and dV before heads are summed. In 8 bits, P and dS are rounded with the scales of the description.

mod block;
mod given;
mod head;

use qkvault_graph::{Attention, Fp8, Gradients, Pass, Role, Scaled, Valid};
use rayon::prelude::*;

use self::block::Block;
use self::given::BackwardGiven;
pub use self::given::Whole;
use self::head::{HeadGradients, HeadShared};
use crate::fp8::{Rounded, between, factor};
use crate::outputs::{ExactOutput, ExactOutputs};
use crate::setup::{Setup, SetupSource};
use crate::{Inputs, ReferenceError, memory, operand};

/// Computes a backward in float64: dQ, dK, dV, the gradients of the sink and of score tensors if they are requested,
/// and in 8 bits the largest magnitudes.
///
/// # Errors
///
/// [`ReferenceError::NotABackward`] for a forward; an error for each missing or invalid operand;
/// [`ReferenceError::NotModelled`] for a feature that the oracle does not compute.
pub fn backward(attention: &Valid, inputs: &Inputs) -> Result<ExactOutputs, ReferenceError> {
    compute(attention, inputs, false, None)
}

/// Computes a backward in float64 as [`backward`] does, but takes the row sums of `dO ∘ O` from the given O. They are
/// the same if O is exact; if O is rounded, the result follows the numbers of a device.
///
/// # Errors
///
/// The errors of [`backward`].
pub fn backward_of_o(attention: &Valid, inputs: &Inputs) -> Result<ExactOutputs, ReferenceError> {
    compute(attention, inputs, true, None)
}

/// Computes the part of a backward that some of the keys have, from the Stats and the O of all keys. The sums over all
/// parts of the keys are the gradients of the queries; with all keys, the result is that of [`backward`].
///
/// The gradient of a sink is complete in each part, so one part for each row must ask for it.
///
/// # Errors
///
/// The errors of [`backward`], and [`ReferenceError::TooShort`] for an O or Stats with too few numbers;
/// [`ReferenceError::NotModelled`] in 8 bits.
pub fn backward_part(attention: &Valid, inputs: &Inputs, whole: Whole<'_>) -> Result<ExactOutputs, ReferenceError> {
    if attention.fp8.is_some() {
        return Err(ReferenceError::NotModelled {
            what: "a part of a backward in 8 bits",
            why: "its roundings belong to the whole",
        });
    }
    compute(attention, inputs, false, Some(whole))
}

fn compute(
    attention: &Valid,
    inputs: &Inputs,
    of_o: bool,
    whole: Option<Whole<'_>>,
) -> Result<ExactOutputs, ReferenceError> {
    let a = attention.get();
    let Pass::Backward(Gradients { d_o, d_o_half: _, d_q: _, d_k: _, d_v: _, d_sink, deterministic: _ }) = a.pass
    else {
        return Err(ReferenceError::NotABackward);
    };
    memory::for_outputs(a)?;
    let setup = Setup::new(a, inputs)?;
    let mut sums = GradientSums::new(a, inputs, &setup, d_sink)?;
    let shared = HeadShared {
        d_o: SetupSource::for_role(a, Role::DO, inputs, &setup.lens)?,
        d_o_factor: match a.fp8 {
            None | Some(Fp8::Block | Fp8::Cache) => 1.0,
            Some(Fp8::Delayed | Fp8::Current) => factor(a, inputs, Role::Descale(Scaled::DO))?,
        },
        block: (a.fp8 == Some(Fp8::Block)).then(|| Block::new(a, inputs, &setup.lens)).transpose()?,
        d_s: match a.fp8 {
            None | Some(Fp8::Block | Fp8::Cache) => None,
            Some(Fp8::Delayed | Fp8::Current) => Some(Rounded {
                scale: factor(a, inputs, Role::ScaleOf(Scaled::DP))?,
                descale: factor(a, inputs, Role::Descale(Scaled::DP))?,
                dtype: between(inputs, if d_o.dtype.is_fp8() { d_o.dtype } else { a.q.dtype }),
            }),
        },
        given: whole.map(|whole| BackwardGiven::new(a, whole, inputs, &setup.lens)).transpose()?,
        o: (of_o && a.fp8 != Some(Fp8::Block))
            .then(|| SetupSource::for_role(a, Role::O, inputs, &setup.lens))
            .transpose()?,
        o_factor: match a.fp8 {
            None | Some(Fp8::Block | Fp8::Cache) => 1.0,
            Some(Fp8::Delayed | Fp8::Current) => factor(a, inputs, Role::Descale(Scaled::O))?,
        },
        setup,
    };
    for b in 0..a.batch() as usize {
        let heads: Vec<HeadGradients> =
            (0..a.q.dims[1] as usize).into_par_iter().map(|h| HeadGradients::compute(&shared, b, h)).collect();
        sums.add(&shared.setup, b, &heads);
    }
    sums.finish(a, inputs)
}

/// The gradients, summed over query heads.
struct GradientSums {
    d_q: ExactOutput,
    d_k: ExactOutput,
    d_v: ExactOutput,
    d_sink: Option<ExactOutput>,
    tensors: Vec<ExactOutput>,
    /// Largest magnitude of the gradients of scores.
    amax: f64,
}

impl GradientSums {
    fn new(a: &Attention, inputs: &Inputs, setup: &Setup<'_>, d_sink: bool) -> Result<GradientSums, ReferenceError> {
        let output = |role| ExactOutput::new(a, role, inputs, &setup.lens);
        let tensors = setup.score.iter().flat_map(|score| score.differentiated());
        Ok(GradientSums {
            d_q: output(Role::DQ)?,
            d_k: output(Role::DK)?,
            d_v: output(Role::DV)?,
            d_sink: d_sink.then(|| output(Role::DSink)).transpose()?,
            tensors: tensors.map(|(n, ..)| output(Role::DScoreTensor(n))).collect::<Result<_, _>>()?,
            amax: 0.0,
        })
    }

    /// Adds the gradients of all query heads of one sequence.
    fn add(&mut self, setup: &Setup<'_>, b: usize, heads: &[HeadGradients]) {
        let (h_q, h_k, h_v) = setup.a.heads();
        let d_qk = setup.q.view.dims[3];
        for (h, head) in heads.iter().enumerate() {
            for (s, row) in head.d_q.chunks_exact(d_qk).enumerate() {
                self.d_q.put(b, h, s, row.iter().copied());
            }
            if let Some(d_sink) = &mut self.d_sink {
                d_sink.add(h, head.d_sink);
            }
            for (sum, part) in self.tensors.iter_mut().zip(&head.tensors) {
                part.iter().enumerate().for_each(|(at, &x)| sum.add(part.place(at), x));
            }
            self.amax = self.amax.max(head.amax);
        }
        let by_group = |h_kv: i64, out: &mut ExactOutput, of: fn(&HeadGradients) -> &[f64], d: usize| {
            for (h, group) in heads.chunks((h_q / h_kv) as usize).enumerate() {
                for s in 0..setup.lens.kv[b] {
                    let row = (s * d..(s + 1) * d).map(|at| group.iter().map(|head| of(head)[at]).sum());
                    out.put(b, h, s, row);
                }
            }
        };
        by_group(h_k, &mut self.d_k, |head| &head.d_k, d_qk);
        by_group(h_v, &mut self.d_v, |head| &head.d_v, setup.v.view.dims[3]);
    }

    /// In 8 bits: measures each gradient and multiplies it by its scale.
    fn finish(self, a: &Attention, inputs: &Inputs) -> Result<ExactOutputs, ReferenceError> {
        let GradientSums { d_q, d_k, d_v, d_sink, tensors, amax } = self;
        let mut list = Vec::new();
        let mut measured = vec![(Scaled::DP, amax)];
        for (which, mut out) in [(Scaled::DQ, d_q), (Scaled::DK, d_k), (Scaled::DV, d_v)] {
            let scale = factor(a, inputs, Role::ScaleOf(which))?;
            measured.push((which, out.values.iter().fold(0.0, |max: f64, x| max.max(x.abs()))));
            out.values.iter_mut().for_each(|x| *x *= scale);
            list.push(out);
        }
        list.extend(d_sink);
        list.extend(tensors);
        let lens = crate::view::SeqLens::for_attention(a, inputs)?;
        for (which, amax) in measured {
            let role = Role::Amax(which);
            if operand(a, role).is_some() {
                let mut out = ExactOutput::new(a, role, inputs, &lens)?;
                out.put(0, 0, 0, [amax]);
                list.push(out);
            }
        }
        Ok(ExactOutputs(list))
    }
}
