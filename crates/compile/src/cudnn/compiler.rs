//! Compiles op graphs with cuDNN: heuristics, then a plan, for a target given as data. It uses neither a handle nor a
//! GPU.

use std::sync::Arc;
use std::time::Instant;

use qkvault_cudnn::registry::codes;
use qkvault_cudnn::{Choice, CompileOptions, OpGraph, Target};
use qkvault_graph::{Origin, Reason, Refusal};
use qkvault_sys::log::{self, Message};
use qkvault_sys::{AttributeName as A, Error, Library, Search};

use crate::cudnn::attempt::{Attempt, Made, Stop, workspace};
use crate::cudnn::failure::Failure;
use crate::cudnn::{pressure, words};
use crate::facts::PassedOver;

/// cuDNN as a compiler.
///
/// ```no_run
/// use qkvault_compile::Compiler;
/// use qkvault_cudnn::{CompileOptions, Profile, lower};
/// use qkvault_graph::{Attention, DType, validate};
/// use qkvault_compile::sys::Search;
///
/// let compiler = Compiler::open(&Search::default())?; // no GPU and no driver needed
/// let target = compiler.target(&Profile::named("b200")?);
/// let attention = validate(Attention::bshd(1, (32, 8), (4096, 4096), 128, DType::BF16))?;
/// let graph = lower(&attention, &target, &CompileOptions::default())?;
/// let compiled = compiler.compile(&graph, &target, &CompileOptions::default())?;
/// println!("{}: {} bytes in {} ms", compiled.engine, compiled.blob.len(), compiled.milliseconds);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Compiler {
    library: Arc<Library>,
}

/// The result of compiling.
#[derive(Clone, Debug)]
pub struct Compiled {
    /// The plan in cuDNN's serialised form.
    pub blob: Vec<u8>,
    /// Bytes of scratch memory that a launch needs.
    pub workspace: u64,
    /// Engine and knobs.
    pub engine: String,
    /// Configurations before this one that gave no plan, in cuDNN's order.
    pub passed_over: Vec<PassedOver>,
    /// Time taken, in milliseconds.
    pub milliseconds: u32,
}

impl Compiler {
    /// A compiler with the cuDNN that the search finds. Without a driver, it loads the stand-in for the driver.
    ///
    /// # Errors
    ///
    /// [`Failure::Broken`] with everything that was tried, [`Failure::StandIn`].
    pub fn open(search: &Search) -> Result<Compiler, Failure> {
        qkvault_sys::headless::ensure()?;
        let library = Library::open(search).map_err(Error::from)?;
        Ok(Compiler { library })
    }

    /// A compiler for a process that only compiles. It does not load the driver, so that it can compile plans for any
    /// GPU on a machine with one. Call it before anything else loads a driver. Nothing can run in this process
    /// afterwards.
    ///
    /// # Errors
    ///
    /// The same as [`Compiler::open`].
    pub fn open_compile_only(search: &Search) -> Result<Compiler, Failure> {
        qkvault_sys::headless::force_stub_driver()?;
        Compiler::open(search)
    }

    /// The library that compiles.
    #[must_use]
    pub fn library(&self) -> &Arc<Library> {
        &self.library
    }

    /// Compiles an op graph for a target. It takes 0.3 to 1 s of one core; several threads can call it at the same
    /// time.
    ///
    /// The plan uses the first engine configuration that gives one; the planner checks the workspace limit of the
    /// options.
    ///
    /// # Errors
    ///
    /// [`Failure`]; a refusal contains cuDNN's messages.
    pub fn compile(&self, graph: &OpGraph, target: &Target, options: &CompileOptions) -> Result<Compiled, Failure> {
        self.compile_choice(graph, target, options, options.lab.choice())
    }

    /// Like [`Compiler::compile`], with a chosen configuration: for the one with the least workspace, all are compiled.
    ///
    /// # Errors
    ///
    /// The same as [`Compiler::compile`].
    pub fn compile_choice(
        &self,
        graph: &OpGraph,
        target: &Target,
        options: &CompileOptions,
        choice: Choice,
    ) -> Result<Compiled, Failure> {
        self.check_toolchain(target)?;
        let started = Instant::now();
        // Declared before the plan, so that it is dropped after it.
        let _working = qkvault_sys::working()?;
        let attempt = Attempt { library: &self.library, graph, target, options, choice };
        let (result, messages) = log::collect(|| attempt.make());
        let fail = |error| Failure::from_error(error, "the bytes of a plan", target);
        match result {
            Ok(Made { plan, engine, passed_over }) => {
                if let Some(first) = passed_over.first() {
                    doubted(|| format!("{}: {}", first.engine, first.words))?;
                }
                Ok(Compiled {
                    blob: plan.get_bytes(A::EXECUTION_PLAN_JSON_REPRESENTATION).map_err(fail)?,
                    workspace: workspace(&plan).map_err(fail)?,
                    engine,
                    passed_over,
                    milliseconds: started.elapsed().as_millis().try_into().unwrap_or(u32::MAX),
                })
            }
            Err(Stop::Failed(failure)) => Err(failure),
            Err(Stop::Refused(reasons)) => {
                let refusal = refusal(reasons, &messages);
                if let Some(lacking) = refusal.reasons().iter().find(|reason| words::is_of_machine(reason)) {
                    return Err(Failure::Lacking { said: lacking.given.clone() });
                }
                doubted(|| refusal.to_string())?;
                Err(Failure::Refused(refusal))
            }
        }
    }
}

/// A refusal, with cuDNN's causes.
fn refusal(mut reasons: Vec<Reason>, messages: &[Message]) -> Refusal {
    let told = words::reasons(messages);
    if !told.is_empty() {
        // The causes have more information than the calls that failed because of them.
        reasons.retain(|r| r.origin != Origin::Library);
        reasons.extend(told);
    }
    let silent = || codes::LIBRARY_SILENT.reason("no engine, without a message");
    Refusal::from_reasons(reasons).unwrap_or_else(|| silent().into())
}

/// An error if a limit on memory is near: then a refusal may be caused by it.
fn doubted(said: impl FnOnce() -> String) -> Result<(), Failure> {
    match pressure::near_limit() {
        Some(limit) => Err(Failure::Doubtful { limit, said: said() }),
        None => Ok(()),
    }
}
