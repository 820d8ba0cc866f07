//! A compiler together with a vault: the planner looks up what was compiled or refused before.

use std::sync::Arc;
use std::time::Instant;

use qkvault_cache::{Entry, Error as VaultError, Source, StoreError, Vault};
use qkvault_graph::{CompileOptions, EnginePolicy, GraphKey, PlanKey, QuirkSet, Refusal, Target, Valid, plan_key};

use crate::choice::EngineChoice;
use crate::compile::{Compiled, Compiler};
use crate::fa4::{Fa4Compiler, Fa4Plan};
use crate::facts::Made;
use crate::failure::Failure;
use crate::job::{Build, Found, Job};
use crate::kernels::KernelPlan;
use crate::limit::within;
use crate::look::{discredit, look, outcome, vault_key};
use crate::open::OpenCompiler;
use crate::plan::{self, Plan};
pub use crate::plan_error::PlanError;
use qkvault_kernels::Engine;
use qkvault_probe::lowered;
use qkvault_sys::Search;

/// What a planner does for a plan that is not in memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum OnMiss {
    /// Looks only in memory, and returns [`PlanError::Missing`] otherwise. For code that must not wait.
    Memory,
    /// Loads the plan from the vault: from its folder, its layers or its remote, and compiles nothing. A
    /// [`local`](Vault::local) handle of the vault skips the remote.
    Load,
    /// Loads the plan from the vault, or compiles it if the vault does not have it.
    #[default]
    Compile,
}

/// Returns plans.
///
/// ```
/// use qkvault_compile::cache::{Vault, VaultOptions};
/// use qkvault_compile::graph::registry::codes;
/// use qkvault_compile::graph::{Attention, CompileOptions, CudnnVersion, DType, LibrarySet, Profile, validate};
/// use qkvault_compile::{OnMiss, PlanError, Planner};
///
/// // Without a compiler it only looks up; `Planner::new(vault, Some(compiler))` builds missing plans.
/// let planner = Planner::new(Vault::in_memory(VaultOptions::new()), None);
/// let attention = validate(Attention::bshd(1, (8, 8), (512, 512), 64, DType::F16))?;
/// let target = Profile::named("h200")?.target(CudnnVersion::v9(27, 0), LibrarySet::Slim);
/// let missing = planner.plan(&attention, &target, &CompileOptions::default(), OnMiss::Load);
/// assert!(matches!(missing, Err(PlanError::Missing { .. })));
///
/// // A refusal is an answer, and needs neither a vault nor a compiler.
/// let odd = validate(Attention::bshd(1, (8, 8), (512, 512), 100, DType::F16).with_sink())?;
/// let old = Profile::named("h200")?.target(CudnnVersion::v9(10, 0), LibrarySet::Slim);
/// let answer = planner.plan(&odd, &old, &CompileOptions::default(), OnMiss::Load)?;
/// assert!(answer.outcome.is_err_and(|refusal| refusal.has(&codes::CUDNN_WITHDRAWN)));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Planner {
    pub(crate) vault: Vault,
    compiler: Arc<OpenCompiler>,
    pub(crate) fa4_toolchain: Arc<Fa4Compiler>,
    pub(crate) allowed: QuirkSet,
}

/// A plan or a refusal, with its source.
#[derive(Clone, Debug)]
pub struct Resolution {
    /// Key of the plan; `None` if lowering refused, because a plan needs an op graph.
    pub key: Option<PlanKey>,
    /// Key of the attention.
    pub graph_key: GraphKey,
    /// The source of the answer. A lookup that may not build distinguishes only memory from everything else
    /// ([`Source::Disk`]).
    pub source: Source,
    /// Why a new plan was not stored, if it was not; the plan is still valid.
    pub unstored: Option<Arc<StoreError>>,
    /// Whose answer it is, and why.
    pub engine: EngineChoice,
    /// The plan, or the refusal.
    pub outcome: Result<Arc<Plan>, Refusal>,
    /// Time of the call, in milliseconds.
    pub milliseconds: f64,
}

impl Planner {
    /// A planner for a vault; without a compiler it only looks up.
    #[must_use]
    pub fn new(vault: Vault, compiler: Option<Compiler>) -> Planner {
        let compiler = Arc::new(OpenCompiler::of(compiler));
        Planner { vault, compiler, fa4_toolchain: Arc::default(), allowed: QuirkSet::NONE }
    }

    /// A planner that compiles with the cuDNN that a search finds, which is opened for the first plan of cuDNN that
    /// must be compiled. Plans of kernels need none.
    #[must_use]
    pub fn opening(vault: Vault, search: Search) -> Planner {
        let compiler = Arc::new(OpenCompiler::by(search));
        Planner { vault, compiler, fa4_toolchain: Arc::default(), allowed: QuirkSet::NONE }
    }

    /// Allows quirks, besides those that the options of a call allow. A plan with an allowed quirk has a separate key;
    /// other plans keep their keys.
    #[must_use]
    pub fn allowing(self, quirks: QuirkSet) -> Planner {
        Planner { allowed: quirks, ..self }
    }

    /// The vault.
    #[must_use]
    pub fn vault(&self) -> &Vault {
        &self.vault
    }

    /// The same planner and vault, without lookups in the vault's remote.
    #[must_use]
    pub fn local(&self) -> Planner {
        Planner { vault: self.vault.local(), ..self.clone() }
    }

    /// The compiler, if there is one; it is opened if it is not.
    #[must_use]
    pub fn compiler(&self) -> Option<&Compiler> {
        self.compiler.get().ok()
    }

    /// The compiler, which the first call opens.
    ///
    /// # Errors
    ///
    /// Why there is none; empty if the planner was given none.
    pub fn open_compiler(&self) -> Result<&Compiler, String> {
        self.compiler.get()
    }

    /// The plan of an attention for a target: from the vault, or compiled and stored there.
    ///
    /// A refusal is an answer, not an error: it is in [`Resolution::outcome`], and the vault stores it too.
    ///
    /// # Errors
    ///
    /// [`PlanError`]: the plan is missing and may not be built, or compiling does not work here.
    pub fn plan(
        &self,
        attention: &Valid,
        target: &Target,
        options: &CompileOptions,
        on_miss: OnMiss,
    ) -> Result<Resolution, PlanError> {
        let of_cudnn = || self.resolve(attention, target, options, |vault, job| self.find(vault, job, on_miss));
        let of_kernels = |kernels: &KernelPlan<'_>| self.kernels(kernels, on_miss);
        let policy = (options.engine, options.workspace_limit);
        self.choose(attention, target.sm(), policy, of_cudnn, of_kernels, |fa4| self.fa4(fa4, on_miss))
    }

    /// The key of the plan that [`Planner::plan`] looks for first, in microseconds: nothing is read or compiled.
    ///
    /// # Errors
    ///
    /// The reasons of lowering and rules, for which there is no op graph and no key.
    pub fn key(&self, attention: &Valid, target: &Target, options: &CompileOptions) -> Result<PlanKey, Refusal> {
        let (sm, allowed) = (target.sm(), options.allowed.with(self.allowed));
        let options = &CompileOptions { allowed, ..*options };
        let of = |engine: &Engine| match engine {
            Engine::Kernels => crate::choice::kernel_key(attention, sm),
            Engine::Fa4 => Fa4Plan::of(attention, sm).map(|plan| plan.key()),
            Engine::Cudnn => {
                let graph = lowered(attention, target, options)?;
                Ok(plan_key(&graph, target, &unlimited(options)))
            }
        };
        let candidates = self.candidates(attention, sm, options.engine).engines;
        let first = of(&candidates[0]);
        match first {
            Ok(key) => Ok(key),
            Err(refusal) => candidates[1..].iter().find_map(|engine| of(engine).ok()).ok_or(refusal),
        }
    }

    /// Does the same as [`Planner::plan`] with [`OnMiss::Compile`], but builds the plan of one key anew, even if the
    /// vault has it, and replaces the stored one: for a stored plan that cuDNN refuses to load.
    ///
    /// # Errors
    ///
    /// [`PlanError`]. The stored plan stays if the new one cannot be built.
    pub fn rebuild(
        &self,
        attention: &Valid,
        target: &Target,
        options: &CompileOptions,
        unusable: &PlanKey,
    ) -> Result<Resolution, PlanError> {
        let of_cudnn = || {
            self.resolve(attention, target, options, |vault, job| {
                let anew = job.key == *unusable;
                if anew { self.replace(vault, job) } else { self.obtain(vault, job) }
            })
        };
        let again = |kernels: &KernelPlan<'_>| match kernels.key() == *unusable {
            true => self.kernels_anew(kernels),
            false => self.kernels(kernels, OnMiss::Compile),
        };
        let again_fa4 = |fa4: &Fa4Plan<'_>| match fa4.key() == *unusable {
            true => self.fa4_anew(fa4),
            false => self.fa4(fa4, OnMiss::Compile),
        };
        let policy = (options.engine, options.workspace_limit);
        self.choose(attention, target.sm(), policy, of_cudnn, again, again_fa4)
    }

    /// An entry with all that a plan of cuDNN for an attention says, over other bytes: for tests of look-ups and loads.
    #[doc(hidden)]
    pub fn entry_over(attention: &Valid, target: &Target, blob: &[u8]) -> Result<(PlanKey, Entry), Refusal> {
        let options = &unlimited(&CompileOptions::default());
        let (graph, choice) = (lowered(attention, target, options)?, options.lab.choice());
        let (key, what) = (plan_key(&graph, target, options), attention.to_string());
        let graph_key = attention.key();
        let job = Job { attention, graph: &graph, target, options, choice, key, graph_key, what: &what };
        let (engine, passed_over, blob_bytes) = ("engine 2".to_owned(), Vec::new(), blob.len() as u64);
        let made = Made { engine, passed_over, workspace: 256, compile_ms: 400, blob_bytes };
        Ok((key, job.entry(made, blob.into())))
    }

    /// Lowers, and finds the plan or refusal of the op graph with `find`.
    fn resolve(
        &self,
        attention: &Valid,
        target: &Target,
        options: &CompileOptions,
        find: impl Fn(&Vault, &Job<'_>) -> Result<Found, PlanError>,
    ) -> Result<Resolution, PlanError> {
        let started = Instant::now();
        let graph_key = attention.key();
        let what = attention.to_string();
        let options = &CompileOptions { allowed: options.allowed.with(self.allowed), ..*options };
        let graph = match lowered(attention, target, options) {
            Ok(graph) => graph,
            Err(refusal) => {
                // Lowering and rules refuse within microseconds, so their refusals are not stored.
                let milliseconds = started.elapsed().as_secs_f64() * 1e3;
                let outcome = Err(refusal);
                let source = Source::Built;
                let (unstored, engine) = (None, EngineChoice::named(Engine::Cudnn));
                return Ok(Resolution { key: None, graph_key, source, unstored, engine, outcome, milliseconds });
            }
        };
        let unlimited = &unlimited(options);
        let choice = unlimited.lab.choice();
        let key = plan_key(&graph, target, unlimited);
        let job = Job { attention, graph: &graph, target, options: unlimited, choice, key, graph_key, what: &what };
        let vault = self.vault.for_library(&target.cudnn.to_string());
        let (key, (source, unstored, outcome)) = within(options.workspace_limit, &vault, job, find)?;
        let milliseconds = started.elapsed().as_secs_f64() * 1e3;
        let engine = EngineChoice::named(Engine::Cudnn);
        Ok(Resolution { key: Some(key), graph_key, source, unstored, engine, outcome, milliseconds })
    }

    /// Finds a plan or a refusal by its key, as far as `on_miss` allows.
    fn find(&self, vault: &Vault, job: &Job<'_>, on_miss: OnMiss) -> Result<Found, PlanError> {
        match on_miss {
            OnMiss::Memory => look(vault, job, true),
            OnMiss::Load => look(vault, job, false),
            OnMiss::Compile => self.obtain(vault, job),
        }
    }

    fn obtain(&self, vault: &Vault, job: &Job<'_>) -> Result<Found, PlanError> {
        let key = vault_key(&job.key);
        let obtained = match vault.get_or_build(&key, || self.build(job)) {
            Ok(obtained) => obtained,
            Err(error) => return job.unbuilt(error),
        };
        match outcome(job, &obtained.entry) {
            Ok(outcome) => Ok((obtained.source, obtained.unstored, outcome)),
            Err(bad) => {
                // A whole entry of another version of qkvault, or an altered one: the plan is built again.
                discredit(vault, &job.key, &obtained.entry, &bad);
                self.replace(vault, job)
            }
        }
    }

    /// Builds a plan and puts it over what is stored under its key.
    fn replace(&self, vault: &Vault, job: &Job<'_>) -> Result<Found, PlanError> {
        let entry = match self.build(job) {
            Ok(entry) => Arc::new(entry),
            Err(build) => return job.unbuilt(VaultError::Build(Arc::new(build))),
        };
        let outcome =
            outcome(job, &entry).map_err(|bad| PlanError::Interrupted { key: job.key, why: bad.to_string() })?;
        let unstored = vault.replace(&vault_key(&job.key), Entry::clone(&entry)).err().map(Arc::new);
        Ok((Source::Built, unstored, outcome))
    }

    fn build(&self, job: &Job<'_>) -> Result<Entry, Build> {
        let compiler = self.compiler.get().map_err(Build::NoCompiler)?;
        let _span = tracing::info_span!("plan.build", key = %job.key, what = job.what).entered();
        match compiler.compile_choice(job.graph, job.target, job.options, job.choice) {
            Ok(Compiled { blob, engine, passed_over, workspace, milliseconds }) => {
                let blob_bytes = blob.len() as u64;
                let made = Made { engine, passed_over, workspace, compile_ms: milliseconds, blob_bytes };
                Ok(job.entry(made, blob.into()))
            }
            Err(Failure::Refused(refusal)) => Ok(plan::refusal_entry(&refusal, job.what, job.target, &job.origin())),
            Err(failure) if failure.is_uncompiled() => Err(match job.known_refusal() {
                Some(refusal) => Build::Known(refusal),
                None => Build::Failed(Arc::new(failure)),
            }),
            Err(failure) => Err(Build::Failed(Arc::new(failure))),
        }
    }
}

/// No key contains a limit or the choice of an engine, so the inputs of a plan of cuDNN do not either.
pub(crate) fn unlimited(options: &CompileOptions) -> CompileOptions {
    CompileOptions { workspace_limit: None, engine: EnginePolicy::default(), ..*options }
}
