//! A set of plans on a device, and the one that a step runs on.

use qkvault_serving::{Bucket, Buckets, StepSize};

/// One thing for each plan of a set, where the plan could be made: loaded plans, or those with what is bound to them.
#[derive(Clone, Debug)]
pub struct PlanSet<T> {
    buckets: Buckets,
    plans: Vec<Option<T>>,
}

impl<T> PlanSet<T> {
    /// Makes one for each plan of a set, in the set's order; `make` gives nothing for what the library refuses.
    ///
    /// # Errors
    ///
    /// The first error of `make`.
    pub fn new<E>(buckets: Buckets, mut make: impl FnMut(Bucket) -> Result<Option<T>, E>) -> Result<PlanSet<T>, E> {
        let plans = buckets.iter().map(&mut make).collect::<Result<Vec<_>, E>>()?;
        Ok(PlanSet { buckets, plans })
    }

    /// The set.
    #[must_use]
    pub fn buckets(&self) -> &Buckets {
        &self.buckets
    }

    /// The number of the plan that a step runs on: the smallest that holds it; a decode whose plan was refused runs as a mixed step.
    /// Nothing for a step outside the set's ranges, and where the plan was refused.
    ///
    /// A few comparisons: see the bench `serving` for how long they take.
    #[must_use]
    pub fn pick(&self, step: StepSize) -> Option<usize> {
        let there = |at: &usize| self.plans[*at].is_some();
        self.buckets.pick(step).filter(there).or_else(|| self.buckets.pick_mixed(step).filter(there))
    }

    /// A plan of the set.
    #[must_use]
    pub fn get(&self, at: usize) -> Option<&T> {
        self.plans.get(at)?.as_ref()
    }

    /// A plan of the set, to update what is bound to it.
    pub fn get_mut(&mut self, at: usize) -> Option<&mut T> {
        self.plans.get_mut(at)?.as_mut()
    }

    /// The plans that there are, with their sizes.
    pub fn iter(&self) -> impl Iterator<Item = (Bucket, &T)> {
        self.buckets.iter().zip(&self.plans).filter_map(|(bucket, plan)| Some((bucket, plan.as_ref()?)))
    }

    /// The same set with something else for each plan.
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
