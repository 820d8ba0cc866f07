//! The look-up of plans of conversions to and from 8 bits, of updates of their scales and of appends to caches, and
//! their load.

use qkvault_cache::Source;
use qkvault_compile::{OnMiss, Planner, Resolution};
use qkvault_graph::{ValidCacheAppend, ValidConversion, ValidScaleUpdate};

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

    /// The plan of an append to caches, as [`RawSession::prepare_conversion`] finds that of a conversion. The kernel
    /// compares lengths, offsets and tables with what there is, and writes nothing where they are wrong.
    ///
    /// # Errors
    ///
    /// As [`RawSession::prepare_conversion`]; [`PrepareError::Refused`] for what the kernel cannot count.
    pub fn prepare_append(
        &self,
        planner: &Planner,
        of: &ValidCacheAppend,
        on_miss: OnMiss,
    ) -> Result<(RawPlan, Source), PrepareError> {
        self.load_answer(planner.append(of, self.gpu().sm, on_miss)?)
    }

    /// The plan that a look-up found, loaded, and where it came from.
    pub(crate) fn load_answer(&self, answer: Resolution) -> Result<(RawPlan, Source), PrepareError> {
        Ok((self.load(&*answer.outcome?)?, answer.source))
    }
}
