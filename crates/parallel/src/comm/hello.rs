//! What ranks compare before the first launch: version, number of ranks, schedule, plans.

use super::{CommError, Communicator};
use crate::Schedule;

/// What all ranks must have alike.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Hello {
    /// The version of this package.
    pub version: String,
    /// Number of ranks of the schedule.
    pub ranks: u32,
    /// The digest of the schedule.
    pub digest: String,
    /// What computes each of the schedule's plans, in their order: engine, version of cuDNN, key. Two engines round
    /// differently, and so would the halves of one attention. None before plans are loaded.
    pub plans: Vec<String>,
}

impl Hello {
    /// What this rank has.
    #[must_use]
    pub fn for_schedule(schedule: &Schedule) -> Hello {
        Hello {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            ranks: schedule.sharding.ranks,
            digest: schedule.digest().to_string(),
            plans: Vec::new(),
        }
    }

    fn fields(&self) -> Vec<(String, String)> {
        let Hello { version, ranks, digest, plans } = self;
        let first = [("version", version.clone()), ("schedule for ranks", ranks.to_string())];
        let then = [("schedule", digest.clone()), ("a number of plans of", plans.len().to_string())];
        let named = first.into_iter().chain(then).map(|(what, value)| (what.to_owned(), value));
        let plans = plans.iter().enumerate().map(|(n, plan)| (format!("for plan {n} of the schedule"), plan.clone()));
        named.chain(plans).collect()
    }
}

/// Compares what all ranks have. Call it once for each schedule, before its first exchange: ranks that do not run the
/// same would wait for each other or read each other's bytes as something else.
///
/// # Errors
///
/// [`CommError::Size`] for a communicator of another number of ranks; [`CommError::Differs`] with the rank that differs
/// from most, the same on every rank; the errors of an exchange.
pub fn agree(communicator: &mut dyn Communicator, hello: &Hello) -> Result<(), CommError> {
    if communicator.size() != hello.ranks {
        // The others may have the right number, so they hear of it too, and name this rank.
        let told = serde_json::to_vec(hello).unwrap_or_default();
        let heard = communicator.tell_all(&told);
        communicator.abort();
        heard?;
        return Err(CommError::Size {
            rank: None,
            what: "ranks of the communicator".to_owned(),
            given: communicator.size().into(),
            expected: hello.ranks.into(),
        });
    }
    let told = serde_json::to_vec(hello).unwrap_or_default();
    let heard = communicator.tell_all(&told)?;
    let all: Result<Vec<Hello>, CommError> = (0..)
        .zip(heard)
        .map(|(rank, bytes)| {
            serde_json::from_slice(&bytes).map_err(|_| CommError::Differs {
                rank,
                what: "a greeting of".to_owned(),
                theirs: "another form".to_owned(),
                ours: format!("version {}", hello.version),
            })
        })
        .collect();
    let found = all.and_then(|all| compare(&all));
    if found.is_err() {
        // All find the same; one that ended before another has heard everything would be taken for the cause.
        let _ = communicator.tell_all(&[]);
        communicator.abort();
    }
    found
}

/// The first field that is not the same everywhere, and the first rank that differs from most.
fn compare(all: &[Hello]) -> Result<(), CommError> {
    let fields: Vec<Vec<(String, String)>> = all.iter().map(Hello::fields).collect();
    // After the number of plans is the same everywhere, so are the fields behind it.
    for field in 0..fields.first().map_or(0, Vec::len) {
        let values: Vec<&(String, String)> = fields.iter().filter_map(|list| list.get(field)).collect();
        let count = |value: &str| values.iter().filter(|(_, other)| other == value).count();
        // Of values that are equally common the first one counts.
        let most = values.iter().rev().max_by_key(|(_, value)| count(value));
        let Some((what, usual)) = most else { return Ok(()) };
        if let Some(rank) = values.iter().position(|(_, value)| value != usual) {
            return Err(CommError::Differs {
                rank: rank as u32,
                what: what.clone(),
                theirs: values[rank].1.clone(),
                ours: usual.clone(),
            });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rank_that_differs_from_most_is_named() {
        let hello =
            |digest: &str| Hello { version: "1".to_owned(), ranks: 3, digest: digest.to_owned(), plans: vec![] };
        let named = |list: [&str; 3]| compare(&list.map(hello)).err().and_then(|e| e.rank());
        assert_eq!(named(["a", "a", "a"]), None);
        assert_eq!(named(["b", "a", "a"]), Some(0));
        assert_eq!(named(["a", "a", "b"]), Some(2));
        assert_eq!(named(["a", "b", "c"]), Some(1));
    }

    /// Ranks with the same schedule took other plans, and nobody heard of it.
    #[test]
    fn audit_a_rank_with_another_engine_or_cudnn_is_named_with_its_plan() {
        let hello = |plans: &[&str]| {
            let plans = plans.iter().map(|plan| (*plan).to_owned()).collect();
            Hello { version: "1".to_owned(), ranks: 3, digest: "a".to_owned(), plans }
        };
        let usual = hello(&["fa4, key 1", "cudnn 9.19.0, key 2"]);
        let heard = |other: Hello| compare(&[usual.clone(), usual.clone(), other]).map_err(|e| e.to_string());
        assert_eq!(heard(usual.clone()), Ok(()));
        let error = heard(hello(&["fa4, key 1", "cudnn 9.14.0, key 2"])).expect_err("another cuDNN");
        let words =
            ["rank 2 has for plan 1 of the schedule cudnn 9.14.0, key 2", "the others have cudnn 9.19.0, key 2"];
        assert!(words.iter().all(|word| error.contains(word)), "{error}");
        let error = heard(hello(&["fa4, key 1"])).expect_err("fewer plans");
        assert!(error.contains("rank 2 has a number of plans of 1, the others have 2"), "{error}");
    }
}
