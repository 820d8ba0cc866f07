//! What a forward ran with, as far as its backward has to be given the same: numbers are taken from it, and others refused.

use qkvault_compile::PlanFacts;
use qkvault_graph::Role;

use crate::bindings::{Number, RawBindings};
use crate::training::TrainingError;
use crate::training::fingerprints::Fingerprints;

/// Operands that a pair keeps between forward and backward, in memory of its own.
const SAVED_ROLES: [Role; 3] = [Role::Stats, Role::DropoutSeed, Role::DropoutOffset];

/// Dropout's two numbers: on the GPU for the plan, numbers for the caller.
const DROPOUT: [Role; 2] = [Role::DropoutSeed, Role::DropoutOffset];

/// A forward that was launched.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ForwardRun {
    numbers: Vec<(Role, Number)>,
    fingerprints: Option<Fingerprints>,
}

/// Takes the numbers out of what a forward is given: what the plan wants as scalars stays, dropout's seed and offset are taken out (the
/// caller of this puts them where the plan reads them: [`ForwardRun::dropout`]).
///
/// # Errors
///
/// [`TrainingError`], for what is missing, of another type, or the pair's own.
pub(crate) fn forward_run(facts: &PlanFacts, given: &mut RawBindings) -> Result<ForwardRun, TrainingError> {
    refuse_saved(given)?;
    for role in DROPOUT.into_iter().filter(|role| has(facts, *role)) {
        match given.scalars.iter().find(|(r, _)| *r == role) {
            None => return Err(TrainingError::MissingNumber { role }),
            Some((_, Number::I64(_))) => {}
            Some((_, other)) => return Err(TrainingError::NotAnInteger { role, given: other.to_string() }),
        }
    }
    let numbers = given.scalars.iter().filter(|(role, _)| has(facts, *role)).copied().collect();
    given.scalars.retain(|(role, _)| !(DROPOUT.contains(role) && has(facts, *role)));
    Ok(ForwardRun { numbers, fingerprints: None })
}

impl ForwardRun {
    /// Dropout's seed and offset, where the forward had dropout.
    #[must_use]
    pub(crate) fn dropout(&self) -> Option<(i64, i64)> {
        match DROPOUT.map(|role| self.number(role)) {
            [Some(Number::I64(seed)), Some(Number::I64(offset))] => Some((seed, offset)),
            _ => None,
        }
    }

    /// Completes what the backward is given by the forward's numbers.
    ///
    /// # Errors
    ///
    /// [`TrainingError::OtherNumber`] for a number that differs from the forward's, [`TrainingError::SavedRole`].
    pub(crate) fn complete(&self, facts: &PlanFacts, given: &mut RawBindings) -> Result<(), TrainingError> {
        refuse_saved(given)?;
        for &(role, backward) in &given.scalars {
            if let Some(forward) = self.number(role).filter(|forward| *forward != backward) {
                return Err(TrainingError::other_number(role, forward, backward));
            }
        }
        // What the forward did not have stays, for binding to refuse by name.
        given.scalars.retain(|(role, _)| self.number(*role).is_none());
        let wanted = self.numbers.iter().filter(|(role, _)| has(facts, *role) && !DROPOUT.contains(role));
        given.scalars.extend(wanted);
        Ok(())
    }

    /// The run with fingerprints of its operands.
    #[must_use]
    pub(crate) fn with_fingerprints(self, fingerprints: Fingerprints) -> ForwardRun {
        ForwardRun { fingerprints: Some(fingerprints), ..self }
    }

    /// Compares operands with what they were in the forward; without fingerprints of then, nothing is known and nothing is said.
    ///
    /// # Errors
    ///
    /// [`TrainingError::Changed`].
    pub(crate) fn check(&self, now: &Fingerprints) -> Result<(), TrainingError> {
        match self.fingerprints.as_ref().map(|then| then.changed(now)) {
            Some(roles) if !roles.is_empty() => Err(TrainingError::Changed { roles }),
            _ => Ok(()),
        }
    }

    fn number(&self, role: Role) -> Option<Number> {
        self.numbers.iter().find(|(r, _)| *r == role).map(|(_, value)| *value)
    }
}

fn has(facts: &PlanFacts, role: Role) -> bool {
    facts.bindings.iter().any(|b| b.role == role)
}

fn refuse_saved(given: &RawBindings) -> Result<(), TrainingError> {
    match given.operands.iter().map(|o| o.role).find(|role| SAVED_ROLES.contains(role)) {
        Some(role) => Err(TrainingError::SavedRole { role }),
        None => Ok(()),
    }
}
