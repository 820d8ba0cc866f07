//! Arguments of a launch beside the operands of a plan: names become roles. Nothing here asks a GPU.

use std::ops::ControlFlow;

use qkvault_graph::Binding;
use qkvault_graph::{DType, Role, Valid, Varlen, nearest_name};
use smallvec::SmallVec;

use crate::bind_error::BindError;
use crate::bindings::{Number, RawBindings, RawOperand, Short};
use crate::check::FaultSink;
use crate::raw::DeviceBuffer;
use crate::safe::args::{GivenOperand, Which};
use crate::safe::constants::BoundConstant;

/// The names and constants of the description of a plan, and the plan's operands.
#[derive(Clone, Copy)]
pub(crate) struct Matcher<'p> {
    pub(crate) tensors: &'p [Binding],
    pub(crate) scalars: &'p [Binding],
    pub(crate) attention: Option<&'p Valid>,
    pub(crate) constants: &'p [BoundConstant],
}

/// Arguments by role.
#[derive(Debug, Default)]
pub(crate) struct Matched {
    pub(crate) bindings: RawBindings,
    /// For each of the first bindings, the place of its operand among the caller's. The others are of a batch or the
    /// plan's own.
    pub(crate) places: Short<usize>,
}

/// What is known of an operand of the arguments without its address.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SeenOperand<'a> {
    pub(crate) which: Which<'a>,
    /// Whether it is the gradient of the named tensor.
    pub(crate) gradient: bool,
    /// Whether the caller promises that its numbers lead nowhere else.
    pub(crate) trusted: bool,
    pub(crate) dtype: Option<DType>,
    pub(crate) writable: bool,
}

impl<'a> From<&GivenOperand<'a>> for SeenOperand<'a> {
    fn from(given: &GivenOperand<'a>) -> SeenOperand<'a> {
        let GivenOperand { which, gradient, trusted, held } = given;
        let (which, gradient, trusted) = (*which, *gradient, *trusted);
        SeenOperand { which, gradient, trusted, dtype: held.dtype(), writable: held.writable() }
    }
}

/// The operands of a batch: roles, addresses and bytes.
pub(crate) type OfBatch<'a> = &'a [(Role, u64, u64)];

impl Matcher<'_> {
    /// Adds the arguments by role, with constants and defaults; faults are those of names, and of numbers that nothing
    /// has checked.
    pub(crate) fn bind<'a>(
        &self,
        operands: impl Iterator<Item = (SeenOperand<'a>, DeviceBuffer)>,
        batch: OfBatch<'_>,
        scalars: impl Iterator<Item = (Which<'a>, Number)>,
        Matched { bindings, places }: &mut Matched,
        sink: &mut impl FaultSink,
    ) -> ControlFlow<()> {
        let RawBindings { operands: by_role, scalars: numbers, interleaved: _ } = bindings;
        for (place, (seen, DeviceBuffer { address, bytes })) in operands.enumerate() {
            let of = self.roles_of(&seen);
            if of.is_empty() {
                sink.fault(|| self.unknown(seen.which, seen.gradient, false))?;
            }
            let SeenOperand { which: _, gradient: _, trusted, dtype, writable } = seen;
            for role in of {
                if role.is_followed() && !trusted {
                    sink.fault(|| BindError::Unchecked { role })?;
                }
                by_role.push(RawOperand { role, address, bytes, dtype, writable });
                places.push(place);
            }
        }
        let plain = |role, address, bytes| RawOperand { role, address, bytes, dtype: None, writable: true };
        // One batch is for an attention and for the append before it, each of which reads a part of it.
        let new = |role: Role| matches!(role, Role::Offsets(Varlen::NewK | Varlen::NewV));
        let reads = |role: Role| match self.attention {
            Some(_) => !new(role),
            None => self.tensors.iter().any(|tensor| tensor.role == role),
        };
        let batch = batch.iter().filter(|(role, ..)| reads(*role));
        by_role.extend(batch.map(|&(role, address, bytes)| plain(role, address, bytes)));
        for constant in self.constants {
            if by_role.iter().all(|operand| operand.role != constant.role) {
                by_role.push(plain(constant.role, constant.address, constant.bytes));
            }
        }
        for (which, value) in scalars {
            let of = self.scalars_of(which);
            if of.is_empty() {
                sink.fault(|| self.unknown(which, false, true))?;
            }
            numbers.extend(of.into_iter().map(|role| (role, value)));
        }
        // The softmax scale may be left out.
        if let Some(attention) = self.attention
            && self.scalars.iter().any(|scalar| scalar.role == Role::Scale)
            && numbers.iter().all(|(role, _)| *role != Role::Scale)
        {
            numbers.push((Role::Scale, Number::F32(attention.default_scale())));
        }
        ControlFlow::Continue(())
    }

    /// The roles of an operand: one, or two where score modification and mask use the name; none for an unknown name.
    pub(crate) fn roles_of(&self, seen: &SeenOperand<'_>) -> SmallVec<[Role; 2]> {
        match seen.which {
            Which::Role(role) => SmallVec::from_slice(&[role]),
            Which::Named(name) => self.attention.map_or_else(SmallVec::new, |attention| match seen.gradient {
                true => attention.gradient_role(name).into_iter().collect(),
                false => attention.tensor_roles(name).collect(),
            }),
        }
    }

    /// The roles of a scalar, as [`Matcher::roles_of`].
    pub(crate) fn scalars_of(&self, which: Which<'_>) -> SmallVec<[Role; 2]> {
        match which {
            Which::Role(role) => SmallVec::from_slice(&[role]),
            Which::Named(name) => self.attention.map_or_else(SmallVec::new, |a| a.scalar_roles(name).collect()),
        }
    }

    /// The error for a name that the description does not have.
    pub(crate) fn unknown(&self, which: Which<'_>, gradient: bool, scalar: bool) -> BindError {
        let name = match which {
            Which::Named(name) => name.to_owned(),
            Which::Role(role) => role.to_string(),
        };
        let names: Vec<String> = self.attention.map_or_else(Vec::new, |attention| {
            let tensors = attention.score_tensors().filter(|tensor| !gradient || tensor.gradient.is_some());
            let scalars = attention.scalars().map(|scalar| scalar.name.to_owned());
            if scalar { scalars.collect() } else { tensors.map(|tensor| tensor.name.to_owned()).collect() }
        });
        let nearest = nearest_name(&name, names.iter().map(String::as_str)).map(str::to_owned);
        let what = match (gradient, scalar) {
            (true, _) => "tensor with a gradient",
            (_, true) => "scalar",
            _ => "tensor",
        };
        BindError::NoSuchName { name, what, nearest, names, described: self.attention.is_some() }
    }
}

#[cfg(test)]
mod tests;
