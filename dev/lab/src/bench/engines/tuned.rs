//! Times of models that `qkvault warm --autotune --json` measured, taken into the record: the same graphs in turns as
//! `bench engines` replays, without peers.

use std::path::Path;

use anyhow::Context as _;
use serde_json::{Value, json};

use super::{ENGINES, models, rows};

/// Puts what a file of `warm --autotune --json` measured over the rows of the same attentions, and behind the others.
/// An engine that it did not try keeps its time.
pub(super) fn take(record: &mut Vec<Value>, file: &Path) -> anyhow::Result<()> {
    let text = std::fs::read_to_string(file).with_context(|| format!("{} cannot be read", file.display()))?;
    let what = || format!("{} is not what `warm --autotune --json` prints", file.display());
    let told: Value = serde_json::from_str(&text).with_context(what)?;
    let (gpu, all) = told["gpu"].as_str().zip(told["attentions"].as_array()).with_context(what)?;
    let machine = format!("{gpu}, warm --autotune");
    for of in all.iter().filter(|of| of["status"] == "timed") {
        let name = format!("{}{}", models::PREFIX, of["what"].as_str().with_context(what)?);
        let direction = of["direction"].as_str().unwrap_or("forward");
        let known = record.iter().position(|row| row["case"] == *name && row["direction"] == *direction);
        let at = known.unwrap_or_else(|| {
            record.push(json!({ "case": name, "direction": direction }));
            record.len() - 1
        });
        record[at]["machine"] = machine.clone().into();
        for engine in ENGINES {
            if let Some(us) = of["times"][format!("{}_us", engine.name())].as_f64() {
                record[at][format!("{}_ms", engine.name())] = rows::ms(us).into();
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Times of FlashAttention-4 from before heads shared tiles stood in the table for models alone: default engines of
    /// their steps were up to twice as slow as the fastest.
    #[test]
    fn times_of_autotune_replace_older_ones_and_add_models() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("tune.json");
        let times = json!({ "fa4_us": 500.0, "kernels_us": 700.0 });
        let of = |what: &str, status: &str| json!({ "what": what, "status": status, "times": times });
        let told = json!({ "gpu": "a GPU", "attentions": [of("m decode", "timed"), of("n decode", "timed"),
            of("o decode", "alone")] });
        std::fs::write(&file, told.to_string()).expect("writes");
        let mut record = vec![
            json!({ "case": "model m decode", "direction": "forward", "fa4_ms": 2.0, "cudnn_ms": 3.0,
                "machine": "old" }),
            json!({ "case": "model m decode", "direction": "backward", "fa4_ms": 9.0 }),
        ];
        take(&mut record, &file).expect("a record");
        let expected = json!({ "case": "model m decode", "direction": "forward", "fa4_ms": 0.5, "kernels_ms": 0.7,
            "cudnn_ms": 3.0, "machine": "a GPU, warm --autotune" });
        assert_eq!((record.len(), &record[0], &record[1]["fa4_ms"]), (3, &expected, &json!(9.0)));
        assert_eq!((&record[2]["case"], &record[2]["kernels_ms"]), (&json!("model n decode"), &json!(0.7)));
        std::fs::write(&file, "{}").expect("writes");
        assert!(take(&mut record, &file).expect_err("another file").to_string().contains("--autotune"));
    }
}
