//! A loaded plan with its description: launches in the order of what a caller gives, or by name.

use std::ffi::c_void;
use std::sync::Arc;

use qkvault_compile::PlanFacts;
use qkvault_graph::Valid;

use crate::raw::launch::{DeviceBuffer, RawArgs};
use crate::raw::launch_error::LaunchError;
use crate::raw::load::RawPlan;
use crate::raw::order::{LaunchBuffers, LaunchOrder, NamedArgs};
use crate::raw::session::SessionError;

/// A loaded plan with its description, whose constants are on the GPU. Cheap to clone; clones share one plan, and so
/// may threads, as for [`RawPlan`].
#[derive(Clone, Debug)]
pub struct RawDescribed {
    inner: Arc<DescribedInner>,
}

#[derive(Debug)]
struct DescribedInner {
    plan: RawPlan,
    attention: Valid,
    order: LaunchOrder,
    /// The plan's constants, each with its place among its tensors, in the order of places.
    constants: Vec<(usize, DeviceBuffer)>,
}

impl RawDescribed {
    /// Joins a loaded plan with the attention that it computes. Uploads the constants of the attention (ALiBi slopes),
    /// which stay on the GPU as long as the plan's session, and waits for them; other attentions upload nothing.
    ///
    /// # Errors
    ///
    /// [`SessionError`] if the context cannot be made current or an upload fails.
    pub fn new(plan: RawPlan, attention: &Valid) -> Result<RawDescribed, SessionError> {
        let order = LaunchOrder::for_plan(plan.facts(), attention);
        let session = plan.session();
        let buffers = {
            let _entered = session.enter()?;
            session.inner.constants.uploaded(attention).map_err(|detail| SessionError::Constants { detail })?
        };
        let buffer = |role| buffers.iter().find(|(other, _)| *other == role).map(|(_, buffer)| *buffer);
        let constants = order.constant_places().iter().filter_map(|(role, place)| Some((*place, buffer(*role)?)));
        let (constants, attention) = (constants.collect(), attention.clone());
        Ok(RawDescribed { inner: Arc::new(DescribedInner { plan, attention, order, constants }) })
    }

    /// The plan.
    #[must_use]
    pub fn plan(&self) -> &RawPlan {
        &self.inner.plan
    }

    /// The facts of the plan.
    #[must_use]
    pub fn facts(&self) -> &PlanFacts {
        self.inner.plan.facts()
    }

    /// The attention that the plan computes.
    #[must_use]
    pub fn attention(&self) -> &Valid {
        &self.inner.attention
    }

    /// What a caller gives to a launch, in order.
    #[must_use]
    pub fn order(&self) -> &LaunchOrder {
        &self.inner.order
    }

    /// Queues a launch as [`RawPlan::launch_with`] does, with the tensors of [`RawDescribed::order`]: without the
    /// constants, which the plan has.
    ///
    /// # Safety
    ///
    /// As for [`RawPlan::launch_with`].
    ///
    /// # Errors
    ///
    /// As for [`RawPlan::launch_with`].
    pub unsafe fn launch_with(&self, args: &RawArgs<'_>, stream: *mut c_void) -> Result<(), LaunchError> {
        let DescribedInner { plan, constants, order, .. } = &*self.inner;
        if constants.is_empty() {
            // SAFETY: the caller's promise.
            return unsafe { plan.launch_with(args, stream) };
        }
        if args.tensors.len() != order.tensors().len() {
            let given = (args.tensors.len(), args.scalars.len());
            let needed = (order.tensors().len(), order.scalars().len());
            return Err(LaunchError::Count { what: self.facts().what.clone(), given, needed });
        }
        let mut all: LaunchBuffers = args.tensors.into();
        for &(place, buffer) in constants {
            all.insert(place, buffer);
        }
        // SAFETY: the caller's promise; the constants stay on the GPU as long as the session.
        unsafe { plan.launch_with(&RawArgs { tensors: &all, ..*args }, stream) }
    }

    /// Queues a launch as [`RawDescribed::launch_with`] does, with arguments by name. Finding the names takes some
    /// hundred nanoseconds; callers that launch often use the order.
    ///
    /// # Safety
    ///
    /// As for [`RawPlan::launch_with`].
    ///
    /// # Errors
    ///
    /// [`LaunchError::Arguments`] with everything that is wrong in the names, else as for [`RawPlan::launch_with`].
    pub unsafe fn launch_named(&self, args: &NamedArgs<'_>, stream: *mut c_void) -> Result<(), LaunchError> {
        let (tensors, scalars) = self.order().arrange(self.facts(), args)?;
        let NamedArgs { workspace, interleaved, .. } = *args;
        let args = RawArgs { tensors: &tensors, scalars: &scalars, workspace, interleaved };
        // SAFETY: the caller's promise.
        unsafe { self.launch_with(&args, stream) }
    }
}
