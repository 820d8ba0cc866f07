//! The origins of a launch: their checks, and the numbers of a plan that follow from them.

use std::ops::ControlFlow;

use qkvault_compile::PlanFacts;
use qkvault_cudnn::op::{Constant, OfOrigins};
use qkvault_graph::Binding;
use qkvault_graph::{MAX_ORIGIN, Role};

use crate::bind_error::BindError;
use crate::bindings::Number;
use crate::check::FaultSink;

/// The roles, in the order in which numbers are computed from them.
const ROLES: [Role; 2] = [Role::QueryOrigin, Role::KeyOrigin];

/// Whether a scalar is an origin, which launches of cuDNN are not given as it is.
pub(crate) fn is_origin(role: Role) -> bool {
    ROLES.contains(&role)
}

/// What a plan computes from origins. Plans without origins have none.
#[derive(Debug)]
pub(crate) struct OriginTable {
    /// Places of the queries' and the keys' origin among the plan's scalars.
    places: [usize; 2],
    /// Places among the plan's constants, and the numbers there.
    numbers: Vec<(usize, OfOrigins)>,
}

impl OriginTable {
    /// The table of a plan with these scalars; `None` for a plan without origins.
    pub(crate) fn new(facts: &PlanFacts, scalars: &[Binding]) -> Option<OriginTable> {
        let place = |role: Role| scalars.iter().position(|scalar| scalar.role == role);
        let [query, key] = ROLES.map(place);
        let places = [query?, key?];
        let number = |(at, value)| if let Constant::OfOrigins(number) = value { Some((at, number)) } else { None };
        let numbers = facts.fixed().iter().map(|fixed| fixed.value).enumerate().filter_map(number).collect();
        Some(OriginTable { places, numbers })
    }

    /// The origins among scalars in the plan's order. A number of another type, which no launch takes, counts as 0.
    pub(crate) fn among(&self, scalar: impl Fn(usize) -> Number) -> [i32; 2] {
        self.places.map(|place| if let Number::I32(value) = scalar(place) { value } else { 0 })
    }

    /// Checks the origins that `given` has for a role and its place among the plan's scalars. Missing ones and those of
    /// another type are told elsewhere.
    pub(crate) fn check(
        &self,
        given: impl Fn(Role, usize) -> Option<Number>,
        sink: &mut impl FaultSink,
    ) -> ControlFlow<()> {
        let mut origins = [None; 2];
        for (at, (role, place)) in ROLES.into_iter().zip(self.places).enumerate() {
            match given(role, place) {
                Some(Number::I32(origin)) if (0..=MAX_ORIGIN).contains(&origin) => origins[at] = Some(origin),
                Some(Number::I32(given)) => sink.fault(|| BindError::Origin { role, given })?,
                _ => {}
            }
        }
        match origins {
            [Some(query), Some(key)] if !self.numbers.iter().all(|(_, number)| number.accepts([query, key])) => {
                sink.fault(|| BindError::NoKey { query, key })
            }
            _ => ControlFlow::Continue(()),
        }
    }

    /// Constants that follow from these origins: their places, and their bytes.
    pub(crate) fn numbers(&self, origins: [i32; 2]) -> impl Iterator<Item = (usize, [u8; 4])> + '_ {
        self.numbers.iter().map(move |(at, number)| (*at, Constant::OfOrigins(*number).bytes(origins)))
    }
}

#[cfg(test)]
mod tests;
