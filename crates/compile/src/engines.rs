//! The engines of a planner, and those that are built in.

use std::sync::Arc;

use qkvault_cache::{Entry, EntryKind};
use qkvault_graph::{EngineName, EnginePolicy, PlanKey};

use crate::cudnn::{Cudnn, OpenCompiler};
use crate::engine::{Engine, EngineId};
use crate::fa4::Fa4;
use crate::kernels::Kernels;
use crate::rebuild::{RebuildCheck, by_nobody};

/// A list of engines. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Engines(Arc<[Arc<dyn Engine>]>);

impl Engines {
    /// cuDNN, kernels of qkvault's own and FlashAttention-4's, without a compiler of cuDNN: to ask what they take.
    #[must_use]
    pub fn built_in() -> Engines {
        Engines::with(Arc::new(OpenCompiler::new(None)))
    }

    pub(crate) fn with(compiler: Arc<OpenCompiler>) -> Engines {
        Engines(Arc::new([Arc::new(Cudnn::new(compiler)), Arc::new(Kernels), Arc::new(Fa4::default())]))
    }

    /// The same with one more engine, or another one in the place of that with its name.
    #[must_use]
    pub fn and(&self, engine: Arc<dyn Engine>) -> Engines {
        let others = self.0.iter().filter(|other| other.id().name() != engine.id().name());
        Engines(others.cloned().chain([Arc::clone(&engine)]).collect())
    }

    /// Every engine.
    pub fn iter(&self) -> impl Iterator<Item = &dyn Engine> {
        self.0.iter().map(|engine| &**engine)
    }

    /// The engine of a name.
    #[must_use]
    pub fn named(&self, name: EngineName) -> Option<&dyn Engine> {
        self.iter().find(|engine| engine.id().name() == name)
    }

    /// The engine with an identity from these.
    pub(crate) fn get(&self, id: EngineId) -> &dyn Engine {
        self.named(id.name()).expect("an identity comes from the list")
    }

    /// Generates an entry again from its description, compiles it, and compares all that the entry says: key, facts,
    /// bindings, recipe, code, labels; of a refusal its reasons.
    #[must_use]
    pub fn verify(&self, key: PlanKey, entry: &Entry) -> RebuildCheck {
        if entry.kind == EntryKind::Times {
            return RebuildCheck::Skipped { why: "measured times cannot be computed".to_owned() };
        }
        let answered = self.iter().find_map(|engine| engine.rebuild(key, entry));
        answered.unwrap_or_else(|| by_nobody(key, entry))
    }

    /// Whether an engine whose plans a policy takes has other plans for each target, as cuDNN does.
    #[must_use]
    pub fn need_target(&self, policy: EnginePolicy) -> bool {
        match policy {
            EnginePolicy::Auto => self.iter().any(Engine::needs_target),
            EnginePolicy::Named(name) => self.named(name).is_some_and(Engine::needs_target),
        }
    }

    /// The words that [`Engines::policy`] reads.
    #[must_use]
    pub fn words(&self) -> Vec<String> {
        let names = self.iter().map(|engine| engine.id().name().to_string());
        [EnginePolicy::AUTO.to_owned()].into_iter().chain(names).collect()
    }

    /// The policy of a word.
    ///
    /// # Errors
    ///
    /// A sentence with the words that there are.
    pub fn policy(&self, word: &str) -> Result<EnginePolicy, String> {
        let policy = word.parse().ok().filter(|policy| match policy {
            EnginePolicy::Auto => true,
            EnginePolicy::Named(name) => self.named(*name).is_some(),
        });
        policy.ok_or_else(|| format!("there is no engine {word:?}; there are {}", self.words().join(", ")))
    }
}
