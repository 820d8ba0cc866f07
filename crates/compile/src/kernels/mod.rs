//! Kernels of qkvault's own as an engine: sources and recipes become cubins by NVRTC.

pub(crate) mod nvrtc;
mod rebuild;
mod shared;

use std::sync::Arc;
use std::time::Instant;

use qkvault_cache::Entry;
use qkvault_cudnn::CompileOptions;
use qkvault_graph::{GraphKey, PlanKey, Refusal, Valid, codec};
use qkvault_kernels::recipe::{CodeOrigin, LaunchRecipe, architecture};
use qkvault_kernels::{Generated, generate, takes, unproven};

use crate::blob::Blob;
use crate::computation::{Computation, Description};
use crate::engine::{Engine, EngineId, Gap, Gpu, Unbuilt, Work};
use crate::facts::{KernelCompiler, KernelFacts, OwnFacts, PlanFacts};
use crate::look::BadEntry;
use crate::origin::{By, Origin as PlanOrigin};
use crate::plan::{BadPlan, Plan};
use crate::rebuild::{RebuildCheck, by_its_engine};
use nvrtc::{NVRTC, NVRTC_DRIVER, Nvrtc, NvrtcError};

/// Kernels of qkvault's own.
pub const KERNELS: EngineId = EngineId::new("kernels", "kernels");

/// The engine. NVRTC is loaded when a plan must be compiled.
#[derive(Debug)]
pub(crate) struct Kernels;

impl Engine for Kernels {
    fn id(&self) -> EngineId {
        KERNELS
    }

    fn takes(&self, attention: &Valid, sm: u32) -> Result<(), Refusal> {
        takes(attention, sm)
    }

    fn unproven(&self, attention: &Valid) -> Option<&'static str> {
        unproven(attention)
    }

    /// They make better use of memory than FlashAttention-4, and worse of arithmetic.
    fn place(&self, dense: bool) -> u8 {
        if dense { 2 } else { 1 }
    }

    fn work<'a>(
        &'a self,
        attention: &'a Valid,
        on: Gpu<'_>,
        _options: &CompileOptions,
    ) -> Result<Box<dyn Work + 'a>, Refusal> {
        Ok(Box::new(KernelPlan { of: attention, made: generate(attention, on.sm)? }))
    }

    fn rebuild(&self, key: PlanKey, entry: &Entry) -> Option<RebuildCheck> {
        by_its_engine(key, entry, |stored| match stored.by {
            By::Nvrtc { sm } => Some(rebuild::check(stored, sm)),
            By::Cudnn { .. } | By::Fa4 { .. } => None,
        })
    }
}

/// What a plan of kernels is made of: the source and options for NVRTC (without an architecture), and a recipe without
/// cubins, all of whose launches are of the one cubin that the source becomes.
#[derive(Clone, Debug)]
pub struct KernelPlan<'a> {
    /// What it computes: a `Valid` attention, a `ValidConversion`, a `ValidCombination`, a `ValidScaleUpdate` or a
    /// `ValidCacheAppend`.
    pub of: &'a dyn Computation,
    /// Source, options and recipe.
    pub made: Generated,
}

/// The name of the source in the compiler's messages.
const FILE: &str = "attention.cu";

impl KernelPlan<'_> {
    /// The key of the plan.
    #[must_use]
    pub fn key(&self) -> PlanKey {
        self.key_by(NVRTC)
    }

    /// The key with another NVRTC.
    pub(crate) fn key_by(&self, nvrtc: (u32, u32)) -> PlanKey {
        let Generated { source, options, recipe } = &self.made;
        CodeOrigin { source, options, recipe, nvrtc }.key()
    }

    /// The plan, compiled by NVRTC, which is loaded if it is not.
    ///
    /// # Errors
    ///
    /// [`NvrtcError`] if there is no NVRTC, or the source does not compile.
    pub fn compile(&self, nvrtc: &Nvrtc) -> Result<Plan, NvrtcError> {
        self.plan(|| self.cubin(nvrtc))
    }

    fn cubin(&self, nvrtc: &Nvrtc) -> Result<Vec<u8>, NvrtcError> {
        let Generated { source, options, recipe } = &self.made;
        nvrtc.compile(FILE, source, options, recipe.sm)
    }

    /// The plan of code that is made now.
    fn plan(&self, code: impl FnOnce() -> Result<Vec<u8>, NvrtcError>) -> Result<Plan, NvrtcError> {
        let started = Instant::now();
        let cubin = code()?;
        let milliseconds = started.elapsed().as_millis().try_into().unwrap_or(u32::MAX);
        Ok(Plan { facts: self.facts(cubin.len() as u64, milliseconds), blob: Blob::from(cubin) })
    }

    /// The facts of the plan with a cubin of so many bytes. All of them but these two numbers follow from what is
    /// computed.
    pub(crate) fn facts(&self, blob_bytes: u64, compile_ms: u32) -> PlanFacts {
        let (of, recipe) = (self.of, &self.made.recipe);
        // A driver that is older than the compiler does not load what it made.
        let driver = recipe.driver.max(NVRTC_DRIVER);
        let whole = LaunchRecipe { modules: vec![blob_bytes], driver, ..recipe.clone() };
        PlanFacts {
            key: self.key(),
            graph_key: of.graph_key(),
            what: of.to_string(),
            by: KERNELS.name(),
            sm: recipe.sm,
            driver: i64::from(driver),
            engine: format!("kernels by NVRTC {}.{}", NVRTC.0, NVRTC.1),
            workspace: recipe.scratch,
            compile_ms,
            blob_bytes,
            bindings: of.bindings(),
            own: OwnFacts::Kernels(Box::new(KernelFacts {
                by: KernelCompiler::Nvrtc(NVRTC.0, NVRTC.1),
                recipe: whole,
            })),
        }
    }

    /// The plan as an entry of a vault, with what it is compiled from.
    pub(crate) fn entry(&self, plan: &Plan) -> Entry {
        let (library, sm) = (format!("nvrtc {}.{}", NVRTC.0, NVRTC.1), self.made.recipe.sm);
        let mut entry = plan.entry(&format!("{} kernels", architecture(sm)), library);
        let origin = PlanOrigin { of: self.of.description(), by: By::Nvrtc { sm } };
        entry.payload.extend(codec::encode(&origin));
        entry
    }
}

impl Work for KernelPlan<'_> {
    fn key(&self) -> PlanKey {
        KernelPlan::key(self)
    }

    fn graph_key(&self) -> GraphKey {
        self.of.graph_key()
    }

    fn what(&self) -> String {
        self.of.to_string()
    }

    fn text(&self) -> Option<String> {
        match self.of.description() {
            Description::Attention(attention) => Some(qkvault_graph::text::print(&attention)),
            Description::Conversion(_)
            | Description::Combination(_)
            | Description::Scales(_)
            | Description::Append(_) => None,
        }
    }

    fn target(&self) -> String {
        architecture(self.made.recipe.sm)
    }

    fn build(&self) -> Result<Entry, Unbuilt> {
        let compile = || self.cubin(&Nvrtc::open(None)?);
        let plan = self.plan(|| shared::CODE.cubin(&self.made, compile)).map_err(|error| {
            let absent = matches!(error, NvrtcError::NotFound { .. } | NvrtcError::Variable { .. });
            Unbuilt::Failed { error: Arc::new(error), gap: absent.then_some(Gap::Plan) }
        })?;
        Ok(self.entry(&plan))
    }

    /// All facts are those that follow from the computation, with the capacities of this one: those of pools and varlen
    /// buffers are in no key.
    fn read(&self, key: PlanKey, entry: &Arc<Entry>) -> Result<Result<Arc<Plan>, Refusal>, BadEntry> {
        let Plan { facts, blob } = Plan::from_entry(key, entry)?;
        let asked = self.facts(facts.blob_bytes, facts.compile_ms).asked(&facts);
        let asked = asked.map_err(|altered| BadPlan::Altered { key, altered: Box::new(altered) })?;
        // With the same operands it was checked when it was read.
        if let Some(kernels) = asked.kernels().filter(|_| asked.bindings != facts.bindings) {
            kernels.check(&asked).map_err(BadPlan::from)?;
        }
        Ok(Ok(Arc::new(Plan { facts: asked, blob })))
    }
}
