//! Puts op graphs to cuDNN: heuristics, then a plan, for a target given as data. No handle and no GPU are used.

use std::sync::Arc;
use std::time::Instant;

use qkvault_graph::registry::codes;
use qkvault_graph::{Choice, CompileOptions, OpGraph, Origin, Reason, Refusal, Target};
use qkvault_sys::log::{self, Message};
use qkvault_sys::{AttributeName as A, Error, Library, Search};

use crate::attempt::{Attempt, Made, Stop, workspace};
use crate::failure::Failure;
use crate::passed::PassedOver;
use crate::{pressure, words};

/// cuDNN as a compiler.
///
/// ```no_run
/// use qkvault_compile::Compiler;
/// use qkvault_compile::graph::{Attention, CompileOptions, DType, Profile, lower, validate};
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

/// What compiling gave.
#[derive(Clone, Debug)]
pub struct Compiled {
    /// What cuDNN wrote.
    pub blob: Vec<u8>,
    /// Bytes of scratch memory that a launch needs.
    pub workspace: u64,
    /// Engine and knobs.
    pub engine: String,
    /// Configurations that came before it and made no plan, in cuDNN's order.
    pub passed_over: Vec<PassedOver>,
    /// Time taken, in milliseconds.
    pub milliseconds: u32,
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
    pub fn open_compile_only(search: &Search) -> Result<Compiler, Failure> {
        qkvault_headless::force_stub_driver()?;
        Compiler::open(search)
    }

    /// The library that compiles.
    #[must_use]
    pub fn library(&self) -> &Arc<Library> {
        &self.library
    }

    /// Compiles an op graph for a target. Takes 0.3 to 1 s of one core; calls on several threads run side by side.
    ///
    /// The plan is of the first engine configuration that makes one; the policy's workspace limit is the planner's business.
    ///
    /// # Errors
    ///
    /// [`Failure`]; a refusal holds the library's own words.
    pub fn compile(&self, graph: &OpGraph, target: &Target, policy: &CompileOptions) -> Result<Compiled, Failure> {
        self.compile_choice(graph, target, policy, Choice::First)
    }

    /// The same of the configuration that is chosen so: that with the least workspace takes compiling them all.
    ///
    /// # Errors
    ///
    /// As [`Compiler::compile`].
    pub fn compile_choice(
        &self,
        graph: &OpGraph,
        target: &Target,
        policy: &CompileOptions,
        choice: Choice,
    ) -> Result<Compiled, Failure> {
        self.check_toolchain(target)?;
        let started = Instant::now();
        // Declared before the plan, so that it is dropped after it.
        let _working = qkvault_sys::working()?;
        let attempt = Attempt { library: &self.library, graph, target, policy, choice };
        let (result, messages) = log::collect(|| attempt.make());
        let fail = |error| Failure::of(error, "the bytes of a plan", target);
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
                doubted(|| refusal.to_string())?;
                Err(Failure::Refused(refusal))
            }
        }
    }
}

/// What was refused, with its causes.
fn refusal(mut reasons: Vec<Reason>, messages: &[Message]) -> Refusal {
    let told = words::reasons(messages);
    if !told.is_empty() {
        // The causes say more than the calls that failed because of them.
        reasons.retain(|r| r.origin != Origin::Library);
        reasons.extend(told);
    }
    let silent = || codes::LIBRARY_SILENT.reason("no engine, without a word");
    Refusal::of(reasons).unwrap_or_else(|| silent().into())
}

/// An error, where what was said near a limit on memory is not to be believed.
fn doubted(said: impl FnOnce() -> String) -> Result<(), Failure> {
    match pressure::near_limit() {
        Some(limit) => Err(Failure::Doubtful { limit, said: said() }),
        None => Ok(()),
    }
}
