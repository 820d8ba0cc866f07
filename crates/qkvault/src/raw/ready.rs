//! A plan that is ready to be launched, and where it came from.

use std::ops::Deref;

use qkvault_cache::Source;
use qkvault_exec::raw::RawDescribed;

/// A loaded plan with its description, as [`RawRuntime::prepare`](crate::RawRuntime::prepare) gives it. Cheap to clone.
#[derive(Clone, Debug)]
pub struct RawReady {
    plan: RawDescribed,
    source: Option<Source>,
}

impl RawReady {
    pub(super) const fn new(plan: RawDescribed, source: Option<Source>) -> RawReady {
        RawReady { plan, source }
    }

    /// Where the plan came from; `None` if the process had loaded it for another runtime.
    #[must_use]
    pub const fn source(&self) -> Option<Source> {
        self.source
    }
}

impl Deref for RawReady {
    type Target = RawDescribed;

    fn deref(&self) -> &RawDescribed {
        &self.plan
    }
}
