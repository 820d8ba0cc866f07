//! Loading: a plan's bytes become a plan on a device, after everything that is known to matter was compared.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use qkvault_graph::{CudnnVersion, PlanKey, Role};
use qkvault_probe::{Plan, PlanFacts};
use qkvault_sys::{AttributeName as A, Descriptor, Error, Kind, Status};

use crate::fit::{OtherMachine, check_fit};
use crate::raw::session::{Session, SessionError};
use crate::scratch::{self, Scratch};

/// Why a plan was not loaded.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// The plan is for another machine; cuDNN was not asked.
    #[error(transparent)]
    OtherMachine(#[from] OtherMachine),
    /// The plan needs more scratch memory than the session allows.
    #[error(
        "plan {key} ({what}) needs {need} bytes of workspace, and the budget is {budget}; raise SessionOptions::workspace_budget, or compile \
         with a workspace limit (Policy::workspace_limit)"
    )]
    WorkspaceTooLarge {
        /// The plan.
        key: PlanKey,
        /// What it computes.
        what: String,
        /// Bytes that a launch needs.
        need: u64,
        /// Bytes that it may have.
        budget: u64,
    },
    /// The plan has another length than its facts say.
    #[error(
        "plan {key} ({what}) has {found} bytes where its facts say {expected}; remove it (`qkvault cache verify`) and build it again"
    )]
    Length {
        /// The plan.
        key: PlanKey,
        /// What it computes.
        what: String,
        /// What the facts say.
        expected: u64,
        /// What there is.
        found: u64,
    },
    /// The plan needs a buffer cleared before each launch, as only old versions do.
    #[error(
        "plan {key} ({what}) wants {role} cleared before each launch, as cuDNN {cudnn} does not do it; use cuDNN 9.6 or newer"
    )]
    NeedsClearing {
        /// The plan.
        key: PlanKey,
        /// What it computes.
        what: String,
        /// The buffer.
        role: Role,
        /// The version.
        cudnn: CudnnVersion,
    },
    /// cuDNN does not take the plan.
    #[error("cuDNN does not load plan {key} ({what}): {source}; {}", advice(source))]
    Refused {
        /// The plan.
        key: PlanKey,
        /// What it computes.
        what: String,
        /// What cuDNN answered.
        source: Error,
    },
    /// cuDNN reports another workspace than the facts.
    #[error(
        "plan {key} ({what}) needs {found} bytes of workspace as cuDNN loads it, and its facts say {expected}; facts and plan are not of one \
         build: remove it (`qkvault cache verify`) and build it again"
    )]
    Workspace {
        /// The plan.
        key: PlanKey,
        /// What it computes.
        what: String,
        /// What the facts say.
        expected: u64,
        /// What cuDNN says.
        found: i64,
    },
    /// cuDNN could not be readied.
    #[error(transparent)]
    Session(#[from] SessionError),
    /// cuDNN gave no object to load into.
    #[error("cuDNN could not load: {0}")]
    Cudnn(#[from] Error),
}

/// What to do about cuDNN's answer to a plan.
fn advice(error: &Error) -> &'static str {
    let Error::Call(call) = error else {
        return "the library is not usable here: `qkvault doctor` shows what is loaded";
    };
    match call.status {
        Status::SERIALIZATION_VERSION_MISMATCH => {
            "it is written in another version's form: compile it again with the cuDNN that is loaded"
        }
        Status::SUBLIBRARY_VERSION_MISMATCH => {
            "it was compiled by another cuDNN, or libraries of several versions are mixed here: compile it again with the one that is \
             loaded, and see `qkvault doctor` for the loaded files"
        }
        Status::NOT_SUPPORTED_ARCH_MISMATCH => {
            "it was compiled for another GPU or driver: capture this machine's profile (`qkvault profile capture`) and compile for that"
        }
        _ => "build it again; if that does not help, report it with the plan's key and what `qkvault doctor` prints",
    }
}

/// A plan on a device. Cloning gives another hand on the same one.
///
/// # Threads
///
/// `Send` and `Sync`: cuDNN's plan is behind a lock that a launch holds for the few microseconds of queueing, so threads may share one plan
/// and never enter cuDNN with it at the same time. Launches on the GPU are not held up by it.
#[derive(Clone, Debug)]
pub struct LoadedPlan {
    inner: Arc<Loaded>,
}

#[derive(Debug)]
struct Loaded {
    plan: Mutex<Descriptor>,
    facts: PlanFacts,
    scratch: Scratch,
    session: Session,
}

impl Drop for Loaded {
    fn drop(&mut self) {
        // The plan's kernels are unloaded next, in their own context; nobody is left to tell if it cannot be entered.
        let _ = self.session.enter();
    }
}

impl Session {
    /// Loads a plan: well under a millisecond, except for a process's first, which waits for cuDNN to load its own libraries.
    ///
    /// # Errors
    ///
    /// [`LoadError`]; what is known to matter is compared before cuDNN is asked.
    pub fn load(&self, plan: &Plan) -> Result<LoadedPlan, LoadError> {
        let started = Instant::now();
        let loaded = self.load_uncounted(plan);
        let counter = if loaded.is_ok() { &self.inner.loads } else { &self.inner.load_failures };
        counter.fetch_add(1, Relaxed);
        let micros = u64::try_from(started.elapsed().as_micros()).unwrap_or(u64::MAX);
        self.inner.load_micros.fetch_add(micros, Relaxed);
        tracing::debug!(key = %plan.facts.key, what = plan.facts.what, micros, ok = loaded.is_ok(), "plan load");
        loaded
    }

    fn load_uncounted(&self, plan: &Plan) -> Result<LoadedPlan, LoadError> {
        let Plan { facts, blob } = plan;
        check_fit(facts, &self.inner.machine)?;
        let scratch = check_facts(facts, blob.len() as u64, self.inner.options.workspace_budget)?;
        self.enter()?;
        let (key, what) = (facts.key, || facts.what.clone());
        let mut descriptor = Descriptor::create(&self.inner.library, Kind::EXECUTION_PLAN)?;
        let refused = |source| LoadError::Refused { key, what: what(), source };
        descriptor.set(A::EXECUTION_PLAN_JSON_REPRESENTATION, blob).map_err(refused)?;
        descriptor
            .set_handle(A::EXECUTION_PLAN_HANDLE, self.inner.pool.lease(std::ptr::null_mut())?.handle())
            .map_err(refused)?;
        descriptor.finalize().map_err(refused)?;
        let found = descriptor.get_one::<i64>(A::EXECUTION_PLAN_WORKSPACE_SIZE)?;
        if u64::try_from(found) != Ok(facts.workspace) {
            return Err(LoadError::Workspace { key, what: what(), expected: facts.workspace, found });
        }
        let (facts, session) = (facts.clone(), self.clone());
        Ok(LoadedPlan { inner: Arc::new(Loaded { plan: Mutex::new(descriptor), facts, scratch, session }) })
    }
}

/// What can be said against a plan's own facts, without cuDNN; the division of its scratch memory if nothing.
pub(crate) fn check_facts(facts: &PlanFacts, length: u64, budget: Option<u64>) -> Result<Scratch, LoadError> {
    let (key, what) = (facts.key, || facts.what.clone());
    if length != facts.blob_bytes {
        return Err(LoadError::Length { key, what: what(), expected: facts.blob_bytes, found: length });
    }
    if let Some(role) = scratch::needs_clearing(facts) {
        return Err(LoadError::NeedsClearing { key, what: what(), role, cudnn: facts.cudnn });
    }
    let scratch = Scratch::of(facts);
    match budget {
        Some(budget) if scratch.bytes > budget => {
            Err(LoadError::WorkspaceTooLarge { key, what: what(), need: scratch.bytes, budget })
        }
        _ => Ok(scratch),
    }
}

impl LoadedPlan {
    /// Everything known of the plan.
    #[must_use]
    pub fn facts(&self) -> &PlanFacts {
        &self.inner.facts
    }

    /// Bytes of scratch memory that a launch needs: cuDNN's workspace, and the buffers that a backward sums in.
    #[must_use]
    pub fn workspace(&self) -> u64 {
        self.inner.scratch.bytes
    }

    /// The session it is loaded in.
    #[must_use]
    pub fn session(&self) -> &Session {
        &self.inner.session
    }

    pub(crate) fn scratch(&self) -> &Scratch {
        &self.inner.scratch
    }

    pub(crate) fn descriptor(&self) -> MutexGuard<'_, Descriptor> {
        self.inner.plan.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
