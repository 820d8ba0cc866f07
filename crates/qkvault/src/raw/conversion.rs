//! Conversions to and from 8 bits for callers from other languages.

use std::ffi::c_void;

use qkvault_compile::{OnMiss, Resolution};
use qkvault_exec::raw::{PlanTable, RawPlan, RawSession};
use qkvault_graph::ValidConversion;

use crate::Error;
use crate::offline::answered;
use crate::raw::{RawInner, RawRuntime};

impl RawRuntime {
    /// The plan of a conversion for GPUs of a compute capability (major * 10 + minor, such as 90), from the vault or
    /// compiled into it by NVRTC. It needs no GPU and no cuDNN.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Refused`](crate::ErrorKind::Refused) for a GPU before compute capability 8.9;
    /// [`ErrorKind::Build`](crate::ErrorKind::Build) if compiling does not work here.
    pub fn warm_conversion(&self, of: &ValidConversion, sm: u32) -> Result<Resolution, Error> {
        answered(self.inner.offline.planner.conversion(of, sm, OnMiss::Compile)?)
    }

    /// The plan of a conversion to or from 8 bits, loaded on a GPU, as [`RawRuntime::prepare`] loads plans;
    /// [`RawPlan::convert`] launches it.
    ///
    /// # Safety
    ///
    /// As for [`RawRuntime::prepare`].
    ///
    /// # Errors
    ///
    /// As [`RawRuntime::prepare`], and as [`RawRuntime::warm_conversion`].
    pub unsafe fn prepare_conversion(
        &self,
        of: &ValidConversion,
        gpu: i32,
        stream: *mut c_void,
    ) -> Result<RawPlan, Error> {
        self.session(gpu)?;
        let RawInner { offline, on_miss, .. } = &*self.inner;
        let load = |session: &RawSession| {
            session.prepare_conversion(&offline.planner, of, *on_miss).map(|(plan, _source)| plan)
        };
        // SAFETY: the caller's promise.
        let loaded = unsafe { PlanTable::of_process().load(gpu, of.key().bytes(), stream, load) };
        let loaded = loaded.map_err(|error| self.beside_older(error.into()))?;
        Ok(PlanTable::of_process().plan(loaded).cloned().expect("the table never unloads"))
    }
}
