//! `run` without a GPU: interprets the op graph that cuDNN would get, and compares the result with the oracle.

use qkvault_cudnn::{CompileOptions, Profile, lower};
use qkvault_graph::{CudnnVersion, LibrarySet, Role, Valid};
use qkvault_models::Phase;
use qkvault_reference::{Inputs, Precision, forward, interpret};
use serde_json::json;

use super::{RunArgs, RunRow};
use crate::jobs::AttentionJob;
use crate::out;

/// Multiply-adds beyond which a run on the CPU would take minutes.
const MOST_WORK: f64 = 4e10;

pub(super) fn run(args: &RunArgs, policy: &CompileOptions, jobs: &[AttentionJob]) -> Vec<RunRow> {
    let of = |job: &AttentionJob| match &job.attention {
        Err(refusal) => RunRow::failed(job, "refused", refusal.to_string()),
        Ok(attention) => {
            one(args, policy, job, attention).unwrap_or_else(|(status, why)| RunRow::failed(job, status, why))
        }
    };
    let mut rows = Vec::with_capacity(jobs.len());
    for (at, job) in jobs.iter().enumerate() {
        let row = of(job);
        // One takes seconds to a minute.
        if jobs.len() > 1 {
            out::note(&format!("{} {} ({} of {})", row.status, row.what, at + 1, jobs.len()));
        }
        rows.push(row);
    }
    rows
}

fn one(
    args: &RunArgs,
    policy: &CompileOptions,
    job: &AttentionJob,
    attention: &Valid,
) -> Result<RunRow, (&'static str, String)> {
    let failed = |e: &dyn std::fmt::Display| ("failed", e.to_string());
    if attention.flops() > MOST_WORK {
        let what = if job.uses[0].phase == Phase::Prefill { "--seq 512 --batch 1" } else { "--seq 1024 --batch 1" };
        let why = format!(
            "{:.0} billion operations are too much for the CPU; run it on a GPU, or try {what}",
            attention.flops() / 1e9
        );
        return Err(("failed", why));
    }
    let target = Profile::named("h200").map_err(|e| failed(&e))?.target(CudnnVersion::v9(27, 0), LibrarySet::Slim);
    let graph = lower(attention, &target, policy).map_err(|refusal| ("refused", refusal.to_string()))?;
    let mut inputs = Inputs::random(attention, args.seed).map_err(|e| failed(&e))?;
    inputs.set_f32(Role::Scale, job.uses[0].scale);
    let started = std::time::Instant::now();
    let oracle = forward(attention, &inputs).map_err(|e| failed(&e))?;
    let milliseconds = started.elapsed().as_secs_f64() * 1e3;
    let lowered = interpret(&graph, &inputs, Precision::Exact).map_err(|e| failed(&e))?;
    let mut worst = 0.0_f64;
    for output in oracle.iter() {
        let role = output.role();
        let grid = lowered.get(&role).ok_or_else(|| ("failed", format!("the op graph has no {role}")))?;
        let [b, h, s, d] = output.operand().tensor.dims.map(|n| n as usize);
        for i in 0..b * h * s * d {
            let at = [i / (h * s * d), i / (s * d) % h, i / d % s, i % d];
            let (want, got) = (output.at(at[0], at[1], at[2], at[3]), grid.at(at));
            // Equal values have no error; the difference of two equal infinities would be NaN.
            if want != got {
                worst = worst.max((want - got).abs() / want.abs().max(1.0));
            }
        }
    }
    let good = worst < 1e-9;
    Ok(RunRow {
        what: job.uses[0].label(),
        status: if good { "right" } else { "wrong" },
        cells: [format!("{worst:.1e}"), "-".into(), format!("{milliseconds:.1}"), "-".into()],
        facts: json!({ "worst": worst, "oracle_ms": milliseconds, "ops": graph.ops.len() }),
        why: (!good).then(|| format!("the op graph differs from the oracle by {worst:.1e}")),
    })
}
