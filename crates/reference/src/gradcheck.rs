//! Checks gradients numerically: compares the slope of the forward along single elements with the backward.

use qkvault_base::random::Rng;
use qkvault_graph::{Attention, Role, Valid, validate};

use crate::setup::SetupSource;
use crate::view::SeqLens;
use crate::{ExactOutput, Inputs, ReferenceError, View, backward, forward, operand};

/// The result of a gradient check.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GradientCheck {
    /// Number of elements measured.
    pub elements: usize,
    /// Largest difference between a gradient and the measured slope, relative to the slope if that is above 1.
    pub worst: f64,
    /// The element with that difference: the role of the gradient, (batch, head, sequence, head dim), the gradient, and
    /// the measured slope.
    pub at: Option<(Role, [usize; 4], f64, f64)>,
}

/// Measures the slopes of `Σ dO ∘ O` along elements chosen at random, `samples` of each operand that has a gradient,
/// and compares them with the gradients of [`backward`]. Elements of padding have no slope and are skipped.
///
/// A slope is measured from four points at most 2^-6 away. Where the attention is smooth, its error is about the fourth
/// power of that distance. Near a kink or a step of a score expression the error is unbounded.
///
/// # Errors
///
/// The errors of [`backward`], and [`ReferenceError::NotModelled`] for 8-bit attention, which has no slopes because its
/// roundings are steps.
pub fn check_gradients(
    attention: &Valid,
    inputs: &Inputs,
    samples: usize,
    seed: u64,
) -> Result<GradientCheck, ReferenceError> {
    let a = attention.get();
    if a.fp8.is_some() {
        let why = "its roundings are steps, along which no slope can be measured";
        return Err(ReferenceError::NotModelled { what: "slopes of 8-bit attention", why });
    }
    let gradients = backward(attention, inputs)?;
    let plain = validate(a.as_forward()).map_err(ReferenceError::Forward)?;
    let mut wide = inputs.widened();
    let (mut rng, lens) = (Rng::new(seed), SeqLens::for_attention(a, inputs)?);
    let mut found = GradientCheck { elements: 0, worst: 0.0, at: None };
    for (gradient, of) in gradients.iter().filter_map(|out| Some((out, operand_of(out.role())?))) {
        let dims = operand(a, of).ok_or(ReferenceError::Missing { role: of })?.tensor.dims;
        let view = View::new(a, of, inputs)?;
        for _ in 0..samples {
            let index @ [b, h, s, d] = dims.map(|n| rng.within(0, n as usize - 1));
            let by_rows = matches!(of, Role::Q | Role::K | Role::V);
            if by_rows && s >= lens.side(of)[b] {
                continue;
            }
            let measured = slope(a, &plain, &mut wide, of, view.at(b, h, s, d))?;
            let given = gradient.at(b, h, s, d);
            let off = (given - measured).abs() / measured.abs().max(1.0);
            // NaN counts as infinitely wrong.
            let off = if off.is_nan() { f64::INFINITY } else { off };
            found.elements += 1;
            if found.at.is_none() || off > found.worst {
                found.worst = off;
                found.at = Some((gradient.role(), index, given, measured));
            }
        }
    }
    Ok(found)
}

/// The operand whose gradient this is.
const fn operand_of(gradient: Role) -> Option<Role> {
    match gradient {
        Role::DQ => Some(Role::Q),
        Role::DK => Some(Role::K),
        Role::DV => Some(Role::V),
        Role::DSink => Some(Role::Sink),
        Role::DScoreTensor(n) => Some(Role::ScoreTensor(n)),
        _ => None,
    }
}

/// Slope of the loss along one element of an operand, from two chords whose second-order errors cancel.
fn slope(a: &Attention, plain: &Valid, inputs: &mut Inputs, role: Role, at: usize) -> Result<f64, ReferenceError> {
    let x = inputs.buffer(role)?.get(at);
    // The distance is that of the rounded f32 values.
    let mut moved = |by: f64| {
        let buffer = inputs.get_mut(role).ok_or(ReferenceError::Missing { role })?;
        buffer.set(at, x + by);
        Ok((buffer.get(at), loss(a, plain, inputs)?))
    };
    let mut chord = |step: f64| -> Result<f64, ReferenceError> {
        let ((left, low), (right, high)) = (moved(-step)?, moved(step)?);
        Ok((high - low) / (right - left))
    };
    let (near, far) = (chord(2f64.powi(-7))?, chord(2f64.powi(-6))?);
    moved(0.0)?;
    Ok((4.0 * near - far) / 3.0)
}

/// `Σ dO ∘ O` over the rows within lengths.
fn loss(a: &Attention, plain: &Valid, inputs: &Inputs) -> Result<f64, ReferenceError> {
    let lens = SeqLens::for_attention(a, inputs)?;
    let d_o = SetupSource::for_role(a, Role::DO, inputs, &lens)?;
    let outputs = forward(plain, inputs)?;
    let o: &ExactOutput = outputs.get(Role::O).ok_or(ReferenceError::Missing { role: Role::O })?;
    let [_, heads, _, head_dim] = a.o.dims.map(|n| n as usize);
    let mut sum = 0.0;
    for (b, &rows) in lens.q.iter().enumerate() {
        for h in 0..heads {
            for (s, row) in d_o.rows::<f64>(b, h, 0..rows).chunks_exact(head_dim).enumerate() {
                sum += row.iter().enumerate().map(|(d, x)| x * o.at(b, h, s, d)).sum::<f64>();
            }
        }
    }
    Ok(sum)
}
