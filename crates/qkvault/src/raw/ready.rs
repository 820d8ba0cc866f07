//! A plan that is ready to be launched, and where it came from.

use std::ops::Deref;
use std::time::Duration;

use qkvault_cache::Source;
use qkvault_compile::EngineChoice;
use qkvault_exec::raw::{LoadTimes, RawDescribed};

/// A loaded plan with its description, as [`RawRuntime::prepare`](crate::RawRuntime::prepare) gives it. Cheap to clone.
#[derive(Clone, Debug)]
pub struct RawReady {
    plan: RawDescribed,
    source: Option<Source>,
    engine: Option<EngineChoice>,
    times: PrepareTimes,
}

/// Where the time of [`RawRuntime::prepare`](crate::RawRuntime::prepare) went, for the call that loaded a plan.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PrepareTimes {
    /// Computing the plan's key, and reading and checking its entry of the vault.
    pub vault: Duration,
    /// Loading it on the GPU.
    pub load: LoadTimes,
    /// All of the call: also the choice of an engine, candidates without a plan, and constants.
    pub whole: Duration,
}

impl RawReady {
    pub(super) const fn new(
        plan: RawDescribed,
        source: Option<Source>,
        engine: Option<EngineChoice>,
        times: PrepareTimes,
    ) -> RawReady {
        RawReady { plan, source, engine, times }
    }

    /// Where the time went that preparing it took; zeros if the process had loaded it for another runtime.
    #[must_use]
    pub const fn times(&self) -> PrepareTimes {
        self.times
    }

    /// Where the plan came from; `None` if the process had loaded it for another runtime.
    #[must_use]
    pub const fn source(&self) -> Option<Source> {
        self.source
    }

    /// Whose plan it is, why, and why not the ones before it; `None` if the process had loaded it for another runtime.
    #[must_use]
    pub const fn engine(&self) -> Option<&EngineChoice> {
        self.engine.as_ref()
    }
}

impl Deref for RawReady {
    type Target = RawDescribed;

    fn deref(&self) -> &RawDescribed {
        &self.plan
    }
}
