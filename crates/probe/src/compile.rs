//! Puts op graphs to cuDNN: heuristics, then a plan, for a target given as data. No handle and no GPU are used.

use std::sync::Arc;
use std::time::Instant;

use qkvault_graph::{Attention, Layer, LibrarySet, OpGraph, Policy, Reason, Refusal, Target};
use qkvault_sys::{AttributeName as A, Descriptor, Error, HeurMode, Kind, Library, Search, log};

use crate::engine::{self, Source};
use crate::kernels::KernelCache;
use crate::scratch::{Scratch, graph_keeps_scores};
use crate::{convert, words, write};

/// cuDNN as a compiler.
#[derive(Clone, Debug)]
pub struct Compiler {
    library: Arc<Library>,
}

/// What compiling gave.
#[derive(Clone, Debug)]
pub struct Compiled {
    /// What cuDNN wrote.
    pub blob: Vec<u8>,
    /// Bytes of scratch memory that a launch needs.
    pub workspace: u64,
    /// Engine and knobs.
    pub engine: String,
    /// Time taken, in milliseconds.
    pub milliseconds: u32,
}

/// Why there is no plan.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The library says no to this op graph for this target; asking again gives the same answer.
    #[error("{0}")]
    Refused(Refusal),
    /// The target is for another cuDNN than the one that is loaded.
    #[error(
        "the target wants cuDNN {wanted} ({wanted_set} set), but {found} ({found_set} set) is loaded; \
         use a target for that one, or QKVAULT_CUDNN_PATH to load the other"
    )]
    OtherLibrary {
        /// Version that the target wants.
        wanted: qkvault_graph::CudnnVersion,
        /// Set that the target wants.
        wanted_set: LibrarySet,
        /// Version that is loaded.
        found: qkvault_graph::CudnnVersion,
        /// Set that is loaded.
        found_set: LibrarySet,
    },
    /// Compiling cannot work here, whatever is asked: something is missing or broken.
    #[error("{}", broken(.0))]
    Broken(#[from] Error),
    /// With a driver in the process, cuDNN asks it for what it has compiled; a GPU's driver has no kernel for another GPU.
    #[error(
        "cuDNN compiled this for sm_{sm} and asked the driver of this machine's GPU for the kernel, which has none for another GPU ({words}); \
         compile for other GPUs in a process that loads no driver: `qkvault warm` and `qkvault probe --library`, or Compiler::open_apart"
    )]
    OtherGpu {
        /// The target's SM version, such as 90.
        sm: u32,
        /// cuDNN's words.
        words: String,
    },
    /// No stand-in for the driver could be loaded.
    #[error("there is no NVIDIA driver, and its stand-in could not be loaded: {0}")]
    StandIn(#[from] qkvault_headless::Error),
}

impl Compiler {
    /// A compiler of the cuDNN that the search finds. Loads the stand-in for the driver where there is no driver.
    ///
    /// # Errors
    ///
    /// [`Failure::Broken`] with everything that was tried, [`Failure::StandIn`].
    pub fn open(search: &Search) -> Result<Compiler, Failure> {
        qkvault_headless::ensure()?;
        let library = Library::open(search).map_err(Error::from)?;
        Ok(Compiler { library })
    }

    /// The same for a process that only compiles: a driver that is there is not loaded, so that plans for any GPU can be compiled on a machine
    /// with one. Call it before anything else loads a driver. Nothing can run in this process afterwards.
    ///
    /// # Errors
    ///
    /// As [`Compiler::open`].
    pub fn open_apart(search: &Search) -> Result<Compiler, Failure> {
        qkvault_headless::ensure_stand_in()?;
        Compiler::open(search)
    }

    /// The library that compiles.
    #[must_use]
    pub fn library(&self) -> &Arc<Library> {
        &self.library
    }

    /// Compiles an op graph for a target. Takes 0.3 to 1 s of one core; calls on several threads run side by side.
    ///
    /// A policy's workspace limit counts packed buffers as if every sequence were at its longest, because an op graph does not say how
    /// many tokens there is room for; [`Compiler::compile_for`] counts that room.
    ///
    /// # Errors
    ///
    /// [`Failure`]; a refusal holds the library's own words.
    pub fn compile(&self, graph: &OpGraph, target: &Target, policy: &Policy) -> Result<Compiled, Failure> {
        self.compile_in(graph, None, target, policy, None)
    }

    /// Compiles the op graph of an attention, whose packed operands have room for so many tokens.
    ///
    /// # Errors
    ///
    /// As [`Compiler::compile`].
    pub fn compile_for(
        &self,
        attention: &Attention,
        graph: &OpGraph,
        target: &Target,
        policy: &Policy,
    ) -> Result<Compiled, Failure> {
        self.compile_in(graph, Some(attention), target, policy, None)
    }

    /// The same with dynamic shapes and a kernel cache. What comes out need not be a plan of this shape: see
    /// [`DynamicShapes`](crate::DynamicShapes) before keeping it.
    ///
    /// # Errors
    ///
    /// [`Failure`].
    pub fn compile_dynamic(
        &self,
        graph: &OpGraph,
        target: &Target,
        policy: &Policy,
        kernels: &KernelCache,
    ) -> Result<Compiled, Failure> {
        self.compile_in(graph, None, target, policy, Some(kernels))
    }

    /// An empty kernel cache for the family of an op graph.
    ///
    /// # Errors
    ///
    /// cuDNN's.
    pub fn kernel_cache(&self, graph: &OpGraph) -> Result<KernelCache, Error> {
        KernelCache::of(&write::op_graph(&self.library, graph, true)?)
    }

    /// A kernel cache from what [`KernelCache::bytes`] gave.
    ///
    /// # Errors
    ///
    /// cuDNN's.
    pub fn read_kernel_cache(&self, bytes: &[u8]) -> Result<KernelCache, Error> {
        KernelCache::read(&self.library, bytes)
    }

    fn compile_in(
        &self,
        graph: &OpGraph,
        attention: Option<&Attention>,
        target: &Target,
        policy: &Policy,
        kernels: Option<&KernelCache>,
    ) -> Result<Compiled, Failure> {
        let (found, found_set) = (convert::library_version(&self.library), convert::library_set(&self.library));
        if (target.cudnn, target.libraries) != (found, found_set) {
            return Err(Failure::OtherLibrary { wanted: target.cudnn, wanted_set: target.libraries, found, found_set });
        }
        let started = Instant::now();
        let (result, messages) = log::collect(|| self.attempt(graph, attention, target, policy, kernels));
        match result {
            Ok((plan, engine)) => Ok(Compiled {
                blob: plan.get_bytes(A::EXECUTION_PLAN_JSON_REPRESENTATION)?,
                workspace: workspace(&plan)?,
                engine,
                milliseconds: started.elapsed().as_millis().try_into().unwrap_or(u32::MAX),
            }),
            Err(Attempt::Broken(error)) => Err(broken_for(target, error)),
            Err(Attempt::Refused(mut reasons)) => {
                let told = words::reasons(&messages);
                if !told.is_empty() {
                    // The causes say more than the calls that failed because of them.
                    reasons.retain(|r| r.layer != Layer::Library);
                    reasons.extend(told);
                }
                if reasons.is_empty() {
                    add(&mut reasons, "library.silent", "heuristics", "no engine, without a word");
                }
                Err(Failure::Refused(Refusal::of(reasons).expect("one was added if there was none")))
            }
        }
    }

    /// The first engine configuration that gives a plan within the policy's limits: that of the engine which the graph names, or one of
    /// the policy's heuristics.
    fn attempt(
        &self,
        graph: &OpGraph,
        attention: Option<&Attention>,
        target: &Target,
        policy: &Policy,
        kernels: Option<&KernelCache>,
    ) -> Result<(Descriptor, String), Attempt> {
        let json = target.device.json_for(target.cudnn).map_err(Attempt::Refused)?;
        let mut device = Descriptor::create(&self.library, Kind::DEVICEPROP)?;
        device.set(A::DEVICEPROP_JSON_REPRESENTATION, json.as_bytes())?;
        device.finalize().map_err(|e| attempt("library.device", "target.device", e))?;
        let ops = write::op_graph(&self.library, graph, kernels.is_some())
            .map_err(|e| attempt("library.graph", "op graph", e))?;
        let from = Source::of(graph, policy.heuristics);
        let mut reasons = Vec::new();
        for from in from {
            let (code, name) = from.name();
            let configs = match from {
                Source::Named(engine) => engine::named(&ops, &device, engine).map(|config| vec![config]),
                Source::A => self.heuristics(&ops, &device, HeurMode::A),
                Source::Fallback => self.heuristics(&ops, &device, HeurMode::FALLBACK),
            };
            let configs = match configs {
                Ok(configs) => configs,
                Err(error) => {
                    collect(&mut reasons, code, &name, error)?;
                    continue;
                }
            };
            for config in &configs {
                if let Some(reason) = engine::unfit(config, graph) {
                    reasons.push(reason);
                    continue;
                }
                match plan(config, kernels) {
                    Ok(plan) => match policy.workspace_limit {
                        Some(limit) if needs(&plan, graph, attention)? > limit => {
                            let reason = over_limit(needs(&plan, graph, attention)?, limit, graph, target.sm());
                            if !reasons.contains(&reason) {
                                reasons.push(reason);
                            }
                        }
                        _ => {
                            // The library does not tell the knobs that were chosen.
                            let named = graph.engine.as_ref().map(ToString::to_string);
                            return Ok((plan, named.unwrap_or_else(|| engine::text(config))));
                        }
                    },
                    Err(error) => collect(&mut reasons, "library.plan", &name, error)?,
                }
            }
        }
        Err(Attempt::Refused(reasons))
    }

    fn heuristics(&self, ops: &Descriptor, device: &Descriptor, mode: HeurMode) -> Result<Vec<Descriptor>, Error> {
        let mut h = Descriptor::create(&self.library, Kind::ENGINEHEUR)?;
        h.set_descriptor(A::ENGINEHEUR_OPERATION_GRAPH, ops)?;
        h.set_one(A::ENGINEHEUR_MODE, mode)?;
        h.set_descriptor(A::ENGINEHEUR_DEVICEPROP, device)?;
        h.finalize()?;
        h.get_descriptors(A::ENGINEHEUR_RESULTS, Kind::ENGINECFG)
    }
}

fn plan(config: &Descriptor, kernels: Option<&KernelCache>) -> Result<Descriptor, Error> {
    let mut plan = Descriptor::create(config.library(), Kind::EXECUTION_PLAN)?;
    plan.set_descriptor(A::EXECUTION_PLAN_ENGINE_CONFIG, config)?;
    match kernels {
        None => plan.finalized(),
        Some(kernels) => kernels.with(|kernels| {
            plan.set_descriptor(A::EXECUTION_PLAN_KERNEL_CACHE, kernels)?;
            plan.finalized()
        }),
    }
}

fn workspace(plan: &Descriptor) -> Result<u64, Error> {
    Ok(plan.get_one::<i64>(A::EXECUTION_PLAN_WORKSPACE_SIZE)?.unsigned_abs())
}

/// Bytes of scratch memory that a launch needs, buffers that the launcher provides included.
fn needs(plan: &Descriptor, graph: &OpGraph, attention: Option<&Attention>) -> Result<u64, Error> {
    Ok(Scratch::of_graph(workspace(plan)?, graph, attention).bytes)
}

/// A cuDNN that is not there has said all itself.
fn broken(error: &Error) -> String {
    match error {
        Error::Load(load) => load.to_string(),
        other => format!("cuDNN could not compile here: {other}"),
    }
}

/// What an internal error means: that of a driver that has no kernel for the target's GPU is told apart.
fn broken_for(target: &Target, error: Error) -> Failure {
    let words = match &error {
        Error::Call(call) => call.detail.as_str(),
        _ => "",
    };
    // CUDA_ERROR_NO_BINARY_FOR_GPU, seen with 9.14 and 9.19 on an H200 for sm_89 and sm_100.
    if words.contains("(209)") && !qkvault_headless::is_stand_in_loaded() {
        Failure::OtherGpu { sm: target.sm(), words: words.to_owned() }
    } else {
        Failure::Broken(error)
    }
}

enum Attempt {
    Refused(Vec<Reason>),
    Broken(Error),
}

impl From<Error> for Attempt {
    fn from(error: Error) -> Attempt {
        Attempt::Broken(error)
    }
}

fn add(reasons: &mut Vec<Reason>, code: &'static str, field: &str, text: &str) {
    if reasons.iter().any(|r| r.given == text) {
        return;
    }
    reasons.push(Reason::new(Layer::Library, code, field.to_owned(), text, "", ""));
}

fn over_limit(workspace: u64, limit: u64, graph: &OpGraph, sm: u32) -> Reason {
    let quadratic = graph_keeps_scores(graph, sm);
    let (code, why, fix) = if quadratic {
        (
            "workspace.quadratic",
            ", which holds a gradient of every score: the backward is deterministic, or a bias wants its gradient",
            "sum dQ in any order (deterministic: no), take fewer sequences at a time, or raise the limit",
        )
    } else {
        ("workspace.limit", "", "raise the limit")
    };
    Reason::new(
        Layer::Rule,
        code,
        "policy.workspace_limit",
        format!("an engine needs {workspace} bytes of workspace{why}"),
        format!("at most {limit} bytes are allowed"),
        fix,
    )
}

/// Whether a status is about what was asked (bad parameter, not supported) rather than about this machine.
///
/// By the thousands digit of cuDNN's statuses; of the 'not supported' ones, a missing run-time prerequisite (3008) and a
/// missing sub-library (3009) are about the machine. Of the internal errors, a kernel that does not compile (4001) is about
/// what was asked: cuDNN generated source that its own compiler refuses (seen with 9.27 for a split decode with ALiBi).
fn is_refusal(error: &Error) -> bool {
    match error {
        Error::Call(call) => matches!(call.status.0, 2000..=2999 | 3000..=3007 | 3010..=3999 | 4001),
        _ => false,
    }
}

fn collect(reasons: &mut Vec<Reason>, code: &'static str, field: &str, error: Error) -> Result<(), Attempt> {
    if !is_refusal(&error) {
        return Err(Attempt::Broken(error));
    }
    add(reasons, code, field, &error.to_string());
    Ok(())
}

fn attempt(code: &'static str, field: &str, error: Error) -> Attempt {
    let mut reasons = Vec::new();
    match collect(&mut reasons, code, field, error) {
        Ok(()) => Attempt::Refused(reasons),
        Err(attempt) => attempt,
    }
}
