//! Memory over time: samples of the GPU's and the process's, and whether they stay flat.

use std::time::Duration;

use serde_json::{Value, json};

/// Memory in use at one moment, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct MemorySample {
    pub(super) at: Duration,
    /// Memory of the GPU that all processes use.
    pub(super) device: u64,
    /// Resident memory of this process; 0 where the system does not tell.
    pub(super) resident: u64,
}

/// Resident memory of this process in bytes, as Linux tells it.
pub(super) fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    resident_of(&status)
}

fn resident_of(status: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kilobytes = line.and_then(|rest| rest.split_whitespace().next()).and_then(|n| n.parse::<u64>().ok());
    kilobytes.unwrap_or(0) * 1024
}

/// Fewest samples from which growth is judged.
const FEWEST: usize = 16;

/// How much memory grew: the median of the last quarter of the samples less that of the second quarter. The first
/// quarter is left out, in which pools and caches fill.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct MemoryGrowth {
    pub(super) device: i64,
    pub(super) resident: i64,
}

/// The growth over a run; `None` if it was too short to tell.
pub(super) fn growth(samples: &[MemorySample]) -> Option<MemoryGrowth> {
    if samples.len() < FEWEST {
        return None;
    }
    let quarter = samples.len() / 4;
    let (early, late) = (&samples[quarter..2 * quarter], &samples[samples.len() - quarter..]);
    let rise = |of: fn(&MemorySample) -> u64| median(late, of).cast_signed() - median(early, of).cast_signed();
    Some(MemoryGrowth { device: rise(|sample| sample.device), resident: rise(|sample| sample.resident) })
}

fn median(samples: &[MemorySample], of: fn(&MemorySample) -> u64) -> u64 {
    let mut values: Vec<u64> = samples.iter().map(of).collect();
    values.sort_unstable();
    values[values.len() / 2]
}

impl MemoryGrowth {
    /// Whether neither grew by more than the limit.
    pub(super) fn is_flat(self, limit: u64) -> bool {
        let limit = limit.cast_signed();
        self.device <= limit && self.resident <= limit
    }
}

/// Samples and growth for the record, in megabytes; of many samples about a hundred.
pub(super) fn record(samples: &[MemorySample], limit: u64) -> Value {
    let megabytes = |bytes: f64| (bytes / 1e5).round() / 10.0;
    let growth = growth(samples);
    let each = |sample: &MemorySample| {
        let seconds = (sample.at.as_secs_f64() * 10.0).round() / 10.0;
        json!([seconds, megabytes(sample.device as f64), megabytes(sample.resident as f64)])
    };
    let shown: Vec<Value> = samples.iter().step_by(samples.len().div_ceil(100).max(1)).map(each).collect();
    json!({
        "growth_limit_mb": megabytes(limit as f64),
        "growth_device_mb": growth.map(|growth| megabytes(growth.device as f64)),
        "growth_resident_mb": growth.map(|growth| megabytes(growth.resident as f64)),
        "flat": growth.map(|growth| growth.is_flat(limit)),
        "samples_s_device_mb_resident_mb": shown,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples(of: impl Fn(u64) -> (u64, u64)) -> Vec<MemorySample> {
        (0..80).map(|n| MemorySample { at: Duration::from_secs(n), device: of(n).0, resident: of(n).1 }).collect()
    }

    #[test]
    fn what_fills_at_the_beginning_is_flat_and_what_keeps_growing_is_not() {
        const MB: u64 = 1_000_000;
        let fills = samples(|n| (500 * MB + n.min(15) * 10 * MB, 100 * MB + n % 3 * MB));
        let found = growth(&fills).expect("long enough");
        assert_eq!((found.device, found.is_flat(8 * MB)), (0, true));
        let leaks = samples(|n| (500 * MB, 100 * MB + n * MB));
        let found = growth(&leaks).expect("long enough");
        assert_eq!(found, MemoryGrowth { device: 0, resident: 40 * MB as i64 });
        assert!(!found.is_flat(8 * MB) && found.is_flat(40 * MB));
        let on_the_gpu = samples(|n| (n * MB, 0));
        assert!(!growth(&on_the_gpu).expect("long enough").is_flat(8 * MB));
        let shrinks = samples(|n| (1000 * MB - n * MB, 0));
        assert!(growth(&shrinks).expect("long enough").is_flat(0));
    }

    #[test]
    fn a_few_samples_tell_nothing() {
        assert_eq!(growth(&samples(|_| (1, 1))[..FEWEST - 1]), None);
        let told = record(&samples(|_| (1, 1))[..3], 1);
        assert!(
            told["flat"].is_null() && told["samples_s_device_mb_resident_mb"].as_array().is_some_and(|s| s.len() == 3)
        );
    }

    #[test]
    fn resident_memory_is_read_in_bytes() {
        assert_eq!(resident_of("Name:\tx\nVmRSS:\t    1234 kB\nThreads:\t1\n"), 1234 * 1024);
        assert_eq!(resident_of("nothing of it"), 0);
        assert!(cfg!(not(target_os = "linux")) || resident() > 1 << 20);
    }
}
