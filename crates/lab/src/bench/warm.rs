//! `bench warm`: plans per second that `qkvault warm` compiles into an empty vault, by the number of jobs. It needs no
//! GPU.

use std::process::Command;

use anyhow::Context as _;
use qkvault_cli::{Globals, out};
use serde_json::{Value, json};

use super::ground::{Options, clocks};

/// The model whose plans are compiled.
const MODEL: &str = include_str!("../../../../models/llama-3.1-8b.json");

/// Measures.
pub(super) fn run(_globals: &Globals, options: &Options) -> anyhow::Result<Value> {
    let program = std::env::current_exe()?.with_file_name("qkvault");
    anyhow::ensure!(program.is_file(), "{} is needed beside this program", program.display());
    let folder = tempfile::tempdir()?;
    let model = folder.path().join("model.json");
    std::fs::write(&model, MODEL)?;
    let cpus = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let mut rows = Vec::new();
    for jobs in [1, 2, 4, 8, 16, 32].into_iter().filter(|&jobs| jobs <= cpus) {
        let mut command = Command::new(&program);
        command.arg("--vault").arg(folder.path().join(format!("vault-{jobs}"))).args(["--json", "warm", "--target"]);
        // Many sizes, so that the last jobs do not wait long for each other.
        command.args(["h200", "--batch", "1,2,3,4", "--seq", "512,1000,2048,4096", "--jobs"]).arg(jobs.to_string());
        command.arg("--model").arg(&model);
        if let Some(path) = &options.library.cudnn_path {
            command.arg("--cudnn-path").arg(path);
        }
        if let Some(version) = &options.library.cudnn {
            command.args(["--cudnn", version]);
        }
        let done = command.output().with_context(|| format!("{} cannot be started", program.display()))?;
        let record: Value = serde_json::from_slice(&done.stdout)
            .with_context(|| format!("warm printed {}", String::from_utf8_lossy(&done.stderr)))?;
        let (built, seconds) = (record["built"].as_u64().unwrap_or(0), record["seconds"].as_f64().unwrap_or(f64::NAN));
        out::note(&format!("{jobs} jobs: {built} plans in {seconds:.1} s"));
        rows.push(json!({ "jobs": jobs, "built": built, "seconds": seconds, "per_second": built as f64 / seconds }));
    }
    let best = rows.iter().filter_map(|row: &Value| row["per_second"].as_f64()).fold(0.0, f64::max);
    Ok(json!({ "machine": { "cpus": cpus, "clocks": clocks() }, "rows": rows, "best_per_second": best }))
}
