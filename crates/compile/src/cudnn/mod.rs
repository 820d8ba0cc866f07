//! cuDNN as an engine: an op graph for a target is put to the library as descriptors, without a GPU.

pub(crate) mod attempt;
mod bound;
pub(crate) mod compiler;
mod configs;
pub(crate) mod convert;
pub(crate) mod failure;
pub(crate) mod job;
pub(crate) mod made;
mod open;
pub(crate) mod others;
mod passed;
mod pressure;
mod rebuild;
mod status;
mod toolchain;
mod uncompiled;
mod words;
mod write;

use std::sync::Arc;

use qkvault_cache::Entry;
use qkvault_cudnn::{CompileOptions, Target};
use qkvault_graph::{PlanKey, Refusal, Valid};

use crate::engine::{Engine, EngineId, Gpu, Work};
use crate::origin::By;
use crate::rebuild::{RebuildCheck, by_its_engine};
use job::Job;
pub(crate) use open::OpenCompiler;

/// cuDNN.
pub const CUDNN: EngineId = EngineId::new("cudnn", "cuDNN");

/// The engine with a compiler that is opened by the first plan that must be compiled.
#[derive(Debug)]
pub(crate) struct Cudnn {
    compiler: Arc<OpenCompiler>,
}

impl Cudnn {
    pub(crate) const fn new(compiler: Arc<OpenCompiler>) -> Cudnn {
        Cudnn { compiler }
    }
}

impl Engine for Cudnn {
    fn id(&self) -> EngineId {
        CUDNN
    }

    fn needs_target(&self) -> bool {
        true
    }

    /// Rules know versions and whole targets, so nothing is refused by the compute capability alone.
    fn takes(&self, _: &Valid, _: u32) -> Result<(), Refusal> {
        Ok(())
    }

    fn place(&self, _dense: bool) -> u8 {
        0
    }

    fn work<'a>(
        &'a self,
        attention: &'a Valid,
        on: Gpu<'_>,
        options: &CompileOptions,
    ) -> Result<Box<dyn Work + 'a>, Refusal> {
        let target: &Target = on.target.expect("whoever asks an engine that needs a target has one");
        Ok(Box::new(Job::new(attention, target, options, &self.compiler)?))
    }

    fn rebuild(&self, key: PlanKey, entry: &Entry) -> Option<RebuildCheck> {
        by_its_engine(key, entry, |stored| {
            matches!(stored.by, By::Cudnn { .. }).then(|| rebuild::check(stored, &self.compiler))
        })
    }

    fn other_targets(&self, here: &Target) -> Vec<Target> {
        others::candidates(here).into_iter().skip(1).collect()
    }
}
