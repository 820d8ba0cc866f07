//! One attention over several GPUs for callers from other languages: the plans of a rank.

use std::sync::PoisonError;

use qkvault_exec::raw::{self, CudnnSource};
use qkvault_exec::{Device, LoadedPlan, Prepared, Session, SessionOptions};
use qkvault_graph::{Valid, ValidCombination};
use qkvault_parallel::{PlanFailure, Plans};

use crate::Error;
use crate::raw::{RawInner, RawRuntime};

/// The plans that ranks load on one GPU, from the vault or built as the options of the runtime say. A plan lives as
/// long as the ranks that have it.
#[derive(Clone, Debug)]
pub struct RawRankPlans {
    runtime: RawRuntime,
    session: Session,
}

impl RawRuntime {
    /// What ranks on a GPU load their plans with. Its session is made by the first call.
    ///
    /// # Errors
    ///
    /// As [`RawRuntime::session`].
    pub fn rank_plans(&self, gpu: i32) -> Result<RawRankPlans, Error> {
        let mut sessions = self.inner.ranks.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(session) = sessions.get(&gpu) {
            return Ok(RawRankPlans { runtime: self.clone(), session: session.clone() });
        }
        raw::driver()?;
        let cudnn = match self.inner.library.get() {
            Some(library) => CudnnSource::from(library),
            None => CudnnSource::from(&self.inner.search),
        };
        let device = Device::open(usize::try_from(gpu).unwrap_or(usize::MAX))?;
        let options = SessionOptions { workspace_limit: None, handles: self.inner.handles };
        let session = Session::with_options(&device, cudnn, options)?;
        sessions.insert(gpu, session.clone());
        Ok(RawRankPlans { runtime: self.clone(), session })
    }
}

impl RawRankPlans {
    /// The GPU.
    #[must_use]
    pub fn device(&self) -> &Device {
        self.session.device()
    }
}

impl Plans for RawRankPlans {
    fn attention(&self, of: &Valid) -> Result<LoadedPlan, PlanFailure> {
        let RawInner { offline, on_miss, recorder, .. } = &*self.runtime.inner;
        let found = self.session.prepare(offline.on_miss(*on_miss), of, &offline.compile, *on_miss);
        let found = found.map_err(|error| self.runtime.beside_older(error.into()));
        if let Some(recorder) = recorder.as_ref().filter(|_| !found.as_ref().is_err_and(Error::is_refused)) {
            recorder.record(of);
        }
        let Prepared { plan, .. } = found?;
        Ok(plan)
    }

    fn combination(&self, of: &ValidCombination) -> Result<LoadedPlan, PlanFailure> {
        let RawInner { offline, on_miss, .. } = &*self.runtime.inner;
        let found = self.session.prepare_combination(offline.on_miss(*on_miss), of, *on_miss);
        Ok(found.map_err(|error| self.runtime.beside_older(error.into()))?)
    }
}
