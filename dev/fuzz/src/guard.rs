//! What an input may take: some seconds, and memory in proportion to its length.

use std::sync::Once;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::alloc;
use crate::targets::{FuzzOutcome, FuzzTarget};

/// Bytes of memory that an input may take beside [`TIMES`] its length.
pub const ROOM: usize = 64 << 20;

/// Bytes of memory that an input may take for each byte of it.
pub const TIMES: usize = 20;

/// The longest time that an input may take, on a busy machine and without optimisation, in seconds.
pub const LONGEST: u64 = 20;

/// The longest time in milliseconds, as this process has it.
static MOST: AtomicU64 = AtomicU64::new(LONGEST * 1000);

/// When the input that runs began, in milliseconds since the first one, and 1 more; 0 while none runs.
static BEGAN: AtomicU64 = AtomicU64::new(0);

/// What an input took.
#[derive(Clone, Copy, Debug)]
pub struct Measured {
    /// What the target answered.
    pub answer: FuzzOutcome,
    /// The time.
    pub time: Duration,
    /// Most bytes of memory at once, beside those that were in use before.
    pub bytes: usize,
}

/// Sets the longest time that an input may take in this process.
pub fn set_longest(seconds: u64) {
    MOST.store(seconds.saturating_mul(1000), Ordering::Relaxed);
}

/// Runs a target on an input within the bounds. Only one thread of a process may call it at a time.
///
/// An input that takes too long or, in a program whose allocator counts, too much memory ends the process: a thread
/// that never returns cannot be ended in another way.
///
/// # Panics
///
/// What the target says of the input is not true.
pub fn run(target: &FuzzTarget, bytes: &[u8]) -> Measured {
    let first = watch();
    let begin = Instant::now();
    BEGAN.store(u64::try_from(begin.duration_since(first).as_millis()).unwrap_or(u64::MAX - 1) + 1, Ordering::Release);
    let before = alloc::bound(ROOM + TIMES * bytes.len());
    let answer = (target.check)(bytes);
    let (peak, beyond) = alloc::unbound();
    BEGAN.store(0, Ordering::Release);
    assert!(!beyond, "{} bytes of input ask for more than {ROOM} + {TIMES} times as many bytes", bytes.len());
    Measured { answer, time: begin.elapsed(), bytes: peak.saturating_sub(before) }
}

/// Starts the thread that looks at the time, once, and returns when that was.
fn watch() -> Instant {
    static START: Once = Once::new();
    static FIRST: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
    let first = *FIRST.get_or_init(Instant::now);
    START.call_once(|| {
        let look = move || loop {
            std::thread::sleep(Duration::from_millis(250));
            let began = BEGAN.load(Ordering::Acquire);
            let now = u64::try_from(first.elapsed().as_millis()).unwrap_or(u64::MAX);
            let most = MOST.load(Ordering::Relaxed);
            if began > 0 && now.saturating_sub(began) > most {
                crate::drive::say(&format!("an input takes longer than {most} ms"));
                std::process::abort();
            }
        };
        // Without the thread, whoever started this process ends it.
        let _ = std::thread::Builder::new().name("watch".to_owned()).spawn(look);
    });
    first
}
