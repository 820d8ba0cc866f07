//! The plans of a serving set, loaded on a device: each step in the ranges of the set runs on one of them.

use std::sync::Arc;

use cudarc::driver::CudaStream;
use qkvault_graph::{Refusal, Valid};
use qkvault_serving::{Bucket, Buckets, ServeLayer};

use crate::safe::batch::{BatchError, BatchMetadata};
use crate::safe::plan::LoadedPlan;
use crate::serving::PlanSet;

/// One plan of a serving set.
#[derive(Clone, Debug)]
pub struct ServePlan {
    /// The sizes of the plan.
    pub bucket: Bucket,
    /// The attention that it computes.
    pub attention: Valid,
    /// The loaded plan.
    pub plan: LoadedPlan,
}

/// The plans of a serving set, and the sizes that have none.
#[derive(Clone, Debug)]
pub struct Served {
    /// The plans.
    pub plans: PlanSet<ServePlan>,
    /// The sizes that the library refuses, with the reasons. Refused decodes (with a sink or ALiBi) run as mixed steps.
    pub refused: Vec<(Bucket, Refusal)>,
}

impl ServePlan {
    /// Allocates the metadata of the plan's steps on the device.
    ///
    /// # Errors
    ///
    /// [`BatchError`], as for [`BatchMetadata::new`].
    pub fn batch(&self, stream: &Arc<CudaStream>) -> Result<BatchMetadata, BatchError> {
        BatchMetadata::new(&self.plan, &self.attention, stream)
    }
}

impl Served {
    /// The serving set of a layer. `plan` gives the plan of each attention, or the reasons of one that is refused.
    ///
    /// # Errors
    ///
    /// The first error of `plan`, or the reasons of a size that contradicts itself.
    pub fn new<E: From<Refusal>>(
        layer: &ServeLayer,
        buckets: &Buckets,
        mut plan: impl FnMut(&Valid) -> Result<Result<LoadedPlan, Refusal>, E>,
    ) -> Result<Served, E> {
        let mut refused = Vec::new();
        let plans = PlanSet::new(buckets.clone(), |bucket| {
            let attention = layer.attention(&bucket)?;
            Ok::<_, E>(match plan(&attention)? {
                Ok(plan) => Some(ServePlan { bucket, attention, plan }),
                Err(refusal) => {
                    refused.push((bucket, refusal));
                    None
                }
            })
        })?;
        Ok(Served { plans, refused })
    }
}
