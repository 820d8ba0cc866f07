//! Times of other libraries: from a file, and from PyTorch in a process of its own that takes turns with ours.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::Context as _;
use qkvault_cli::clock::median;
use qkvault_cli::out;
use qkvault_compile::times::Direction;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::bench::peer::Peer;

/// Times of other libraries, in milliseconds, by case and direction.
#[derive(Debug, Default)]
pub(super) struct Peers(BTreeMap<(String, String), Vec<(String, f64)>>);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PeerRecord {
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

    pub(super) fn parse(text: &str) -> anyhow::Result<Peers> {
        let mut peers = Peers::default();
        for PeerRecord { case, direction, peer, ms } in serde_json::from_str::<Vec<PeerRecord>>(text)? {
            anyhow::ensure!(ms > 0.0, "{peer} takes {ms} ms for {case}; a time is above 0");
            peers.0.entry((case, direction)).or_default().push((peer, ms));
        }
        Ok(peers)
    }

    /// Adds times of a case.
    pub(super) fn add(&mut self, case: &str, direction: Direction, times: Vec<(String, f64)>) {
        self.0.entry((case.to_owned(), direction.name().to_owned())).or_default().extend(times);
    }

    /// All times of a case.
    pub(super) fn for_case(&self, case: &str, direction: Direction) -> &[(String, f64)] {
        self.0.get(&(case.to_owned(), direction.name().to_owned())).map_or(&[], Vec::as_slice)
    }

    /// The fastest peer.
    pub(super) fn best(&self, case: &str, direction: Direction) -> Option<(&str, f64)> {
        let list = self.for_case(case, direction).iter().map(|(peer, ms)| (&peer[..], *ms));
        list.min_by(|(_, a), (_, b)| a.total_cmp(b))
    }
}

/// PyTorch, beside which cases are measured.
pub(super) struct Beside(Peer);

/// One case beside PyTorch.
pub(super) struct PeerTurns<'p> {
    peer: &'p mut Peer,
    /// The libraries that compute the case, with what they are asked and their times.
    libraries: Vec<(String, Value, Vec<f64>)>,
}

impl Beside {
    pub(super) fn start(python: &Path, device: usize) -> anyhow::Result<Beside> {
        Ok(Beside(Peer::start(python, device)?))
    }

    pub(super) fn machine(&self) -> String {
        let Value::Object(fields) = &self.0.machine else { return String::new() };
        let all: Vec<String> = fields.iter().map(|(name, value)| format!("{name} {value}")).collect();
        all.join(", ")
    }

    /// Prepares a case. A library that does not compute it is told and left out.
    pub(super) fn case(&mut self, what: &Value, direction: Direction) -> PeerTurns<'_> {
        let peer = &mut self.0;
        let mut request = what.clone();
        request["direction"] = direction.name().into();
        let mut libraries = Vec::new();
        match peer.ask(&request) {
            Ok(answer) => {
                for name in answer["peers"].as_array().into_iter().flatten().filter_map(Value::as_str) {
                    libraries.push((name.to_owned(), json!({ "do": "turn", "peer": name }), Vec::new()));
                }
                if let Some(lost) = answer["lost"].as_array().filter(|lost| !lost.is_empty()) {
                    out::note(&format!("PyTorch lacks {}", Value::from(lost.clone())));
                }
            }
            Err(error) => out::note(&format!("PyTorch does not compute it: {error:#}")),
        }
        PeerTurns { peer, libraries }
    }
}

impl PeerTurns<'_> {
    /// Times every library once; the first round only warms up.
    pub(super) fn round(&mut self, round: usize) -> anyhow::Result<()> {
        for (_, request, times) in &mut self.libraries {
            let ms = self.peer.number(request, "ms")?;
            if round > 0 {
                times.push(ms);
            }
        }
        Ok(())
    }

    /// The medians, in milliseconds. Frees the peer's memory.
    pub(super) fn medians(mut self) -> Vec<(String, f64)> {
        self.peer.free();
        let libraries = std::mem::take(&mut self.libraries);
        libraries.into_iter().filter_map(|(name, _, mut times)| Some((name, median(&mut times)?))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_peers_that_are_none_are_refused_with_the_case() {
        let bad = r#"[{"case": "x", "direction": "forward", "peer": "p", "ms": 0}]"#;
        let error = Peers::parse(bad).expect_err("no time").to_string();
        assert!(error.contains("p takes 0 ms for x"), "{error}");
        assert!(Peers::parse(r#"[{"case": "x"}]"#).is_err());
    }

    #[test]
    fn the_fastest_of_all_peers_of_a_case_is_its_best() {
        let given = r#"[{"case": "x", "direction": "forward", "peer": "file", "ms": 0.5}]"#;
        let mut peers = Peers::parse(given).expect("reads");
        peers.add("x", Direction::Forward, vec![("torch".to_owned(), 0.25), ("flex".to_owned(), 1.0)]);
        assert_eq!(peers.best("x", Direction::Forward), Some(("torch", 0.25)));
        assert_eq!((peers.for_case("x", Direction::Forward).len(), peers.best("x", Direction::Backward)), (3, None));
    }
}
