//! `warm --autotune`: times the plans of every engine on this machine's GPU, and keeps the times in the vault, where
//! later look-ups find them.

use qkvault_cache::Source;
use qkvault_compile::times::Times;
use qkvault_compile::{Engine, EngineId, Engines, OnMiss, Planner};
use qkvault_cudnn::CompileOptions;
use qkvault_exec::{Device, Session};
use qkvault_graph::{EnginePolicy, Valid};
use rayon::iter::{IntoParallelIterator as _, ParallelIterator as _};
use serde_json::{Value, json};

use super::WarmArgs;
use super::progress::Progress;
use crate::jobs::AttentionJob;
use crate::turns::in_turns;
use crate::{Globals, Outcome, flush_remote, open_vault, out};

/// Rounds; each times every engine once.
const ROUNDS: usize = 9;

/// A launch that is foretold to take so many milliseconds and so many times as long as the fastest is not tried: a step
/// of 8,192 new tokens over latent caches takes cuDNN minutes, and a launch cannot be stopped.
const LONG: (f64, f64) = (50.0, 3.0);

/// The result for one attention.
struct TuneRow {
    what: String,
    backward: bool,
    /// The engines in order before and after.
    usual: EngineId,
    chosen: EngineId,
    times: Times,
    /// Engines without a time, each with the reason; or why nothing was timed.
    notes: Vec<String>,
    /// `timed`, `alone` (one engine has a plan) or `failed`.
    status: &'static str,
}

/// Times every attention on the GPU.
pub(super) fn run(
    globals: &Globals,
    args: &WarmArgs,
    policy: &CompileOptions,
    jobs: &[AttentionJob],
) -> anyhow::Result<Outcome> {
    let search = args.library.search()?;
    let device = Device::open(0)?;
    let session = Session::open(&device, &search)?;
    let planner = Planner::opening(open_vault(globals)?, search);
    let stream = device.context().new_stream()?;
    let gpu = device.name();
    build(&session, &planner, policy, jobs, args.jobs)?;
    let mut rows: Vec<TuneRow> = Vec::new();
    for job in jobs {
        let Ok(attention) = &job.attention else { continue };
        let tuned = tune(&session, &planner, policy, attention, |plans| {
            in_turns(&stream, attention, plans, ROUNDS, |_| Ok(()))
        });
        let mut row = tuned.unwrap_or_else(|error| failed(attention, session.gpu().sm, format!("{error:#}")));
        (row.what, row.backward) = (job.uses[0].label(), attention.is_backward());
        // After a fault every call fails, so what follows would tell nothing of its attention.
        if let Err(error) = device.context().synchronize() {
            let why = row.notes.join("; ");
            anyhow::bail!(
                "the GPU stopped at {}: {why} ({error}); times before it are kept, run the rest again",
                row.what
            );
        }
        if row.status == "timed"
            && let Err(error) = planner.store_times(attention, session.gpu().sm, gpu, &row.times)
        {
            row.status = "failed";
            row.notes.push(error.to_string());
        }
        out::note(&row.line());
        rows.push(row);
    }
    let count = |status| rows.iter().filter(|row| row.status == status).count();
    let changed: Vec<&TuneRow> = rows.iter().filter(|row| row.status == "timed" && row.chosen != row.usual).collect();
    if globals.json {
        out::json(&json!({
            "gpu": gpu, "timed": count("timed"), "alone": count("alone"), "failed": count("failed"),
            // The default beside the fastest: the largest and the mean.
            "usual_over_best": over_best(&rows, |row| row.usual),
            "chosen_over_best": over_best(&rows, |row| row.chosen),
            "changed": changed.into_iter().map(TuneRow::json).collect::<Vec<_>>(),
            "attentions": rows.iter().map(TuneRow::json).collect::<Vec<_>>(),
        }));
    } else {
        let engines: Vec<EngineId> = planner.engines().iter().map(Engine::id).collect();
        let cell = |row: &TuneRow, engine| row.times.us(engine).map_or_else(|| "-".to_owned(), |us| format!("{us:.1}"));
        let cells = rows.iter().map(|row| {
            let times = engines.iter().map(|engine| cell(row, *engine));
            let decided = [row.chosen.name().to_string(), row.status.to_owned()];
            [row.what.clone()].into_iter().chain(times).chain(decided).collect()
        });
        let titles: Vec<String> = engines.iter().map(|engine| format!(">{} us", engine.title())).collect();
        let mut columns = vec!["what"];
        columns.extend(titles.iter().map(String::as_str).chain(["chosen", "status"]));
        out::table(&columns, &cells.collect::<Vec<Vec<String>>>());
        rows.iter().flat_map(|row| &row.notes).for_each(|note| out::line(&format!("note: {note}")));
        let ([usual, _], timed) = (over_best(&rows, |row| row.usual), count("timed"));
        let changed = changed.len();
        out::line(&format!(
            "{timed} timed, {changed} get another engine; the default was at most {usual:.2} of the best"
        ));
    }
    flush_remote(planner.vault()).into_iter().for_each(|note| out::note(&format!("note: {note}")));
    Ok(if rows.iter().any(|row| row.status == "failed") { Outcome::Bad } else { Outcome::Good })
}

/// The largest and the mean (geometric) of the time of an engine over that of the fastest.
fn over_best(rows: &[TuneRow], engine: impl Fn(&TuneRow) -> EngineId) -> [f64; 2] {
    let ratio = |row: &TuneRow| {
        let best = row.times.iter().map(|(_, us)| us).fold(f64::INFINITY, f64::min);
        Some(row.times.us(engine(row))? / best)
    };
    let ratios: Vec<f64> = rows.iter().filter(|row| row.status == "timed").filter_map(ratio).collect();
    let mean = ratios.iter().map(|ratio| ratio.ln()).sum::<f64>() / ratios.len().max(1) as f64;
    [ratios.into_iter().fold(1.0, f64::max), mean.exp()].map(|ratio| (ratio * 1e4).round() / 1e4)
}

/// Builds what lacks, on all cores: launches are timed on a machine that does nothing else. What cannot be built says
/// so where it is timed.
fn build(
    session: &Session,
    planner: &Planner,
    policy: &CompileOptions,
    jobs: &[AttentionJob],
    threads: Option<usize>,
) -> anyhow::Result<()> {
    let valid = jobs.iter().filter_map(|job| Some((job, job.attention.as_ref().ok()?)));
    let plans = valid.flat_map(|(job, attention)| {
        let sm = session.gpu().sm;
        let candidates = planner.engines().candidates(attention, sm, EnginePolicy::Auto).engines;
        tried(planner, attention, sm, &candidates).0.into_iter().map(move |engine| (job, attention, engine))
    });
    let plans: Vec<_> = plans.collect();
    let progress = Progress::new(plans.len());
    rayon::ThreadPoolBuilder::new().num_threads(threads.unwrap_or(0)).build()?.install(|| {
        plans.into_par_iter().for_each(|(job, attention, engine)| {
            let options = CompileOptions { engine: engine.policy(), ..*policy };
            let made = session.prepare(planner, attention, &options, OnMiss::Compile);
            let built = made.is_ok_and(|made| made.answer.source == Source::Built);
            progress.done(built.then(|| job.uses[0].label()).as_deref());
        });
    });
    progress.finish();
    Ok(())
}

/// The candidates whose plans are built and timed, and why the others are not.
fn tried(planner: &Planner, attention: &Valid, sm: u32, of: &[EngineId]) -> (Vec<EngineId>, Vec<String>) {
    let foretold = |engine| planner.engines().expected(engine, attention, sm).map(|told| told.us / 1e3);
    let told: Vec<(EngineId, Option<f64>)> = of.iter().map(|engine| (*engine, foretold(*engine))).collect();
    let least = told.iter().filter_map(|(_, ms)| *ms).fold(f64::INFINITY, f64::min);
    let (mut tried, mut notes) = (Vec::new(), Vec::new());
    for (engine, ms) in told {
        match ms.filter(|ms| *ms > LONG.0 && *ms > LONG.1 * least) {
            None => tried.push(engine),
            Some(ms) => {
                let (title, times) = (engine.title(), ms / least);
                notes.push(format!("{title}: not tried, {ms:.0} ms and {times:.1} times the fastest by the table"));
            }
        }
    }
    (tried, notes)
}

/// The times of the plans of all candidates, as far as they have one here.
fn tune(
    session: &Session,
    planner: &Planner,
    policy: &CompileOptions,
    attention: &Valid,
    time: impl FnOnce(&[qkvault_exec::LoadedPlan]) -> anyhow::Result<Vec<f64>>,
) -> anyhow::Result<TuneRow> {
    let usual = planner.engines().candidates(attention, session.gpu().sm, EnginePolicy::Auto);
    let candidates = &usual.engines;
    let (mut engines, mut plans) = (Vec::new(), Vec::new());
    let (tried, mut notes) = tried(planner, attention, session.gpu().sm, candidates);
    for engine in tried {
        let options = CompileOptions { engine: engine.policy(), ..*policy };
        match session.prepare(planner, attention, &options, OnMiss::Compile) {
            Ok(prepared) => {
                engines.push(engine);
                plans.push(prepared.plan);
            }
            Err(error) => notes.push(format!("{}: {error}", engine.title())),
        }
    }
    let (what, backward, first, mut times) = (String::new(), false, candidates[0], Times::default());
    if plans.len() < 2 {
        let chosen = engines.first().copied().unwrap_or(first);
        return Ok(TuneRow { what, backward, usual: first, chosen, times, notes, status: "alone" });
    }
    engines.iter().zip(time(&plans)?).for_each(|(engine, us)| times.set(*engine, us));
    let chosen = usual.timed(&times).engines[0];
    Ok(TuneRow { what, backward, usual: first, chosen, times, notes, status: "timed" })
}

fn failed(attention: &Valid, sm: u32, why: String) -> TuneRow {
    let usual = Engines::built_in().candidates(attention, sm, EnginePolicy::Auto).engines[0];
    let (what, backward, times) = (String::new(), false, Times::default());
    TuneRow { what, backward, usual, chosen: usual, times, notes: vec![why], status: "failed" }
}

impl TuneRow {
    fn line(&self) -> String {
        let TuneRow { what, usual, chosen, status, .. } = self;
        format!("{status} {what}: {}, by the table {}", chosen.name(), usual.name())
    }

    fn json(&self) -> Value {
        let TuneRow { what, backward, usual, chosen, times, notes, status } = self;
        json!({
            "what": what, "direction": if *backward { "backward" } else { "forward" }, "status": status,
            "usual": usual.name(), "chosen": chosen.name(), "times": times, "notes": notes,
        })
    }
}

#[cfg(test)]
mod tests {
    use qkvault_compile::{CUDNN, KERNELS};

    use super::*;

    fn row(usual: EngineId, chosen: EngineId, times: &[(EngineId, f64)], status: &'static str) -> TuneRow {
        let mut all = Times::default();
        times.iter().for_each(|(engine, us)| all.set(*engine, *us));
        TuneRow { what: String::new(), backward: false, usual, chosen, times: all, notes: Vec::new(), status }
    }

    #[test]
    fn what_the_default_loses_counts_timed_attentions_alone() {
        let rows = [
            row(KERNELS, CUDNN, &[(CUDNN, 8.0), (KERNELS, 32.0)], "timed"),
            row(CUDNN, CUDNN, &[(CUDNN, 5.0), (KERNELS, 6.0)], "timed"),
            row(CUDNN, CUDNN, &[], "alone"),
        ];
        assert_eq!(over_best(&rows, |row| row.usual), [4.0, 2.0]);
        assert_eq!(over_best(&rows, |row| row.chosen), [1.0, 1.0]);
        assert_eq!(over_best(&[], |row| row.usual), [1.0, 1.0]);
    }
}
