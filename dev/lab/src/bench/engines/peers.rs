//! Times of other libraries, in a process of Python that takes turns with ours.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use qkvault_cli::clock::median;
use qkvault_cli::{Outcome, out};
use qkvault_compile::times::Direction;
use qkvault_graph::Valid;
use serde_json::{Map, Value, json};

use super::cases::EngineCase;
use super::request::request;
use crate::bench::peer::Peer;

/// What peers do with one case.
#[derive(Debug, Default)]
pub(super) struct CasePeers {
    /// Milliseconds by peer.
    pub(super) times: Vec<(String, f64)>,
    /// Why others do not compute it.
    pub(super) refused: Map<String, Value>,
}

impl CasePeers {
    /// The fastest peer.
    pub(super) fn best(&self) -> Option<(&str, f64)> {
        let list = self.times.iter().map(|(peer, ms)| (&peer[..], *ms));
        list.min_by(|(_, a), (_, b)| a.total_cmp(b))
    }
}

/// What peers do, by case and direction.
#[derive(Debug, Default)]
pub(super) struct Peers(BTreeMap<(String, String), CasePeers>);

impl Peers {
    /// Adds those of a case.
    pub(super) fn add(&mut self, case: &str, direction: Direction, of: CasePeers) {
        self.0.insert((case.to_owned(), direction.name().to_owned()), of);
    }

    /// Those of a case.
    pub(super) fn for_case(&self, case: &str, direction: Direction) -> Option<&CasePeers> {
        self.0.get(&(case.to_owned(), direction.name().to_owned()))
    }
}

/// The process beside which cases are measured.
pub(super) struct Beside {
    peer: Peer,
    python: PathBuf,
    device: usize,
}

/// One case beside the process.
pub(super) struct PeerTurns<'p> {
    peer: &'p mut Peer,
    /// The peers that compute the case, with what they are asked and their times.
    peers: Vec<(String, Value, Vec<f64>)>,
    /// Those far from the fastest, which were timed once.
    far: Vec<(String, f64)>,
    refused: Map<String, Value>,
}

impl Beside {
    pub(super) fn start(python: &Path, device: usize) -> anyhow::Result<Beside> {
        Ok(Beside { peer: Peer::start(python, device)?, python: python.to_owned(), device })
    }

    pub(super) fn machine(&self) -> String {
        let Value::Object(fields) = &self.peer.machine else { return String::new() };
        let all: Vec<String> = fields.iter().map(|(name, value)| format!("{name} {value}")).collect();
        all.join(", ")
    }

    /// Prepares a case. Why a peer does not compute it is kept.
    ///
    /// # Errors
    ///
    /// The process ended and does not start again.
    pub(super) fn case(&mut self, attention: &Valid) -> anyhow::Result<PeerTurns<'_>> {
        let (mut peers, mut far, mut refused) = (Vec::new(), Vec::new(), Map::new());
        match request(attention).and_then(|what| self.peer.ask(&what)) {
            Ok(mut answer) => {
                if let Value::Object(all) = answer["refused"].take() {
                    refused = all;
                }
                for name in answer["peers"].as_array().into_iter().flatten().filter_map(Value::as_str) {
                    peers.push((name.to_owned(), json!({ "do": "turn", "peer": name }), Vec::new()));
                }
                let times = answer["far"].as_object().into_iter().flatten();
                far.extend(times.filter_map(|(name, ms)| Some((name.clone(), ms.as_f64()?))));
                if answer["broken"] == true {
                    // Nothing more is computed by a process whose kernel read where nothing is.
                    self.again()?;
                }
            }
            Err(error) => {
                refused.insert("all".to_owned(), format!("{error:#}").chars().take(200).collect::<String>().into());
                if !self.peer.is_there() {
                    self.again()?;
                }
            }
        }
        Ok(PeerTurns { peer: &mut self.peer, peers, far, refused })
    }

    fn again(&mut self) -> anyhow::Result<()> {
        out::note("the process of the peers starts again");
        self.peer = Peer::start(&self.python, self.device)?;
        Ok(())
    }
}

impl PeerTurns<'_> {
    /// Times every peer once; the first round only warms up.
    pub(super) fn round(&mut self, round: usize) -> anyhow::Result<()> {
        self.peers.reverse();
        for (_, request, times) in &mut self.peers {
            let ms = self.peer.number(request, "ms")?;
            if round > 0 {
                times.push(ms);
            }
        }
        Ok(())
    }

    /// The medians, and who has none. Frees the memory of the process.
    pub(super) fn medians(mut self) -> CasePeers {
        self.peer.free();
        let peers = std::mem::take(&mut self.peers);
        let medians = peers.into_iter().filter_map(|(name, _, mut times)| Some((name, median(&mut times)?)));
        let times = medians.chain(std::mem::take(&mut self.far)).collect();
        CasePeers { times, refused: std::mem::take(&mut self.refused) }
    }
}

/// Compiles, in parallel processes of Python, what peers compile at first use.
pub(super) fn warm(python: &Path, device: usize, list: &[EngineCase]) -> anyhow::Result<Outcome> {
    let list = list.iter().filter(|case| case.has_peers());
    let requests: Vec<Value> =
        list.map(|case| request(&case.attention).with_context(|| case.name.clone())).collect::<anyhow::Result<_>>()?;
    let told = Peer::start_as(python, device, "warm")?.ask(&Value::from(requests))?;
    out::line(&told.to_string());
    Ok(if told["compiled"].as_u64() > Some(0) { Outcome::Good } else { Outcome::Bad })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fastest_of_all_peers_of_a_case_is_its_best() {
        let mut peers = Peers::default();
        let times = vec![("file".to_owned(), 0.5), ("torch".to_owned(), 0.25), ("flex".to_owned(), 1.0)];
        peers.add("x", Direction::Forward, CasePeers { times, ..CasePeers::default() });
        let of = peers.for_case("x", Direction::Forward).expect("a case");
        assert_eq!((of.best(), of.times.len()), (Some(("torch", 0.25)), 3));
        assert!(peers.for_case("x", Direction::Backward).is_none());
    }
}
