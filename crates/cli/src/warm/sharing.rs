//! How many plans suffice for how many attentions of how many models.

use std::collections::{BTreeMap, BTreeSet};

use qkvault_graph::PlanKey;
use serde_json::{Value, json};

use crate::jobs::AttentionJob;

/// What models share, for one target.
pub(super) struct Sharing {
    models: usize,
    /// Attentions of layers, phases and sizes, of each model.
    uses: usize,
    plans: usize,
    /// Plans of several models.
    shared: usize,
}

impl Sharing {
    /// Counts over every job with the key of its plan, of all parts.
    pub(super) fn count<'j>(jobs: impl Iterator<Item = (&'j AttentionJob, Option<PlanKey>)>) -> Sharing {
        let mut models = BTreeSet::new();
        let mut plans: BTreeMap<PlanKey, BTreeSet<&str>> = BTreeMap::new();
        let mut uses = 0;
        for (job, key) in jobs {
            uses += job.uses.len();
            let of_job = job.uses.iter().map(|usage| usage.model.as_str());
            models.extend(of_job.clone());
            if let Some(key) = key {
                plans.entry(key).or_default().extend(of_job);
            }
        }
        let shared = plans.values().filter(|models| models.len() > 1).count();
        Sharing { models: models.len(), uses, plans: plans.len(), shared }
    }

    pub(super) fn json(&self) -> Value {
        let Sharing { models, uses, plans, shared } = self;
        json!({ "models": models, "uses": uses, "plans": plans, "shared": shared })
    }

    /// The summary in words; `None` for one model, which shares with nobody.
    pub(super) fn line(&self) -> Option<String> {
        let Sharing { models, uses, plans, shared } = self;
        (*models > 1).then(|| {
            format!("{uses} attentions of {models} models come to {plans} plans, {shared} of them for several models")
        })
    }
}
