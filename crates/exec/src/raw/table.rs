//! The table of loaded plans that callers from other languages share: a small number for each plan, a launch by it.
//!
//! Frameworks give a name of 32 bytes and a stream with every call, and call from threads of their own. So a plan is
//! loaded once for the process, and later calls have its number. The table never unloads: a graph that a framework has
//! recorded uses the plan's kernels, and nobody tells when the last such graph is gone.

use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use crate::raw::cudnn::CudnnSource;
use crate::raw::ids::{Ids, NotMade, PlanId};
use crate::raw::launch::RawArgs;
use crate::raw::launch_error::LaunchError;
use crate::raw::load::RawPlan;
use crate::raw::primary::is_captured;
use crate::raw::session::{RawSession, SessionError, SessionOptions};

/// Plans that the table of the process has room for.
const ROOM: usize = 16_384;

/// The name of a plan, as its callers choose it: the bytes of a description's
/// [`Fingerprint`](qkvault_graph::Fingerprint), or a hash of a text that has the description.
pub type PlanName = [u8; 32];

/// Why the table did not load a plan. `E` is the error of the caller's own function.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TableError<E> {
    /// The stream is being captured.
    #[error(
        "the plan is not loaded, and the stream is being captured, during which none can be loaded: load it before the \
         capture begins, by a call of the attention outside the capture or by PlanTable::load"
    )]
    Captured,
    /// The table has no session on this GPU.
    #[error("the table has no session on GPU {ordinal}; open it with PlanTable::session")]
    NoSession {
        /// CUDA's ordinal.
        ordinal: i32,
    },
    /// The plan was loaded in another session, which need not enter the GPU's context by itself.
    #[error("the plan was loaded in another session than the one that was given; load it in that one")]
    OtherSession,
    /// The table is full.
    #[error("the table has {room} plans, and no room for another; describe fewer shapes, as serving sets do")]
    Full {
        /// Plans in the table.
        room: usize,
    },
    /// The plan was not found, built or loaded.
    #[error(transparent)]
    Load(E),
}

/// Loaded plans of the raw layer by GPU and name, and by number.
///
/// ```no_run
/// # use std::{error::Error, ffi::c_void, sync::Arc};
/// use qkvault_compile::{OnMiss, Planner};
/// use qkvault_exec::raw::{PlanTable, RawArgs};
/// use qkvault_exec::{SessionOptions, prepare};
/// use qkvault_cudnn::CompileOptions;
/// use qkvault_graph::Valid;
/// # fn run(
/// #     planner: &Planner, library: &Arc<qkvault_sys::Library>, attention: &Valid, args: RawArgs<'_>,
/// #     stream: *mut c_void,
/// # ) -> Result<(), Box<dyn Error>> {
///
/// let table = PlanTable::of_process();
/// table.session(0, library, SessionOptions { handles: 4, ..SessionOptions::default() })?;
/// let name = attention.fingerprint();
/// // SAFETY: the stream is alive.
/// let id = unsafe {
///     table.load(0, name.bytes(), stream, |session| {
///         let load = |plan: &_| session.load(plan);
///         let options = CompileOptions::default();
///         prepare(planner, session.target()?, attention, &options, OnMiss::Load, load).map(|found| found.plan)
///     })
/// }?;
/// // Later, from any thread, captured or not.
/// // SAFETY: the addresses are those of the plan's tensors, in its order, and valid until the launch is finished.
/// unsafe { table.launch(id, &args, stream) }?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct PlanTable {
    // Before the sessions in which the plans are loaded.
    plans: Ids<(i32, PlanName), RawPlan>,
    sessions: Mutex<HashMap<i32, RawSession>>,
}

impl PlanTable {
    /// A table of its own with room for so many plans, such as for a test.
    #[must_use]
    pub fn with_room(plans: usize) -> PlanTable {
        PlanTable { plans: Ids::with_room(plans), sessions: Mutex::default() }
    }

    /// The table of the process, with room for 16,384 plans. Nothing destroys it, so a plan may be in use when the
    /// process ends.
    pub fn of_process() -> &'static PlanTable {
        static TABLE: OnceLock<PlanTable> = OnceLock::new();
        TABLE.get_or_init(|| PlanTable::with_room(ROOM))
    }

    /// The table's session on a GPU's primary context, opened by the first call with these options. Give as many
    /// handles as threads launch at one time.
    ///
    /// # Errors
    ///
    /// [`SessionError`], as for [`RawSession::on_primary`].
    pub fn session(
        &self,
        ordinal: i32,
        cudnn: impl Into<CudnnSource>,
        options: SessionOptions,
    ) -> Result<RawSession, SessionError> {
        let mut sessions = self.sessions.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(session) = sessions.get(&ordinal) {
            return Ok(session.clone());
        }
        let session = RawSession::on_primary(ordinal, cudnn, options)?;
        sessions.insert(ordinal, session.clone());
        Ok(session)
    }

    /// The number of a plan that is loaded. It takes nanoseconds.
    #[must_use]
    pub fn find(&self, ordinal: i32, name: &PlanName) -> Option<PlanId> {
        self.plans.find(&(ordinal, *name))
    }

    /// The number of a plan, which `load` loads in the GPU's session if the table does not have it. Of threads that ask
    /// at once for one plan, one loads it and the others wait.
    ///
    /// A plan that is not loaded is refused while `stream` is captured. Captures of other streams stay valid, in every
    /// mode: the thread tells the driver that the load belongs to none of them.
    ///
    /// # Safety
    ///
    /// `stream` must be null or a stream of this GPU that is alive.
    ///
    /// # Errors
    ///
    /// [`TableError::Load`] with the error of `load`; [`TableError`] if the stream is captured, or if the table has no
    /// session on this GPU or is full.
    pub unsafe fn load<E: std::error::Error + 'static>(
        &self,
        ordinal: i32,
        name: &PlanName,
        stream: *mut c_void,
        load: impl FnOnce(&RawSession) -> Result<RawPlan, E>,
    ) -> Result<PlanId, TableError<E>> {
        if let Some(id) = self.find(ordinal, name) {
            return Ok(id);
        }
        let session = {
            let sessions = self.sessions.lock().unwrap_or_else(PoisonError::into_inner);
            sessions.get(&ordinal).cloned().ok_or(TableError::NoSession { ordinal })?
        };
        let loaded = || {
            // `load` reports a context that cannot be entered.
            if let Ok(_entered) = session.enter_to_launch() {
                // SAFETY: the caller promises that the stream is alive; its context is the session's, which is current.
                if unsafe { is_captured(stream) } {
                    return Err(TableError::Captured);
                }
            }
            let plan = load(&session).map_err(TableError::Load)?;
            let own = Arc::ptr_eq(&plan.session().inner, &session.inner);
            if own { Ok(plan) } else { Err(TableError::OtherSession) }
        };
        self.plans.find_or_make((ordinal, *name), loaded).map_err(|error| match error {
            NotMade::Full => TableError::Full { room: self.plans.room() },
            NotMade::Failed(error) => error,
        })
    }

    /// The plan of an id, without a lock: its tensors and scalars in the order of a launch, its workspace, its facts.
    #[must_use]
    pub fn plan(&self, id: PlanId) -> Option<&RawPlan> {
        self.plans.value(id)
    }

    /// The number of plans in the table.
    #[must_use]
    pub fn plans(&self) -> usize {
        self.plans.len()
    }

    /// Queues a launch of a plan on a stream, or records it if the stream is captured ([`RawPlan::launch_with`]). It
    /// makes the GPU's primary context current, and the former one again.
    ///
    /// # Safety
    ///
    /// As for [`RawPlan::launch_with`]; where the launch is recorded, until the last replay is finished.
    ///
    /// # Errors
    ///
    /// [`LaunchError::NoSuchPlan`] for an id that the table does not have; [`LaunchError`], as for
    /// [`RawPlan::launch_with`].
    pub unsafe fn launch(&self, id: PlanId, args: &RawArgs<'_>, stream: *mut c_void) -> Result<(), LaunchError> {
        let plan = self.plan(id).ok_or(LaunchError::NoSuchPlan { id: id.get() })?;
        // SAFETY: the caller's promise; the table's sessions enter their context by themselves.
        unsafe { plan.launch_with(args, stream) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::raw::load_error::LoadError;

    #[test]
    fn without_a_session_nothing_is_loaded_and_the_error_says_what_to_do() {
        let table = PlanTable::with_room(4);
        let load = |_: &RawSession| -> Result<RawPlan, LoadError> { panic!("there is no session to load it in") };
        // SAFETY: null is the default stream.
        let refused = unsafe { table.load(3, &[1; 32], std::ptr::null_mut(), load) };
        let error = refused.expect_err("no session");
        assert!(matches!(error, TableError::NoSession { ordinal: 3 }), "{error}");
        assert!(error.to_string().contains("PlanTable::session"), "{error}");
        assert_eq!((table.find(3, &[1; 32]), table.plans()), (None, 0));
    }

    #[test]
    fn an_id_of_no_plan_is_an_error_before_anything_is_followed() {
        let table = PlanTable::with_room(4);
        let id = PlanId::from_number(9).expect("not zero");
        // SAFETY: refused, and so never launched.
        let refused = unsafe { table.launch(id, &RawArgs::default(), std::ptr::null_mut()) };
        assert!(matches!(refused, Err(LaunchError::NoSuchPlan { id: 9 })), "{refused:?}");
    }

    #[test]
    fn the_refusal_during_a_capture_says_to_load_before_it() {
        let text = TableError::<LoadError>::Captured.to_string();
        assert!(text.contains("before the capture begins") && text.contains("PlanTable::load"), "{text}");
    }

    #[test]
    fn the_process_has_one_table_that_threads_share() {
        const fn shared<T: Send + Sync>() {}
        shared::<PlanTable>();
        let there = std::thread::spawn(|| std::ptr::from_ref(PlanTable::of_process()) as usize).join();
        assert_eq!(there.expect("no panic"), std::ptr::from_ref(PlanTable::of_process()) as usize);
    }
}
