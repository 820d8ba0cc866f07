//! Why a planner gives no answer. A refusal is an answer.

use std::error::Error;
use std::sync::Arc;

use qkvault_graph::{EngineName, PlanKey};

use crate::engine::{EngineId, Gap};

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum PlanError {
    /// The plan is missing, and building was not allowed.
    #[error(
        "no plan {key} ({what} for {target}) is in {place}{unused}, and building it is not allowed here; \
         build it ahead with `{warm}`{load}, or use OnMiss::Compile",
        warm = warm(text.as_deref(), target),
        unused = match unused {
            Some(why) => format!(" (an entry of this key is there and not used: {why})"),
            None => String::new(),
        },
        place = if *memory_alone { "the memory of this process" } else { "the vault" },
        load = if *memory_alone { " and load it with OnMiss::Load" } else { "" },
    )]
    Missing {
        /// The key of the plan.
        key: PlanKey,
        /// Its attention.
        what: String,
        /// Its text form, for `qkvault warm --text`; `None` if it is no attention or only memory was asked.
        text: Option<Box<str>>,
        /// Its target.
        target: String,
        /// Whether the lookup was only in memory ([`OnMiss::Memory`](crate::OnMiss::Memory)).
        memory_alone: bool,
        /// Why an entry that the vault has under the key is not used, if it has one.
        unused: Option<Box<str>>,
    },
    /// The plan must be built, and there is no compiler.
    #[error(
        "plan {key} is not in the vault, and this planner has no cuDNN to build it with{}",
        if why.is_empty() { "; open it with a compiler".to_owned() } else { format!(": {why}") }
    )]
    NoCompiler {
        /// The key.
        key: PlanKey,
        /// Why no cuDNN was opened; empty for a planner that was given none.
        why: String,
    },
    /// The plan must be built, and compiling does not work here.
    #[error("plan {key} is not in the vault, and {engine} does not compile it here: {error}")]
    Failed {
        /// The key.
        key: PlanKey,
        /// Whose plan it is.
        engine: EngineId,
        /// Why not: of cuDNN a [`Failure`](crate::Failure), of kernels an [`NvrtcError`](crate::NvrtcError), of
        /// FlashAttention-4 a [`Fa4Failure`](crate::Fa4Failure).
        error: Arc<dyn Error + Send + Sync>,
        /// What the engine lacks, if another one may take its place.
        gap: Option<Gap>,
    },
    /// A plan that was just built does not fit what it was built for.
    #[error("plan {key} was built and does not fit what it is for: {why}")]
    Unfit {
        /// The key.
        key: PlanKey,
        /// What is wrong.
        why: String,
    },
    /// The build ended in a panic, in this or another thread.
    #[error("the build of plan {key} did not end normally: {why}; call again to retry")]
    Interrupted {
        /// The key.
        key: PlanKey,
        /// What happened.
        why: String,
    },
    /// The options name an engine that the planner does not have.
    #[error("there is no engine `{name}`; there are {known}")]
    NoEngine {
        /// The name.
        name: EngineName,
        /// The words that name engines.
        known: String,
    },
}

/// The command that builds a plan, on one line, so that a line of a log is enough to warm it.
fn warm(text: Option<&str>, target: &str) -> String {
    match text {
        Some(text) => {
            let version = target.split_once("cudnn ").and_then(|(_, rest)| rest.split(' ').next());
            let cudnn = version.map_or_else(String::new, |version| format!(" --cudnn {version}"));
            let text = text.trim_end().replace('\n', "\\n");
            format!("printf '%b' '{text}' | qkvault warm --text - --target GPU{cudnn}")
        }
        None => "qkvault warm".to_owned(),
    }
}

impl PlanError {
    /// Why there is no plan, as told of one engine of several: without the key where the cause is the compiler's, so
    /// that many attentions have one reason.
    #[must_use]
    pub fn cause(&self) -> String {
        match self {
            PlanError::NoCompiler { why, .. } if !why.is_empty() => why.clone(),
            PlanError::Failed { error, .. } => error.to_string(),
            PlanError::Missing { memory_alone: false, unused: None, .. } => "it is not in the vault".to_owned(),
            PlanError::Missing { memory_alone: false, unused: Some(why), .. } => {
                format!("its entry is not used: {why}")
            }
            PlanError::Missing { memory_alone: true, .. } => "it is not in the memory of this process".to_owned(),
            other => other.to_string(),
        }
    }

    /// What the engine lacks; `None` for an error that no other engine mends.
    #[must_use]
    pub fn gap(&self) -> Option<Gap> {
        match self {
            PlanError::Missing { .. } | PlanError::NoCompiler { .. } => Some(Gap::Plan),
            PlanError::Failed { gap, .. } => *gap,
            PlanError::Unfit { .. } | PlanError::Interrupted { .. } | PlanError::NoEngine { .. } => None,
        }
    }

    /// The failure of a compiler, if it is of this type.
    #[must_use]
    pub fn failure<E: Error + 'static>(&self) -> Option<&E> {
        match self {
            PlanError::Failed { error, .. } => error.downcast_ref(),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use qkvault_cache::{Vault, VaultOptions};
    use qkvault_cudnn::{CompileOptions, Profile};
    use qkvault_graph::{CudnnVersion, LibrarySet, text, validate};

    use qkvault_cache::Key;

    use crate::{OnMiss, Planner};

    /// A profile has what the newest cuDNN tells of a GPU. Of older ones the card told less, its plans said what they
    /// were compiled for as a fact, and every plan that was compiled without a GPU was thrown away where it should run.
    #[test]
    fn a_plan_for_a_profile_is_found_by_a_card_whose_cudnn_tells_less_of_itself() {
        let attention = validate(text::parse("q: bf16 [1,8,512,128]\n").expect("a description")).expect("sound");
        for version in [CudnnVersion::v9(14, 0), CudnnVersion::v9(19, 0), CudnnVersion::v9(27, 0)] {
            let named = Profile::named("h200").expect("built in").target(version, LibrarySet::Full);
            let told = named.device.json_for(version).expect("every property");
            let mut card = named.clone();
            card.device = serde_json::from_str(&told).expect("what a card's cuDNN writes");
            let folder = tempfile::tempdir().expect("a folder");
            let vault = Vault::open(VaultOptions::in_folder(folder.path())).expect("a vault");
            let (key, entry) = Planner::entry_over(&attention, &named, &[1, 2, 3]).expect("lowers");
            vault.replace(&Key(*key.bytes()), entry).expect("kept");
            let planner = Planner::new(vault, None);
            let found = planner.plan(&attention, &card, &CompileOptions::cudnn(), OnMiss::Load);
            assert!(found.as_ref().is_ok_and(|answer| answer.outcome.is_ok()), "{version}: {found:?}");
        }
    }

    #[test]
    fn a_plan_that_is_there_and_not_used_says_why() {
        let attention = validate(text::parse("q: bf16 [1,8,512,128]\n").expect("a description")).expect("sound");
        let other = validate(text::parse("q: bf16 [1,8,256,128]\n").expect("a description")).expect("sound");
        let target = Profile::named("h200").expect("built in").target(CudnnVersion::v9(27, 0), LibrarySet::Slim);
        let folder = tempfile::tempdir().expect("a folder");
        let vault = Vault::open(VaultOptions::in_folder(folder.path())).expect("a vault");
        let (key, _) = Planner::entry_over(&attention, &target, &[1]).expect("lowers");
        let (_, of_other) = Planner::entry_over(&other, &target, &[1]).expect("lowers");
        vault.replace(&Key(*key.bytes()), of_other).expect("kept");
        let planner = Planner::new(vault, None);
        let told = planner.plan(&attention, &target, &CompileOptions::cudnn(), OnMiss::Load).expect_err("not used");
        assert!(told.to_string().contains("an entry of this key is there and not used: "), "{told}");
    }

    /// A line of a log said that an attention has a `score_mod`, and not which.
    #[test]
    fn a_missing_plan_tells_the_command_that_builds_it() {
        let planner = Planner::new(Vault::in_memory(VaultOptions::new()), None);
        let target = Profile::named("h200").expect("built in").target(CudnnVersion::v9(27, 0), LibrarySet::Slim);
        let form = "q: bf16 [1,8,512,128]\nscore_mod: scalar $cap: float; tanh(score / $cap) * $cap\n";
        let attention = validate(text::parse(form).expect("a description")).expect("sound");
        let ask = |on_miss| planner.plan(&attention, &target, &CompileOptions::default(), on_miss);
        let told = ask(OnMiss::Load).expect_err("an empty vault").to_string();
        assert_eq!(told.lines().count(), 1, "{told}");
        let (_, rest) = told.split_once("`printf '%b' '").unwrap_or_else(|| panic!("{told}"));
        let (form, rest) = rest.split_once('\'').expect("it ends");
        assert!(rest.starts_with(" | qkvault warm --text - --target GPU --cudnn 9.27.0`"), "{told}");
        let again = text::parse(&form.replace("\\n", "\n")).expect("it is the text form");
        assert_eq!(validate(again).expect("sound"), attention);
        assert!(ask(OnMiss::Memory).expect_err("empty").to_string().contains("ahead with `qkvault warm` and load it"));
    }
}
