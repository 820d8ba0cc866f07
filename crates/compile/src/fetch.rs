//! One question to a vault's remote for the plans of several targets.

use qkvault_cache::Key;
use qkvault_graph::{Choice, CompileOptions, Target, Valid, plan_key_of};

use crate::planner::{Planner, vault_key};
use qkvault_probe::lowered;

impl Planner {
    /// Asks the vault's remote for the plans of an attention for several targets, all at once: what it has is in memory and on disk then.
    /// Gives the targets that it had an answer for, by their places in the list.
    #[must_use]
    pub fn fetch(&self, attention: &Valid, targets: &[Target], policy: &CompileOptions) -> Vec<usize> {
        if !self.vault.asks_remote() {
            return Vec::new();
        }
        let policy = &CompileOptions { allowed: policy.allowed.with(self.allowed), ..*policy };
        let unlimited = &CompileOptions { workspace_limit: None, ..*policy };
        // Within a limit, the engine that needs the least may be the one.
        let choices: &[Choice] = match policy.workspace_limit {
            None => &[Choice::First],
            Some(_) => &[Choice::First, Choice::LeastWorkspace],
        };
        let mut keys: Vec<(usize, Key)> = Vec::new();
        for (i, target) in targets.iter().enumerate() {
            if let Ok(graph) = lowered(attention, target, policy) {
                let key = |choice| vault_key(&plan_key_of(&graph, target, unlimited, choice));
                keys.extend(choices.iter().map(|choice| (i, key(*choice))));
            }
        }
        let Some(target) = targets.first() else { return Vec::new() };
        // One cuDNN loads them all, so one version's refusals answer.
        let vault = self.vault.for_library(&target.cudnn.to_string());
        let found = vault.fetch(&keys.iter().map(|(_, key)| *key).collect::<Vec<_>>());
        let mut places: Vec<usize> = keys.into_iter().filter(|(_, key)| found.contains(key)).map(|(i, _)| i).collect();
        places.dedup();
        places
    }
}
