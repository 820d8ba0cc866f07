//! Which entries to evict: a pure function of the entries, the time and the limits.

use std::time::{Duration, SystemTime};

use crate::{DiskLimits, Key};

/// How far in the future a stamp may lie and still count as "just now": clocks of hosts that share a folder differ,
/// and clocks get set back. A stamp beyond it is ignored.
pub(crate) const MAX_SKEW: Duration = Duration::from_secs(24 * 3600);

/// The facts of one entry that eviction needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Candidate {
    /// Its key.
    pub(crate) key: Key,
    /// Bytes of its file.
    pub(crate) bytes: u64,
    /// When it was last used or written.
    pub(crate) last_used: SystemTime,
    /// Whether this process holds it.
    pub(crate) in_use: bool,
}

/// The entries to evict, and what they free.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Eviction {
    /// Keys in the order in which to delete them.
    pub(crate) keys: Vec<Key>,
    /// Bytes of the entries to evict.
    pub(crate) evicted_bytes: u64,
    /// Bytes of all other entries.
    pub(crate) kept_bytes: u64,
    /// Entries that no limit deletes: this process holds them, or they were used within the time of grace.
    pub(crate) spared: u64,
}

/// The age of an entry; the first to evict sorts first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Age {
    /// Stamped far in the future. Such an entry is evicted first when bytes are needed, and never for its age.
    Unknown,
    /// Unused since this time.
    Since(SystemTime),
}

/// Selects the entries to evict.
///
/// Entries in use, or stamped within `limits.grace` before `now` (or up to [`MAX_SKEW`] after it), always stay. Of the
/// others, those unused for longer than `limits.max_age` are evicted. If the rest has more than `limits.max_bytes`, the
/// longest unused are evicted until at most `limits.low_water` of it is left.
pub(crate) fn plan_eviction(entries: &[Candidate], now: SystemTime, limits: &DiskLimits) -> Eviction {
    let DiskLimits { max_bytes, max_age, low_water, grace } = *limits;
    let mut plan = Eviction::default();
    let mut free: Vec<(Age, Key, u64)> = Vec::new();
    for candidate in entries {
        let Candidate { key, bytes, last_used, in_use } = *candidate;
        let age = match now.duration_since(last_used) {
            Ok(unused) if unused < grace => None,
            Ok(_) => Some(Age::Since(last_used)),
            Err(ahead) if ahead.duration() <= MAX_SKEW => None,
            Err(_) => Some(Age::Unknown),
        };
        match age {
            Some(age) if !in_use => free.push((age, key, bytes)),
            _ => {
                plan.kept_bytes = plan.kept_bytes.saturating_add(bytes);
                plan.spared += 1;
            }
        }
    }
    // Keys break ties, so that the result does not depend on the order in which a folder lists its files.
    free.sort_unstable();
    let too_old = |age: Age| match (age, max_age) {
        (Age::Since(since), Some(max)) => now.duration_since(since).is_ok_and(|unused| unused > max),
        _ => false,
    };
    let (old, rest): (Vec<_>, Vec<_>) = free.into_iter().partition(|(age, ..)| too_old(*age));
    for (_, key, bytes) in old {
        plan.keys.push(key);
        plan.evicted_bytes = plan.evicted_bytes.saturating_add(bytes);
    }
    let free_bytes = rest.iter().fold(0u64, |sum, entry| sum.saturating_add(entry.2));
    plan.kept_bytes = plan.kept_bytes.saturating_add(free_bytes);
    if let Some(max) = max_bytes
        && plan.kept_bytes > max
    {
        // A share that is no number or outside 0..=1 must not turn into "evict nothing" or overflow.
        let share = if low_water.is_finite() { low_water.clamp(0.0, 1.0) } else { 1.0 };
        let target = (max as f64 * share) as u64;
        for (_, key, bytes) in rest {
            if plan.kept_bytes <= target {
                break;
            }
            plan.keys.push(key);
            plan.evicted_bytes = plan.evicted_bytes.saturating_add(bytes);
            plan.kept_bytes = plan.kept_bytes.saturating_sub(bytes);
        }
    }
    plan
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const HOUR: Duration = Duration::from_secs(3600);

    fn now() -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(2_000_000_000)
    }

    fn limits(max_bytes: Option<u64>, max_age: Option<Duration>) -> DiskLimits {
        DiskLimits { max_bytes, max_age, low_water: 0.5, grace: Duration::from_secs(600) }
    }

    fn aged(n: u8, bytes: u64, hours: u32) -> Candidate {
        let last_used = now() - HOUR * hours;
        Candidate { key: Key([n; 32]), bytes, last_used, in_use: false }
    }

    fn keys(plan: &Eviction) -> Vec<u8> {
        plan.keys.iter().map(|key| key.0[0]).collect()
    }

    #[test]
    fn oldest_first_down_to_the_low_water_mark() {
        let entries = [aged(1, 40, 1), aged(2, 40, 3), aged(3, 40, 2), aged(4, 10, 9)];
        let plan = plan_eviction(&entries, now(), &limits(Some(100), None));
        assert_eq!(keys(&plan), [4, 2, 3]);
        assert_eq!((plan.evicted_bytes, plan.kept_bytes), (90, 40));
        let plan = plan_eviction(&entries, now(), &limits(Some(130), None));
        assert!(plan.keys.is_empty(), "at the limit nothing goes: {plan:?}");
    }

    #[test]
    fn what_is_in_use_or_just_written_stays() {
        let used = Candidate { in_use: true, ..aged(1, 90, 100) };
        let fresh = aged(2, 90, 0);
        let plan = plan_eviction(&[used, fresh, aged(3, 90, 1)], now(), &limits(Some(10), Some(HOUR / 2)));
        assert_eq!(keys(&plan), [3]);
        assert_eq!(plan.kept_bytes, 180);
    }

    #[test]
    fn by_age_without_a_byte_limit() {
        let entries = [aged(1, 1, 1), aged(2, 1, 3), aged(3, 1, 2)];
        let plan = plan_eviction(&entries, now(), &limits(None, Some(HOUR * 2)));
        assert_eq!(keys(&plan), [2], "exactly the age is not over it");
    }

    #[test]
    fn a_clock_set_back_evicts_nothing_by_age_and_spares_what_was_just_written() {
        let ahead = |n, by| Candidate { last_used: now() + by, ..aged(n, 10, 0) };
        let entries = [ahead(1, HOUR), ahead(2, HOUR * 24 * 400), aged(3, 10, 5)];
        let plan = plan_eviction(&entries, now(), &limits(None, Some(HOUR)));
        assert_eq!(keys(&plan), [3]);
        // When bytes are needed, a stamp from the far future counts as the oldest.
        let plan = plan_eviction(&entries, now(), &limits(Some(25), None));
        assert_eq!(keys(&plan), [2, 3]);
    }

    #[test]
    fn a_senseless_low_water_mark_is_survived() {
        for low_water in [f64::NAN, f64::INFINITY, -1.0, 7.0] {
            let limits = DiskLimits { low_water, ..limits(Some(15), None) };
            let plan = plan_eviction(&[aged(1, 10, 1), aged(2, 10, 2)], now(), &limits);
            assert!(plan.kept_bytes <= 15, "{low_water}: {plan:?}");
        }
    }

    fn candidates() -> impl Strategy<Value = Vec<Candidate>> {
        let one = (0u64..1000, 0u64..4_000_000_000, prop::bool::weighted(0.2));
        prop::collection::vec(one, 0..60).prop_map(|all| {
            let make = |(n, (bytes, seconds, in_use)): (usize, (u64, u64, bool))| Candidate {
                key: Key([n as u8; 32]),
                bytes,
                last_used: SystemTime::UNIX_EPOCH + Duration::from_secs(seconds),
                in_use,
            };
            all.into_iter().enumerate().map(make).collect()
        })
    }

    proptest! {
        #[test]
        fn plans_keep_their_promises(
            entries in candidates(), max in prop::option::of(0u64..30_000),
            days in prop::option::of(0u32..20_000), low in 0.0f64..=1.0,
        ) {
            let max_age = days.map(|days| HOUR * 24 * days);
            let limits = DiskLimits { low_water: low, ..limits(max, max_age) };
            let plan = plan_eviction(&entries, now(), &limits);
            let gone = |candidate: &Candidate| plan.keys.contains(&candidate.key);
            let total: u64 = entries.iter().map(|candidate| candidate.bytes).sum();
            prop_assert_eq!(plan.evicted_bytes + plan.kept_bytes, total);
            let evicted: u64 = entries.iter().filter(|c| gone(c)).map(|c| c.bytes).sum();
            prop_assert_eq!(evicted, plan.evicted_bytes);
            prop_assert!(!entries.iter().any(|c| c.in_use && gone(c)));
            let evictable = |c: &Candidate| {
                let fresh = c.last_used > now() - limits.grace && c.last_used <= now() + MAX_SKEW;
                !c.in_use && !fresh
            };
            prop_assert!(entries.iter().filter(|c| gone(c)).all(evictable));
            if let Some(max) = max {
                let left = entries.iter().any(|c| evictable(c) && !gone(c) && c.bytes > 0);
                prop_assert!(plan.kept_bytes <= max || !left, "over the limit with something left to evict");
            }
            let mut turned = entries.clone();
            turned.reverse();
            prop_assert_eq!(plan_eviction(&turned, now(), &limits), plan);
        }
    }
}
