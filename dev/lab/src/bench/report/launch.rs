//! `launch.json`: the figures that users feel, and those that they are compared with, each one number.

use serde_json::{Value, json};

use super::Records;

/// Fields of the summary, and where the records have them. The times of a further shape go from asking for it until its
/// plan is loaded, as cuDNN's own do, and until its first output, as PyTorch's do.
pub(super) const FIELDS: [(&str, &str); 24] = [
    ("floor_us", "launch/ways/floor_us"),
    ("raw_us", "launch/ways/raw_us"),
    ("bound_us", "launch/ways/bound_us"),
    ("args_raw_us", "launch/ways/args_raw_us"),
    ("args_safe_us", "launch/ways/args_safe_us"),
    ("args_never_seen_us", "launch/ways/args_never_seen_us"),
    ("replay_us", "launch/ways/replay_us"),
    ("replay_floor_us", "launch/ways/replay_floor_us"),
    ("torch_us", "launch/ways/torch_us"),
    ("asked_again_us", "launch/ways/asked_again_us"),
    ("further_shape_ms", "cold/further_plan_ms"),
    ("further_floor_ms", "cold/further_floor_ms"),
    ("further_output_ms", "cold/further_output_ms"),
    ("torch_further_ms", "cold/torch_further_ms"),
    ("first_output_s", "cold/first_output_s"),
    ("first_output_built_s", "cold/first_output_built_s"),
    ("torch_first_output_s", "cold/torch_first_output_s"),
    ("flex_first_output_s", "cold/flex_first_output_s"),
    ("shapes_s", "shapes/seconds"),
    ("shapes_preloaded_s", "shapes/preloaded_seconds"),
    ("torch_shapes_s", "shapes/torch_seconds"),
    ("gpu_bytes_of_a_plan", "memory/gpu_bytes_each"),
    ("memory_bytes_of_a_plan", "memory/memory_bytes_each"),
    ("disk_bytes_of_a_plan", "memory/disk_bytes_each"),
];

/// The summary; `None` without a record that it is made of.
pub(super) fn summary(records: &Records) -> Option<Value> {
    let mut summary = json!({});
    for (field, path) in FIELDS {
        if let Some(number) = records.number(path) {
            summary[field] = json!((number * 1e4).round() / 1e4);
        }
    }
    let any = !summary.as_object()?.is_empty();
    let machine = ["launch", "cold", "shapes", "memory"].iter().find_map(|part| records.part(part)?.get("machine"));
    summary["machine"] = machine.cloned().unwrap_or(Value::Null);
    summary["peer"] = records.part("launch").map_or(Value::Null, |record| record["peer"].clone());
    any.then_some(summary)
}
