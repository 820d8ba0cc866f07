//! One plan of cuDNN: the inputs of its build, its facts, and how it is read again.

use std::sync::Arc;

use qkvault_cache::{Entry, EntryKind};
use qkvault_cudnn::{Choice, CompileOptions, OpGraph, Target, plan_key_of};
use qkvault_graph::{GraphKey, Origin as ReasonOrigin, PlanKey, Refusal, Valid, codec, text};
use qkvault_probe::{Request, check, lowered};

use crate::blob::Blob;
use crate::computation::Description;
use crate::cudnn::compiler::Compiled;
use crate::cudnn::failure::Failure;
use crate::cudnn::made::Made;
use crate::cudnn::{CUDNN, OpenCompiler};
use crate::engine::{Unbuilt, Work};
use crate::facts::{CudnnFacts, OwnFacts, PlanFacts};
use crate::look::BadEntry;
use crate::origin::{By, Origin, unlimited};
use crate::plan::{self, BadPlan, Plan};

/// All inputs of a build; the key contains all of them but the compiler.
pub(crate) struct Job<'a> {
    pub(crate) attention: &'a Valid,
    pub(crate) graph: Arc<OpGraph>,
    pub(crate) target: Target,
    pub(crate) options: CompileOptions,
    pub(crate) choice: Choice,
    pub(crate) key: PlanKey,
    compiler: &'a OpenCompiler,
}

impl<'a> Job<'a> {
    /// Lowers an attention for a target.
    ///
    /// # Errors
    ///
    /// The reasons of lowering and rules. They take microseconds, so they are not stored.
    pub(crate) fn new(
        attention: &'a Valid,
        target: &Target,
        options: &CompileOptions,
        compiler: &'a OpenCompiler,
    ) -> Result<Job<'a>, Refusal> {
        Job::choosing(attention, target, options, options.lab.choice(), compiler)
    }

    /// The same with a choice among cuDNN's engines.
    pub(crate) fn choosing(
        attention: &'a Valid,
        target: &Target,
        options: &CompileOptions,
        choice: Choice,
        compiler: &'a OpenCompiler,
    ) -> Result<Job<'a>, Refusal> {
        let options = unlimited(options);
        let graph = Arc::new(lowered(attention, target, &options)?);
        let key = plan_key_of(&graph, target, &options, choice);
        // A card tells what its cuDNN knows, a profile more; facts of both are compared.
        Ok(Job { attention, graph, target: target.as_reported(), options, choice, key, compiler })
    }

    /// The facts of the plan, with what compiling told.
    pub(crate) fn facts(&self, made: Made) -> PlanFacts {
        let Made { engine, passed_over, workspace, compile_ms, blob_bytes } = made;
        let Job { attention, graph, target, key, .. } = self;
        PlanFacts {
            key: *key,
            graph_key: attention.key(),
            what: attention.to_string(),
            by: CUDNN.name(),
            sm: target.sm(),
            driver: target.device.driver_ver,
            engine,
            workspace,
            compile_ms,
            blob_bytes,
            bindings: graph.bindings(Some(attention)),
            own: OwnFacts::Cudnn(Box::new(CudnnFacts {
                cudnn: target.cudnn,
                libraries: target.libraries,
                toolchain: target.toolchain.clone(),
                multi_processors: target.device.multi_processor_count,
                memory_bus: target.device.memory_bus_width,
                passed_over,
                again: graph.declared_again(),
                fixed: graph.fixed_numbers(),
            })),
        }
    }

    /// The plan as an entry of a vault, with what it is compiled from.
    pub(crate) fn entry(&self, made: Made, blob: Blob) -> Entry {
        let mut entry = Plan { facts: self.facts(made), blob }.to_entry(&self.target);
        entry.payload.extend(codec::encode(&self.origin()));
        entry
    }

    /// A refusal as an entry of a vault, with what was refused.
    pub(crate) fn refusal_entry(&self, refusal: &Refusal) -> Entry {
        plan::refusal_entry(refusal, &self.attention.to_string(), &self.target, &self.origin())
    }

    /// What the plan is compiled from.
    pub(crate) fn origin(&self) -> Origin {
        let Job { attention, ref target, options, choice, .. } = *self;
        let by = By::Cudnn { target: Box::new(target.clone()), options, choice };
        Origin { of: Description::attention(attention), by }
    }

    /// The refusal by rules, if they say that cuDNN does not support it: only rules distinguish a generated kernel that
    /// does not compile from a failure of the moment.
    fn known_refusal(&self) -> Option<Refusal> {
        let verdict = check(&Request::new(self.attention, &self.target).with_policy(self.options));
        Refusal::from_reasons(
            verdict.reasons.into_iter().filter(|reason| reason.origin == ReasonOrigin::Rule).collect(),
        )
    }

    /// A refusal of cuDNN with the rules that know it: they say what is needed and how to fix it, cuDNN does not.
    fn explained(&self, said: Refusal) -> Refusal {
        let mut reasons = Vec::from(said);
        let known = self.known_refusal().map(Vec::from).unwrap_or_default();
        reasons.extend(
            known.into_iter().filter(|rule| reasons.iter().all(|told| told.code != rule.code)).collect::<Vec<_>>(),
        );
        Refusal::from_reasons(reasons).expect("a refusal has a reason")
    }
}

impl Work for Job<'_> {
    fn key(&self) -> PlanKey {
        self.key
    }

    fn graph_key(&self) -> GraphKey {
        self.attention.key()
    }

    fn what(&self) -> String {
        self.attention.to_string()
    }

    fn text(&self) -> Option<String> {
        Some(text::print(self.attention))
    }

    fn target(&self) -> String {
        self.target.label()
    }

    fn library(&self) -> Option<String> {
        Some(self.target.cudnn.to_string())
    }

    fn build(&self) -> Result<Entry, Unbuilt> {
        let compiler = self.compiler.get().map_err(Unbuilt::NoCompiler)?;
        let failed = |failure| Err(Unbuilt::Failed { error: Arc::new(failure), gap: None });
        match compiler.compile_choice(&self.graph, &self.target, &self.options, self.choice) {
            Ok(Compiled { blob, engine, passed_over, workspace, milliseconds }) => {
                let blob_bytes = blob.len() as u64;
                let made = Made { engine, passed_over, workspace, compile_ms: milliseconds, blob_bytes };
                Ok(self.entry(made, blob.into()))
            }
            Err(Failure::Refused(refusal)) => Ok(self.refusal_entry(&refusal)),
            // No kernel was compiled. Where rules predict that it is an answer, but not cuDNN's, so it is not stored.
            Err(failure) if failure.is_uncompiled() => match self.known_refusal() {
                Some(refusal) => Err(Unbuilt::Refused(refusal)),
                None => failed(failure),
            },
            Err(failure) => failed(failure),
        }
    }

    fn read(&self, key: PlanKey, entry: &Arc<Entry>) -> Result<Result<Arc<Plan>, Refusal>, BadEntry> {
        match entry.kind {
            EntryKind::Plan => {
                let Plan { facts, blob } = Plan::from_entry(key, entry)?;
                // The description begins where cuDNN's bytes end.
                let origin: Result<Origin, _> = codec::decode(&entry.payload[blob.len()..]);
                origin.map_err(|error| BadPlan::Origin { key, why: error.to_string() })?;
                let asked = self.facts(Made::from_facts(&facts)).asked(&facts);
                let facts = asked.map_err(|altered| BadPlan::Altered { key, altered: Box::new(altered) })?;
                Ok(Ok(Arc::new(Plan { facts, blob })))
            }
            EntryKind::Refusal => Ok(Err(self.explained(plan::refusal_of(entry)?))),
            EntryKind::Times => Err(BadEntry::Times),
        }
    }

    fn smaller(&self) -> Option<Box<dyn Work + '_>> {
        // A named engine of cuDNN is the only one.
        if self.graph.engine.is_some() {
            return None;
        }
        let choice = Choice::LeastWorkspace;
        let key = plan_key_of(&self.graph, &self.target, &self.options, choice);
        let Job { attention, options, compiler, .. } = *self;
        let (graph, target) = (Arc::clone(&self.graph), self.target.clone());
        Some(Box::new(Job { attention, graph, target, options, choice, key, compiler }))
    }
}
