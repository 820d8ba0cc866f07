//! The look-up of an attention's plan for a machine that loads it: what is stored there first, then what the vault's
//! remote has, in one request, then a build. Whoever loads plans gives [`prepare`] a function that does.

use std::fmt::Display;
use std::sync::Arc;

use qkvault_cache::Vault;
use qkvault_cudnn::{CompileOptions, Target};
use qkvault_graph::{Refusal, Valid};

use crate::choice::{Answer, Candidates, EngineChoice, ask_engines};
#[doc(hidden)]
pub use crate::cudnn::others::{DRIVERS, NVRTCS, candidates};
use crate::engine::{Engine, Gap, Gpu, Work};
use crate::look::vault_key;
use crate::obtain::How;
use crate::plan::Plan;
use crate::plan_error::PlanError;
use crate::planner::{OnMiss, Planner, Resolution};

/// A loaded plan and its source.
#[derive(Clone, Debug)]
pub struct Prepared<P> {
    /// The plan on the device.
    pub plan: P,
    /// The answer of the planner: the source of the plan and its key.
    pub answer: Resolution,
    /// The target of the plan, which may differ from the target of this machine; `None` for an engine whose plans are
    /// the same for all GPUs of a compute capability.
    pub target: Option<Target>,
}

/// What keeps a plan from being prepared, as whoever loads plans says it.
pub trait Fault: From<Refusal> + From<PlanError> + Display {
    /// Whether it is about the stored plan, so that another build of it may load: not about memory, limits or this
    /// process.
    fn is_of_the_plan(&self) -> bool;

    /// Whether the plan needs more scratch memory than is allowed, as every target's does.
    fn is_too_large(&self) -> bool;

    /// The same for a stored plan that may not be built again.
    #[must_use]
    fn unusable(self) -> Self;

    /// The reasons, if it is a refusal.
    fn refusal(&self) -> Option<&Refusal>;

    /// What the engine lacks, if another one may compute in its place.
    fn gap(&self) -> Option<Gap>;

    /// Why there is no plan, as told of one engine of several.
    fn cause(&self) -> String {
        self.to_string()
    }
}

/// Looks up the plan of an attention for a GPU of a compute capability and loads it with `load`. If no stored plan
/// loads here, builds one if `on_miss` allows it. The target of the machine is asked for (`here`) only when an engine
/// needs it: a host whose plans are all of other engines needs no cuDNN.
///
/// If the stored plan of the machine's own target does not load although it should (its bytes are damaged, or are of
/// another cuDNN), it is built again and replaced if `on_miss` allows a build.
///
/// Plans of other targets can load on a machine too: of the other library set, of other NVRTC versions, of older
/// drivers. It looks for all of them in memory, folder and layers, and then fetches all of them from the vault's remote
/// in one request, so that a miss costs one wait for the remote.
///
/// # Errors
///
/// [`Fault`]s. The error for a missing plan names the key of this machine's own target.
pub fn prepare<'t, P, F: Fault>(
    planner: &Planner,
    sm: u32,
    here: impl Fn() -> Result<&'t Target, F>,
    attention: &Valid,
    options: &CompileOptions,
    on_miss: OnMiss,
    mut load: impl FnMut(&Plan) -> Result<P, F>,
) -> Result<Prepared<P>, F> {
    let options = planner.allowing_too(options);
    let candidates = planner.candidates(attention, sm, options.engine);
    planner.known(&candidates, &options)?;
    let places = candidates.engines.iter().map(|_| None).collect();
    let mut asked = Asked { planner, local: planner.local(), sm, here, attention, options, places };
    let waits = on_miss == OnMiss::Compile || (on_miss == OnMiss::Load && planner.vault().asks_remote());
    if !waits {
        return asked.prepare(&candidates, (on_miss, true), &mut load);
    }
    // What an engine has here serves at once, if it is not clearly slower than the one whose plan would be fetched or
    // compiled first: a launch is made more often than a plan. Compiling of many seconds is for `warm`.
    let mut near = candidates.clone();
    let quick = candidates.engines.first().is_none_or(|first| planner.engines.get(*first).compiles_quickly());
    near.engines.truncate(if quick || on_miss == OnMiss::Load { candidates.near } else { usize::MAX });
    if near.engines.len() > 1
        && let Ok(found) = asked.prepare(&near, (OnMiss::Load, false), &mut load)
    {
        return Ok(found);
    }
    let waited = asked.prepare(&candidates, (on_miss, true), &mut load);
    // Better a slower plan than none.
    if waited.is_err()
        && near.engines.len() < candidates.engines.len()
        && let Ok(found) = asked.prepare(&candidates, (OnMiss::Load, false), &mut load)
    {
        return Ok(found);
    }
    waited
}

/// What is asked of every candidate.
struct Asked<'a, H> {
    planner: &'a Planner,
    local: Planner,
    sm: u32,
    here: H,
    attention: &'a Valid,
    options: CompileOptions,
    /// What was lowered for each candidate.
    places: Vec<Option<Place<'a>>>,
}

impl<'a, 't, H> Asked<'a, H> {
    /// The plan of the first candidate that has one; with `remote`, the vault's remote is asked too.
    fn prepare<P, F: Fault>(
        &mut self,
        candidates: &Candidates,
        (on_miss, remote): (OnMiss, bool),
        load: &mut impl FnMut(&Plan) -> Result<P, F>,
    ) -> Result<Prepared<P>, F>
    where
        H: Fn() -> Result<&'t Target, F>,
    {
        let (prepared, _) =
            ask_engines(candidates, |choice| match self.prepare_by(candidates, choice, (on_miss, remote), load) {
                Ok(mut prepared) => {
                    prepared.answer.engine = choice.clone();
                    Answer::Plan(Ok(prepared))
                }
                Err(error) => match error.refusal().cloned() {
                    Some(refusal) => Answer::Refused(Err(error), refusal),
                    None => {
                        let (gap, why) = (error.gap(), error.cause());
                        Answer::lacking(Err(error), gap, why)
                    }
                },
            });
        prepared
    }

    fn prepare_by<P, F: Fault>(
        &mut self,
        candidates: &Candidates,
        choice: &EngineChoice,
        (on_miss, remote): (OnMiss, bool),
        load: &mut impl FnMut(&Plan) -> Result<P, F>,
    ) -> Result<Prepared<P>, F>
    where
        H: Fn() -> Result<&'t Target, F>,
    {
        let at = candidates.engines.iter().position(|engine| *engine == choice.engine).expect("a candidate");
        let Asked { planner, local, sm, here, attention, options, places } = self;
        let place = match &mut places[at] {
            Some(place) => place,
            empty => {
                let engine = planner.engines.get(choice.engine);
                let here = if engine.needs_target() { Some(here()?) } else { None };
                empty.insert(Place::new(engine, *sm, here))
            }
        };
        let search = Search { local, planner, attention, options, on_miss, remote, place, load };
        search.prepare()
    }
}

/// An engine on a machine: the targets whose plans load there, the machine's own first, and what was lowered for them.
struct Place<'a> {
    engine: &'a dyn Engine,
    sm: u32,
    targets: Vec<Option<Target>>,
    works: Vec<Option<Result<Box<dyn Work + 'a>, Refusal>>>,
}

impl<'a> Place<'a> {
    fn new(engine: &'a dyn Engine, sm: u32, here: Option<&Target>) -> Place<'a> {
        let mut targets = vec![here.cloned()];
        targets.extend(here.into_iter().flat_map(|here| engine.other_targets(here)).map(Some));
        let works = targets.iter().map(|_| None).collect();
        Place { engine, sm, targets, works }
    }

    /// The work for a target, lowered once.
    fn work(&mut self, at: usize, attention: &'a Valid, options: &CompileOptions) -> Result<&dyn Work, Refusal> {
        let Place { engine, sm, targets, works } = self;
        let on = Gpu { sm: *sm, target: targets[at].as_ref() };
        let work = works[at].get_or_insert_with(|| engine.work(attention, on, options));
        work.as_ref().map(|work| &**work).map_err(Clone::clone)
    }
}

/// A look-up of one engine's plan under way.
struct Search<'s, 'a, F> {
    /// The planner without the vault's remote, and with it.
    local: &'s Planner,
    planner: &'s Planner,
    attention: &'a Valid,
    options: &'s CompileOptions,
    on_miss: OnMiss,
    remote: bool,
    place: &'s mut Place<'a>,
    load: &'s mut F,
}

/// The result for one target.
enum Found<P> {
    Loaded(Box<Prepared<P>>),
    /// No plan is stored for it.
    Absent(PlanError),
    /// Its plan is refused or does not load.
    Unusable,
}

impl<'a, L> Search<'_, 'a, L> {
    fn prepare<P, F: Fault>(mut self) -> Result<Prepared<P>, F>
    where
        L: FnMut(&Plan) -> Result<P, F>,
    {
        let (mut absent, mut missing, mut too_large) = (Vec::new(), None, None);
        for at in 0..self.place.targets.len() {
            match self.look(at, &mut too_large)? {
                Found::Loaded(prepared) => return Ok(*prepared),
                // The first error is for this machine's own target.
                Found::Absent(error) => {
                    missing.get_or_insert(error);
                    absent.push(at);
                }
                Found::Unusable => {}
            }
        }
        if self.on_miss != OnMiss::Memory && self.remote {
            for at in self.fetch(&absent) {
                if let Found::Loaded(prepared) = self.look(at, &mut too_large)? {
                    return Ok(*prepared);
                }
            }
        }
        if let Some(error) = too_large {
            return Err(error);
        }
        match (self.on_miss, missing) {
            (OnMiss::Memory | OnMiss::Load, Some(missing)) => Err(missing.into()),
            (OnMiss::Compile, _) | (_, None) => {
                // The remote was tried above.
                let answer = self.resolve(0, false, self.on_miss.into())?;
                self.loaded(0, answer)
            }
        }
    }

    fn resolve(&mut self, at: usize, remote: bool, how: How<'_>) -> Result<Resolution, PlanError> {
        let planner = if remote { self.planner } else { self.local };
        let (engine, attention, limit) = (self.place.engine.id(), self.attention, self.options.workspace_limit);
        match self.place.work(at, attention, self.options) {
            Ok(work) => planner.resolve(engine, work, limit, how),
            Err(refusal) => Ok(Resolution::refused(attention.key(), engine, refusal)),
        }
    }

    /// Loads the plan of an answer.
    fn loaded<P, F: Fault>(&mut self, at: usize, answer: Resolution) -> Result<Prepared<P>, F>
    where
        L: FnMut(&Plan) -> Result<P, F>,
    {
        let plan = match &answer.outcome {
            Ok(plan) => (self.load)(plan)?,
            Err(refusal) => return Err(refusal.clone().into()),
        };
        Ok(Prepared { plan, answer, target: self.place.targets[at].clone() })
    }

    /// Looks up the plan of one target and loads it. An error for this machine's own target ends the look-up.
    fn look<P, F: Fault>(&mut self, at: usize, too_large: &mut Option<F>) -> Result<Found<P>, F>
    where
        L: FnMut(&Plan) -> Result<P, F>,
    {
        let look = if self.on_miss == OnMiss::Memory { OnMiss::Memory } else { OnMiss::Load };
        let answer = match self.resolve(at, false, look.into()) {
            Ok(answer) => answer,
            Err(error @ PlanError::Missing { .. }) => return Ok(Found::Absent(error)),
            Err(error) => return Err(error.into()),
        };
        let plan = match &answer.outcome {
            Ok(plan) => Arc::clone(plan),
            Err(refusal) if at == 0 => return Err(refusal.clone().into()),
            // This machine's own target may have a plan where another one has a refusal.
            Err(_) => return Ok(Found::Unusable),
        };
        match (self.load)(&plan) {
            Ok(plan) => {
                let target = self.place.targets[at].clone();
                return Ok(Found::Loaded(Box::new(Prepared { plan, answer, target })));
            }
            Err(error) if at == 0 => return self.anew(&answer, error).map(|found| Found::Loaded(Box::new(found))),
            // Every target's plan has this size, so the plan does not count as missing.
            Err(error) if error.is_too_large() => {
                too_large.get_or_insert(error);
            }
            Err(error) => tracing::debug!(%error, "a plan of another target does not load here"),
        }
        Ok(Found::Unusable)
    }

    /// Builds the plan of this machine's own target again, whose stored one does not load, and replaces it. Returns the
    /// error of the stored plan if it is not about the plan, or if nothing builds it again here.
    fn anew<P, F: Fault>(&mut self, stored: &Resolution, error: F) -> Result<Prepared<P>, F>
    where
        L: FnMut(&Plan) -> Result<P, F>,
    {
        let Some(key) = stored.key.filter(|_| error.is_of_the_plan()) else { return Err(error) };
        if self.on_miss != OnMiss::Compile {
            return Err(error.unusable());
        }
        tracing::warn!(%key, %error, "a stored plan does not load; it is built again");
        match self.resolve(0, true, How { on_miss: OnMiss::Compile, anew: Some(&key) }) {
            Ok(answer) => self.loaded(0, answer),
            Err(PlanError::NoCompiler { .. }) => Err(error),
            Err(failure) => Err(failure.into()),
        }
    }

    /// Asks the vault's remote for the plans of these targets at once, and stores its answers in memory and on disk.
    /// Returns those with an answer.
    fn fetch(&mut self, absent: &[usize]) -> Vec<usize> {
        if !self.planner.vault().asks_remote() {
            return Vec::new();
        }
        let mut keys = Vec::new();
        let mut vault: Option<Vault> = None;
        for &at in absent {
            let (attention, limit) = (self.attention, self.options.workspace_limit);
            if let Ok(work) = self.place.work(at, attention, self.options) {
                keys.push((at, vault_key(&work.key())));
                // With a limit, the plan may be that which needs the least.
                let smaller = limit.and_then(|_| work.smaller());
                keys.extend(smaller.map(|work| (at, vault_key(&work.key()))));
                // One library loads them all, so refusals of its version count.
                vault.get_or_insert_with(|| self.planner.vault_of(work));
            }
        }
        let Some(vault) = vault else { return Vec::new() };
        let found = vault.fetch(&keys.iter().map(|(_, key)| *key).collect::<Vec<_>>());
        let mut places: Vec<usize> = keys.into_iter().filter(|(_, key)| found.contains(key)).map(|(i, _)| i).collect();
        places.dedup();
        places
    }
}
