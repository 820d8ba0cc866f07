//! What a call has loaded, by GPU.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};

use crate::status::CallFailure;

/// The plans of one call. XLA asks before every execution, so an answer costs a look-up.
#[derive(Debug)]
pub(super) struct CallPlans<T>(RwLock<HashMap<i32, Arc<T>>>);

impl<T> Default for CallPlans<T> {
    fn default() -> Self {
        CallPlans(RwLock::default())
    }
}

impl<T> CallPlans<T> {
    /// The plan of a GPU. If there is none, `load` makes it, and `made` sees it once, before anybody launches it.
    pub(super) fn on_gpu(
        &self,
        gpu: i32,
        load: impl FnOnce() -> Result<T, CallFailure>,
        made: impl FnOnce(&T),
    ) -> Result<Arc<T>, CallFailure> {
        if let Some(plan) = self.0.read().unwrap_or_else(PoisonError::into_inner).get(&gpu) {
            return Ok(plan.clone());
        }
        let loaded = load()?;
        made(&loaded);
        // Another thread may have been faster; what it loaded is the same plan of the process-wide table.
        let mut all = self.0.write().unwrap_or_else(PoisonError::into_inner);
        Ok(all.entry(gpu).or_insert(Arc::new(loaded)).clone())
    }
}
