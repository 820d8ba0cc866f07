//! `bench engines --tilings`: other divisions of the kernels' work beside the usual one, in turns, for each case.

use std::sync::Arc;

use qkvault_cli::turns::in_turns;
use qkvault_cli::{Outcome, out};
use qkvault_compile::{KernelPlan, OnMiss, Plan, Planner};
use qkvault_kernels::tiling::{Sizes, Tiling};
use qkvault_kernels::{Generated, SM, generate_with};
use serde_json::{Value, json};

use super::Turn;
use super::cases::EngineCase;

/// The name of the usual tiling.
const USUAL: &str = "usual";

/// The plans of a case by the name of their tiling, the usual one first.
pub(super) fn plans(planner: &Planner, case: &EngineCase, on_miss: OnMiss) -> anyhow::Result<Vec<(String, Arc<Plan>)>> {
    let mut sizes = None;
    let usual = generate_with(&case.attention, SM, |of| {
        sizes = Some(of);
        Tiling::for_sizes(of)
    })?;
    let others = sizes.map(Tiling::others).unwrap_or_default();
    let other = |(name, tiling): (String, Tiling)| {
        let made = generate_with(&case.attention, SM, move |_: Sizes| tiling)?;
        anyhow::Ok((name, made))
    };
    let all = std::iter::once(Ok((USUAL.to_owned(), usual))).chain(others.into_iter().map(other));
    let plan = |made: anyhow::Result<(String, Generated)>| {
        let (name, made) = made?;
        let of = KernelPlan { of: &case.attention, made };
        let answer = planner.kernels(&of, on_miss)?;
        let plan = answer.outcome.map_err(|refusal| anyhow::anyhow!("{refusal}"))?;
        Ok((name, plan))
    };
    all.map(plan).collect()
}

/// Compiles the plans of cases. Returns whether one failed.
pub(super) fn plan(planner: &Planner, list: &[EngineCase]) -> bool {
    let failed = list.iter().filter(|case| match plans(planner, case, OnMiss::Compile) {
        Ok(plans) => {
            let names: Vec<&str> = plans.iter().map(|(name, _)| name.as_str()).collect();
            out::note(&format!("{}: {}", case.name, names.join("; ")));
            false
        }
        Err(error) => {
            out::problem(&format!("{}: {error:#}", case.name));
            true
        }
    });
    failed.count() > 0
}

/// Measures cases, and writes the times of all that could be measured.
pub(super) fn run(turn: &Turn<'_>, machine: &str, list: &[EngineCase]) -> anyhow::Result<Outcome> {
    let mut rows = Vec::new();
    for case in list {
        match measure(turn, case) {
            Ok(row) => rows.push(row),
            // Other cases are worth their time.
            Err(error) => out::problem(&format!("{}: {error:#}", case.name)),
        }
        super::write(&turn.args.out, &format!("{:#}\n", json!({ "machine": machine, "rows": rows })))?;
    }
    Ok(if rows.is_empty() { Outcome::Bad } else { Outcome::Good })
}

/// The times of a case with every tiling.
fn measure(turn: &Turn<'_>, case: &EngineCase) -> anyhow::Result<Value> {
    let on_miss = if turn.args.build { OnMiss::Compile } else { OnMiss::Load };
    let (names, plans): (Vec<String>, Vec<Arc<Plan>>) = plans(turn.planner, case, on_miss)?.into_iter().unzip();
    let loaded = plans.iter().map(|plan| turn.session.load(plan)).collect::<Result<Vec<_>, _>>()?;
    let times = in_turns(turn.stream, &case.attention, &loaded, turn.args.rounds, |_| Ok(()))?;
    let usual = times.first().copied().unwrap_or(f64::NAN);
    let rows: Vec<Value> = (names.iter().zip(&times))
        .map(|(name, us)| json!({ "tiling": name, "us": us, "of_usual": us / usual }))
        .collect();
    let told: Vec<String> = names.iter().zip(&times).map(|(name, us)| format!("{name} {us:.1}")).collect();
    out::note(&format!("{}: us {}", case.name, told.join("; ")));
    Ok(json!({ "case": case.name, "tilings": rows }))
}
