//! What a call has loaded, by GPU.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};

use crate::status::CallFailure;

/// The plans of one call. XLA asks before every execution, so an answer costs a look-up. Those of another runtime than
/// the last one that a program chose stay, because captured graphs may launch them, and serve no further call.
#[derive(Debug)]
pub(super) struct CallPlans<T>(RwLock<HashMap<(i32, u64), Arc<T>>>);

impl<T> Default for CallPlans<T> {
    fn default() -> Self {
        CallPlans(RwLock::default())
    }
}

impl<T> CallPlans<T> {
    /// The plan of a GPU and of a runtime's number. If there is none, `load` makes it, and `made` sees it once, before
    /// anybody launches it.
    pub(super) fn on_gpu(
        &self,
        place: (i32, u64),
        load: impl FnOnce() -> Result<T, CallFailure>,
        made: impl FnOnce(&T),
    ) -> Result<Arc<T>, CallFailure> {
        if let Some(plan) = self.0.read().unwrap_or_else(PoisonError::into_inner).get(&place) {
            return Ok(plan.clone());
        }
        let loaded = load()?;
        made(&loaded);
        // Another thread may have been faster; what it loaded is the same plan of the process-wide table.
        let mut all = self.0.write().unwrap_or_else(PoisonError::into_inner);
        Ok(all.entry(place).or_insert(Arc::new(loaded)).clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `configure(engine="cudnn")` after another one went on with the plan of the first.
    #[test]
    fn a_runtime_that_is_chosen_later_has_plans_of_its_own() {
        let plans = CallPlans::default();
        let of = |place, plan| plans.on_gpu(place, || Ok(plan), |_| ()).map(|found| *found).ok();
        assert_eq!([of((0, 0), "first"), of((0, 0), "again")], [Some("first"); 2]);
        assert_eq!([of((0, 1), "second"), of((1, 1), "another GPU")], [Some("second"), Some("another GPU")]);
    }
}
