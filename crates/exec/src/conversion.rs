//! The look-up of plans of conversions to and from 8 bits and of updates of their scales, and their load.

use qkvault_cache::Source;
use qkvault_compile::{OnMiss, Planner, Resolution};
use qkvault_graph::{ValidConversion, ValidScaleUpdate};

use crate::find::PrepareError;
use crate::raw::{RawPlan, RawSession};

impl RawSession {
    /// The plan of a conversion, looked up in the planner's vault, compiled by NVRTC if it is missing and `on_miss`
    /// allows that, and loaded; and where it came from. It needs no cuDNN.
    ///
    /// # Errors
    ///
    /// [`PrepareError::Refused`] for a GPU without 8 bits; [`PrepareError`] if the plan is missing or does not load.
    pub fn prepare_conversion(
        &self,
        planner: &Planner,
        of: &ValidConversion,
        on_miss: OnMiss,
    ) -> Result<(RawPlan, Source), PrepareError> {
        self.load_answer(planner.conversion(of, self.gpu().sm, on_miss)?)
    }

    /// The plan of an update of scales, as [`RawSession::prepare_conversion`] finds that of a conversion.
    ///
    /// # Errors
    ///
    /// As [`RawSession::prepare_conversion`].
    pub fn prepare_scale_update(
        &self,
        planner: &Planner,
        of: &ValidScaleUpdate,
        on_miss: OnMiss,
    ) -> Result<(RawPlan, Source), PrepareError> {
        self.load_answer(planner.scale_update(of, self.gpu().sm, on_miss)?)
    }

    /// The plan that a look-up found, loaded, and where it came from.
    pub(crate) fn load_answer(&self, answer: Resolution) -> Result<(RawPlan, Source), PrepareError> {
        Ok((self.load(&*answer.outcome?)?, answer.source))
    }
}
