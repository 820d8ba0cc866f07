//! Arguments of a launch beside the operands of a plan: names become roles, quickly where everything is right, and
//! with all errors otherwise. Nothing here asks a GPU.

use qkvault_graph::op::Binding;
use qkvault_graph::{DType, Role, Valid, nearest_name};
use smallvec::SmallVec;

use crate::bind_error::BindError;
use crate::bindings::{Number, Operand, RawBindings};
use crate::raw::DeviceBuffer;
use crate::safe::args::{Given, Which};
use crate::safe::constants::BoundConstant;

/// Operands of a launch that fit the stack.
const INLINE: usize = 12;

pub(crate) type Short<T> = SmallVec<[T; INLINE]>;

/// The values of a plan's scalars, in its order.
pub(crate) type Values = SmallVec<[Number; 6]>;

/// What a plan takes, and the names and constants of its description.
#[derive(Clone, Copy)]
pub(crate) struct Wanted<'p> {
    pub(crate) tensors: &'p [Binding],
    pub(crate) scalars: &'p [Binding],
    pub(crate) attention: Option<&'p Valid>,
    pub(crate) constants: &'p [BoundConstant],
}

/// What is known of an operand of the arguments without its address.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seen<'a> {
    pub(crate) which: Which<'a>,
    /// Whether it is the gradient of the named tensor.
    pub(crate) gradient: bool,
    /// Whether the caller promises that its numbers lead nowhere else.
    pub(crate) trusted: bool,
    pub(crate) dtype: Option<DType>,
    pub(crate) writable: bool,
}

impl<'a> From<&Given<'a>> for Seen<'a> {
    fn from(given: &Given<'a>) -> Seen<'a> {
        let Given { which, gradient, trusted, held } = given;
        let (which, gradient, trusted) = (*which, *gradient, *trusted);
        Seen { which, gradient, trusted, dtype: held.dtype(), writable: held.writable() }
    }
}

/// The operands of a batch: roles, addresses and bytes.
pub(crate) type OfBatch<'a> = &'a [(Role, u64, u64)];

impl Wanted<'_> {
    /// The values of the scalars, if nothing is wrong as far as it can be seen without addresses. `roles` becomes the
    /// roles of each operand, by its place.
    pub(crate) fn accepts<'a>(
        &self,
        operands: impl Iterator<Item = Seen<'a>>,
        batch: OfBatch<'_>,
        scalars: impl Iterator<Item = (Which<'a>, Number)>,
        roles: &mut Short<(usize, Role)>,
    ) -> Option<Values> {
        for (at, seen) in operands.enumerate() {
            let of = self.roles_of(&seen);
            if of.is_empty() {
                return None;
            }
            for role in of {
                let tensor = self.tensors.iter().find(|tensor| tensor.role == role)?;
                let right = seen.dtype.is_none_or(|dtype| dtype == tensor.dtype)
                    && (seen.writable || !tensor.output)
                    && (seen.trusted || !role.is_followed())
                    && roles.iter().all(|(_, other)| *other != role);
                if !right {
                    return None;
                }
                roles.push((at, role));
            }
        }
        let given = |role: Role| roles.iter().any(|(_, other)| *other == role);
        let in_batch = |role: Role| batch.iter().any(|(other, ..)| *other == role);
        let constant = |role: Role| self.constants.iter().any(|constant| constant.role == role);
        let filled = |tensor: &Binding| given(tensor.role) || in_batch(tensor.role) || constant(tensor.role);
        let known = |role: Role| self.tensors.iter().any(|tensor| tensor.role == role);
        if !self.tensors.iter().all(filled) || !batch.iter().all(|(role, ..)| known(*role) && !given(*role)) {
            return None;
        }
        let mut given: SmallVec<[(Role, Number); 6]> = SmallVec::new();
        for (which, value) in scalars {
            let of = self.scalars_of(which);
            let wanted = |role: &Role| self.scalars.iter().any(|s| s.role == *role && s.dtype == value.dtype());
            let again = |role: &Role| given.iter().any(|(other, _)| other == role);
            if of.is_empty() || !of.iter().all(wanted) || of.iter().any(again) {
                return None;
            }
            given.extend(of.into_iter().map(|role| (role, value)));
        }
        let value = |role: Role| given.iter().find(|(r, _)| *r == role).map(|(_, value)| *value);
        self.scalars.iter().map(|scalar| value(scalar.role).or_else(|| self.usual(scalar.role))).collect()
    }

    /// The buffer of a tensor: the caller's, a batch's, or the plan's own.
    pub(crate) fn buffer(&self, role: Role, given: &[(Role, DeviceBuffer)], batch: OfBatch<'_>) -> DeviceBuffer {
        let given = given.iter().find(|(other, _)| *other == role).map(|(_, buffer)| *buffer);
        let of_batch = || {
            let found = batch.iter().find(|(other, ..)| *other == role);
            found.map(|&(_, address, bytes)| DeviceBuffer { address, bytes })
        };
        let own = || self.constants.iter().find(|constant| constant.role == role).map(BoundConstant::buffer);
        given.or_else(of_batch).or_else(own).unwrap_or_default()
    }

    /// The arguments by role, with what is wrong in names and sources. Defaults are filled in.
    pub(crate) fn bindings<'a>(
        &self,
        operands: impl Iterator<Item = (Seen<'a>, DeviceBuffer)>,
        batch: OfBatch<'_>,
        scalars: impl Iterator<Item = (Which<'a>, Number)>,
        interleaved: &[(Role, Role)],
    ) -> (RawBindings, Vec<BindError>) {
        let mut errors = Vec::new();
        let mut raw = interleaved.iter().fold(RawBindings::new(), |all, (a, b)| all.interleaved(*a, *b));
        for (seen, DeviceBuffer { address, bytes }) in operands {
            let of = self.roles_of(&seen);
            if of.is_empty() {
                errors.push(self.unknown(seen.which, seen.gradient, false));
            }
            let Seen { which: _, gradient: _, trusted, dtype, writable } = seen;
            for role in of {
                if role.is_followed() && !trusted {
                    errors.push(BindError::Unchecked { role });
                }
                raw = raw.operand(Operand { role, address, bytes, dtype, writable });
            }
        }
        for &(role, address, bytes) in batch {
            raw = raw.tensor(role, address, bytes);
        }
        for constant in self.constants {
            if raw.operands.iter().all(|operand| operand.role != constant.role) {
                let DeviceBuffer { address, bytes } = constant.buffer();
                raw = raw.tensor(constant.role, address, bytes);
            }
        }
        for (which, value) in scalars {
            let of = self.scalars_of(which);
            if of.is_empty() {
                errors.push(self.unknown(which, false, true));
            }
            raw = of.into_iter().fold(raw, |raw, role| raw.scalar(role, value));
        }
        for scalar in self.scalars {
            if let Some(value) = self.usual(scalar.role)
                && raw.scalars.iter().all(|(role, _)| *role != scalar.role)
            {
                raw = raw.scalar(scalar.role, value);
            }
        }
        (raw, errors)
    }

    /// The roles of an operand: one, or two where score modification and mask use the name; none for an unknown name.
    pub(crate) fn roles_of(&self, seen: &Seen<'_>) -> SmallVec<[Role; 2]> {
        match seen.which {
            Which::Role(role) => SmallVec::from_slice(&[role]),
            Which::Named(name) => self.attention.map_or_else(SmallVec::new, |attention| match seen.gradient {
                true => attention.gradient_role(name).into_iter().collect(),
                false => attention.tensor_roles(name).collect(),
            }),
        }
    }

    /// The roles of a scalar, as [`Wanted::roles_of`].
    pub(crate) fn scalars_of(&self, which: Which<'_>) -> SmallVec<[Role; 2]> {
        match which {
            Which::Role(role) => SmallVec::from_slice(&[role]),
            Which::Named(name) => self.attention.map_or_else(SmallVec::new, |a| a.scalar_roles(name).collect()),
        }
    }

    /// The value of a scalar that may be left out: the softmax scale.
    fn usual(&self, role: Role) -> Option<Number> {
        self.attention.filter(|_| role == Role::Scale).map(|attention| Number::F32(attention.default_scale()))
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
