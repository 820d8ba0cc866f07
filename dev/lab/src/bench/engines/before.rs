//! What an earlier record says of peers that a run could not ask: a library that is not on this machine, or whose
//! kernels are not compiled here, takes the time that it took.

use serde_json::{Value, json};

/// The part of a peer's refusal that tells of the machine and not of the case (`peer/ways_flashinfer.py`).
const NOT_HERE: &str = "are not compiled";

/// Keeps the times of such peers, named in `peers_kept`, for rows that were measured after `earlier`.
pub(super) fn keep_peers(record: &mut [Value], earlier: &[Value]) {
    for row in record {
        let same = |old: &&Value| old["case"] == row["case"] && old["direction"] == row["direction"];
        let Some(old) = earlier.iter().find(same) else { continue };
        for (peer, time) in old["peers_ms"].as_object().into_iter().flatten() {
            let refused = &row["peers_refused"];
            let why = refused[peer].as_str().or(refused["all"].as_str());
            let was_asked = row["peers_ms"].get(peer).is_some() || why.is_some_and(|why| !why.contains(NOT_HERE));
            if was_asked {
                continue;
            }
            if let Some(refused) = row["peers_refused"].as_object_mut() {
                refused.remove(peer);
            }
            if !row["peers_ms"].is_object() {
                row["peers_ms"] = json!({});
            }
            row["peers_ms"][peer] = time.clone();
            match row["peers_kept"].as_array_mut() {
                Some(kept) => kept.push(peer.clone().into()),
                None => row["peers_kept"] = json!([peer]),
            }
        }
        let times = row["peers_ms"].as_object().into_iter().flatten();
        let times = times.filter_map(|(peer, ms)| Some((peer.clone(), ms.as_f64()?)));
        if let Some((peer, ms)) = times.min_by(|(_, a), (_, b)| a.total_cmp(b)) {
            row["best_peer"] = peer.into();
            row["best_peer_ms"] = ms.into();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_that_could_not_be_asked_keeps_the_time_that_it_took() {
        let old = json!({ "case": "a", "direction": "forward", "machine": "m",
            "peers_ms": { "flashinfer": 1.0, "torch": 2.0, "flex": 3.0 } });
        let new = json!({ "case": "a", "direction": "forward", "machine": "m", "best_peer": "torch",
            "best_peer_ms": 1.9, "peers_ms": { "torch": 1.9 },
            "peers_refused": { "flashinfer": "its kernels are not compiled: do that", "flex": "SDPA computes it" } });
        let mut record = [new, json!({ "case": "b", "direction": "forward", "machine": "m" })];
        keep_peers(&mut record, std::slice::from_ref(&old));
        assert_eq!(record[0]["peers_ms"], json!({ "flashinfer": 1.0, "torch": 1.9 }));
        assert_eq!(record[0]["peers_kept"], json!(["flashinfer"]));
        assert_eq!((&record[0]["best_peer"], &record[0]["best_peer_ms"]), (&json!("flashinfer"), &json!(1.0)));
        assert_eq!(record[0]["peers_refused"], json!({ "flex": "SDPA computes it" }));
        assert!(record[1].get("peers_ms").is_none(), "{record:?}");
        // What was not measured again is as it was.
        let mut same = [old.clone()];
        keep_peers(&mut same, std::slice::from_ref(&old));
        assert_eq!((&same[0]["peers_ms"], same[0].get("peers_kept")), (&old["peers_ms"], None));
    }
}
