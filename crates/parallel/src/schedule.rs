//! A schedule: what every rank does, from a description and a sharding alone.

use std::fmt;

use qkvault_graph::{Attention, Refusal, Valid, validate};
use serde::{Deserialize, Serialize};

use crate::work::ScheduleWork;
use crate::{RankSchedule, Scheme, Sharding, decode, gather, heads, limits, ring};

/// What every rank does to compute one attention together.
///
/// It is data, and follows from the description and the sharding alone: every rank computes the same one, without a
/// GPU, and ranks compare [`Schedule::digest`] before they begin. Serialized, it is read again as it was.
///
/// ```
/// use qkvault_graph::{Attention, DType};
/// use qkvault_parallel::{RankStep, Scheme, Sharding, schedule};
///
/// let attention = Attention::bshd(1, (32, 8), (8192, 8192), 128, DType::BF16).causal().with_stats().validate()?;
/// let schedule = schedule(&attention, &Sharding::new(2, Scheme::Gather { groups: 2 }))?;
/// let launches = |rank: usize| schedule.ranks[rank].steps.iter().filter(|s| matches!(s, RankStep::Launch(_))).count();
/// assert_eq!((launches(0), launches(1)), (4, 4)); // two chunks of queries, two groups of heads
/// println!("{}", schedule.explain());
/// # Ok::<(), qkvault_graph::Refusal>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(into = "ScheduleForm", try_from = "ScheduleForm")]
pub struct Schedule {
    /// The attention of all ranks together.
    pub attention: Valid,
    /// How it is shared.
    pub sharding: Sharding,
    /// The attentions that launches compute, each once. They are ordinary descriptions, with the keys and plans of any
    /// other.
    pub plans: Vec<Valid>,
    /// What each rank does.
    pub ranks: Vec<RankSchedule>,
}

/// Identifies a schedule: equal on all ranks that do the same.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Digest(pub [u8; 32]);

/// The schedule of an attention, for all ranks.
///
/// # Errors
///
/// Every reason against the sharding; a part that is not a valid attention.
pub fn schedule(attention: &Valid, sharding: &Sharding) -> Result<Schedule, Refusal> {
    limits::check(attention.get(), sharding)?;
    let mut work = ScheduleWork { valid: attention, sharding: *sharding, plans: Vec::new() };
    let ranks = match sharding.scheme {
        Scheme::Gather { groups } => gather::ranks(&mut work, groups)?,
        Scheme::Heads => heads::ranks(&mut work)?,
        Scheme::Ring => ring::ranks(&mut work)?,
        Scheme::Decode { run } => decode::ranks(&mut work, run)?,
    };
    Ok(Schedule { attention: attention.clone(), sharding: *sharding, plans: work.plans, ranks })
}

impl Schedule {
    /// Identifies everything in the schedule.
    #[must_use]
    pub fn digest(&self) -> Digest {
        // The serialized form has no maps, so equal schedules give equal bytes.
        Digest(*blake3::hash(&serde_json::to_vec(self).unwrap_or_default()).as_bytes())
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Digest({self})")
    }
}

/// The serialized form.
#[derive(Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ScheduleForm {
    attention: Attention,
    sharding: Sharding,
    plans: Vec<Attention>,
    ranks: Vec<RankSchedule>,
}

impl From<Schedule> for ScheduleForm {
    fn from(Schedule { attention, sharding, plans, ranks }: Schedule) -> ScheduleForm {
        let plans = plans.into_iter().map(Valid::into_inner).collect();
        ScheduleForm { attention: attention.into_inner(), sharding, plans, ranks }
    }
}

impl TryFrom<ScheduleForm> for Schedule {
    type Error = Refusal;

    fn try_from(ScheduleForm { attention, sharding, plans, ranks }: ScheduleForm) -> Result<Schedule, Refusal> {
        let plans = plans.into_iter().map(validate).collect::<Result<_, _>>()?;
        Ok(Schedule { attention: validate(attention)?, sharding, plans, ranks })
    }
}
