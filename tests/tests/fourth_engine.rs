//! A fourth engine, brought by a program: attention on the CPU by the oracle. Nothing of the project knows it, and it
//! is asked, compiled, stored, found, loaded and replaced like the others.

use std::sync::Arc;

use qkvault_cache::{Entry, EntryKind, Source, Vault, VaultOptions};
use qkvault_compile::host::{Fault, prepare};
use qkvault_compile::{
    BadEntry, BadPlan, Because, Engine, EngineId, Gap, Gpu, OnMiss, OwnFacts, Plan, PlanError, PlanFacts, Planner,
    Unbuilt, Why, Work,
};
use qkvault_cudnn::{CompileOptions, Target};
use qkvault_graph::{
    Attention, DType, EngineName, EnginePolicy, GraphKey, PlanKey, Refusal, Role, Valid, codec, validate,
};
use qkvault_reference::{ExactOutputs, Inputs, forward};

mod codes {
    use qkvault_graph::entries;
    use qkvault_graph::registry::Entry;

    entries![
        ORACLE_GPU = Entry {
            code: "oracle.gpu",
            cause: "The oracle computes forwards on the CPU.",
            field: "target",
            needed: "a forward, and no GPU",
            ..Entry::not_built()
        },
    ];
}

const ORACLE: EngineId = EngineId::new("oracle", "the oracle");

/// The compute capability that no GPU has: a CPU.
const CPU: u32 = 0;

#[derive(Debug)]
struct Oracle {
    /// Why it is taken only by name.
    unproven: Option<&'static str>,
}

impl Engine for Oracle {
    fn id(&self) -> EngineId {
        ORACLE
    }

    fn takes(&self, attention: &Valid, sm: u32) -> Result<(), Refusal> {
        match sm == CPU && !attention.is_backward() {
            true => Ok(()),
            false => Err(codes::ORACLE_GPU.reason(format!("compute capability {sm}")).into()),
        }
    }

    fn unproven(&self, _attention: &Valid) -> Option<&'static str> {
        self.unproven
    }

    fn place(&self, _dense: bool) -> u8 {
        9
    }

    fn work<'a>(
        &'a self,
        attention: &'a Valid,
        on: Gpu<'_>,
        _options: &CompileOptions,
    ) -> Result<Box<dyn Work + 'a>, Refusal> {
        self.takes(attention, on.sm)?;
        Ok(Box::new(Task(attention)))
    }
}

/// One plan: the description, which `run` reads again.
struct Task<'a>(&'a Valid);

impl Task<'_> {
    fn facts(&self, blob_bytes: u64) -> PlanFacts {
        PlanFacts {
            key: self.key(),
            graph_key: self.graph_key(),
            what: self.what(),
            by: ORACLE.name(),
            sm: CPU,
            driver: 0,
            engine: "float64".to_owned(),
            workspace: 0,
            compile_ms: 0,
            blob_bytes,
            bindings: qkvault_kernels::recipe::bindings(self.0),
            own: OwnFacts::Other(b"1".to_vec()),
        }
    }
}

impl Work for Task<'_> {
    fn key(&self) -> PlanKey {
        let mut hasher = blake3::Hasher::new_derive_key("a plan of the oracle, format 1");
        PlanKey::from_bytes(*hasher.update(self.0.key().bytes()).finalize().as_bytes())
    }

    fn graph_key(&self) -> GraphKey {
        self.0.key()
    }

    fn what(&self) -> String {
        self.0.to_string()
    }

    fn target(&self) -> String {
        "cpu".to_owned()
    }

    fn build(&self) -> Result<Entry, Unbuilt> {
        let payload = codec::encode(&Attention::clone(self.0));
        let meta = codec::encode(&self.facts(payload.len() as u64));
        let (target, what, library) = (self.target(), self.what(), "oracle 1".to_owned());
        Ok(Entry { kind: EntryKind::Plan, target, what, library, meta, payload })
    }

    fn read(&self, key: PlanKey, entry: &Arc<Entry>) -> Result<Result<Arc<Plan>, Refusal>, BadEntry> {
        let plan = Plan::from_entry(key, entry)?;
        match plan.facts == self.facts(plan.facts.blob_bytes) {
            true => Ok(Ok(Arc::new(plan))),
            false => Err(BadPlan::Origin { key, why: "its facts are others".to_owned() }.into()),
        }
    }
}

/// What a program that launches says of a plan that it does not load.
#[derive(Debug, thiserror::Error)]
enum NotLoaded {
    #[error(transparent)]
    Plan(#[from] PlanError),
    #[error("{0}")]
    Refused(Refusal),
    #[error("damaged")]
    Damaged,
}

impl From<Refusal> for NotLoaded {
    fn from(refusal: Refusal) -> NotLoaded {
        NotLoaded::Refused(refusal)
    }
}

impl Fault for NotLoaded {
    fn is_of_the_plan(&self) -> bool {
        matches!(self, NotLoaded::Damaged)
    }

    fn is_too_large(&self) -> bool {
        false
    }

    fn unusable(self) -> NotLoaded {
        self
    }

    fn refusal(&self) -> Option<&Refusal> {
        match self {
            NotLoaded::Refused(refusal) => Some(refusal),
            NotLoaded::Plan(_) | NotLoaded::Damaged => None,
        }
    }

    fn gap(&self) -> Option<Gap> {
        match self {
            NotLoaded::Plan(error) => error.gap(),
            NotLoaded::Refused(_) | NotLoaded::Damaged => None,
        }
    }
}

/// "Launches" a plan.
fn run(plan: &Plan, inputs: &Inputs) -> ExactOutputs {
    let attention: Attention = codec::decode(&plan.blob).expect("a description");
    forward(&validate(attention).expect("valid"), inputs).expect("computes")
}

fn no_target() -> Result<&'static Target, NotLoaded> {
    Err(PlanError::NoEngine { name: EngineName::new("cudnn"), known: String::new() }.into())
}

#[test]
fn an_engine_that_nobody_knows_is_asked_compiled_stored_found_and_loaded() {
    let folder = tempfile::tempdir().expect("a folder");
    let open = || {
        let vault = VaultOptions::in_folder(folder.path()).without_environment();
        Planner::new(Vault::open(vault).expect("a vault"), None).with_engine(Arc::new(Oracle { unproven: None }))
    };
    let attention = validate(Attention::bshd(1, (4, 2), (9, 9), 16, DType::BF16).causal()).expect("valid");
    let options = CompileOptions { engine: ORACLE.policy(), ..CompileOptions::default() };
    let find = |planner: &Planner, on_miss, bad: bool| {
        let mut first = bad;
        let load = |plan: &Plan| match std::mem::take(&mut first) {
            true => Err(NotLoaded::Damaged),
            false => Ok(plan.clone()),
        };
        prepare(planner, CPU, no_target, &attention, &options, on_miss, load)
    };
    let missing = find(&open(), OnMiss::Load, false).expect_err("nothing is stored");
    assert!(missing.to_string().contains("for cpu"), "{missing}");
    let made = find(&open(), OnMiss::Compile, false).expect("is made");
    assert_eq!((made.answer.source, made.answer.engine.engine), (Source::Built, ORACLE));
    let found = find(&open(), OnMiss::Load, false).expect("is stored");
    assert_eq!((found.answer.source, &found.plan, found.target), (Source::Disk, &made.plan, None));
    let again = find(&open(), OnMiss::Compile, true).expect("is made again");
    assert_eq!((again.answer.source, again.answer.key), (Source::Built, made.answer.key));

    let inputs = Inputs::random(&attention, 1).expect("inputs");
    let (ours, exact) = (run(&found.plan, &inputs), forward(&attention, &inputs).expect("computes"));
    assert_eq!(ours.get(Role::O).map(|o| o.buffer()), exact.get(Role::O).map(|o| o.buffer()));
}

#[test]
fn a_fourth_engine_takes_part_in_the_choice_and_in_messages() {
    let planner =
        Planner::new(Vault::in_memory(VaultOptions::new()), None).with_engine(Arc::new(Oracle { unproven: None }));
    let attention = validate(Attention::bshd(1, (4, 4), (64, 64), 64, DType::BF16)).expect("valid");
    let hopper = planner.candidates(&attention, 90, EnginePolicy::Auto);
    let refuses = |because: &Because| matches!(because, Because::Refuses(_));
    assert!(hopper.never.iter().any(|passed| passed.engine == ORACLE && refuses(&passed.because)), "{hopper:?}");
    let named = planner.candidates(&attention, CPU, ORACLE.policy());
    assert_eq!((named.engines.as_slice(), &named.why), (&[ORACLE][..], &Why::Named));
    assert_eq!(planner.engines().policy("oracle"), Ok(ORACLE.policy()));
    let unknown = planner.engines().policy("orakel").expect_err("no such engine");
    assert!(unknown.contains("cudnn, kernels, fa4, oracle"), "{unknown}");
}

#[test]
fn what_no_gpu_has_judged_is_taken_by_name_only() {
    let oracle = Oracle { unproven: Some("no CPU has judged it") };
    let planner = Planner::new(Vault::in_memory(VaultOptions::new()), None).with_engine(Arc::new(oracle));
    let attention = validate(Attention::bshd(1, (4, 4), (64, 64), 64, DType::BF16)).expect("valid");
    let usual = planner.candidates(&attention, CPU, EnginePolicy::Auto);
    assert!(!usual.engines.contains(&ORACLE), "{usual:?}");
    let told = usual.choice(usual.engines[0], &[]).to_string();
    assert!(told.contains("not the oracle unless it is named: no CPU has judged it"), "{told}");
    assert_eq!(planner.candidates(&attention, CPU, ORACLE.policy()).engines, [ORACLE]);
}
