//! Plans of FlashAttention-4's kernels: compiled by its toolchain, and kept in the vault like every other plan.

mod kept;

use std::sync::Arc;
use std::time::Instant;

use qkvault_cache::{Entry, Error as VaultError, Source, StoreError};
use qkvault_fa4::{
    CompileError, Compiled, DRIVER, Installed, Kernel, Own, Plan as Launches, Program, Request, SM, TOOLCHAIN,
};
use qkvault_graph::{CudnnVersion, LibrarySet, PlanKey, Refusal, Toolchain, Valid, codec};
use qkvault_kernels::Engine;
use qkvault_kernels::recipe::{architecture, bindings};
use serde::{Deserialize, Serialize};

use crate::blob::Blob;
use crate::choice::EngineChoice;
use crate::deep::{Difference, RebuildCheck, same_code};
use crate::kernels::{KernelCompiler, KernelFacts};
use crate::look::{stored, vault_key};
use crate::nvrtc::{NVRTC, Nvrtc, NvrtcError};
use crate::plan::{BadPlan, Plan, PlanFacts};
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

/// What a plan was compiled from. It follows the cubins in the entry's payload.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Inputs {
    request: String,
    /// Source and options of the kernel of our own, whose cubin is the last.
    #[serde(default)]
    own: Option<(String, Vec<String>)>,
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
        let started = Instant::now();
        let compiled = compile(&self.program.kernels)?;
        let own = self.program.own.as_ref().map(|own| own_code(&own.source, &own.options)).transpose()?;
        let bindings = bindings(self.attention);
        let Launches { recipe, code } = self.program.plan(&compiled, own.as_deref(), &bindings)?;
        let none = CudnnVersion::new(0, 0, 0);
        let facts = PlanFacts {
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
            compile_ms: started.elapsed().as_millis().try_into().unwrap_or(u32::MAX),
            blob_bytes: code.len() as u64,
            bindings,
            again: Vec::new(),
            fixed: Vec::new(),
            kernels: Some(Box::new(KernelFacts { by: compiler(), recipe })),
        };
        Ok(Plan { facts, blob: Blob::from(code) })
    }

    fn built(&self, toolchain: &Fa4Compiler) -> Result<Entry, Fa4Failure> {
        let _span = tracing::info_span!("plan.build", key = %self.key(), what = %self.attention).entered();
        let plan = self.compile_by(|kernels| toolchain.compile(kernels))?;
        let mut entry = plan.entry(&format!("{} fa4", architecture(SM)), format!("fa4 {}", TOOLCHAIN.flash_attn));
        let request = Request::of(&self.program.kernels);
        let request = request.map_err(|error| CompileError::Answer { why: error.to_string() })?;
        let own = self.program.own.clone().map(|Own { source, options }| (source, options));
        entry.payload.extend(codec::encode(&Inputs { request: request.text().to_owned(), own }));
        Ok(entry)
    }

    fn read(&self, entry: &Arc<Entry>) -> Result<Arc<Plan>, BadPlan> {
        let key = self.key();
        let plan = Plan::from_entry(key, entry)?;
        let ours = plan.facts.kernels.as_ref().is_some_and(|kernels| kernels.by == compiler());
        if ours && plan.facts.bindings == bindings(self.attention) {
            Ok(Arc::new(plan))
        } else {
            Err(BadPlan::OtherOperands { key })
        }
    }
}

/// The cubin of a kernel of our own.
fn own_code(source: &str, options: &[String]) -> Result<Vec<u8>, NvrtcError> {
    Nvrtc::open(None)?.compile("blocks.cu", source, options, SM)
}

fn name() -> String {
    let qkvault_fa4::Toolchain { flash_attn, cutlass_dsl, quack } = TOOLCHAIN;
    format!("FlashAttention-4 {flash_attn} by nvidia-cutlass-dsl {cutlass_dsl}, quack-kernels {quack}")
}

fn compiler() -> KernelCompiler {
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
        let known = known.and_then(|(source, entry)| Some((source, None, fa4.read(&entry).ok()?)));
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
            // A valid entry of another version of qkvault, or of somebody else.
            Err(_) => self.fa4_replaced(fa4, key),
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

/// Compiles a stored plan of FlashAttention-4's kernels again, from the request that is stored with it, and compares
/// the cubins.
#[must_use]
pub fn verify_fa4_by_rebuild(toolchain: &Installed, key: PlanKey, entry: &Entry) -> RebuildCheck {
    match deep(toolchain, key, entry) {
        Ok(check) => check,
        Err(difference) => RebuildCheck::Different(difference),
    }
}

fn deep(toolchain: &Installed, key: PlanKey, entry: &Entry) -> Result<RebuildCheck, Difference> {
    let plan = Plan::from_entry(key, &Arc::new(entry.clone()))?;
    match plan.facts.kernels.as_ref().map(|facts| facts.by == compiler()) {
        Some(true) => {}
        Some(false) => {
            let why = format!("another compiler than {} compiled it", name());
            return Ok(RebuildCheck::Skipped { why });
        }
        None => return Ok(RebuildCheck::Skipped { why: "it is a plan of cuDNN".to_owned() }),
    }
    let Inputs { request, own } = codec::decode(&entry.payload[plan.blob.len()..])?;
    let compiled = match toolchain.compile_request(&Request::stored(request)) {
        Ok(compiled) => compiled,
        Err(failure) => return Ok(RebuildCheck::UncompiledByFa4(failure)),
    };
    let own = match own.map(|(source, options)| own_code(&source, &options)).transpose() {
        Ok(own) => own,
        Err(error) => return Ok(RebuildCheck::Skipped { why: error.to_string() }),
    };
    let code: Vec<u8> = compiled.into_iter().map(|one| one.cubin).chain(own).flatten().collect();
    if !same_code(&plan.blob, &code) {
        return Err(Difference::Cubins { stored: plan.blob.len(), compiled: code.len() });
    }
    let kernels = plan.facts.kernels.as_ref().map_or(0, |facts| facts.recipe.modules.len());
    Ok(RebuildCheck::Same { kernels, kernel_bytes: code.len() })
}
