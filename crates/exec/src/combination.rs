//! The look-up of plans of merges, sums, copies and fills, and their load.

use qkvault_cache::Source;
use qkvault_compile::{OnMiss, Planner};
use qkvault_graph::ValidCombination;

use crate::find::PrepareError;
use crate::raw::{RawPlan, RawSession};

impl RawSession {
    /// The plan of a combination, looked up in the planner's vault, compiled by NVRTC if it is missing and `on_miss`
    /// allows that, and loaded; and where it came from. It needs no cuDNN.
    ///
    /// # Errors
    ///
    /// [`PrepareError`] if the plan is missing or does not load.
    pub fn prepare_combination(
        &self,
        planner: &Planner,
        of: &ValidCombination,
        on_miss: OnMiss,
    ) -> Result<(RawPlan, Source), PrepareError> {
        self.load_answer(planner.combination(of, self.gpu().sm, on_miss)?)
    }
}
