//! A set of plans for serving, loaded on a device: any step in its ranges runs on one of them, without a build.

use std::sync::Arc;

use cudarc::driver::CudaStream;
use qkvault_compile::BuildPolicy;
use qkvault_graph::{CompileOptions, Refusal, Valid};
use qkvault_serving::{Bucket, Buckets, ServeLayer};

use crate::find::PrepareError;
use crate::safe::batch::{BatchError, BatchMetadata};
use crate::safe::engine::Engine;
use crate::safe::session::LoadedPlan;
use crate::serving::PlanSet;

/// One plan of a set.
#[derive(Clone, Debug)]
pub struct ServePlan {
    /// Its sizes.
    pub bucket: Bucket,
    /// What it computes.
    pub attention: Valid,
    /// The plan on the device.
    pub plan: LoadedPlan,
}

/// A set of plans, and what of it the library refuses.
#[derive(Clone, Debug)]
pub struct Served {
    /// The plans.
    pub plans: PlanSet<ServePlan>,
    /// The sizes that have none, with the reasons: decodes with a sink or ALiBi among them, whose steps run as mixed ones.
    pub refused: Vec<(Bucket, Refusal)>,
}

impl ServePlan {
    /// Lengths, offsets and tables of the plan's steps on the device.
    ///
    /// # Errors
    ///
    /// [`BatchError`].
    pub fn batch(&self, stream: &Arc<CudaStream>) -> Result<BatchMetadata, BatchError> {
        BatchMetadata::new(&self.plan, &self.attention, stream)
    }
}

impl Engine {
    /// Loads every plan of a layer's set; builds those that are missing only where `build` allows it.
    ///
    /// # Errors
    ///
    /// [`PrepareError`] of the first plan that is missing or does not load. What the library refuses is no error.
    pub fn prepare_serving(
        &self,
        layer: &ServeLayer,
        buckets: &Buckets,
        policy: &CompileOptions,
        build: BuildPolicy,
    ) -> Result<Served, PrepareError> {
        let mut refused = Vec::new();
        let plans = PlanSet::new(buckets.clone(), |bucket| {
            let attention = layer.attention(&bucket).map_err(PrepareError::Refused)?;
            match self.prepare(&attention, policy, build) {
                Ok(prepared) => Ok(Some(ServePlan { bucket, attention, plan: prepared.plan })),
                Err(PrepareError::Refused(refusal)) => {
                    refused.push((bucket, refusal));
                    Ok(None)
                }
                Err(error) => Err(error),
            }
        })?;
        Ok(Served { plans, refused })
    }
}
