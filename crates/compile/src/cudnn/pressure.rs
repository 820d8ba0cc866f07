//! Checks whether a limit on this process's memory is near: then a refusal of cuDNN may be caused by the limit.
//!
//! Under a limit on address space (`ulimit -v`), cuDNN ended the process, answered 4001, or gave the same plan as
//! without a limit (9.19 and 9.27, b200, every 4 MB from the start of the process to enough memory). Tests cannot
//! exclude that it also refuses in the words of an ordinary refusal, so a refusal near a limit does not count. The
//! limit of a control group needs no check: the system ends a process that exceeds it, and no allocation fails.

use std::fs;

/// Room below a limit with which a refusal counts: more than the largest observed single allocation (128 MiB, the arena
/// of a thread), and more than ten times the memory of a compilation.
const ROOM: u64 = 1 << 30;

/// The limit that is near, in words; `None` if there is none, or if the system does not report limits.
pub(crate) fn near_limit() -> Option<String> {
    let read = |path| fs::read_to_string(path).unwrap_or_default();
    let overcommit = read("/proc/sys/vm/overcommit_memory");
    near(&read("/proc/self/limits"), &read("/proc/self/status"), &read("/proc/meminfo"), overcommit.trim() == "2")
}

fn near(limits: &str, status: &str, memory: &str, strict: bool) -> Option<String> {
    // The largest use counts, because other threads may have freed memory that was missing before.
    let pairs = [("Max address space", "VmPeak:", "ulimit -v"), ("Max data size", "VmData:", "ulimit -d")];
    let own = pairs.into_iter().find_map(|(limit, used, command)| {
        let (limit, used) = (soft(limits, limit)?, kilobytes(status, used)?);
        (used.saturating_add(ROOM) > limit)
            .then(|| format!("this process may use {limit} bytes of memory ({command}) and has used {used}"))
    });
    own.or_else(|| {
        let (limit, used) = (kilobytes(memory, "CommitLimit:")?, kilobytes(memory, "Committed_AS:")?);
        (strict && used.saturating_add(ROOM) > limit).then(|| {
            format!("this machine can commit {limit} bytes of memory (vm.overcommit_memory) and has committed {used}")
        })
    })
}

/// The soft limit in a line of `/proc/self/limits`; `None` for `unlimited`.
fn soft(limits: &str, name: &str) -> Option<u64> {
    limits.lines().find_map(|line| line.strip_prefix(name))?.split_whitespace().next()?.parse().ok()
}

/// Bytes of a line such as `VmPeak: 3892 kB`.
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

    /// The largest use counts: memory that another thread has freed since then was missing before.
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
    fn the_commit_limit_counts_if_the_system_enforces_it() {
        let memory = "CommitLimit:    12342044 kB\nCommitted_AS:   12000000 kB\n";
        let none = limits("unlimited", "unlimited");
        assert_eq!(near(&none, STATUS, memory, false), None);
        assert!(near(&none, STATUS, memory, true).is_some_and(|told| told.contains("overcommit")));
    }
}
