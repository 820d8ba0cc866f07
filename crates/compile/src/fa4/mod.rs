//! FlashAttention-4's kernels as an engine: its toolchain compiles them in a child process.

mod kept;
mod rebuild;

use std::sync::Arc;
use std::time::Instant;

use qkvault_cache::Entry;
use qkvault_cudnn::CompileOptions;
use qkvault_fa4::{
    CompileError, CompiledKernel, CubinPlan as Launches, DRIVER, Fa4Program, Installed, Kernel, Own, SM, TOOLCHAIN,
    Told, takes, unproven,
};
use qkvault_graph::{GraphKey, PlanKey, Refusal, Valid, codec};
use qkvault_kernels::recipe::{LaunchRecipe, architecture, bindings};

use crate::blob::Blob;
use crate::computation::Description;
use crate::engine::{Engine, EngineId, Gap, Gpu, Unbuilt, Work};
use crate::facts::{KernelCompiler, KernelFacts, OwnFacts, PlanFacts};
use crate::kernels::nvrtc::{NVRTC, Nvrtc, NvrtcError};
use crate::look::BadEntry;
use crate::origin::{By, Origin};
use crate::plan::{BadPlan, Plan};
use crate::rebuild::{RebuildCheck, by_its_engine};
use kept::Fa4Compiler;

/// FlashAttention-4's kernels.
pub const FA4: EngineId = EngineId::new("fa4", "FlashAttention-4");

/// The engine. The toolchain is looked for when a plan must be compiled.
#[derive(Debug, Default)]
pub(crate) struct Fa4 {
    toolchain: Fa4Compiler,
}

impl Engine for Fa4 {
    fn id(&self) -> EngineId {
        FA4
    }

    fn versions(&self) -> Option<String> {
        Some(format!("FlashAttention-4 {}", TOOLCHAIN.flash_attn))
    }

    fn takes(&self, attention: &Valid, sm: u32) -> Result<(), Refusal> {
        takes(attention, sm)
    }

    fn unproven(&self, attention: &Valid) -> Option<&'static str> {
        unproven(attention)
    }

    /// Some seconds for each kernel.
    fn compiles_quickly(&self) -> bool {
        false
    }

    /// They make better use of arithmetic than the kernels of qkvault's own, and worse of memory.
    fn place(&self, dense: bool) -> u8 {
        if dense { 1 } else { 2 }
    }

    fn work<'a>(
        &'a self,
        attention: &'a Valid,
        on: Gpu<'_>,
        _options: &CompileOptions,
    ) -> Result<Box<dyn Work + 'a>, Refusal> {
        Ok(Box::new(Fa4Work { plan: Fa4Plan::for_attention(attention, on.sm)?, toolchain: &self.toolchain }))
    }

    fn rebuild(&self, key: PlanKey, entry: &Entry) -> Option<RebuildCheck> {
        by_its_engine(key, entry, |stored| {
            matches!(stored.by, By::Fa4 { .. }).then(|| rebuild::check(stored, &self.toolchain))
        })
    }
}

/// Why there is no plan of FlashAttention-4's kernels.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fa4Failure {
    /// The kernels are not compiled.
    #[error(transparent)]
    Compile(#[from] CompileError),
    /// The compiled kernels are not launched.
    #[error(transparent)]
    Plan(#[from] qkvault_fa4::CubinPlanError),
    /// The kernel of our own beside them is not compiled.
    #[error(transparent)]
    Own(#[from] NvrtcError),
}

/// An attention that FlashAttention-4's kernels take, and what a launch of them does.
#[derive(Clone, Debug)]
pub struct Fa4Plan<'a> {
    attention: &'a Valid,
    program: Fa4Program,
}

impl<'a> Fa4Plan<'a> {
    /// The plan of an attention for GPUs of a compute capability, as major * 10 + minor. Nothing is compiled.
    ///
    /// # Errors
    ///
    /// The reasons why the kernels do not take it.
    pub fn for_attention(attention: &'a Valid, sm: u32) -> Result<Fa4Plan<'a>, Refusal> {
        Ok(Fa4Plan { attention, program: Fa4Program::for_attention(attention, sm)? })
    }

    /// The key of the plan: the same on every GPU of the architecture.
    #[must_use]
    pub fn key(&self) -> PlanKey {
        self.program.key(self.attention.key(), NVRTC)
    }

    /// The plan, compiled in a child process: some seconds.
    ///
    /// # Errors
    ///
    /// [`Fa4Failure`]: the toolchain is not fetched, or what it compiles is not as expected; NVRTC is not fetched, if
    /// there is a kernel of our own.
    pub fn compile(&self, toolchain: &Installed) -> Result<Plan, Fa4Failure> {
        self.compile_by(|kernels| toolchain.compile(kernels))
    }

    fn compile_by(
        &self,
        compile: impl FnOnce(&[Kernel]) -> Result<Vec<CompiledKernel>, CompileError>,
    ) -> Result<Plan, Fa4Failure> {
        Ok(self.made_by(compile)?.0)
    }

    /// The plan, and what the compiler told.
    fn made_by(
        &self,
        compile: impl FnOnce(&[Kernel]) -> Result<Vec<CompiledKernel>, CompileError>,
    ) -> Result<(Plan, Vec<Told>), Fa4Failure> {
        let started = Instant::now();
        let compiled = compile(&self.program.kernels)?;
        let own = self.program.own.as_ref().map(own_code).transpose()?;
        let Launches { recipe, code } = self.program.plan(&compiled, own.as_deref(), &bindings(self.attention))?;
        let milliseconds = started.elapsed().as_millis().try_into().unwrap_or(u32::MAX);
        let plan = Plan { facts: self.facts(recipe, milliseconds), blob: Blob::from(code) };
        Ok((plan, compiled.into_iter().map(|one| one.told).collect()))
    }

    /// The facts of the plan with a recipe. All others but the time of compiling follow from the attention.
    fn facts(&self, recipe: LaunchRecipe, compile_ms: u32) -> PlanFacts {
        PlanFacts {
            key: self.key(),
            graph_key: self.attention.key(),
            what: self.attention.to_string(),
            by: FA4.name(),
            sm: SM,
            driver: i64::from(DRIVER),
            engine: name(),
            workspace: recipe.scratch,
            compile_ms,
            blob_bytes: recipe.bytes().unwrap_or(u64::MAX),
            bindings: bindings(self.attention),
            own: OwnFacts::Kernels(Box::new(KernelFacts { by: compiler(), recipe })),
        }
    }

    /// The plan as an entry of a vault, with what it is compiled from.
    pub(crate) fn entry_by(
        &self,
        compile: impl FnOnce(&[Kernel]) -> Result<Vec<CompiledKernel>, CompileError>,
    ) -> Result<Entry, Fa4Failure> {
        let (plan, told) = self.made_by(compile)?;
        let mut entry = plan.entry(&format!("{} fa4", architecture(SM)), format!("fa4 {}", TOOLCHAIN.flash_attn));
        let origin = Origin { of: Description::attention(self.attention), by: By::Fa4 { told } };
        entry.payload.extend(codec::encode(&origin));
        Ok(entry)
    }

    /// The plan of an entry, if all its facts are those that follow from the attention: its recipe is written again
    /// from the attention, the cubins, and what the compiler told of their launches.
    pub(crate) fn read(&self, key: PlanKey, entry: &Arc<Entry>) -> Result<Arc<Plan>, BadPlan> {
        let Plan { facts, blob } = Plan::from_entry(key, entry)?;
        let lengths = facts.kernels().map_or(&[][..], |kernels| &kernels.recipe.modules);
        let unread = |why: String| BadPlan::Origin { key, why };
        let told = match codec::decode(&entry.payload[blob.len()..]) {
            Ok(Origin { by: By::Fa4 { told }, of: _ }) => told,
            Ok(_) => return Err(unread("another engine is named".to_owned())),
            Err(error) => return Err(unread(error.to_string())),
        };
        let recipe = self.program.recipe_again(&blob, lengths, &told, &bindings(self.attention));
        let recipe = recipe.map_err(|error| unread(error.to_string()))?;
        let facts = self.facts(recipe, facts.compile_ms).asked(&facts);
        let facts = facts.map_err(|altered| BadPlan::Altered { key, altered: Box::new(altered) })?;
        Ok(Arc::new(Plan { facts, blob }))
    }
}

/// The cubin of a kernel of our own.
fn own_code(Own { source, options }: &Own) -> Result<Vec<u8>, NvrtcError> {
    Nvrtc::open(None)?.compile("blocks.cu", source, options, SM)
}

/// The toolchain by which this version compiles.
fn name() -> String {
    let qkvault_fa4::Fa4Toolchain { flash_attn, cutlass_dsl, quack } = TOOLCHAIN;
    format!("FlashAttention-4 {flash_attn} by nvidia-cutlass-dsl {cutlass_dsl}, quack-kernels {quack}")
}

fn compiler() -> KernelCompiler {
    let qkvault_fa4::Fa4Toolchain { flash_attn, cutlass_dsl, quack } = TOOLCHAIN;
    let [flash_attn, cutlass_dsl, quack] = [flash_attn, cutlass_dsl, quack].map(str::to_owned);
    KernelCompiler::Fa4 { flash_attn, cutlass_dsl, quack }
}

/// A plan with what compiles it.
struct Fa4Work<'a> {
    plan: Fa4Plan<'a>,
    toolchain: &'a Fa4Compiler,
}

impl Work for Fa4Work<'_> {
    fn key(&self) -> PlanKey {
        self.plan.key()
    }

    fn graph_key(&self) -> GraphKey {
        self.plan.attention.key()
    }

    fn what(&self) -> String {
        self.plan.attention.to_string()
    }

    fn text(&self) -> Option<String> {
        Some(qkvault_graph::text::print(self.plan.attention))
    }

    fn target(&self) -> String {
        architecture(SM)
    }

    fn build(&self) -> Result<Entry, Unbuilt> {
        self.plan.entry_by(|kernels| self.toolchain.compile(kernels)).map_err(|error| {
            let optional = matches!(error, Fa4Failure::Compile(CompileError::NotInstalled(_)));
            let gap = if optional { Gap::Compiler } else { Gap::Plan };
            Unbuilt::Failed { error: Arc::new(error), gap: Some(gap) }
        })
    }

    fn read(&self, key: PlanKey, entry: &Arc<Entry>) -> Result<Result<Arc<Plan>, Refusal>, BadEntry> {
        Ok(Ok(self.plan.read(key, entry)?))
    }
}
