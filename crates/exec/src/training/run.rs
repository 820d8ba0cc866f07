//! The scalars of a forward, which its backward must have too: the pair adds them and refuses others.

use qkvault_compile::PlanFacts;
use qkvault_graph::Role;

use crate::bindings::{Number, RoleNumbers};
use crate::training::TrainingError;
use crate::training::fingerprints::Fingerprints;

/// Operands that a pair saves between forward and backward in its own memory.
const SAVED_ROLES: [Role; 3] = [Role::Stats, Role::DropoutSeed, Role::DropoutOffset];

/// Seed and offset of dropout: scalars of the caller, and operands on the GPU of the plan.
const DROPOUT: [Role; 2] = [Role::DropoutSeed, Role::DropoutOffset];

/// The scalars of a forward that was launched, and fingerprints of its operands if they are checked.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ForwardRun {
    numbers: RoleNumbers,
    fingerprints: Option<Fingerprints>,
}

/// Copies the scalars that a forward is given, and removes the seed and offset of dropout from them: the caller writes
/// them to the GPU, where the plan reads them ([`ForwardRun::dropout`]). `operands` are the roles of the given
/// operands.
///
/// # Errors
///
/// [`TrainingError`] if the seed or offset of dropout is missing or has another type, or an operand is given that the
/// pair saves.
pub(crate) fn forward_run(
    facts: &PlanFacts,
    operands: impl IntoIterator<Item = Role>,
    given: &mut RoleNumbers,
) -> Result<ForwardRun, TrainingError> {
    refuse_saved(operands)?;
    for role in DROPOUT.into_iter().filter(|role| has(facts, *role)) {
        match given.iter().find(|(r, _)| *r == role) {
            None => return Err(TrainingError::MissingNumber { role }),
            Some((_, Number::I64(_))) => {}
            Some((_, other)) => return Err(TrainingError::NotAnInteger { role, given: other.to_string() }),
        }
    }
    let numbers = given.iter().filter(|(role, _)| has(facts, *role)).copied().collect();
    given.retain(|(role, _)| !(DROPOUT.contains(role) && has(facts, *role)));
    Ok(ForwardRun { numbers, fingerprints: None })
}

impl ForwardRun {
    /// Seed and offset of dropout, if the forward had dropout.
    #[must_use]
    pub(crate) fn dropout(&self) -> Option<(i64, i64)> {
        match DROPOUT.map(|role| self.number(role)) {
            [Some(Number::I64(seed)), Some(Number::I64(offset))] => Some((seed, offset)),
            _ => None,
        }
    }

    /// Adds the scalars of the forward to those of its backward.
    ///
    /// # Errors
    ///
    /// [`TrainingError::OtherNumber`] for a scalar that differs from the forward's, [`TrainingError::SavedRole`] for a
    /// bound role that the pair saves.
    pub(crate) fn complete(
        &self,
        facts: &PlanFacts,
        operands: impl IntoIterator<Item = Role>,
        given: &mut RoleNumbers,
    ) -> Result<(), TrainingError> {
        refuse_saved(operands)?;
        for &(role, backward) in given.iter() {
            if let Some(forward) = self.number(role).filter(|forward| *forward != backward) {
                return Err(TrainingError::other_number(role, forward, backward));
            }
        }
        // Scalars that the forward did not have stay, so that binding refuses them by name.
        given.retain(|(role, _)| self.number(*role).is_none());
        let wanted = self.numbers.iter().filter(|(role, _)| has(facts, *role) && !DROPOUT.contains(role));
        given.extend(wanted.copied());
        Ok(())
    }

    /// The run with fingerprints of its operands.
    #[must_use]
    pub(crate) fn with_fingerprints(self, fingerprints: Fingerprints) -> ForwardRun {
        ForwardRun { fingerprints: Some(fingerprints), ..self }
    }

    /// Compares operands with those of the forward, if the forward has fingerprints.
    ///
    /// # Errors
    ///
    /// [`TrainingError::Changed`] with the operands that changed.
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

fn refuse_saved(operands: impl IntoIterator<Item = Role>) -> Result<(), TrainingError> {
    match operands.into_iter().find(|role| SAVED_ROLES.contains(role)) {
        Some(role) => Err(TrainingError::SavedRole { role }),
        None => Ok(()),
    }
}
