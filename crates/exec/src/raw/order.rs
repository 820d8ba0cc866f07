//! What a caller gives to a launch, in order and by name: a plan's operands less those that it has itself.

use qkvault_compile::PlanFacts;
use qkvault_graph::Binding;
use qkvault_graph::{Role, Valid, nearest_name};
use smallvec::SmallVec;

use crate::bind_error::{BindError, BindErrors};
use crate::bindings::{Number, Values};
use crate::check::{check_number, check_size, faults, missing};
use crate::constants::slopes;
use crate::raw::launch::DeviceBuffer;

/// Buffers of a launch that fit the stack.
pub(crate) type LaunchBuffers = SmallVec<[DeviceBuffer; 16]>;

/// The tensors and scalars that a caller gives to a launch of a plan, in the order of a launch. Needs no GPU.
///
/// Scratch buffers, and constants that follow from the description (ALiBi slopes), are left out.
#[derive(Clone, Debug)]
pub struct LaunchOrder {
    tensors: Vec<Binding>,
    scalars: Vec<Binding>,
    /// The constants, each with its place among all tensors of the plan.
    constants: Vec<(Role, usize)>,
    names: Vec<OperandName>,
    usual_scale: Option<(usize, f32)>,
}

/// The names of one operand.
#[derive(Clone, Debug)]
struct OperandName {
    /// That of its role.
    role: String,
    /// That of the description's expressions; of a gradient, with `d_` before it.
    spoken: Option<String>,
    scalar: bool,
    /// Its place in the order.
    place: usize,
}

/// Arguments of a launch by name, in any order. A name is that of a role ([`Role::name`]), of a scalar or tensor in the
/// description's expressions, or `d_` and the name of a tensor for its gradient.
#[derive(Clone, Copy, Debug, Default)]
pub struct NamedArgs<'a> {
    /// Memory of tensors.
    pub tensors: &'a [(&'a str, DeviceBuffer)],
    /// Values of scalars. The softmax scale may be left out; it is then one over the square root of the head dim.
    pub scalars: &'a [(&'a str, Number)],
    /// As in [`RawArgs`](crate::raw::RawArgs::workspace).
    pub workspace: DeviceBuffer,
    /// As in [`RawArgs`](crate::raw::RawArgs::interleaved).
    pub interleaved: &'a [(Role, Role)],
}

impl LaunchOrder {
    /// The order of a plan with these facts, which computes this attention.
    #[must_use]
    pub fn for_plan(facts: &PlanFacts, attention: &Valid) -> LaunchOrder {
        let constant: Vec<Role> = slopes(attention).into_iter().map(|(role, _)| role).collect();
        let (scalars, all): (Vec<Binding>, Vec<Binding>) =
            facts.bindings.iter().copied().filter(|b| !b.role.is_internal()).partition(|b| b.scalar);
        let is_constant = |tensor: &Binding| constant.contains(&tensor.role);
        let constants = all.iter().enumerate().filter(|(_, t)| is_constant(t)).map(|(at, t)| (t.role, at)).collect();
        let tensors: Vec<Binding> = all.into_iter().filter(|tensor| !is_constant(tensor)).collect();
        let of = attention.operand_facts();
        let name = |(place, binding): (usize, &Binding)| {
            let named = of.iter().find(|fact| fact.role == binding.role).and_then(|fact| fact.name);
            let spoken = named.map(|name| match binding.role {
                Role::DScoreTensor(_) => format!("d_{name}"),
                _ => name.to_owned(),
            });
            OperandName { role: binding.role.name().into_owned(), spoken, scalar: binding.scalar, place }
        };
        let names = tensors.iter().enumerate().chain(scalars.iter().enumerate()).map(name).collect();
        let scale = scalars.iter().position(|scalar| scalar.role == Role::Scale);
        let usual_scale = scale.map(|at| (at, attention.default_scale()));
        LaunchOrder { tensors, scalars, constants, names, usual_scale }
    }

    /// The tensors that the caller gives, in order.
    #[must_use]
    pub fn tensors(&self) -> &[Binding] {
        &self.tensors
    }

    /// The scalars, in order.
    #[must_use]
    pub fn scalars(&self) -> &[Binding] {
        &self.scalars
    }

    /// The constant operands that whoever loads the plan puts on the GPU.
    pub fn constants(&self) -> impl Iterator<Item = Role> + '_ {
        self.constants.iter().map(|(role, _)| *role)
    }

    pub(crate) fn constant_places(&self) -> &[(Role, usize)] {
        &self.constants
    }

    /// The places in the order that a name stands for, and whether they are among the scalars. Two where score
    /// modification and mask both use the name; none for an unknown name. A role's own name wins.
    pub fn places<'o>(&'o self, name: &'o str) -> impl Iterator<Item = (usize, bool)> + 'o {
        let by_role = self.names.iter().any(|of| of.role == name);
        let means = move |of: &&OperandName| if by_role { of.role == name } else { of.spoken.as_deref() == Some(name) };
        self.names.iter().filter(means).map(|of| (of.place, of.scalar))
    }

    /// The error for a name that stands for nothing, with the most similar name.
    #[must_use]
    pub fn unknown(&self, name: &str) -> BindError {
        let names: Vec<String> =
            self.names.iter().map(|of| of.spoken.clone().unwrap_or_else(|| of.role.clone())).collect();
        let nearest = nearest_name(name, names.iter().map(String::as_str)).map(str::to_owned);
        BindError::NoSuchName { name: name.to_owned(), what: "operand", nearest, names, described: true }
    }

    /// Says what is wrong in arguments by name, as far as it can be seen without addresses.
    ///
    /// # Errors
    ///
    /// Every name that is unknown, given twice or of the other kind, and everything that is missing; else every buffer
    /// of a wrong size and every number of another type.
    pub fn check(&self, facts: &PlanFacts, args: &NamedArgs<'_>) -> Result<(), BindErrors> {
        let (buffers, values) = self.arrange(facts, args)?;
        let (mut sized, mut typed) = (self.tensors.iter().zip(&buffers), self.scalars.iter().zip(&values));
        let errors = faults(|all| {
            sized.try_for_each(|(tensor, buffer)| check_size(tensor, buffer.bytes, all))?;
            typed.try_for_each(|(scalar, value)| check_number(scalar, value.dtype(), all))
        });
        BindErrors::check(facts, errors)
    }

    /// Buffers and numbers in order, of arguments by name.
    ///
    /// # Errors
    ///
    /// Every name that is unknown, given twice or of the other kind, and everything that is missing.
    pub(crate) fn arrange(
        &self,
        facts: &PlanFacts,
        args: &NamedArgs<'_>,
    ) -> Result<(LaunchBuffers, Values), BindErrors> {
        let mut errors = Vec::new();
        let mut buffers: SmallVec<[Option<DeviceBuffer>; 16]> = SmallVec::from_elem(None, self.tensors.len());
        let mut values: SmallVec<[Option<Number>; 6]> = SmallVec::from_elem(None, self.scalars.len());
        for &(name, buffer) in args.tensors {
            self.put(name, false, &mut errors, |place| buffers[place].replace(buffer).is_some());
        }
        for &(name, value) in args.scalars {
            self.put(name, true, &mut errors, |place| values[place].replace(value).is_some());
        }
        if let Some((at, scale)) = self.usual_scale {
            values[at].get_or_insert(Number::F32(scale));
        }
        let of_tensors =
            self.tensors.iter().zip(&buffers).filter(|(_, given)| given.is_none()).map(|(b, _)| missing(b));
        let of_scalars = self.scalars.iter().zip(&values).filter(|(_, given)| given.is_none()).map(|(b, _)| missing(b));
        errors.extend(of_tensors.chain(of_scalars));
        BindErrors::check(facts, errors)?;
        Ok((buffers.into_iter().flatten().collect(), values.into_iter().flatten().collect()))
    }

    /// Puts an argument into the places of its name. `put` returns whether there was one already.
    fn put(&self, name: &str, scalar: bool, errors: &mut Vec<BindError>, mut put: impl FnMut(usize) -> bool) {
        let mut found = false;
        for (place, is_scalar) in self.places(name) {
            found = true;
            let Binding { role, dtype, bytes, .. } = if is_scalar { self.scalars[place] } else { self.tensors[place] };
            if is_scalar != scalar {
                errors.push(match is_scalar {
                    true => BindError::NotATensor { role, dtype },
                    false => BindError::NotANumber { role, dtype, bytes },
                });
            } else if put(place) {
                errors.push(BindError::Duplicate { role, times: 2 });
            }
        }
        if !found {
            errors.push(self.unknown(name));
        }
    }
}

#[cfg(test)]
mod tests;
