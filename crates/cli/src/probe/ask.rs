//! Asks cuDNN itself: compiles the attention and keeps the plan, or cuDNN's refusal, in the vault.

use qkvault_compile::{Compiler, Confirmation, OnMiss, Planner};
use qkvault_cudnn::{CompileOptions, Target};
use qkvault_probe::{Budget, Request, changes};

use super::super::target::{LibraryArgs, TargetArgs};
use super::super::{Globals, open_vault};
use super::ProbeRow;

/// A cuDNN library that compiles for one target.
pub(super) struct TargetLibrary {
    planner: Planner,
    pub(super) target: Target,
}

impl TargetLibrary {
    pub(super) fn open(globals: &Globals, library: &LibraryArgs, target: &TargetArgs) -> anyhow::Result<TargetLibrary> {
        let compiler = Compiler::open_compile_only(&library.search()?)?;
        let target = target.target(&compiler)?;
        let planner = Planner::new(open_vault(globals)?, Some(compiler));
        Ok(TargetLibrary { planner, target })
    }

    /// Compiles the attention of a row. cuDNN's result replaces the result of the rules.
    pub(super) fn ask(&self, row: &mut ProbeRow, policy: &CompileOptions, budget: Budget) -> anyhow::Result<()> {
        let Ok(attention) = &row.attention else { return Ok(()) };
        let answer = self.planner.plan(attention, &self.target, policy, OnMiss::Compile)?;
        match answer.outcome {
            Ok(plan) => {
                row.library = Some("supported");
                let footprint = plan.facts.footprint(attention);
                row.footprint = Some(footprint);
                row.reasons = footprint.over(budget).into_iter().collect();
                row.nearest.clear();
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

    /// Compiles the changes that rules accept, the smallest first, until cuDNN accepts one.
    pub(super) fn confirm(&self, row: &mut ProbeRow, policy: &CompileOptions) -> anyhow::Result<()> {
        let Ok(attention) = &row.attention else { return Ok(()) };
        if row.library == Some("refused") && row.nearest.is_empty() {
            let request = Request::new(attention, &self.target).with_policy(*policy);
            row.nearest = changes(&request, &[]).into_iter().map(|near| (near, None)).collect();
        }
        for (near, library) in &mut row.nearest {
            *library = Some(match self.planner.confirm(near, policy)? {
                Confirmation::Supported(_) => "supported",
                Confirmation::Refused(_) => "refused",
                _ => "another library",
            });
            if *library == Some("supported") {
                break;
            }
        }
        Ok(())
    }
}
