//! What an engine is. Each has a folder beside this file ([`cudnn`](crate::cudnn), [`kernels`](crate::kernels),
//! [`fa4`](crate::fa4)), and nothing outside asks which one it is.

use std::error::Error;
use std::fmt::{self, Debug};
use std::sync::Arc;

use qkvault_cache::Entry;
use qkvault_cudnn::{CompileOptions, Target};
use qkvault_graph::{EngineName, EnginePolicy, GraphKey, PlanKey, Refusal, Valid};

use crate::look::BadEntry;
use crate::plan::Plan;
use crate::rebuild::RebuildCheck;

/// An engine by its two names. Engines are equal if they are called the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EngineId {
    name: EngineName,
    title: &'static str,
}

impl EngineId {
    /// An engine that is called `name` in options and stored entries and `title` in sentences.
    ///
    /// # Panics
    ///
    /// If the name is none, as [`EngineName::new`] says.
    #[must_use]
    pub const fn new(name: &str, title: &'static str) -> EngineId {
        EngineId { name: EngineName::new(name), title }
    }

    /// Its name, as in options.
    #[must_use]
    pub const fn name(&self) -> EngineName {
        self.name
    }

    /// Its name in sentences.
    #[must_use]
    pub const fn title(&self) -> &'static str {
        self.title
    }

    /// The policy that takes its plans alone.
    #[must_use]
    pub const fn policy(&self) -> EnginePolicy {
        EnginePolicy::Named(self.name)
    }
}

impl fmt::Display for EngineId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.title)
    }
}

/// The GPU that a plan is for.
#[derive(Clone, Copy, Debug)]
pub struct Gpu<'a> {
    /// Its compute capability, as major * 10 + minor.
    pub sm: u32,
    /// All of its properties, with the toolchain; always there for an engine that [needs](Engine::needs_target) them.
    pub target: Option<&'a Target>,
}

impl<'a> From<&'a Target> for Gpu<'a> {
    fn from(target: &'a Target) -> Gpu<'a> {
        Gpu { sm: target.sm(), target: Some(target) }
    }
}

/// What makes plans of attentions. Its value holds the compilers that it needs, which are opened when a plan must be
/// compiled and not before.
pub trait Engine: Debug + Send + Sync {
    /// Its names.
    fn id(&self) -> EngineId;

    /// The versions beside this program's own on which its speed depends; `None` if there are none, or if the target
    /// has them.
    fn versions(&self) -> Option<String> {
        None
    }

    /// Whether its plans depend on more of a GPU than the compute capability, so that each target has its own.
    fn needs_target(&self) -> bool {
        false
    }

    /// Whether it takes an attention on GPUs of a compute capability, as far as that is known without a target, a
    /// library or a GPU, in microseconds.
    ///
    /// # Errors
    ///
    /// Every reason why not.
    fn takes(&self, attention: &Valid, sm: u32) -> Result<(), Refusal>;

    /// Why it takes an attention only if it is named: no GPU has judged what it would run.
    fn unproven(&self, _attention: &Valid) -> Option<&'static str> {
        None
    }

    /// Whether it compiles a plan in about a second, so that whoever compiles waits for it where it is clearly faster
    /// than an engine whose plan is stored.
    fn compiles_quickly(&self) -> bool {
        true
    }

    /// Its place in the order of engines where nothing was measured, lower ones first; the lowest of all computes
    /// unless another one is clearly faster. In prompts and backwards (`dense`) arithmetic is the limit, else memory.
    fn place(&self, dense: bool) -> u8;

    /// What is to be found or compiled for an attention. Nothing is compiled yet.
    ///
    /// # Errors
    ///
    /// The reasons why it does not take the attention there.
    fn work<'a>(
        &'a self,
        attention: &'a Valid,
        on: Gpu<'_>,
        options: &CompileOptions,
    ) -> Result<Box<dyn Work + 'a>, Refusal>;

    /// Compares an entry that it compiled with what its description gives today, compiled anew; `None` for an entry of
    /// another engine. [`Engines::verify`](crate::Engines::verify) asks.
    fn rebuild(&self, _key: PlanKey, _entry: &Entry) -> Option<RebuildCheck> {
        None
    }

    /// The targets whose plans load on a machine too, in the order of the look-up, less its own.
    fn other_targets(&self, _here: &Target) -> Vec<Target> {
        Vec::new()
    }
}

/// One plan that is to be found or compiled: everything that its key contains.
pub trait Work: Send + Sync {
    /// The key of the plan. It may hash a source, so a look-up asks once.
    fn key(&self) -> PlanKey;

    /// The key of what it computes.
    fn graph_key(&self) -> GraphKey;

    /// A short description of what it computes.
    fn what(&self) -> String;

    /// Its description in the text form, if it is an attention: what `qkvault warm --text` takes.
    fn text(&self) -> Option<String> {
        None
    }

    /// The GPUs that it is for, in messages.
    fn target(&self) -> String;

    /// The version of the library whose stored refusals count; `None` if refusals are not stored.
    fn library(&self) -> Option<String> {
        None
    }

    /// Compiles an entry of the vault: a plan with what it is compiled from, or a refusal.
    ///
    /// # Errors
    ///
    /// [`Unbuilt`], if there is nothing to be kept.
    fn build(&self) -> Result<Entry, Unbuilt>;

    /// The plan or the refusal of an entry under the key of this work, if all that it says follows from it.
    ///
    /// # Errors
    ///
    /// [`BadEntry`], for every other entry.
    fn read(&self, key: PlanKey, entry: &Arc<Entry>) -> Result<Result<Arc<Plan>, Refusal>, BadEntry>;

    /// The work for the plan that needs the least scratch memory, if it may be another one.
    fn smaller(&self) -> Option<Box<dyn Work + '_>> {
        None
    }
}

/// Why a build gave no entry.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Unbuilt {
    /// There is no compiler; an empty text if nobody was to have one.
    #[error("no compiler: {0}")]
    NoCompiler(String),
    /// Compiling does not work here.
    #[error("{error}")]
    Failed {
        /// What went wrong.
        error: Arc<dyn Error + Send + Sync>,
        /// What the engine lacks, if another one may take its place.
        gap: Option<Gap>,
    },
    /// It is refused, as an answer of this moment that is not kept.
    #[error("{0}")]
    Refused(Refusal),
}

/// What an engine lacks, in whose place another one may compute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gap {
    /// Its plan is missing, or cannot be compiled here.
    Plan,
    /// Its compiler is optional and not installed.
    Compiler,
}
