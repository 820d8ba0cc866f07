//! Combinations of tensors by their definition: sums, copies and fills bit for bit, merges in float64.

use std::collections::BTreeMap;

use qkvault_graph::{Combination, Role, Tensor, ValidCombination};

use crate::places::{address, places};
use crate::{Buffer, Inputs, Places, ReferenceError};

/// Computes a combination: every output as the bytes that a device holds afterwards, with [`POISON`](crate::POISON)
/// where the output's strides leave gaps. A merge is computed in float64 and rounded once, so a device may differ from
/// it in the last place.
///
/// ```
/// use qkvault_graph::{Combination, DType, Role, Tensor};
/// use qkvault_reference::{Buffer, Inputs, combine};
///
/// let t = Tensor::bshd(1, 1, 1, 4, DType::BF16);
/// let sum = Combination::Sum { parts: vec![t; 2], rows: false, into: t }.validate()?;
/// let mut inputs = Inputs::new();
/// inputs.insert(Role::Part(0), Buffer::from_values(DType::BF16, [1.0, 2.0, 3.0, 4.0]));
/// inputs.insert(Role::Part(1), Buffer::from_values(DType::BF16, [0.5; 4]));
/// assert_eq!(combine(&sum, &inputs)?[&Role::Into].get(3), 4.5);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
///
/// [`ReferenceError`] for an input that is missing, too short or of another type.
pub fn combine(combination: &ValidCombination, inputs: &Inputs) -> Result<BTreeMap<Role, Buffer>, ReferenceError> {
    let list = combination.bindings();
    let len = |b: &qkvault_graph::Binding| b.bytes as usize / b.dtype.size();
    for binding in list.iter().filter(|b| !b.output) {
        let (buffer, role) = (inputs.typed(binding.role, binding.dtype)?, binding.role);
        if buffer.len() < len(binding) {
            return Err(ReferenceError::TooShort { role, given: buffer.len(), needed: len(binding) });
        }
    }
    let made = list.iter().filter(|b| b.output);
    let mut outputs: BTreeMap<Role, Buffer> = made.map(|b| (b.role, Buffer::poisoned(b.dtype, len(b)))).collect();
    let mut put = |role: Role, at: usize, x: f64| {
        if let Some(buffer) = outputs.get_mut(&role) {
            buffer.set(at, x);
        }
    };
    // Whether a row of a part counts.
    let counts = |rows: bool, n: u16, of: &Tensor, [b, _, s, _]: [usize; 4]| match rows {
        true => Ok(inputs.buffer(Role::PartRows(n))?.int(b * of.dims[2] as usize + s) != 0),
        false => Ok::<bool, ReferenceError>(true),
    };
    match &**combination {
        Combination::Merge { parts, rows: told, sink, o, stats } => {
            let rows = Tensor { dims: [o.dims[0], o.dims[1], o.dims[2], 1], ..*o };
            for row in places(&rows) {
                let of_sink = match sink {
                    true => inputs.buffer(Role::Sink)?.get(row[1]),
                    false => f64::NEG_INFINITY,
                };
                let logs = (0..).zip(parts).map(|(n, part)| match counts(*told, n, o, row)? {
                    true => Ok(inputs.buffer(Role::PartStats(n))?.get(address(&part.stats, row))),
                    false => Ok(f64::NEG_INFINITY),
                });
                let logs: Vec<f64> = logs.collect::<Result<_, ReferenceError>>()?;
                let most = logs.iter().copied().fold(of_sink, f64::max);
                let hidden = most == f64::NEG_INFINITY && !logs.iter().any(|l| l.is_nan());
                let share = |log: f64| if log == f64::NEG_INFINITY { 0.0 } else { (log - most).exp() };
                let total: f64 = logs.iter().copied().chain([of_sink]).map(share).sum();
                for d in 0..o.dims[3] as usize {
                    let at = [row[0], row[1], row[2], d];
                    let mut sum = 0.0;
                    for ((n, part), log) in (0..).zip(parts).zip(&logs).filter(|(_, log)| **log != f64::NEG_INFINITY) {
                        sum += share(*log) * inputs.buffer(Role::Part(n))?.get(address(&part.o, at));
                    }
                    put(Role::O, address(o, at), if hidden { 0.0 } else { sum / total });
                }
                if let Some(stats) = stats {
                    put(Role::Stats, address(stats, row), if hidden { most } else { most + total.ln() });
                }
            }
        }
        Combination::Sum { parts, rows, into } => {
            for at in places(into) {
                let mut sum: Option<f32> = None;
                for (n, part) in (0..).zip(parts) {
                    if counts(*rows, n, into, at)? {
                        let x = inputs.buffer(Role::Part(n))?.get(address(part, at)) as f32;
                        sum = Some(sum.map_or(x, |sum| sum + x));
                    }
                }
                let sum = sum.unwrap_or_default();
                put(Role::Into, address(into, at), sum.into());
            }
        }
        Combination::Copy { from, to } => {
            let (source, size) = (inputs.buffer(Role::Part(0))?, to.dtype.size());
            if let Some(buffer) = outputs.get_mut(&Role::Into) {
                for at in places(to) {
                    let (from, to) = (address(from, at) * size, address(to, at) * size);
                    buffer.bytes_mut()[to..to + size].copy_from_slice(&source.bytes()[from..from + size]);
                }
            }
        }
        Combination::Fill { to, hidden } => {
            places(to).for_each(|at| put(Role::Into, address(to, at), if *hidden { f64::NEG_INFINITY } else { 0.0 }));
        }
        Combination::Keep { to, heads, below } => {
            let number = |role| Ok::<i64, ReferenceError>(inputs.buffer(role)?.int(0));
            let (seed, offset) = (number(Role::DropoutSeed)?, number(Role::DropoutOffset)?);
            let drawn = Places { seed, offset, heads: *heads, below: *below };
            let first = [number(Role::Scalar(0))?, number(Role::Scalar(1))?, number(Role::Scalar(2))?];
            let [head, query, key] = first.map(|n| n as usize);
            for at in places(to) {
                let place = [at[0], at[1] + head, at[2] + query, at[3] + key].map(|n| n as u32);
                put(Role::Into, address(to, at), f64::from(u8::from(drawn.keeps(place))));
            }
        }
    }
    Ok(outputs)
}
