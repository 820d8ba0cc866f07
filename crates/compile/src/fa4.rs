//! Plans of FlashAttention-4's kernels: compiled by its toolchain, and kept in the vault like every other plan.

mod kept;

use std::sync::Arc;
use std::time::Instant;

use qkvault_cache::{Entry, Error as VaultError, Source, StoreError};
use qkvault_fa4::{
    CompileError, Compiled, DRIVER, Installed, Kernel, Own, Plan as Launches, Program, SM, TOOLCHAIN, Told,
};
use qkvault_graph::{CudnnVersion, LibrarySet, PlanKey, Refusal, Toolchain, Valid, codec};
use qkvault_kernels::Engine;
use qkvault_kernels::recipe::{Recipe, architecture, bindings};

use crate::blob::Blob;
use crate::choice::EngineChoice;
use crate::facts::PlanFacts;
use crate::kernels::{KernelCompiler, KernelFacts};
use crate::look::{discredit, stored, vault_key};
use crate::nvrtc::{NVRTC, Nvrtc, NvrtcError};
use crate::origin::{By, Description, Origin};
use crate::plan::{BadPlan, Plan};
use crate::planner::{OnMiss, PlanError, Planner, Resolution};
pub(crate) use kept::Fa4Compiler;

/// Why there is no plan of FlashAttention-4's kernels.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fa4Failure {
    /// The kernels are not compiled.
    #[error(transparent)]
    Compile(#[from] CompileError),
    /// The compiled kernels are not launched.
    #[error(transparent)]
    Plan(#[from] qkvault_fa4::PlanError),
    /// The kernel of our own beside them is not compiled.
    #[error(transparent)]
    Own(#[from] NvrtcError),
}

/// An attention that FlashAttention-4's kernels take, and what a launch of them does.
#[derive(Clone, Debug)]
pub struct Fa4Plan<'a> {
    attention: &'a Valid,
    program: Program,
}

impl<'a> Fa4Plan<'a> {
    /// The plan of an attention for GPUs of a compute capability, as major * 10 + minor. Nothing is compiled.
    ///
    /// # Errors
    ///
    /// The reasons why the kernels do not take it.
    pub fn of(attention: &'a Valid, sm: u32) -> Result<Fa4Plan<'a>, Refusal> {
        Ok(Fa4Plan { attention, program: Program::of(attention, sm)? })
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
        compile: impl FnOnce(&[Kernel]) -> Result<Vec<Compiled>, CompileError>,
    ) -> Result<Plan, Fa4Failure> {
        Ok(self.made_by(compile)?.0)
    }

    /// The plan, and what the compiler told.
    fn made_by(
        &self,
        compile: impl FnOnce(&[Kernel]) -> Result<Vec<Compiled>, CompileError>,
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
    fn facts(&self, recipe: Recipe, compile_ms: u32) -> PlanFacts {
        let none = CudnnVersion::new(0, 0, 0);
        PlanFacts {
            key: self.key(),
            graph_key: self.attention.key(),
            what: self.attention.to_string(),
            cudnn: none,
            libraries: LibrarySet::Slim,
            toolchain: Toolchain::assumed(none),
            sm: SM,
            multi_processors: 0,
            driver: i64::from(DRIVER),
            memory_bus: None,
            engine: name(),
            passed_over: Vec::new(),
            workspace: recipe.scratch,
            compile_ms,
            blob_bytes: recipe.modules.iter().sum(),
            bindings: bindings(self.attention),
            again: Vec::new(),
            fixed: Vec::new(),
            kernels: Some(Box::new(KernelFacts { by: compiler(), recipe })),
        }
    }

    fn built(&self, toolchain: &Fa4Compiler) -> Result<Entry, Fa4Failure> {
        self.entry_by(|kernels| toolchain.compile(kernels))
    }

    /// The plan as an entry of a vault, with what it is compiled from.
    pub(crate) fn entry_by(
        &self,
        compile: impl FnOnce(&[Kernel]) -> Result<Vec<Compiled>, CompileError>,
    ) -> Result<Entry, Fa4Failure> {
        let _span = tracing::info_span!("plan.build", key = %self.key(), what = %self.attention).entered();
        let (plan, told) = self.made_by(compile)?;
        let mut entry = plan.entry(&format!("{} fa4", architecture(SM)), format!("fa4 {}", TOOLCHAIN.flash_attn));
        let origin = Origin { of: Description::attention(self.attention), by: By::Fa4 { told } };
        entry.payload.extend(codec::encode(&origin));
        Ok(entry)
    }

    /// The plan of an entry, if all its facts are those that follow from the attention: its recipe is written again
    /// from the attention, the cubins, and what the compiler told of their launches.
    pub(crate) fn read(&self, entry: &Arc<Entry>) -> Result<Arc<Plan>, BadPlan> {
        let key = self.key();
        let Plan { facts, blob } = Plan::from_entry(key, entry)?;
        let lengths = facts.kernels.as_ref().map_or(&[][..], |kernels| &kernels.recipe.modules);
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
pub(crate) fn name() -> String {
    let qkvault_fa4::Toolchain { flash_attn, cutlass_dsl, quack } = TOOLCHAIN;
    format!("FlashAttention-4 {flash_attn} by nvidia-cutlass-dsl {cutlass_dsl}, quack-kernels {quack}")
}

pub(crate) fn compiler() -> KernelCompiler {
    let qkvault_fa4::Toolchain { flash_attn, cutlass_dsl, quack } = TOOLCHAIN;
    let [flash_attn, cutlass_dsl, quack] = [flash_attn, cutlass_dsl, quack].map(str::to_owned);
    KernelCompiler::Fa4 { flash_attn, cutlass_dsl, quack }
}

type Found = (Source, Option<Arc<StoreError>>, Arc<Plan>);

impl Planner {
    /// The plan of FlashAttention-4's kernels: from the vault, or compiled by its toolchain and stored there. It needs
    /// no cuDNN and no GPU; the toolchain is looked for when a plan must be compiled.
    ///
    /// # Errors
    ///
    /// [`PlanError::Missing`] if the plan may not be compiled, [`PlanError::Fa4`] if that does not work here.
    pub fn fa4(&self, fa4: &Fa4Plan<'_>, on_miss: OnMiss) -> Result<Resolution, PlanError> {
        let (started, key) = (Instant::now(), fa4.key());
        let known = stored(&self.vault, &key, on_miss == OnMiss::Memory);
        let known = known.and_then(|(source, entry)| match fa4.read(&entry) {
            Ok(plan) => Some((source, None, plan)),
            Err(bad) => {
                discredit(&self.vault, &key, &entry, &bad.into());
                None
            }
        });
        let found = match known {
            Some(found) => found,
            None if on_miss != OnMiss::Compile => {
                let (what, target) = (fa4.attention.to_string(), architecture(SM));
                return Err(PlanError::Missing { key, what, target, memory_alone: on_miss == OnMiss::Memory });
            }
            None => self.fa4_built(fa4, key)?,
        };
        Ok(resolution(fa4, found, started))
    }

    /// The plan, compiled even if the vault has it, in the place of the stored one.
    pub(crate) fn fa4_anew(&self, fa4: &Fa4Plan<'_>) -> Result<Resolution, PlanError> {
        let (started, key) = (Instant::now(), fa4.key());
        Ok(resolution(fa4, self.fa4_replaced(fa4, key)?, started))
    }

    fn fa4_built(&self, fa4: &Fa4Plan<'_>, key: PlanKey) -> Result<Found, PlanError> {
        let failed = |error: VaultError<Fa4Failure>| match error {
            VaultError::Build(failure) => PlanError::Fa4 { key, failure },
            other => PlanError::Interrupted { key, why: other.to_string() },
        };
        let obtained = self.vault.get_or_build(&vault_key(&key), || fa4.built(&self.fa4_toolchain)).map_err(failed)?;
        match fa4.read(&obtained.entry) {
            Ok(plan) => Ok((obtained.source, obtained.unstored, plan)),
            // A whole entry of another version of qkvault, or an altered one.
            Err(bad) => {
                discredit(&self.vault, &key, &obtained.entry, &bad.into());
                self.fa4_replaced(fa4, key)
            }
        }
    }

    fn fa4_replaced(&self, fa4: &Fa4Plan<'_>, key: PlanKey) -> Result<Found, PlanError> {
        let failed = |failure| PlanError::Fa4 { key, failure: Arc::new(failure) };
        let entry = Arc::new(fa4.built(&self.fa4_toolchain).map_err(failed)?);
        let plan = fa4.read(&entry).map_err(|bad| PlanError::Recipe { key, why: bad.to_string() })?;
        let unstored = self.vault.put(&vault_key(&key), Entry::clone(&entry)).err().map(Arc::new);
        Ok((Source::Built, unstored, plan))
    }
}

fn resolution(fa4: &Fa4Plan<'_>, (source, unstored, plan): Found, started: Instant) -> Resolution {
    let milliseconds = started.elapsed().as_secs_f64() * 1e3;
    let (key, graph_key) = (Some(fa4.key()), fa4.attention.key());
    let engine = EngineChoice::named(Engine::Fa4);
    Resolution { key, graph_key, source, unstored, engine, outcome: Ok(plan), milliseconds }
}
