//! The library's own answer, which is a plan or a refusal in its words; either is kept in the vault.

use qkvault_graph::{Policy, Target};
use qkvault_probe::rules::Footprint;
use qkvault_probe::{BuildPolicy, Compiler, Planner};

use super::super::target::{LibraryArgs, TargetArgs};
use super::super::{Globals, open_vault};
use super::Row;

/// A library to ask.
pub(super) struct Library {
    planner: Planner,
    pub(super) target: Target,
}

impl Library {
    pub(super) fn open(
        globals: &Globals,
        library: &LibraryArgs,
        target: &TargetArgs,
        allow: &[String],
    ) -> anyhow::Result<Library> {
        let compiler = Compiler::open(&library.search()?)?;
        let target = target.target(&compiler)?;
        let planner = Planner::new(open_vault(globals)?, Some(compiler)).allowing(allow.iter().cloned());
        Ok(Library { planner, target })
    }

    /// Asks about a row. What the library says stands: it replaces what rules say of its support.
    pub(super) fn ask(&self, row: &mut Row) -> anyhow::Result<()> {
        let Ok(attention) = &row.attention else { return Ok(()) };
        let answer = self.planner.plan(attention, &self.target, &Policy::default(), BuildPolicy::BuildIfMissing)?;
        match answer.outcome {
            Ok(plan) => {
                row.library = Some("supported");
                row.footprint = Some(Footprint::of_plan(attention, &plan.facts));
                row.reasons.retain(|r| r.code.starts_with("memory.") || r.code.starts_with("workspace."));
            }
            Err(refusal) => {
                row.library = answer.key.map(|_| "refused");
                for reason in Vec::from(refusal) {
                    if !row.reasons.contains(&reason) {
                        row.reasons.push(reason);
                    }
                }
            }
        }
        Ok(())
    }
}
