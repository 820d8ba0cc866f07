//! What a runtime does without a GPU: answer, compile, look up. Both runtimes have it, so neither can do what the other
//! cannot.

use std::fs::File;
use std::path::Path;

use qkvault_cache::{UnpackOptions, UnpackReport, Vault};
use qkvault_compile::{CUDNN, Engines, OnMiss, Planner, Resolution, beside};
use qkvault_cudnn::registry::codes;
use qkvault_cudnn::{CompileOptions, Profile, Target};
use qkvault_graph::{CudnnVersion, EnginePolicy, LibrarySet, PlanKey, Refusal, Valid};
use qkvault_probe::{Explanation, NEWEST, Request};
use qkvault_sys::Search;

use crate::Error;

/// The vault with a planner that compiles and one that does not.
pub(crate) struct Offline {
    /// Compiles nothing.
    pub(crate) planner: Planner,
    /// Opens a compiler when a plan must be compiled.
    pub(crate) compiling: Planner,
    pub(crate) compile: CompileOptions,
}

impl Offline {
    pub(crate) fn new(vault: Vault, search: &Search, compile: CompileOptions) -> Offline {
        let compiling = Planner::opening(vault.clone(), search.clone());
        Offline { planner: Planner::new(vault, None), compiling, compile }
    }

    /// The planner for what the vault lacks.
    pub(crate) fn on_miss(&self, on_miss: OnMiss) -> &Planner {
        if on_miss == OnMiss::Compile { &self.compiling } else { &self.planner }
    }

    pub(crate) fn compile_target(&self, gpu: &str) -> Result<Target, Error> {
        let profile = profile(gpu)?;
        let compiler = self.compiling.open_compiler().map_err(Error::build)?;
        Ok(compiler.target(&profile))
    }

    pub(crate) fn explain(&self, attention: &Valid, target: &Target) -> Explanation {
        explain(self.planner.engines(), attention, target, self.compile)
    }

    pub(crate) fn plan_key(&self, attention: &Valid, target: &Target) -> Result<PlanKey, Error> {
        Ok(self.planner.key(attention, target, &self.compile)?)
    }

    pub(crate) fn warm(&self, attention: &Valid, target: &Target) -> Result<Resolution, Error> {
        answered(self.compiling.plan(attention, target, &self.compile, OnMiss::Compile)?)
    }

    pub(crate) fn look(&self, attention: &Valid, target: &Target) -> Result<Resolution, Error> {
        let answer = self.planner.plan(attention, target, &self.compile, OnMiss::Load);
        answered(answer.map_err(|error| self.beside_older(error.into()))?)
    }

    /// The error that a plan is missing, with entries that another version of qkvault wrote into the same vault.
    pub(crate) fn beside_older(&self, error: Error) -> Error {
        let older = if error.is_missing() { self.planner.vault().older() } else { Vec::new() };
        match older.is_empty() {
            true => error,
            false => Error::missing_beside(&error, &older),
        }
    }

    pub(crate) fn unpack(&self, pack: &Path, options: &UnpackOptions) -> Result<UnpackReport, Error> {
        let file = File::open(pack).map_err(|error| Error::pack(pack, &error))?;
        let unpacked = self.planner.vault().unpack(file, |_| true, options);
        unpacked.map_err(|error| Error::pack(pack, &error))
    }
}

/// An answer, or the refusal that it is.
pub(crate) fn answered(answer: Resolution) -> Result<Resolution, Error> {
    match &answer.outcome {
        Ok(_) => Ok(answer),
        Err(refusal) => Err(refusal.clone().into()),
    }
}

/// A GPU by its name, or the text of a profile.
pub(crate) fn profile(gpu: &str) -> Result<Profile, Refusal> {
    if gpu.trim_start().starts_with('{') { Profile::from_json(gpu) } else { Profile::named(gpu) }
}

/// A GPU by its name with a cuDNN that is not loaded: the newest that the rules cover, or another version.
pub(crate) fn rules_target(gpu: &str, cudnn: Option<CudnnVersion>) -> Result<Target, Error> {
    Ok(profile(gpu)?.target(cudnn.unwrap_or(NEWEST), LibrarySet::Slim))
}

/// What the rules say of an attention, with every reason, the nearest change, the memory of a launch, and the engine
/// whose plan is looked for first.
pub(crate) fn explain(engines: &Engines, attention: &Valid, target: &Target, compile: CompileOptions) -> Explanation {
    let (policy, sm) = (compile.engine, target.sm());
    let mut said = Explanation::for_request(&Request::new(attention, target).with_policy(compile));
    let named = match policy {
        EnginePolicy::Named(name) if name != CUDNN.name() => engines.named(name),
        EnginePolicy::Auto | EnginePolicy::Named(_) => None,
    };
    if let Some(engine) = named {
        // cuDNN is not asked, so its reasons are none; operands need their memory with every engine.
        let cudnns = said.reasons.iter().any(|reason| reason.code != codes::MEMORY_BUDGET);
        said.reasons.retain(|reason| reason.code == codes::MEMORY_BUDGET);
        let own = engine.takes(attention, sm).err();
        let own = if cudnns { own.map(|refusal| beside(&refusal, CUDNN)) } else { own };
        said.reasons.extend(own.into_iter().flat_map(|r| r.reasons().to_vec()));
        said.nearest.clear();
    }
    let choice = engines.by_rules(attention, sm, policy, (CUDNN, &said.reasons));
    said.supported = choice.is_some();
    if said.supported {
        said.nearest.clear();
    }
    said.engine = choice.map(|choice| choice.explained());
    said
}
