//! A serving set of plans, and the choice of the plan for a step.

use qkvault_serving::{Bucket, Buckets, StepSize};

/// One value for each plan of a serving set that could be made: a loaded plan, or a bound one with its buffers.
#[derive(Clone, Debug)]
pub struct PlanSet<T> {
    buckets: Buckets,
    plans: Vec<Option<T>>,
}

impl<T> PlanSet<T> {
    /// Makes a value for each plan of a set, in the order of the set. `make` returns `None` for a plan that the library
    /// refuses.
    ///
    /// # Errors
    ///
    /// The first error of `make`.
    pub fn new<E>(buckets: Buckets, mut make: impl FnMut(Bucket) -> Result<Option<T>, E>) -> Result<PlanSet<T>, E> {
        let plans = buckets.iter().map(&mut make).collect::<Result<Vec<_>, E>>()?;
        Ok(PlanSet { buckets, plans })
    }

    /// The sizes of the set.
    #[must_use]
    pub fn buckets(&self) -> &Buckets {
        &self.buckets
    }

    /// The index of the smallest plan that holds a step. A decode whose plan was refused runs as a mixed step. `None`
    /// for a step outside the ranges of the set, or if the plan was refused.
    ///
    /// It takes a few comparisons; the bench `serving` measures them.
    #[must_use]
    pub fn pick(&self, step: StepSize) -> Option<usize> {
        let there = |at: &usize| self.plans[*at].is_some();
        self.buckets.pick(step).filter(there).or_else(|| self.buckets.pick_mixed(step).filter(there))
    }

    /// The value of a plan, by its index.
    #[must_use]
    pub fn get(&self, at: usize) -> Option<&T> {
        self.plans.get(at)?.as_ref()
    }

    /// The value of a plan, by its index, for updates.
    pub fn get_mut(&mut self, at: usize) -> Option<&mut T> {
        self.plans.get_mut(at)?.as_mut()
    }

    /// Iterates over the values with the sizes of their plans.
    pub fn iter(&self) -> impl Iterator<Item = (Bucket, &T)> {
        self.buckets.iter().zip(&self.plans).filter_map(|(bucket, plan)| Some((bucket, plan.as_ref()?)))
    }

    /// Replaces the value of each plan.
    ///
    /// # Errors
    ///
    /// The first error of `change`.
    pub fn try_map<U, E>(self, mut change: impl FnMut(Bucket, T) -> Result<U, E>) -> Result<PlanSet<U>, E> {
        let PlanSet { buckets, plans } = self;
        let changed = buckets.iter().zip(plans).map(|(b, plan)| plan.map(|plan| change(b, plan)).transpose());
        let plans = changed.collect::<Result<Vec<_>, E>>()?;
        Ok(PlanSet { buckets, plans })
    }
}
