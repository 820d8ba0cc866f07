//! A compiler together with a vault: the planner looks up what was compiled or refused before.

use std::sync::Arc;
use std::time::Instant;

use qkvault_cache::{Entry, Source, StoreError, Vault};
use qkvault_cudnn::{CompileOptions, QuirkSet, Target};
use qkvault_graph::{EnginePolicy, GraphKey, PlanKey, Refusal, Valid};
use qkvault_sys::Search;

use crate::choice::{Answer, Candidates, EngineChoice, ask_engines};
use crate::cudnn::OpenCompiler;
use crate::cudnn::compiler::Compiler;
use crate::cudnn::job::Job;
use crate::cudnn::made::Made;
use crate::engine::{Engine, EngineId, Gpu};
use crate::engines::Engines;
use crate::kernels::{KERNELS, KernelPlan};
use crate::obtain::How;
use crate::plan::Plan;
pub use crate::plan_error::PlanError;

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
/// use qkvault_compile::codes;
/// use qkvault_compile::graph::{Attention, CudnnVersion, DType, LibrarySet, validate};
/// use qkvault_cudnn::{CompileOptions, Profile};
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
    pub(crate) engines: Engines,
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
        Planner::with(vault, OpenCompiler::new(compiler))
    }

    /// A planner that compiles with the cuDNN that a search finds, which is opened for the first plan of cuDNN that
    /// must be compiled. Plans of kernels need none.
    #[must_use]
    pub fn opening(vault: Vault, search: Search) -> Planner {
        Planner::with(vault, OpenCompiler::by(search))
    }

    fn with(vault: Vault, compiler: OpenCompiler) -> Planner {
        let compiler = Arc::new(compiler);
        Planner { vault, engines: Engines::with(Arc::clone(&compiler)), compiler, allowed: QuirkSet::NONE }
    }

    /// The same planner with one more engine, or another one in the place of that with its name.
    #[must_use]
    pub fn with_engine(self, engine: Arc<dyn Engine>) -> Planner {
        Planner { engines: self.engines.and(engine), ..self }
    }

    /// The engines, in no order.
    #[must_use]
    pub fn engines(&self) -> &Engines {
        &self.engines
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

    /// The compiler, if something has opened it.
    #[must_use]
    pub fn opened_compiler(&self) -> Option<&Compiler> {
        self.compiler.opened()
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
        self.ask(attention, target.into(), options, on_miss.into())
    }

    /// The plan of one engine, whatever the options say of engines: kernels need no cuDNN and no target.
    ///
    /// # Errors
    ///
    /// As [`Planner::plan`]; [`PlanError::NoEngine`]. That the engine does not take the attention is an answer.
    pub fn plan_by(
        &self,
        engine: EngineId,
        attention: &Valid,
        on: Gpu<'_>,
        options: &CompileOptions,
        on_miss: OnMiss,
    ) -> Result<Resolution, PlanError> {
        self.ask(attention, on, &CompileOptions { engine: engine.policy(), ..*options }, on_miss.into())
    }

    /// The key of the plan that [`Planner::plan`] looks for first, in microseconds: nothing is read or compiled.
    ///
    /// # Errors
    ///
    /// The reasons of lowering and rules, for which there is no op graph and no key.
    pub fn key(&self, attention: &Valid, target: &Target, options: &CompileOptions) -> Result<PlanKey, Refusal> {
        let options = self.allowing_too(options);
        let candidates = self.candidates(attention, target.sm(), options.engine).engines;
        let mut keys = candidates.into_iter().map(|engine| {
            let work = self.engines.get(engine).work(attention, target.into(), &options)?;
            Ok(work.key())
        });
        let first: Result<PlanKey, Refusal> = keys.next().expect("a policy that was read names an engine");
        first.or_else(|refusal| keys.find_map(Result::ok).ok_or(refusal))
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
        self.ask(attention, target.into(), options, How { on_miss: OnMiss::Compile, anew: Some(unusable) })
    }

    /// A plan of kernels: from the vault, or compiled by NVRTC and stored there. It needs no compiler of cuDNN and no
    /// GPU; NVRTC is loaded when a plan must be compiled. One plan serves every GPU of the recipe's architecture.
    ///
    /// # Errors
    ///
    /// [`PlanError::Missing`] if the plan may not be compiled, [`PlanError::Failed`] if that does not work here,
    /// [`PlanError::Unfit`] if the recipe does not fit the computation.
    pub fn kernels(&self, kernels: &KernelPlan<'_>, on_miss: OnMiss) -> Result<Resolution, PlanError> {
        self.resolve(KERNELS, kernels, None, on_miss.into())
    }

    /// The answer of the engines for an attention, by policy, choice, and the limit of scratch memory.
    pub(crate) fn ask(
        &self,
        attention: &Valid,
        on: Gpu<'_>,
        options: &CompileOptions,
        how: How<'_>,
    ) -> Result<Resolution, PlanError> {
        let options = self.allowing_too(options);
        let candidates = self.candidates(attention, on.sm, options.engine);
        self.known(&candidates, &options)?;
        let (answered, passed) = ask_engines(&candidates, |choice| {
            let started = Instant::now();
            let answered = match self.engines.get(choice.engine).work(attention, on, &options) {
                Ok(work) => self.resolve(choice.engine, &*work, options.workspace_limit, how),
                // Within microseconds, so it is not stored.
                Err(refusal) => Ok(Resolution {
                    milliseconds: started.elapsed().as_secs_f64() * 1e3,
                    ..Resolution::refused(attention.key(), choice.engine, refusal)
                }),
            };
            match answered {
                Ok(answer) => {
                    let answer = Resolution { engine: choice.clone(), ..answer };
                    match answer.outcome.as_ref().err().cloned() {
                        None => Answer::Plan(Ok(answer)),
                        Some(refusal) => Answer::Refused(Ok(answer), refusal),
                    }
                }
                Err(error) => {
                    let (gap, why) = (error.gap(), error.cause());
                    Answer::lacking(Err(error), gap, why)
                }
            }
        });
        // A refusal is told with what the other engines lack.
        answered.map(|mut answer| {
            if answer.outcome.is_err() {
                let others = passed.into_iter().filter(|passed| passed.engine != answer.engine.engine);
                answer.engine.passed = others.chain(candidates.never).collect();
            }
            answer
        })
    }

    /// Whether the engine that the options name is in the list.
    pub(crate) fn known(&self, candidates: &Candidates, options: &CompileOptions) -> Result<(), PlanError> {
        match options.engine {
            EnginePolicy::Named(name) if candidates.engines.is_empty() => {
                Err(PlanError::NoEngine { name, known: self.engines.words().join(", ") })
            }
            EnginePolicy::Named(_) | EnginePolicy::Auto => Ok(()),
        }
    }

    /// The options with what this planner allows besides.
    pub(crate) fn allowing_too(&self, options: &CompileOptions) -> CompileOptions {
        CompileOptions { allowed: options.allowed.with(self.allowed), ..*options }
    }

    /// An entry with all that a plan of cuDNN for an attention says, over other bytes: for tests of look-ups and loads.
    #[doc(hidden)]
    pub fn entry_over(attention: &Valid, target: &Target, blob: &[u8]) -> Result<(PlanKey, Entry), Refusal> {
        let compiler = OpenCompiler::new(None);
        let job = Job::new(attention, target, &CompileOptions::default(), &compiler)?;
        let (engine, passed_over, blob_bytes) = ("engine 2".to_owned(), Vec::new(), blob.len() as u64);
        let made = Made { engine, passed_over, workspace: 256, compile_ms: 400, blob_bytes };
        Ok((job.key, job.entry(made, blob.into())))
    }
}

impl Resolution {
    /// A refusal for which there is no key.
    pub(crate) fn refused(graph_key: GraphKey, engine: EngineId, refusal: Refusal) -> Resolution {
        let (engine, outcome) = (EngineChoice::named(engine), Err(refusal));
        Resolution { key: None, graph_key, source: Source::Built, unstored: None, engine, outcome, milliseconds: 0.0 }
    }
}
