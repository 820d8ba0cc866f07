//! The table and the choices of a record, from the times in it: nothing is measured. `bench engines` ends with it, and
//! `--anew` does it alone, after the fit or the kinds of cases have changed.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use qkvault_compile::EngineId;
use qkvault_compile::times::{Case, Prior, Row, Times};
use serde_json::Value;

use super::cases::EngineCase;
use super::rows::MeasuredCase;
use super::{ENGINES, before, models, rows, thin, tuned};

/// Writes the table that follows from a record, and what it chooses into the record. Before that, a record from before
/// gives times of peers, and tunings give times of models.
///
/// # Errors
///
/// A file cannot be read or written, or the record has a case that is not among `list`.
pub(super) fn run(
    out: &Path,
    table: &Path,
    (earlier, tunings): (Option<&Path>, &[PathBuf]),
    list: Vec<EngineCase>,
) -> anyhow::Result<()> {
    let read =
        |file: &Path| std::fs::read_to_string(file).with_context(|| format!("{} cannot be read", file.display()));
    let what = |file: &Path| format!("{} is not what this command writes", file.display());
    let mut record = rows::record_rows(&read(out)?).with_context(|| what(out))?;
    if let Some(earlier) = earlier {
        before::keep_peers(&mut record, &rows::record_rows(&read(earlier)?).with_context(|| what(earlier))?);
    }
    tunings.iter().try_for_each(|file| tuned::take(&mut record, file))?;
    let old: Value = serde_json::from_str(&read(table)?).with_context(|| what(table))?;
    let mut known: HashMap<(String, &str), EngineCase> =
        list.into_iter().map(|case| ((case.name.clone(), case.direction().name()), case)).collect();
    let mut measured = Vec::new();
    for row in &record {
        let (name, direction) =
            (row["case"].as_str().unwrap_or_default(), row["direction"].as_str().unwrap_or_default());
        let direction = if direction == "backward" { "backward" } else { "forward" };
        let case = known.remove(&(name.to_owned(), direction));
        let case = case
            .with_context(|| format!("no case is called '{name}, {direction}'; give --models for those of models"))?;
        measured.push(MeasuredCase {
            times: times(row),
            name: case.name,
            attention: case.attention,
            refused: Vec::new(),
        });
    }
    let (gpu, source) = (old["gpu"].as_str().unwrap_or_default(), old["source"].as_str().unwrap_or_default());
    let whole = rows::table((gpu, source), &measured, None);
    let cases: Vec<Case> = measured.iter().map(|of| Case::for_attention(&of.attention)).collect();
    let of_models = |row: &Row| {
        let mut like = measured.iter().zip(&cases).filter(|(_, case)| row.case.is_like(case));
        like.all(|(of, _)| of.name.starts_with(models::PREFIX))
    };
    let thinned = thin::thinned(whole, of_models);
    let prior = Prior::over_rows(&thinned.rows);
    for ((row, of), case) in record.iter_mut().zip(&measured).zip(&cases) {
        let taken: Vec<EngineId> = ENGINES.into_iter().filter(|engine| of.times.us(*engine).is_some()).collect();
        let engine = thinned.times(case, &taken, &prior).order(&taken).first().copied();
        for engine in ENGINES {
            let field = format!("{}_ms", engine.name());
            row[&field] = of.times.us(engine).map(rows::ms).into();
        }
        row["engine"] = engine.map(|engine| engine.name().to_string()).into();
        row["ours_ms"] = engine.and_then(|engine| of.times.us(engine)).map(rows::ms).into();
    }
    super::write(out, &rows::record_text(&record)?)?;
    super::write(table, &rows::text(&thinned)?)
}

/// The times of engines in a row of the record.
fn times(row: &Value) -> Times {
    let of = |engine: &EngineId| Some((engine.name(), row[format!("{}_ms", engine.name())].as_f64()? * 1e3));
    ENGINES.iter().filter_map(of).collect()
}

#[cfg(test)]
mod tests {
    use qkvault_compile::CUDNN;
    use qkvault_compile::times::Table;
    use serde_json::json;

    use super::super::cases;
    use super::*;

    #[test]
    fn the_table_and_the_choices_follow_from_the_times_of_a_record() {
        let folder = tempfile::tempdir().expect("a folder");
        let [record, table] = ["record.json", "table.json"].map(|name| folder.path().join(name));
        let row = |case: &str, cudnn: f64, kernels: f64| {
            json!({ "case": case, "direction": "forward", "cudnn_ms": cudnn, "kernels_ms": kernels, "fa4_ms": null,
                "engine": "fa4", "ours_ms": 1.0 })
        };
        let names = ["decode b1 s1024 d128", "decode b8 s1024 d128"];
        let rows = [row(names[0], 0.0075, 0.0083), row(names[1], 0.0124, 0.0109)];
        std::fs::write(&record, json!({ "machine": "m", "rows": rows }).to_string()).expect("writes");
        std::fs::write(&table, json!({ "gpu": "a GPU", "source": "a source", "rows": [] }).to_string())
            .expect("writes");
        run(&record, &table, (None, &[]), cases::list().expect("valid")).expect("writes both");
        let read = |file| serde_json::from_str::<Value>(&std::fs::read_to_string(file).expect("reads")).expect("JSON");
        let (found, text) = (read(&record), read(&table));
        assert_eq!((&found["rows"][0]["engine"], &found["rows"][0]["ours_ms"]), (&json!("cudnn"), &json!(0.0075)));
        assert_eq!((&found["rows"][1]["engine"], &found["rows"][1]["ours_ms"]), (&json!("kernels"), &json!(0.0109)));
        let table: Table = serde_json::from_value(text).expect("a table");
        assert_eq!((table.rows.len(), table.gpu.as_str(), table.source.as_str()), (2, "a GPU", "a source"));
        assert_eq!(table.rows[0].times.us(CUDNN), Some(7.5));
        let table_file = folder.path().join("table.json");
        let other = json!({ "machine": "m", "rows": [row("nothing", 1.0, 1.0)] }).to_string();
        std::fs::write(&record, other).expect("writes");
        let error = run(&record, &table_file, (None, &[]), Vec::new()).expect_err("unknown").to_string();
        assert!(error.contains("'nothing, forward'") && error.contains("--models"), "{error}");
    }
}
