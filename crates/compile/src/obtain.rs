//! The one way to a plan: it is looked up, or built and stored, or built anew over what is stored.

use std::sync::Arc;
use std::time::Instant;

use qkvault_cache::{Entry, Error as VaultError, Source, StoreError, Vault};
use qkvault_graph::{PlanKey, Refusal};

use crate::choice::EngineChoice;
use crate::engine::{EngineId, Unbuilt, Work};
use crate::limit::over;
use crate::look::{discredit, stored, vault_key};
use crate::plan::Plan;
use crate::plan_error::PlanError;
use crate::planner::{OnMiss, Planner, Resolution};

/// The source of an answer, why it was not stored if it was not, and the answer.
pub(crate) type Found = (Source, Option<Arc<StoreError>>, Result<Arc<Plan>, Refusal>);

/// How a plan is found: as far as a miss allows, but the one of this key is built anew.
#[derive(Clone, Copy)]
pub(crate) struct How<'a> {
    pub(crate) on_miss: OnMiss,
    pub(crate) anew: Option<&'a PlanKey>,
}

impl From<OnMiss> for How<'_> {
    fn from(on_miss: OnMiss) -> Self {
        How { on_miss, anew: None }
    }
}

impl Planner {
    /// The plan of a work of an engine, within a limit of scratch memory.
    pub(crate) fn resolve(
        &self,
        engine: EngineId,
        work: &dyn Work,
        limit: Option<u64>,
        how: How<'_>,
    ) -> Result<Resolution, PlanError> {
        let started = Instant::now();
        let find = |work: &dyn Work, key| find(&self.vault_of(work), engine, (work, key), how);
        let exceeds = |found: &Found| found.2.as_ref().ok().and_then(|plan| over(&plan.facts, limit?));
        let mut key = work.key();
        let mut found = find(work, key)?;
        // The plan of the first choice if it is within the limit, else that which needs the least.
        if exceeds(&found).is_some()
            && let Some(smaller) = work.smaller()
        {
            key = smaller.key();
            found = find(&*smaller, key)?;
        }
        // The refusal follows from stored plans, and is not stored itself.
        if let Some(reason) = exceeds(&found) {
            found.2 = Err(reason.into());
        }
        let (source, unstored, outcome) = found;
        let (graph_key, engine) = (work.graph_key(), EngineChoice::named(engine));
        let milliseconds = started.elapsed().as_secs_f64() * 1e3;
        Ok(Resolution { key: Some(key), graph_key, source, unstored, engine, outcome, milliseconds })
    }

    /// The vault as a work sees it: with the refusals of its library.
    pub(crate) fn vault_of(&self, work: &dyn Work) -> Vault {
        work.library().map_or_else(|| self.vault.clone(), |version| self.vault.for_library(&version))
    }
}

/// A work with its key.
type Keyed<'a> = (&'a dyn Work, PlanKey);

fn find(vault: &Vault, engine: EngineId, (work, key): Keyed<'_>, how: How<'_>) -> Result<Found, PlanError> {
    match how.on_miss {
        OnMiss::Compile if how.anew == Some(&key) => replace(vault, engine, (work, key)),
        OnMiss::Compile => obtain(vault, engine, (work, key)),
        OnMiss::Load | OnMiss::Memory => {
            let memory_alone = how.on_miss == OnMiss::Memory;
            let unused = match stored(vault, &key, memory_alone) {
                Ok((source, entry)) => match work.read(key, &entry) {
                    Ok(outcome) => return Ok((source, None, outcome)),
                    Err(bad) => {
                        discredit(vault, &key, &entry, &bad);
                        Some(bad.to_string())
                    }
                },
                Err(unused) => unused,
            };
            // Who looks into the memory alone asks often, and finds another way.
            let text = if memory_alone { None } else { work.text().map(Into::into) };
            Err(PlanError::Missing {
                key,
                what: work.what(),
                text,
                target: work.target(),
                memory_alone,
                unused: unused.map(Into::into),
            })
        }
    }
}

fn obtain(vault: &Vault, engine: EngineId, (work, key): Keyed<'_>) -> Result<Found, PlanError> {
    let obtained = match vault.get_or_build(&vault_key(&key), || built((work, key))) {
        Ok(obtained) => obtained,
        Err(VaultError::Build(why)) => return unbuilt(engine, key, &why),
        Err(other) => return Err(PlanError::Interrupted { key, why: other.to_string() }),
    };
    match work.read(key, &obtained.entry) {
        Ok(outcome) => Ok((obtained.source, obtained.unstored, outcome)),
        Err(bad) => {
            // A whole entry of another version of qkvault, or an altered one: the plan is built again.
            discredit(vault, &key, &obtained.entry, &bad);
            replace(vault, engine, (work, key))
        }
    }
}

/// Builds a plan and puts it over what is stored under its key.
fn replace(vault: &Vault, engine: EngineId, (work, key): Keyed<'_>) -> Result<Found, PlanError> {
    let entry = match built((work, key)) {
        Ok(entry) => Arc::new(entry),
        Err(why) => return unbuilt(engine, key, &why),
    };
    let outcome = work.read(key, &entry).map_err(|bad| PlanError::Unfit { key, why: bad.to_string() })?;
    let unstored = vault.replace(&vault_key(&key), Entry::clone(&entry)).err().map(Arc::new);
    Ok((Source::Built, unstored, outcome))
}

fn built((work, key): Keyed<'_>) -> Result<Entry, Unbuilt> {
    let _span = tracing::info_span!("plan.build", %key, what = work.what()).entered();
    work.build()
}

fn unbuilt(engine: EngineId, key: PlanKey, why: &Unbuilt) -> Result<Found, PlanError> {
    match why {
        Unbuilt::NoCompiler(why) => Err(PlanError::NoCompiler { key, why: why.clone() }),
        Unbuilt::Failed { error, gap } => Err(PlanError::Failed { key, engine, error: Arc::clone(error), gap: *gap }),
        Unbuilt::Refused(refusal) => Ok((Source::Built, None, Err(refusal.clone()))),
    }
}
