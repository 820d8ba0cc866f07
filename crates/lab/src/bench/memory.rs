//! `bench memory`: bytes of a loaded plan on the GPU, in the memory of the process, and in the vault on disk.

use std::sync::Arc;

use qkvault_cli::Globals;
use qkvault_exec::LoadedPlan;
use qkvault_graph::Valid;
use serde_json::{Value, json};

use super::ground::Options;
use super::shapes::{FIRST, all};

/// Measures.
pub(super) fn run(globals: &Globals, options: &Options) -> anyhow::Result<Value> {
    let ground = options.open(globals)?;
    // The first plan makes cuDNN load its libraries, which is no cost of a plan.
    let first = ground.runtime.plan(&FIRST.attention()?)?;
    let attentions: Vec<Valid> = all()?.into_iter().filter(|a| a.key() != first.facts().graph_key).collect();
    let device = ground.runtime.device();
    let (free, resident) = (device.memory()?.free, resident()?);
    let plans: Vec<Arc<LoadedPlan>> =
        attentions.iter().map(|attention| ground.runtime.plan(attention)).collect::<Result<_, _>>()?;
    for plan in &plans {
        plan.load_kernels().map_err(anyhow::Error::msg)?;
    }
    let count = plans.len() as f64;
    let on_gpu = free.saturating_sub(device.memory()?.free) as f64;
    let in_memory = self::resident()?.saturating_sub(resident) as f64;
    let serialised: u64 = plans.iter().map(|plan| plan.facts().blob_bytes).sum();
    let keys: std::collections::HashSet<String> = plans.iter().map(|plan| plan.facts().key.to_string()).collect();
    let vault = ground.runtime.planner().vault();
    let on_disk: u64 = vault.ls().filter(|e| keys.contains(&e.key.to_string())).map(|e| e.file_bytes).sum();
    Ok(json!({
        "machine": ground.machine()?, "plans": plans.len(), "gpu_bytes_each": on_gpu / count,
        "memory_bytes_each": in_memory / count, "disk_bytes_each": on_disk as f64 / count,
        "serialised_bytes_each": serialised as f64 / count, "builds": ground.builds(),
    }))
}

/// Bytes of this process in memory that are backed by no file.
fn resident() -> anyhow::Result<u64> {
    let text = std::fs::read_to_string("/proc/self/status")?;
    let line = text.lines().find_map(|line| line.strip_prefix("RssAnon:"));
    let kilobytes: u64 = line.and_then(|line| line.split_whitespace().next()).unwrap_or("0").parse()?;
    Ok(kilobytes * 1024)
}
