//! What `bench engines` writes, as data: the record of the results, and the table by which an engine is chosen.

use std::fmt;

use qkvault_compile::times::{CLEAR, Case, Direction, Row, TABLE_FORMAT, Table, Times};
use qkvault_compile::{CUDNN, EngineId, FA4, KERNELS};
use qkvault_graph::Valid;
use serde::Serialize;
use serde_json::{Value, json};

use super::peers::{CasePeers, Peers};
use super::{ENGINES, models};

/// The times of one case.
pub(super) struct MeasuredCase {
    pub(super) name: String,
    pub(super) attention: Valid,
    pub(super) times: Times,
    /// Why engines do not take it.
    pub(super) refused: Vec<String>,
}

impl MeasuredCase {
    fn direction(&self) -> Direction {
        Case::for_attention(&self.attention).direction
    }
}

impl fmt::Display for MeasuredCase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, {}:", self.name, self.direction().name())?;
        ENGINES.into_iter().enumerate().try_for_each(|(at, engine)| {
            let us = self.times.us(engine).map_or_else(|| "-".to_owned(), |us| format!("{us:.1}"));
            write!(f, "{} {} {us} us", if at > 0 { "," } else { "" }, engine.title())
        })
    }
}

/// The record: what qkvault takes for each case by the table, beside cuDNN and the fastest peer; and the rows of an
/// earlier record that were not measured again.
pub(super) fn record(
    machine: &str,
    measured: &[MeasuredCase],
    peers: &Peers,
    table: &Table,
    earlier: &[Value],
) -> Vec<Value> {
    let row = |of: &MeasuredCase| {
        let direction = of.direction();
        let chosen = engine(of, table);
        let ours = chosen.and_then(|engine| of.times.us(engine));
        let beside = peers.for_case(&of.name, direction);
        let best = beside.and_then(CasePeers::best);
        let times = beside.map_or(&[][..], |beside| &beside.times).iter();
        let all: serde_json::Map<String, Value> =
            times.map(|(peer, time)| (peer.clone(), rounded(*time).into())).collect();
        json!({
            "case": of.name, "direction": direction.name(), "attention": of.attention.to_string(),
            "ours_ms": ours.map(ms), "engine": chosen.map(|engine| engine.name().to_string()),
            "kernels_ms": of.times.us(KERNELS).map(ms), "cudnn_ms": of.times.us(CUDNN).map(ms),
            "fa4_ms": of.times.us(FA4).map(ms), "peers_ms": all,
            "peers_refused": beside.map(|beside| &beside.refused),
            "best_peer": best.map(|(peer, _)| peer), "best_peer_ms": best.map(|(_, time)| rounded(time)),
            "refused": of.refused, "machine": machine,
        })
    };
    let again = |old: &&Value| {
        measured.iter().all(|of| old["case"] != of.name.as_str() || old["direction"] != of.direction().name())
    };
    earlier.iter().filter(again).cloned().chain(measured.iter().map(row)).collect()
}

/// The engine that the table chooses among those that take a case.
fn engine(of: &MeasuredCase, table: &Table) -> Option<EngineId> {
    let taken: Vec<EngineId> = ENGINES.into_iter().filter(|engine| of.times.us(*engine).is_some()).collect();
    let row = table.row(&Case::for_attention(&of.attention), &taken);
    row.map_or(&of.times, |row| &row.times).order(&taken, CLEAR).first().copied()
}

/// Milliseconds, to a nanosecond; of one and more to ten, of ten and more to a microsecond.
pub(super) fn ms(us: f64) -> f64 {
    rounded(us / 1e3)
}

fn rounded(ms: f64) -> f64 {
    let scale = if ms < 1.0 {
        1e6
    } else if ms < 10.0 {
        1e5
    } else {
        1e3
    };
    (ms * scale).round() / scale
}

/// The table of the cases that at least two engines take, with the rows of an earlier table that were not measured
/// again. A case that was measured twice, such as a decode with an expression, which decides nothing there, has its
/// first times.
pub(super) fn table((gpu, machine): (&str, &str), measured: &[MeasuredCase], earlier: Option<&Table>) -> Table {
    let mut rows: Vec<Row> = Vec::new();
    for of in measured {
        let case = Case::for_attention(&of.attention);
        let timed = ENGINES.iter().filter(|engine| of.times.us(**engine).is_some()).count();
        if timed < 2 || rows.iter().any(|row| row.case.is_like(&case)) {
            continue;
        }
        let times = of.times.iter().map(|(engine, us)| (engine, (us * 10.0).round() / 10.0)).collect();
        rows.push(Row { case, times, unforetold: false });
    }
    let old = earlier.map_or(&[][..], |table| &table.rows);
    let kept: Vec<Row> =
        old.iter().filter(|old| rows.iter().all(|row| !row.case.is_like(&old.case))).cloned().collect();
    let source = match earlier {
        Some(earlier) if !kept.is_empty() && !earlier.source.contains(machine) => {
            format!("{machine}; before: {}", earlier.source)
        }
        Some(earlier) if !kept.is_empty() => earlier.source.clone(),
        _ => machine.to_owned(),
    };
    Table {
        format: TABLE_FORMAT,
        gpu: gpu.to_owned(),
        sm: qkvault_kernels::SM,
        source,
        rows: kept.into_iter().chain(rows).collect(),
    }
}

/// The table as the file has it.
pub(super) fn text(table: &Table) -> anyhow::Result<String> {
    let Table { format, gpu, sm, source, rows } = table;
    let head = [("format", json!(format)), ("gpu", json!(gpu)), ("sm", json!(sm)), ("source", json!(source))];
    in_lines(&head, rows)
}

/// The rows of a record's file, with what [`record_text`] leaves out for space.
pub(super) fn record_rows(text: &str) -> Option<Vec<Value>> {
    let record: Value = serde_json::from_str(text).ok()?;
    let mut rows = record["rows"].as_array()?.clone();
    let whole = |value: &mut Value, list: &str| {
        if let Some(at) = value.as_u64().and_then(|at| usize::try_from(at).ok()) {
            *value = record[list][at].clone();
        }
    };
    for row in &mut rows {
        whole(&mut row["machine"], "machines");
        row["peers_refused"].as_object_mut().into_iter().flatten().for_each(|(_, why)| whole(why, "reasons"));
        row["refused"].as_array_mut().into_iter().flatten().for_each(|why| whole(why, "reasons"));
        row.as_object_mut()?.retain(|_, value| !value.is_null());
    }
    Some(rows)
}

/// The record as the file has it: machines and reasons once, nothing that is null or empty, of a refusal what comes
/// before what is needed, nothing of attentions, which `--show` tells, and of models nothing but the times and the
/// engine: there are hundreds.
pub(super) fn record_text(rows: &[Value]) -> anyhow::Result<String> {
    fn once(list: &mut Vec<Value>, value: &Value) -> Value {
        let at = list.iter().position(|known| known == value);
        json!(at.unwrap_or_else(|| {
            list.push(value.clone());
            list.len() - 1
        }))
    }
    let (mut machines, mut reasons): (Vec<Value>, Vec<Value>) = (Vec::new(), Vec::new());
    let mut lean = Vec::new();
    for row in rows {
        let of_model = row["case"].as_str().is_some_and(|case| case.starts_with(models::PREFIX));
        let mut fields = serde_json::Map::new();
        for (field, value) in row.as_object().into_iter().flatten() {
            let value = match (field.as_str(), value) {
                (_, Value::Null) => continue,
                ("machine", machine) => once(&mut machines, machine),
                // The first is told by `--show`, the other by `peers_ms`.
                ("attention" | "best_peer_ms", _) => continue,
                // The time is that of the engine.
                ("refused" | "ours_ms", _) if of_model => continue,
                ("refused", Value::Array(list)) => list
                    .iter()
                    .filter_map(Value::as_str)
                    .map(|why| once(&mut reasons, &why.split("; needed").next().unwrap_or(why).into()))
                    .collect::<Value>(),
                ("peers_refused", Value::Object(all)) => {
                    all.iter().map(|(peer, why)| (peer.clone(), once(&mut reasons, why))).collect()
                }
                (_, value) => value.clone(),
            };
            if value.as_array().is_none_or(|list| !list.is_empty())
                && value.as_object().is_none_or(|fields| !fields.is_empty())
            {
                fields.insert(field.clone(), value);
            }
        }
        lean.push(Value::Object(fields));
    }
    in_lines(&[("machines", machines.into()), ("reasons", reasons.into())], &lean)
}

/// An object whose last field is a list with a row in a line, so that a change of it is a diff to read.
fn in_lines(head: &[(&str, Value)], rows: &[impl Serialize]) -> anyhow::Result<String> {
    let head: String = head.iter().map(|(name, value)| format!("  \"{name}\": {value},\n")).collect();
    let rows = rows.iter().map(|row| Ok(serde_json::to_string(row)?));
    let rows: Vec<String> = rows.collect::<anyhow::Result<_>>()?;
    Ok(format!("{{\n{head}  \"rows\": [\n{}\n  ]\n}}\n", rows.join(",\n")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::engines::cases;

    fn measured(name: &str, kernels_us: Option<f64>, cudnn_us: Option<f64>, fa4_us: Option<f64>) -> MeasuredCase {
        let (name, backward) = name.strip_suffix(" backward").map_or((name, false), |name| (name, true));
        let all = cases::list().expect("valid");
        let is = |case: &cases::EngineCase| case.name == name && case.attention.is_backward() == backward;
        let case = all.into_iter().find(is).expect("a case");
        let all = [(KERNELS, kernels_us), (CUDNN, cudnn_us), (FA4, fa4_us)];
        let times = all.into_iter().filter_map(|(engine, us)| Some((engine.name(), us?))).collect();
        MeasuredCase { name: case.name, attention: case.attention, times, refused: Vec::new() }
    }

    const PROMPT: &str = "plain b4 h16/16 s4096 d128 causal";

    fn list() -> Vec<MeasuredCase> {
        let some = Some;
        vec![
            measured("decode b1 s1024 d128", some(7.12), some(8.4), None),
            measured("decode b64 s8192 d128", some(491.7), some(479.0), None),
            measured("gpt-oss sinks b8 s8192", some(40.0), None, None),
            measured(PROMPT, some(900.0), some(544.6), some(479.0)),
            measured(&format!("{PROMPT} backward"), None, some(1587.2), some(1326.0)),
        ]
    }

    #[test]
    fn a_record_has_the_engine_that_the_table_chooses_and_the_fastest_peer() {
        let list = list();
        let mut peers = Peers::default();
        let of = |times: &[(&str, f64)]| CasePeers {
            times: times.iter().map(|(peer, ms)| ((*peer).to_owned(), *ms)).collect(),
            refused: [("flex".to_owned(), json!("it takes SDPA"))].into_iter().collect(),
        };
        peers.add("decode b64 s8192 d128", Direction::Forward, of(&[("flashinfer", 0.5), ("torch", 0.49)]));
        peers.add(PROMPT, Direction::Backward, of(&[("torch", 1.6)]));
        let table = table(("a GPU", "a GPU"), &list, None);
        let record = record("a GPU", &list, &peers, &table, &[]);
        let row = |at: usize| &record[at];
        assert_eq!((&row(0)["engine"], row(0)["ours_ms"].as_f64()), (&json!("kernels"), Some(0.00712)));
        assert_eq!((&row(1)["engine"], row(1)["ours_ms"].as_f64()), (&json!("cudnn"), Some(0.479)));
        assert_eq!((&row(1)["best_peer"], row(1)["best_peer_ms"].as_f64()), (&json!("torch"), Some(0.49)));
        assert_eq!(
            (&row(1)["peers_refused"]["flex"], &row(0)["peers_refused"]),
            (&json!("it takes SDPA"), &json!(null))
        );
        assert_eq!(
            (&row(2)["engine"], &row(2)["cudnn_ms"], &row(2)["best_peer"]),
            (&json!("kernels"), &json!(null), &json!(null))
        );
        assert_eq!((&row(3)["engine"], &row(3)["best_peer"]), (&json!("fa4"), &json!(null)));
        assert_eq!((&row(4)["direction"], row(4)["best_peer_ms"].as_f64()), (&json!("backward"), Some(1.6)));
        for field in ["case", "direction", "ours_ms", "engine", "cudnn_ms", "best_peer", "best_peer_ms"] {
            assert!(row(0).get(field).is_some(), "{field}");
        }
    }

    #[test]
    fn the_table_has_what_two_engines_take_once_and_reads_back_from_its_text() {
        let list = [
            measured("decode b8 s8192 d128", Some(68.2), Some(68.6), None),
            measured("softcap b8 s8192", Some(90.0), Some(68.6), None),
            measured("draft q4 b8 s8192 d128", Some(70.0), Some(202.0), None),
            measured("alibi b1 s8192", Some(12.0), None, None),
            measured(PROMPT, None, Some(544.61), Some(479.0)),
        ];
        let table = table(("a GPU", "a GPU"), &list, None);
        let times: Vec<Option<f64>> = table.rows.iter().map(|row| row.times.us(KERNELS)).collect();
        assert_eq!(times, [Some(68.2), Some(70.0), None]);
        let first = |at: usize| table.rows[at].times.order(&ENGINES, CLEAR)[0];
        assert_eq!([first(0), first(1), first(2)], ENGINES);
        let text = text(&table).expect("writes");
        assert_eq!(serde_json::from_str::<Table>(&text).expect("reads"), table);
        assert_eq!(text.lines().count(), 6 + 3 + 2, "{text}");
    }

    #[test]
    fn a_run_keeps_the_rows_of_earlier_ones_that_it_does_not_measure_again() {
        let none = Peers::default();
        let first = list();
        let before = table(("a GPU", "yesterday"), &first, None);
        let old = record("yesterday", &first, &none, &before, &[]);
        let again = [measured(PROMPT, Some(900.0), Some(500.0), Some(510.0))];
        let after = table(("a GPU", "today"), &again, Some(&before));
        assert_eq!((after.rows.len(), after.source.as_str()), (before.rows.len(), "today; before: yesterday"));
        // What the file leaves out is not lost.
        let text = record_text(&old).expect("writes");
        let read = record_rows(&text).expect("reads");
        assert!(text.contains("\"machines\": [\"yesterday\"]") && !text.contains("null"), "{text}");
        assert_eq!(read[0]["machine"], "yesterday");
        let rows = record("today", &again, &none, &after, &read);
        assert_eq!(rows.len(), first.len());
        let changed: Vec<&Value> = rows.iter().filter(|row| row["machine"] == "today").collect();
        assert_eq!((changed.len(), &changed[0]["engine"]), (1, &json!("cudnn")));
    }
}
