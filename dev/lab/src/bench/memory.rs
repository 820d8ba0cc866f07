//! `bench memory`: bytes of a loaded plan on the GPU, in the memory of the process, and in the vault on disk.

use std::sync::Arc;

use qkvault_cli::Globals;
use qkvault_cli::memory::heap_bytes;
use qkvault_exec::LoadedPlan;
use qkvault_graph::Valid;
use serde_json::{Value, json};

use super::ground::GroundOptions;
use super::shapes::{FIRST, all};

/// Measures.
pub(super) fn run(globals: &Globals, options: &GroundOptions) -> anyhow::Result<Value> {
    let ground = options.open(globals)?;
    // The first plan makes cuDNN load its libraries, which is no cost of a plan.
    let first = ground.runtime.plan(&FIRST.attention()?)?;
    let attentions: Vec<Valid> = all()?.into_iter().filter(|a| a.key() != first.facts().graph_key).collect();
    let device = ground.runtime.device()?;
    let (free, heap) = (device.memory()?.free, heap_bytes());
    let plans: Vec<Arc<LoadedPlan>> =
        attentions.iter().map(|attention| ground.runtime.plan(attention)).collect::<Result<_, _>>()?;
    for plan in &plans {
        plan.load_kernels().map_err(anyhow::Error::msg)?;
    }
    let count = plans.len() as f64;
    let on_gpu = free.saturating_sub(device.memory()?.free) as f64;
    let in_memory = heap_bytes().saturating_sub(heap) as f64;
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
