//! The plans that a runtime has loaded: bounded by number and by bytes, and loaded once for all threads that ask.

use std::sync::Arc;

use qkvault_base::CacheBounds;
use qkvault_exec::LoadedPlan;
use qkvault_graph::Fingerprint;
use quick_cache::sync::Cache;
use quick_cache::{DefaultHashBuilder, Weighter};

/// Loaded plans by the fingerprint of their description.
pub(super) struct LoadedPlans(Cache<Fingerprint, Arc<LoadedPlan>, Weight>);

/// A plan weighs what it takes of the number of plans or of their bytes.
#[derive(Clone, Debug)]
struct Weight(CacheBounds);

impl Weighter<Fingerprint, Arc<LoadedPlan>> for Weight {
    fn weight(&self, _: &Fingerprint, plan: &Arc<LoadedPlan>) -> u64 {
        self.0.weight(plan.facts().blob_bytes + plan.constant_bytes())
    }
}

impl LoadedPlans {
    pub(super) fn new(plans: usize, bytes: u64) -> LoadedPlans {
        let bounds = CacheBounds { number: plans as u64, bytes };
        LoadedPlans(Cache::with(
            plans,
            bounds.capacity(),
            Weight(bounds),
            DefaultHashBuilder::default(),
            quick_cache::sync::DefaultLifecycle::default(),
        ))
    }

    /// The plan of a description, if it is loaded.
    pub(super) fn get(&self, of: &Fingerprint) -> Option<Arc<LoadedPlan>> {
        self.0.get(of)
    }

    /// The plan of a description, loaded by `load` if it is not. Of threads that ask at once one loads, and the others
    /// wait for it; where it fails, the next one tries.
    pub(super) fn get_or_load<E>(
        &self,
        of: &Fingerprint,
        load: impl FnOnce() -> Result<LoadedPlan, E>,
    ) -> Result<Arc<LoadedPlan>, E> {
        self.0.get_or_insert_with(of, || load().map(Arc::new))
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn clear(&self) {
        self.0.clear();
    }
}
