//! Plans of kernels: sources and recipes become cubins by NVRTC, and are kept in the vault like cuDNN's plans.

use std::sync::Arc;
use std::time::Instant;

use qkvault_cache::{Entry, Error as VaultError, Source, Vault};
use qkvault_graph::{CudnnVersion, LibrarySet, PlanKey, Toolchain, codec};
use qkvault_kernels::Engine;
use qkvault_kernels::recipe::{BadRecipe, Checked, Origin, Recipe, architecture};
use serde::{Deserialize, Serialize};

use crate::blob::Blob;
use crate::choice::EngineChoice;
use crate::computation::Computation;
use crate::facts::PlanFacts;
use crate::look::{discredit, stored, vault_key};
use crate::nvrtc::{NVRTC, NVRTC_DRIVER, Nvrtc, NvrtcError};
use crate::origin::{By, Origin as PlanOrigin};
use crate::plan::{BadPlan, Plan};
use crate::planner::{OnMiss, PlanError, Planner, Resolution};

/// The facts of a plan of kernels, beside those that every plan has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KernelFacts {
    /// What compiled the cubins.
    pub by: KernelCompiler,
    /// What a launch does.
    pub recipe: Recipe,
}

/// A compiler of kernels, with the versions that decide the code.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
pub enum KernelCompiler {
    /// NVRTC, major and minor.
    Nvrtc(u32, u32),
    /// FlashAttention-4's toolchain.
    Fa4 {
        /// Version of `flash-attn-4`.
        flash_attn: String,
        /// Version of `nvidia-cutlass-dsl`.
        cutlass_dsl: String,
        /// Version of `quack-kernels`.
        quack: String,
    },
}

impl KernelFacts {
    /// Checks the recipe against the facts of its plan: operands, bytes of cubins, scratch memory.
    ///
    /// # Errors
    ///
    /// [`BadRecipe`], with the first part that is wrong.
    pub fn check(&self, facts: &PlanFacts) -> Result<Checked, BadRecipe> {
        let KernelFacts { by: _, recipe } = self;
        for (place, given, needed) in [
            ("scratch memory in bytes", recipe.scratch, facts.workspace),
            ("the architecture", u64::from(recipe.sm), u64::from(facts.sm)),
        ] {
            if given != needed {
                let (given, needed) = (given.to_string(), format!("the plan's facts have {needed}"));
                return Err(BadRecipe::Wrong { place: place.to_owned(), given, needed });
            }
        }
        recipe.clone().check(&facts.bindings, facts.blob_bytes)
    }
}

/// What a plan of kernels is made of: the source and options for NVRTC (without an architecture), and a recipe without
/// cubins, all of whose launches are of the one cubin that the source becomes.
#[derive(Clone, Copy, Debug)]
pub struct KernelPlan<'a> {
    /// What it computes: a `Valid` attention, a `ValidConversion` or a `ValidCombination`.
    pub of: &'a dyn Computation,
    /// CUDA C.
    pub source: &'a str,
    /// Options of NVRTC.
    pub options: &'a [String],
    /// The recipe.
    pub recipe: &'a Recipe,
}

/// The name of the source in the compiler's messages.
const FILE: &str = "attention.cu";

impl KernelPlan<'_> {
    /// The key of the plan.
    #[must_use]
    pub fn key(&self) -> PlanKey {
        self.key_of(NVRTC)
    }

    /// The key with another NVRTC.
    pub(crate) fn key_of(&self, nvrtc: (u32, u32)) -> PlanKey {
        let KernelPlan { of: _, source, options, recipe } = *self;
        Origin { source, options, recipe, nvrtc }.key()
    }

    /// The plan, compiled by NVRTC, which is loaded if it is not.
    ///
    /// # Errors
    ///
    /// [`NvrtcError`] if there is no NVRTC, or the source does not compile.
    pub fn compile(&self, nvrtc: &Nvrtc) -> Result<Plan, NvrtcError> {
        let started = Instant::now();
        let cubin = nvrtc.compile(FILE, self.source, self.options, self.recipe.sm)?;
        let milliseconds = started.elapsed().as_millis().try_into().unwrap_or(u32::MAX);
        Ok(Plan { facts: self.facts(cubin.len() as u64, milliseconds), blob: Blob::from(cubin) })
    }

    /// The facts of the plan with a cubin of so many bytes. All of them but these two numbers follow from what is
    /// computed.
    pub(crate) fn facts(&self, blob_bytes: u64, compile_ms: u32) -> PlanFacts {
        let KernelPlan { of, recipe, .. } = *self;
        // A driver that is older than the compiler does not load what it made.
        let driver = recipe.driver.max(NVRTC_DRIVER);
        let whole = Recipe { modules: vec![blob_bytes], driver, ..recipe.clone() };
        let none = CudnnVersion::new(0, 0, 0);
        PlanFacts {
            key: self.key(),
            graph_key: of.graph_key(),
            what: of.to_string(),
            cudnn: none,
            libraries: LibrarySet::Slim,
            toolchain: Toolchain::assumed(none),
            sm: recipe.sm,
            multi_processors: 0,
            driver: i64::from(driver),
            memory_bus: None,
            engine: format!("kernels by NVRTC {}.{}", NVRTC.0, NVRTC.1),
            passed_over: Vec::new(),
            workspace: recipe.scratch,
            compile_ms,
            blob_bytes,
            bindings: of.bindings(),
            again: Vec::new(),
            fixed: Vec::new(),
            kernels: Some(Box::new(KernelFacts { by: KernelCompiler::Nvrtc(NVRTC.0, NVRTC.1), recipe: whole })),
        }
    }

    fn built(&self) -> Result<Entry, NvrtcError> {
        let _span = tracing::info_span!("plan.build", key = %self.key(), what = %self.of).entered();
        Ok(self.entry(&self.compile(&Nvrtc::open(None)?)?))
    }

    /// The plan as an entry of a vault, with what it is compiled from.
    pub(crate) fn entry(&self, plan: &Plan) -> Entry {
        let library = format!("nvrtc {}.{}", NVRTC.0, NVRTC.1);
        let mut entry = plan.entry(&format!("{} kernels", architecture(self.recipe.sm)), library);
        let origin = PlanOrigin { of: self.of.description(), by: By::Nvrtc { sm: self.recipe.sm } };
        entry.payload.extend(codec::encode(&origin));
        entry
    }
}

impl Planner {
    /// A plan of kernels: from the vault, or compiled by NVRTC and stored there. It needs no compiler of cuDNN and no
    /// GPU; NVRTC is loaded when a plan must be compiled. One plan serves every GPU of the recipe's architecture.
    ///
    /// # Errors
    ///
    /// [`PlanError::Missing`] if the plan may not be compiled, [`PlanError::Kernels`] if that does not work here,
    /// [`PlanError::Recipe`] if the recipe does not fit the computation.
    pub fn kernels(&self, kernels: &KernelPlan<'_>, on_miss: OnMiss) -> Result<Resolution, PlanError> {
        let started = Instant::now();
        let (key, graph_key) = (kernels.key(), kernels.of.graph_key());
        let (source, unstored, plan) = match found(&self.vault, kernels, key, on_miss) {
            Some((source, plan)) => (source, None, plan),
            None if on_miss != OnMiss::Compile => {
                let (what, target) = (kernels.of.to_string(), architecture(kernels.recipe.sm));
                return Err(PlanError::Missing { key, what, target, memory_alone: on_miss == OnMiss::Memory });
            }
            None => self.compiled(kernels, key)?,
        };
        let milliseconds = started.elapsed().as_secs_f64() * 1e3;
        let engine = EngineChoice::named(Engine::Kernels);
        Ok(Resolution { key: Some(key), graph_key, source, unstored, engine, outcome: Ok(plan), milliseconds })
    }

    /// The plan, compiled even if the vault has it, in the place of the stored one.
    pub(crate) fn kernels_anew(&self, kernels: &KernelPlan<'_>) -> Result<Resolution, PlanError> {
        let (started, key) = (Instant::now(), kernels.key());
        let (source, unstored, plan) = self.replaced(kernels, key)?;
        let milliseconds = started.elapsed().as_secs_f64() * 1e3;
        let (graph_key, engine) = (kernels.of.graph_key(), EngineChoice::named(Engine::Kernels));
        Ok(Resolution { key: Some(key), graph_key, source, unstored, engine, outcome: Ok(plan), milliseconds })
    }

    fn compiled(&self, kernels: &KernelPlan<'_>, key: PlanKey) -> Result<Compiled, PlanError> {
        let failed = |error: VaultError<NvrtcError>| match error {
            VaultError::Build(failure) => PlanError::Kernels { key, failure },
            other => PlanError::Interrupted { key, why: other.to_string() },
        };
        let obtained = self.vault.get_or_build(&vault_key(&key), || kernels.built()).map_err(failed)?;
        match read(kernels, key, &obtained.entry) {
            Ok(plan) => Ok((obtained.source, obtained.unstored, plan)),
            // A whole entry of another version of qkvault, or an altered one.
            Err(bad) => {
                discredit(&self.vault, &key, &obtained.entry, &bad.into());
                self.replaced(kernels, key)
            }
        }
    }

    fn replaced(&self, kernels: &KernelPlan<'_>, key: PlanKey) -> Result<Compiled, PlanError> {
        let failed = |failure| PlanError::Kernels { key, failure: Arc::new(failure) };
        let entry = Arc::new(kernels.built().map_err(failed)?);
        let plan = read(kernels, key, &entry).map_err(|bad| PlanError::Recipe { key, why: bad.to_string() })?;
        let unstored = self.vault.put(&vault_key(&key), Entry::clone(&entry)).err().map(Arc::new);
        Ok((Source::Built, unstored, plan))
    }
}

type Compiled = (Source, Option<Arc<qkvault_cache::StoreError>>, Arc<Plan>);

/// A stored plan.
fn found(vault: &Vault, kernels: &KernelPlan<'_>, key: PlanKey, on_miss: OnMiss) -> Option<(Source, Arc<Plan>)> {
    let (source, entry) = stored(vault, &key, on_miss == OnMiss::Memory)?;
    match read(kernels, key, &entry) {
        Ok(plan) => Some((source, plan)),
        Err(bad) => {
            discredit(vault, &key, &entry, &bad.into());
            None
        }
    }
}

/// The plan of an entry, if all its facts are those that follow from the computation, with the capacities of this one:
/// those of pools and varlen buffers are in no key.
fn read(kernels: &KernelPlan<'_>, key: PlanKey, entry: &Arc<Entry>) -> Result<Arc<Plan>, BadPlan> {
    let Plan { facts, blob } = Plan::from_entry(key, entry)?;
    let asked = kernels.facts(facts.blob_bytes, facts.compile_ms).asked(&facts);
    let asked = asked.map_err(|altered| BadPlan::Altered { key, altered: Box::new(altered) })?;
    // With the same operands it was checked when it was read.
    if let Some(kernels) = asked.kernels.as_ref().filter(|_| asked.bindings != facts.bindings) {
        kernels.check(&asked)?;
    }
    Ok(Arc::new(Plan { facts: asked, blob }))
}

/// Whether an entry's metadata are the facts of a plan of kernels.
#[must_use]
pub fn is_of_kernels(meta: &[u8]) -> bool {
    kernel_compiler_of(meta).is_some()
}

/// What compiled the kernels of an entry with these metadata; `None` for cuDNN's plans.
#[must_use]
pub fn kernel_compiler_of(meta: &[u8]) -> Option<KernelCompiler> {
    codec::decode::<PlanFacts>(meta).ok()?.kernels.map(|kernels| kernels.by)
}
