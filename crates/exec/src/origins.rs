//! The origins of a launch: their checks, and the numbers of a plan that follow from them.

use qkvault_compile::PlanFacts;
use qkvault_graph::op::{Binding, Constant, OfOrigins};
use qkvault_graph::{MAX_ORIGIN, Role};

use crate::bind_error::BindError;
use crate::bindings::Number;

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
    pub(crate) fn of(&self, scalar: impl Fn(usize) -> Number) -> [i32; 2] {
        self.places.map(|place| if let Number::I32(value) = scalar(place) { value } else { 0 })
    }

    /// Whether a launch may have these origins.
    pub(crate) fn accepts(&self, origins: [i32; 2]) -> bool {
        origins.iter().all(|origin| (0..=MAX_ORIGIN).contains(origin))
            && self.numbers.iter().all(|(_, number)| number.accepts(origins))
    }

    /// Constants that follow from these origins: their places, and their bytes.
    pub(crate) fn numbers(&self, origins: [i32; 2]) -> impl Iterator<Item = (usize, [u8; 4])> + '_ {
        self.numbers.iter().map(move |(at, number)| (*at, Constant::OfOrigins(*number).bytes(origins)))
    }
}

/// What is wrong with the origins among scalars by role, for [`OriginTable::accepts`] to be false. Missing ones and
/// those of another type are told elsewhere.
pub(crate) fn errors(facts: &PlanFacts, scalars: &[(Role, Number)], errors: &mut Vec<BindError>) {
    let has = |role: Role| facts.bindings.iter().any(|binding| binding.role == role);
    let given = |role: Role| match scalars.iter().find(|(other, _)| *other == role) {
        Some((_, Number::I32(value))) if has(role) => Some(*value),
        _ => None,
    };
    let origins = ROLES.map(|role| given(role).map(|value| (role, value)));
    let far = |(role, given): &(Role, i32)| (!(0..=MAX_ORIGIN).contains(given)).then_some((*role, *given));
    let wrong = origins.iter().flatten().filter_map(far);
    let before = errors.len();
    errors.extend(wrong.map(|(role, given)| BindError::Origin { role, given }));
    let [Some((_, query)), Some((_, key))] = origins else { return };
    if errors.len() > before {
        return;
    }
    let hidden = |value| matches!(value, Constant::OfOrigins(number) if !number.accepts([query, key]));
    if facts.fixed().iter().any(|fixed| hidden(fixed.value)) {
        errors.push(BindError::NoKey { query, key });
    }
}

#[cfg(test)]
mod tests;
