//! What `bench engines` writes, as data: the record of the results, and the table by which an engine is chosen.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

use anyhow::Context as _;
use qkvault_graph::Valid;
use qkvault_kernels::choice::{Case, Row, TABLE_FORMAT, Table};
use serde::Deserialize;
use serde_json::{Value, json};

/// The times of one case, in microseconds; `None` for an engine that does not take it.
pub(super) struct Measured {
    pub(super) name: String,
    pub(super) attention: Valid,
    pub(super) kernels_us: Option<f64>,
    pub(super) cudnn_us: Option<f64>,
    /// Why an engine does not take it.
    pub(super) refused: Option<String>,
}

impl fmt::Display for Measured {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let us = |time: Option<f64>| time.map_or_else(|| "-".to_owned(), |us| format!("{us:.1}"));
        write!(f, "{}: kernels {} us, cuDNN {} us", self.name, us(self.kernels_us), us(self.cudnn_us))
    }
}

/// Times of other libraries, in milliseconds, by case and direction.
#[derive(Debug, Default)]
pub(super) struct Peers(BTreeMap<(String, String), Vec<(String, f64)>>);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Peer {
    case: String,
    direction: String,
    peer: String,
    ms: f64,
}

impl Peers {
    pub(super) fn read(file: &Path) -> anyhow::Result<Peers> {
        let text = std::fs::read_to_string(file).with_context(|| format!("{} cannot be read", file.display()))?;
        Peers::parse(&text).with_context(|| format!("{} is no list of peers' times", file.display()))
    }

    fn parse(text: &str) -> anyhow::Result<Peers> {
        let mut peers = Peers::default();
        for Peer { case, direction, peer, ms } in serde_json::from_str::<Vec<Peer>>(text)? {
            anyhow::ensure!(ms > 0.0, "{peer} takes {ms} ms for {case}; a time is above 0");
            peers.0.entry((case, direction)).or_default().push((peer, ms));
        }
        Ok(peers)
    }

    fn best(&self, case: &str, direction: &str) -> Option<(&str, f64)> {
        let list = self.0.get(&(case.to_owned(), direction.to_owned()))?;
        list.iter().map(|(peer, ms)| (&peer[..], *ms)).min_by(|(_, a), (_, b)| a.total_cmp(b))
    }
}

/// The record: what qkvault takes for each case by its own table, beside cuDNN and the fastest peer.
pub(super) fn record(machine: &str, measured: &[Measured], peers: &Peers) -> Value {
    let table = table(machine, measured);
    let row = |of: &Measured| {
        let direction = if of.attention.is_backward() { "backward" } else { "forward" };
        let faster = match (of.kernels_us, of.cudnn_us) {
            (Some(_), Some(_)) => table.nearest(&Case::of(&of.attention)).map(|(row, far)| row.engine(far).name()),
            (Some(_), None) => Some("kernels"),
            (None, Some(_)) => Some("cudnn"),
            (None, None) => None,
        };
        let ours = if faster == Some("kernels") { of.kernels_us } else { of.cudnn_us };
        let best = peers.best(&of.name, direction);
        json!({
            "case": of.name, "direction": direction, "attention": of.attention.to_string(),
            "ours_ms": ours.map(ms), "engine": faster,
            "kernels_ms": of.kernels_us.map(ms), "cudnn_ms": of.cudnn_us.map(ms),
            "best_peer": best.map(|(peer, _)| peer), "best_peer_ms": best.map(|(_, ms)| ms), "refused": of.refused,
        })
    };
    json!({ "machine": machine, "rows": measured.iter().map(row).collect::<Vec<_>>() })
}

/// Milliseconds, to a nanosecond.
fn ms(us: f64) -> f64 {
    (us * 1e3).round() / 1e6
}

/// The table of the cases that both engines take. A case that was measured twice, such as with an expression, which
/// decides nothing, has its first times.
pub(super) fn table(machine: &str, measured: &[Measured]) -> Table {
    let mut rows: Vec<Row> = Vec::new();
    for of in measured {
        let (Some(kernels_us), Some(cudnn_us)) = (of.kernels_us, of.cudnn_us) else { continue };
        let case = Case::of(&of.attention);
        if rows.iter().any(|row| row.case == case) {
            continue;
        }
        // Where cuDNN splits no keys, nothing but their number matters; elsewhere a row speaks for its surroundings.
        let reach = if (2..=16).contains(&case.queries) { 6.0 } else { 3.0 };
        let tenths = |us: f64| (us * 10.0).round() / 10.0;
        rows.push(Row { case, reach, kernels_us: tenths(kernels_us), cudnn_us: tenths(cudnn_us) });
    }
    Table { format: TABLE_FORMAT, source: machine.to_owned(), rows }
}

#[cfg(test)]
mod tests {
    use qkvault_kernels::Engine;

    use super::*;
    use crate::bench::engines::cases;

    fn measured(name: &str, kernels_us: Option<f64>, cudnn_us: Option<f64>) -> Measured {
        let all = cases::list().expect("valid");
        let case = all.into_iter().find(|case| case.name == name).expect("a case");
        Measured { name: case.name, attention: case.attention, kernels_us, cudnn_us, refused: None }
    }

    #[test]
    fn a_record_has_the_engine_that_the_table_chooses_and_the_fastest_peer() {
        let list = [
            measured("decode b1 s1024 d128", Some(7.12), Some(8.4)),
            measured("decode b64 s8192 d128", Some(491.7), Some(479.0)),
            measured("gpt-oss sinks b8 s8192", Some(40.0), None),
        ];
        let peers = r#"[{"case": "decode b64 s8192 d128", "direction": "forward", "peer": "flashinfer", "ms": 0.5},
                        {"case": "decode b64 s8192 d128", "direction": "forward", "peer": "torch", "ms": 0.49}]"#;
        let record = record("a GPU", &list, &Peers::parse(peers).expect("reads"));
        let row = |at: usize| &record["rows"][at];
        assert_eq!((&row(0)["engine"], row(0)["ours_ms"].as_f64()), (&json!("kernels"), Some(0.00712)));
        assert_eq!((&row(1)["engine"], row(1)["ours_ms"].as_f64()), (&json!("cudnn"), Some(0.479)));
        assert_eq!((&row(1)["best_peer"], row(1)["best_peer_ms"].as_f64()), (&json!("torch"), Some(0.49)));
        assert_eq!(
            (&row(2)["engine"], &row(2)["cudnn_ms"], &row(2)["best_peer"]),
            (&json!("kernels"), &json!(null), &json!(null))
        );
        for field in ["case", "direction", "ours_ms", "engine", "cudnn_ms", "best_peer", "best_peer_ms"] {
            assert!(row(0).get(field).is_some(), "{field}");
        }
    }

    #[test]
    fn the_table_has_what_both_engines_take_once_and_reads_back() {
        let list = [
            measured("decode b8 s8192 d128", Some(68.2), Some(68.6)),
            measured("softcap b8 s8192", Some(90.0), Some(68.6)),
            measured("draft q4 b8 s8192 d128", Some(70.0), Some(202.0)),
            measured("alibi b1 s8192", Some(12.0), None),
        ];
        let table = table("a GPU", &list);
        assert_eq!(table.rows.iter().map(|row| row.kernels_us).collect::<Vec<_>>(), [68.2, 70.0]);
        assert_eq!((table.rows[0].engine(0.0), table.rows[1].engine(0.0)), (Engine::Cudnn, Engine::Kernels));
        let text = serde_json::to_string(&table).expect("writes");
        assert_eq!(serde_json::from_str::<Table>(&text).expect("reads"), table);
    }

    #[test]
    fn times_of_peers_that_are_none_are_refused_with_the_case() {
        let bad = r#"[{"case": "x", "direction": "forward", "peer": "p", "ms": 0}]"#;
        let error = Peers::parse(bad).expect_err("no time").to_string();
        assert!(error.contains("p takes 0 ms for x"), "{error}");
        assert!(Peers::parse(r#"[{"case": "x"}]"#).is_err());
    }
}
