//! Whether this process may have met a limit on its memory: then what a library refuses or passes over is not to be believed.
//!
//! Under a limit on address space (`ulimit -v`) cuDNN was seen to end the process, or to answer 4001, or to give the very plan that it gives
//! without one (9.19 and 9.27, b200, every 4 MB from where the process starts to where it has enough). That it could also answer in the
//! words of a refusal cannot be excluded by looking, so a refusal that comes near a limit is not taken for one. A control group's limit
//! needs no look: over it the system ends the process, and no allocation fails.

use std::fs;

/// Room below a limit that makes a refusal believable: more than the largest single allocation that was seen (128 MiB, a thread's arena),
/// and more than ten times what a compile needs from its start.
const ROOM: u64 = 1 << 30;

/// The limit that is near, in words; nothing where none is, and nothing on a system that does not say.
pub(crate) fn near_limit() -> Option<String> {
    let read = |path| fs::read_to_string(path).unwrap_or_default();
    let overcommit = read("/proc/sys/vm/overcommit_memory");
    near(&read("/proc/self/limits"), &read("/proc/self/status"), &read("/proc/meminfo"), overcommit.trim() == "2")
}

fn near(limits: &str, status: &str, memory: &str, strict: bool) -> Option<String> {
    // What was used at the most, since other threads may have given back since what was missing then.
    let pairs = [("Max address space", "VmPeak:", "ulimit -v"), ("Max data size", "VmData:", "ulimit -d")];
    let own = pairs.into_iter().find_map(|(limit, used, command)| {
        let (limit, used) = (soft(limits, limit)?, kilobytes(status, used)?);
        (used.saturating_add(ROOM) > limit)
            .then(|| format!("this process may use {limit} bytes of memory ({command}) and has used {used}"))
    });
    own.or_else(|| {
        let (limit, used) = (kilobytes(memory, "CommitLimit:")?, kilobytes(memory, "Committed_AS:")?);
        (strict && used.saturating_add(ROOM) > limit).then(|| {
            format!("this machine promises {limit} bytes of memory (vm.overcommit_memory) and has promised {used}")
        })
    })
}

/// The soft limit of a line of `/proc/self/limits`; nothing for `unlimited`.
fn soft(limits: &str, name: &str) -> Option<u64> {
    limits.lines().find_map(|line| line.strip_prefix(name))?.split_whitespace().next()?.parse().ok()
}

/// Bytes of a line such as `VmPeak:  3892 kB`.
fn kilobytes(text: &str, name: &str) -> Option<u64> {
    let number: u64 = text.lines().find_map(|line| line.strip_prefix(name))?.split_whitespace().next()?.parse().ok()?;
    number.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    const STATUS: &str = "VmPeak:\t  500000 kB\nVmSize:\t  100000 kB\nVmData:\t  200000 kB\n";

    fn limits(space: &str, data: &str) -> String {
        format!(
            "Limit  Soft Limit  Hard Limit  Units\nMax data size  {data}  unlimited  bytes\nMax address space  {space}  unlimited  bytes\n"
        )
    }

    #[test]
    fn without_limits_none_is_near() {
        assert_eq!(near(&limits("unlimited", "unlimited"), STATUS, "", false), None);
        assert_eq!(near("", "", "", true), None);
    }

    /// The most that was used counts: what another thread has given back since was missing when it mattered.
    #[test]
    fn b1_a_limit_that_was_nearly_used_is_near_and_named() {
        let far = (500_000_u64 * 1024 + ROOM).to_string();
        assert_eq!(near(&limits(&far, "unlimited"), STATUS, "", false), None);
        let told = near(&limits("600000000", "unlimited"), STATUS, "", false).expect("88 MB are left");
        assert!(told.contains("600000000") && told.contains("512000000") && told.contains("ulimit -v"), "{told}");
        let told = near(&limits("unlimited", "300000000"), STATUS, "", false).expect("95 MB are left");
        assert!(told.contains("ulimit -d"), "{told}");
    }

    #[test]
    fn what_the_system_promises_counts_where_it_is_strict() {
        let memory = "CommitLimit:    12342044 kB\nCommitted_AS:   12000000 kB\n";
        let none = limits("unlimited", "unlimited");
        assert_eq!(near(&none, STATUS, memory, false), None);
        assert!(near(&none, STATUS, memory, true).is_some_and(|told| told.contains("overcommit")));
    }
}
