//! Random operands of microscaled attention that are consistent: the second 8-bit form of a tensor holds the same
//! numbers as the first, with other scales. Only numbers far below the largest of their block are rounded again.

use qkvault_graph::{Attention, BLOCK, DType, Fp8, Role, Scaled, Storage, operand};

use crate::fp8::Blocks;
use crate::inputs::elements;
use crate::setup::SetupSource;
use crate::view::SeqLens;
use crate::{Buffer, Inputs, ReferenceError};

/// Makes the additional operands of a microscaled backward from Q, K, V and dO.
pub(super) fn second_forms(a: &Attention, inputs: &mut Inputs) -> Result<(), ReferenceError> {
    if a.fp8 != Some(Fp8::Block) || !a.is_backward() {
        return Ok(());
    }
    for (of, which, form, scaled) in [
        (Role::Q, Scaled::Q, Role::QT, Scaled::QT),
        (Role::K, Scaled::K, Role::KT, Scaled::KT),
        (Role::DO, Scaled::DO, Role::DOT, Scaled::DOT),
    ] {
        let numbers = Numbers::for_role(a, of, which, inputs)?;
        let (data, scales) = numbers.stored(a, form, scaled, inputs)?;
        inputs.insert(form, data);
        inputs.insert(Role::Descale(scaled), scales);
    }
    let d_o = Numbers::for_role(a, Role::DO, Scaled::DO, inputs)?;
    let half = d_o.copied(a, Role::DOHalf, inputs)?;
    inputs.insert(Role::DOHalf, half);
    Ok(())
}

/// Converts the V of a backward to the V of its forward, with the scales that a forward reads.
pub(super) fn forward_values(
    backward: &Attention,
    forward: &Attention,
    bound: &mut Inputs,
) -> Result<(), ReferenceError> {
    if forward.fp8 == Some(Fp8::Block) {
        let numbers = Numbers::for_role(backward, Role::V, Scaled::V, bound)?;
        let (data, scales) = numbers.stored(forward, Role::V, Scaled::V, bound)?;
        bound.insert(Role::V, data);
        bound.insert(Role::Descale(Scaled::V), scales);
    }
    Ok(())
}

/// The numbers of a microscaled tensor, multiplied by their scales: for each (batch, head) one row after another.
struct Numbers {
    dims: [usize; 4],
    rows: Vec<usize>,
    planes: Vec<Vec<f64>>,
}

impl Numbers {
    fn for_role(a: &Attention, role: Role, which: Scaled, inputs: &Inputs) -> Result<Numbers, ReferenceError> {
        let lens = SeqLens::for_attention(a, inputs)?;
        let source = SetupSource::for_role(a, role, inputs, &lens)?;
        let scales = crate::fp8::BlockScales::new(a, inputs, which)?;
        let storage = operand(a, role).ok_or(ReferenceError::Missing { role })?.tensor.storage;
        let dims = source.view.dims;
        // Only dense operands have rows beyond the lengths.
        let rows = match storage {
            Storage::Dense => vec![dims[2]; dims[0]],
            Storage::Varlen { .. } | Storage::Paged { .. } => lens.side(role).to_vec(),
        };
        let heads = (0..dims[0]).flat_map(|b| (0..dims[1]).map(move |h| (b, h)));
        let planes = heads.map(|(b, h)| scales.rows(&source, (b, h), 0..rows[b])).collect();
        Ok(Numbers { dims, rows, planes })
    }

    /// Calls `f` with (batch, head), row, column and number.
    fn each(&self, mut f: impl FnMut((usize, usize), usize, usize, f64)) {
        let [_, heads, _, d] = self.dims;
        for (plane, numbers) in self.planes.iter().enumerate() {
            for (at, &x) in numbers.iter().enumerate() {
                f((plane / heads, plane % heads), at / d, at % d, x);
            }
        }
    }

    /// The numbers in 8 bits with scales along the sequence. As the MX formats define it, the scale of a block brings
    /// its largest element to the largest exponent of the type.
    fn stored(
        &self,
        a: &Attention,
        role: Role,
        which: Scaled,
        inputs: &Inputs,
    ) -> Result<(Buffer, Buffer), ReferenceError> {
        let missing = |role| ReferenceError::Missing { role };
        let form = operand(a, role).ok_or(missing(role))?;
        let descale = operand(a, Role::Descale(which)).ok_or(missing(Role::Descale(which)))?;
        let blocks = Blocks::for_scales(a, which).ok_or(missing(Role::Descale(which)))?;
        let mut scales = Buffer::from_values(DType::E8M0, (0..elements(&descale)?).map(|_| 1.0));
        let largest = if form.tensor.dtype == DType::E4M3 { 8 } else { 15 };
        let [_, heads, _, d] = self.dims;
        for (plane, numbers) in self.planes.iter().enumerate() {
            let (b, h) = (plane / heads, plane % heads);
            for first in (0..self.rows[b]).step_by(BLOCK) {
                let last = (first + BLOCK).min(self.rows[b]);
                for column in 0..d {
                    let most = (first..last).fold(0.0, |most: f64, row| most.max(numbers[row * d + column].abs()));
                    if most > 0.0 {
                        let exponent = (most.log2().floor() as i32 - largest).clamp(-127, 127);
                        scales.set(blocks.at((b, h), first, column), 2f64.powi(exponent));
                    }
                }
            }
        }
        let view = crate::View::for_operand(&form, inputs, &SeqLens::for_attention(a, inputs)?)?;
        let mut data = Buffer::from_values(form.tensor.dtype, (0..elements(&form)?).map(|_| 0.0));
        self.each(|(b, h), row, column, x| {
            data.set(view.at(b, h, row, column), x / scales.get(blocks.at((b, h), row, column)));
        });
        Ok((data, scales))
    }

    /// The unscaled numbers, in another operand of the same dims.
    fn copied(&self, a: &Attention, role: Role, inputs: &Inputs) -> Result<Buffer, ReferenceError> {
        let to = operand(a, role).ok_or(ReferenceError::Missing { role })?;
        let view = crate::View::for_operand(&to, inputs, &SeqLens::for_attention(a, inputs)?)?;
        let mut data = Buffer::from_values(to.tensor.dtype, (0..elements(&to)?).map(|_| 0.0));
        self.each(|(b, h), row, column, x| data.set(view.at(b, h, row, column), x));
        Ok(data)
    }
}
