//! Asks a vault's remote for the plans of several targets with one request.

use qkvault_cache::Key;
use qkvault_graph::{Choice, CompileOptions, Target, Valid, plan_key_of};

use crate::look::vault_key;
use crate::planner::Planner;
use qkvault_probe::lowered;

impl Planner {
    /// Asks the vault's remote for the plans of an attention for several targets at once, and stores its answers in
    /// memory and on disk. Returns the indices in `targets` of those with an answer.
    #[must_use]
    pub fn fetch(&self, attention: &Valid, targets: &[Target], options: &CompileOptions) -> Vec<usize> {
        if !self.vault.asks_remote() {
            return Vec::new();
        }
        let options = &CompileOptions { allowed: options.allowed.with(self.allowed), ..*options };
        let unlimited = &CompileOptions { workspace_limit: None, ..*options };
        let first = options.lab.choice();
        // With a limit, the plan may be that of the engine that needs the least.
        let choices: &[Choice] = match options.workspace_limit {
            None => &[first],
            Some(_) => &[first, Choice::LeastWorkspace],
        };
        let mut keys: Vec<(usize, Key)> = Vec::new();
        for (i, target) in targets.iter().enumerate() {
            if let Ok(graph) = lowered(attention, target, options) {
                let key = |choice| vault_key(&plan_key_of(&graph, target, unlimited, choice));
                keys.extend(choices.iter().map(|choice| (i, key(*choice))));
            }
        }
        let Some(target) = targets.first() else { return Vec::new() };
        // One cuDNN loads them all, so refusals of its version are valid.
        let vault = self.vault.for_library(&target.cudnn.to_string());
        let found = vault.fetch(&keys.iter().map(|(_, key)| *key).collect::<Vec<_>>());
        let mut places: Vec<usize> = keys.into_iter().filter(|(_, key)| found.contains(key)).map(|(i, _)| i).collect();
        places.dedup();
        places
    }
}
