//! Targets that fail on purpose, each in a way in which a process can end: tests see that such an end is noticed and
//! that the input is named.

use super::{FuzzOutcome, FuzzTarget};

/// A target that fails for inputs with an `x`.
const fn trial(name: &'static str, check: fn(&[u8]) -> FuzzOutcome) -> FuzzTarget {
    FuzzTarget { name, about: "fails on purpose", seeds: || vec![b"abc".to_vec(), b"x".to_vec()], words: &["x"], check }
}

/// Every one.
pub(super) const ALL: &[FuzzTarget] = &[
    trial("trial-panic", |bytes| {
        assert!(!bytes.contains(&b'x'), "there is an x");
        FuzzOutcome::taken("no x")
    }),
    trial("trial-memory", |bytes| {
        let much = if bytes.contains(&b'x') { 100 << 20 } else { 1 };
        FuzzOutcome::taken(if std::hint::black_box(vec![1_u8; much]).is_empty() { "none" } else { "some" })
    }),
    trial("trial-memory-asked", |bytes| {
        let much = if bytes.contains(&b'x') { 100 << 20 } else { 1 };
        FuzzOutcome::taken(if Vec::<u8>::new().try_reserve(much).is_ok() { "some" } else { "none" })
    }),
    trial("trial-stack", |bytes| {
        FuzzOutcome::taken(if deep(u64::from(bytes.contains(&b'x'))) == 0 { "flat" } else { "deep" })
    }),
    trial("trial-hang", |bytes| {
        while bytes.contains(&b'x') {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        FuzzOutcome::taken("no x")
    }),
];

/// Calls itself without end, but for 0.
fn deep(n: u64) -> u64 {
    let room = std::hint::black_box([n; 64]);
    if n == 0 { 0 } else { deep(n + 1) + room[7] }
}
