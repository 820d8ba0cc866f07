//! The plans that a runtime has loaded: bounded by number and by bytes, and loaded once for all threads that ask.

use std::sync::Arc;

use qkvault_exec::LoadedPlan;
use qkvault_graph::Fingerprint;
use quick_cache::sync::Cache;
use quick_cache::{DefaultHashBuilder, Weighter};

/// Loaded plans by the fingerprint of their description.
pub(super) struct Loaded(Cache<Fingerprint, Arc<LoadedPlan>, Weight>);

/// A plan weighs what it takes of either bound, in parts of 2^32.
#[derive(Clone, Debug)]
struct Weight {
    plans: u64,
    bytes: u64,
}

const WHOLE: u64 = 1 << 32;

impl Weight {
    fn of(&self, bytes: u64) -> u64 {
        let share = |part: u64, of: u64| (u128::from(WHOLE) * u128::from(part)).div_ceil(u128::from(of.max(1)));
        let weight = share(1, self.plans).max(share(bytes, self.bytes));
        u64::try_from(weight).unwrap_or(u64::MAX).max(1)
    }
}

impl Weighter<Fingerprint, Arc<LoadedPlan>> for Weight {
    fn weight(&self, _: &Fingerprint, plan: &Arc<LoadedPlan>) -> u64 {
        self.of(plan.facts().blob_bytes + plan.constant_bytes())
    }
}

impl Loaded {
    pub(super) fn new(plans: usize, bytes: u64) -> Loaded {
        let weight = Weight { plans: plans as u64, bytes };
        Loaded(Cache::with(
            plans,
            WHOLE,
            weight,
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

#[cfg(test)]
mod tests {
    use super::{WHOLE, Weight};

    #[test]
    fn a_plan_weighs_the_larger_of_its_two_shares() {
        let weight = Weight { plans: 4, bytes: 1000 };
        assert_eq!(weight.of(0), WHOLE / 4);
        assert_eq!(weight.of(500), WHOLE / 2);
        assert!(weight.of(5000) > WHOLE);
        assert_eq!(Weight { plans: 0, bytes: 0 }.of(0), WHOLE);
    }
}
