//! Loading: a plan's bytes become a plan on a device, after a comparison of everything that is known to matter.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use qkvault_compile::{KernelFacts, Plan, PlanFacts};
use qkvault_cudnn::Target;
use qkvault_cudnn::op::Scratch;
use qkvault_kernels::recipe::Checked;
use qkvault_sys::{AttributeName as A, Descriptor, Error, ExecutionPlan, Kind, Library};

use crate::raw::cubins::{AskedOfDriver, Cubins};
use crate::raw::launch::LaunchTable;
use crate::raw::load_error::LoadError;
use crate::raw::packs::KeptPacks;
use crate::raw::relaxed::RelaxedCaptures;
use crate::raw::session::RawSession;
use crate::scratch::to_clear;
use qkvault_compile::Machine;
use qkvault_compile::{OwnFacts, check_fit, check_fit_of_kernels};

/// A plan on a device. Cheap to clone; clones share one plan.
///
/// # Threads
///
/// `Send` and `Sync`: several threads may launch one plan at the same time. Each has a handle of its own, and cuDNN
/// queues their launches one after the other ([`ExecutionPlan`](qkvault_sys::ExecutionPlan)), which takes some two
/// microseconds each. The launches of other plans do not wait.
#[derive(Clone, Debug)]
pub struct RawPlan {
    inner: Arc<LoadedInner>,
}

#[derive(Debug)]
struct LoadedInner {
    /// Taken out when the plan is dropped, to destroy it in its context.
    code: Option<LoadedCode>,
    table: LaunchTable,
    facts: PlanFacts,
    scratch: Scratch,
    clear: Vec<(u64, u64)>,
    times: LoadTimes,
    session: RawSession,
}

/// Where the time of a load went.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LoadTimes {
    /// Comparing the plan's facts with the machine, and its recipe with its bytes.
    pub checks: Duration,
    /// Reading cuDNN's plan, or loading cubins that no other plan of the session had loaded.
    pub code: Duration,
    /// Finding kernels and bringing their code, for a plan of kernels.
    pub kernels: Duration,
    /// Giving kernels their shared memory.
    pub attributes: Duration,
    /// All of the load, the rest included.
    pub whole: Duration,
}

/// The code of a plan, by engine.
#[derive(Debug)]
pub(crate) enum LoadedCode {
    /// A plan of cuDNN, with the variant packs of its last launches.
    Cudnn(ExecutionPlan, KeptPacks),
    /// Cubins with a recipe.
    Kernels(Cubins),
}

impl Drop for LoadedInner {
    fn drop(&mut self) {
        // The plan's kernels need their context to be unloaded.
        let entered = self.session.enter();
        if let Err(error) = &entered {
            tracing::warn!(%error, key = %self.facts.key, "a plan is destroyed without its context");
        }
        let _relaxed = RelaxedCaptures::enter();
        drop(self.code.take());
    }
}

impl RawSession {
    /// Loads a plan. It takes well under a millisecond, except for the first plan of a process, for which cuDNN loads
    /// its libraries.
    ///
    /// # Errors
    ///
    /// [`LoadError`] if the plan is for another machine, needs too much workspace, or cuDNN refuses it. Everything that
    /// is known to matter is compared before cuDNN loads the plan.
    pub fn load(&self, plan: &Plan) -> Result<RawPlan, LoadError> {
        let started = Instant::now();
        let loaded = self.load_uncounted(plan);
        let counter = if loaded.is_ok() { &self.inner.loads } else { &self.inner.load_failures };
        counter.fetch_add(1, Relaxed);
        let micros = u64::try_from(started.elapsed().as_micros()).unwrap_or(u64::MAX);
        self.inner.load_micros.fetch_add(micros, Relaxed);
        tracing::debug!(key = %plan.facts.key, what = plan.facts.what, micros, ok = loaded.is_ok(), "plan load");
        loaded
    }

    fn load_uncounted(&self, plan: &Plan) -> Result<RawPlan, LoadError> {
        let (Plan { facts, blob }, started) = (plan, Instant::now());
        match &facts.own {
            OwnFacts::Cudnn(_) => check_fit(facts, self.machine()?)?,
            OwnFacts::Kernels(_) => check_fit_of_kernels(facts, self.inner.gpu.sm, self.inner.gpu.driver)?,
            OwnFacts::Other(_) => return Err(LoadError::stranger(facts)),
        }
        let scratch = check_facts(facts, blob.len() as u64, self.inner.options.workspace_limit)?;
        let recipe = facts.kernels().map(|kernels| checked(facts, kernels)).transpose()?;
        let checks = started.elapsed();
        let _entered = self.enter()?;
        let _relaxed = RelaxedCaptures::enter();
        let table = LaunchTable::new(facts, &scratch);
        let (code, mut times) = match recipe {
            Some(recipe) => {
                let (key, what) = (facts.key, &facts.what);
                let failed = |detail| LoadError::Kernels { key, what: what.clone(), detail };
                let (cubins, asked) = Cubins::load(&recipe, blob, &table, &self.inner.modules).map_err(failed)?;
                let AskedOfDriver { modules: code, kernels, attributes } = asked;
                (LoadedCode::Kernels(cubins), LoadTimes { code, kernels, attributes, ..LoadTimes::default() })
            }
            None => {
                let begun = Instant::now();
                let code = LoadedCode::Cudnn(self.execution_plan(plan)?, KeptPacks::default());
                (code, LoadTimes { code: begun.elapsed(), ..LoadTimes::default() })
            }
        };
        let (facts, clear, session) = (facts.clone(), to_clear(facts, &scratch), self.clone());
        (times.checks, times.whole) = (checks, started.elapsed());
        Ok(RawPlan { inner: Arc::new(LoadedInner { code: Some(code), table, facts, scratch, clear, times, session }) })
    }

    fn execution_plan(&self, plan: &Plan) -> Result<ExecutionPlan, LoadError> {
        // The lease is held until the plan is finalized, which uses the handle.
        let cudnn = self.cudnn()?;
        let mut lease = cudnn.pool.any().map_err(|source| LoadError::refused(&plan.facts, source))?;
        let attach = |plan: &mut Descriptor| plan.set_handle(A::EXECUTION_PLAN_HANDLE, lease.handle());
        let descriptor = descriptor(&cudnn.library, plan, attach)?;
        Ok(ExecutionPlan::new(descriptor).expect("a descriptor of an execution plan"))
    }
}

/// The recipe of a plan of kernels, after a check of everything that it refers to.
fn checked(facts: &PlanFacts, kernels: &KernelFacts) -> Result<Checked, LoadError> {
    let (key, what) = (facts.key, || facts.what.clone());
    kernels.check(facts).map_err(|source| LoadError::Recipe { key, what: what(), source: Box::new(source) })
}

/// Loads a plan as `RawSession::load` does, with device properties in the place of a handle, to find out whether it
/// would load on their machine. Needs no GPU, but a `libcuda.so.1` in the process (`qkvault_compile::Compiler::open`
/// ensures one).
///
/// # Errors
///
/// [`LoadError`], as on that machine.
pub fn would_load(library: &Arc<Library>, plan: &Plan, target: &Target) -> Result<(), LoadError> {
    let here = Machine { cudnn: library.version(), ..Machine::from_target(target) };
    match &plan.facts.own {
        OwnFacts::Cudnn(_) | OwnFacts::Kernels(_) => check_fit(&plan.facts, &here)?,
        OwnFacts::Other(_) => return Err(LoadError::stranger(&plan.facts)),
    }
    check_facts(&plan.facts, plan.blob.len() as u64, None)?;
    if let Some(kernels) = plan.facts.kernels() {
        return checked(&plan.facts, kernels).map(drop);
    }
    let json = target.device.json_for(target.cudnn).map_err(LoadError::Properties)?;
    let mut device = Descriptor::create(library, Kind::DEVICEPROP)?;
    device.set(A::DEVICEPROP_JSON_REPRESENTATION, json.as_bytes())?;
    device.finalize()?;
    descriptor(library, plan, |plan| plan.set_descriptor(A::EXECUTION_PLAN_DEVICEPROP, &device)).map(drop)
}

/// Makes cuDNN's plan of a plan's bytes, for the machine that `attach` sets, and compares its workspace with the facts.
fn descriptor(
    library: &Arc<Library>,
    plan: &Plan,
    attach: impl FnOnce(&mut Descriptor) -> Result<(), Error>,
) -> Result<Descriptor, LoadError> {
    let Plan { facts, blob } = plan;
    let mut descriptor = Descriptor::create(library, Kind::EXECUTION_PLAN)?;
    let take = || {
        descriptor.set(A::EXECUTION_PLAN_JSON_REPRESENTATION, blob)?;
        attach(&mut descriptor)?;
        descriptor.finalize()?;
        descriptor.get_one::<i64>(A::EXECUTION_PLAN_WORKSPACE_SIZE)
    };
    let found = take().map_err(|source| LoadError::refused(facts, source))?;
    if u64::try_from(found) != Ok(facts.workspace) {
        let (key, what) = (facts.key, facts.what.clone());
        return Err(LoadError::Workspace { key, what, expected: facts.workspace, found });
    }
    Ok(descriptor)
}

/// Checks a plan's facts without cuDNN, and returns the division of its scratch memory.
pub(crate) fn check_facts(facts: &PlanFacts, length: u64, limit: Option<u64>) -> Result<Scratch, LoadError> {
    let (key, what) = (facts.key, || facts.what.clone());
    if length != facts.blob_bytes {
        return Err(LoadError::Length { key, what: what(), expected: facts.blob_bytes, found: length });
    }
    let scratch = facts.scratch();
    match limit {
        Some(limit) if scratch.bytes > limit => {
            let quadratic = facts.keeps_scores();
            Err(LoadError::WorkspaceTooLarge { key, what: what(), need: scratch.bytes, limit, quadratic })
        }
        _ => Ok(scratch),
    }
}

impl RawPlan {
    /// The facts of the plan.
    #[must_use]
    pub fn facts(&self) -> &PlanFacts {
        &self.inner.facts
    }

    /// Where the time of its load went.
    #[must_use]
    pub fn load_times(&self) -> LoadTimes {
        self.inner.times
    }

    /// Bytes of scratch memory that a launch needs: cuDNN's workspace and the buffers in which a backward sums.
    #[must_use]
    pub fn workspace(&self) -> u64 {
        self.inner.scratch.bytes
    }

    /// The session that loaded the plan.
    #[must_use]
    pub fn session(&self) -> &RawSession {
        &self.inner.session
    }

    pub(crate) fn table(&self) -> &LaunchTable {
        &self.inner.table
    }

    /// Offset and bytes of the parts of the scratch memory that each launch clears first.
    pub(crate) fn clear(&self) -> &[(u64, u64)] {
        &self.inner.clear
    }

    pub(crate) fn code(&self) -> &LoadedCode {
        self.inner.code.as_ref().expect("there until dropped")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use qkvault_compile::{CUDNN, CudnnFacts};
    use qkvault_cudnn::Toolchain;
    use qkvault_graph::Binding;
    use qkvault_graph::{CudnnVersion, DType, GraphKey, LibrarySet, PlanKey, Role};

    fn facts(cudnn: CudnnVersion, buffers: &[(Role, u64)]) -> PlanFacts {
        let buffer =
            |&(role, bytes)| Binding { role, dtype: DType::F32, scalar: false, output: true, bytes, alignment: 16 };
        PlanFacts {
            key: PlanKey::from_bytes([1; 32]),
            graph_key: GraphKey::from_bytes([2; 32]),
            what: "bwd".into(),
            by: CUDNN.name(),
            sm: 90,
            driver: 13_000,
            engine: String::new(),
            workspace: 1000,
            compile_ms: 0,
            blob_bytes: 5,
            bindings: buffers.iter().map(buffer).collect(),
            own: OwnFacts::Cudnn(Box::new(CudnnFacts {
                cudnn,
                libraries: LibrarySet::Slim,
                toolchain: Toolchain::assumed(cudnn),
                multi_processors: 132,
                memory_bus: None,
                passed_over: Vec::new(),
                again: Vec::new(),
                fixed: Vec::new(),
            })),
        }
    }

    #[test]
    fn buffers_follow_the_workspace_and_count_towards_the_limit() {
        let facts = facts(CudnnVersion::v9(19, 0), &[(Role::O, 999), (Role::SoftmaxSum, 10), (Role::DqAccum, 300)]);
        let scratch = check_facts(&facts, 5, None).expect("no limit");
        assert_eq!(scratch.buffers, [(Role::SoftmaxSum, 1024, 10), (Role::DqAccum, 1280, 300)]);
        assert_eq!(scratch.bytes, 1580);
        assert_eq!(check_facts(&facts, 5, Some(1580)).expect("just enough"), scratch);
        let error = check_facts(&facts, 5, Some(1579)).expect_err("one byte short");
        assert!(matches!(error, LoadError::WorkspaceTooLarge { need: 1580, limit: 1579, .. }), "{error}");
        assert!(error.to_string().contains("workspace_limit"), "{error}");
    }

    #[test]
    fn sizes_beyond_all_memory_fit_no_limit_and_do_not_overflow() {
        let mut facts = facts(CudnnVersion::v9(19, 0), &[(Role::SoftmaxSum, 100)]);
        facts.workspace = u64::MAX;
        assert!(matches!(check_facts(&facts, 5, Some(u64::MAX - 1)), Err(LoadError::WorkspaceTooLarge { .. })));
    }

    #[test]
    fn facts_of_another_length_are_an_error() {
        let facts = facts(CudnnVersion::v9(19, 0), &[]);
        let error = check_facts(&facts, 4, None).expect_err("a byte is missing");
        assert!(matches!(error, LoadError::Length { expected: 5, found: 4, .. }), "{error}");
    }

    #[test]
    fn versions_that_want_their_sums_cleared_get_them_cleared_and_others_do_not() {
        let cleared = |cudnn, buffers: &[(Role, u64)]| {
            let facts = facts(cudnn, buffers);
            to_clear(&facts, &facts.scratch())
        };
        let buffers = [(Role::SoftmaxSum, 10), (Role::DqAccum, 300)];
        assert_eq!(cleared(CudnnVersion::v9(5, 1), &buffers), [(1280, 300)]);
        assert_eq!(cleared(CudnnVersion::v9(6, 0), &buffers), []);
        assert_eq!(cleared(CudnnVersion::v9(5, 1), &buffers[..1]), []);
    }

    #[test]
    fn a_backward_over_the_limit_is_told_what_grows_with_queries_times_keys() {
        let told = |buffers: &[(Role, u64)]| {
            check_facts(&facts(CudnnVersion::v9(19, 0), buffers), 5, Some(1)).expect_err("too large").to_string()
        };
        let (direct, summed) = (told(&[(Role::DQ, 10)]), told(&[(Role::DQ, 10), (Role::DqAccum, 20)]));
        assert!(direct.contains("deterministic") && !summed.contains("deterministic"), "{direct}\n{summed}");
    }
}
