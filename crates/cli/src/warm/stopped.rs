//! A last line when `warm` is stopped by Ctrl-C or a service manager: how far it was, and that nothing is lost.

use std::sync::{Arc, Mutex, Once, PoisonError};
#[cfg(unix)]
use std::time::Duration;

use super::progress::Count;
use crate::out;

/// The run that a signal stops: there is one at a time.
static RUN: Mutex<Option<Arc<Mutex<Count>>>> = Mutex::new(None);

/// Lets a signal that ends the process tell how far this run is.
pub(super) fn tell(count: &Arc<Mutex<Count>>) {
    static WATCH: Once = Once::new();
    *RUN.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::clone(count));
    WATCH.call_once(watch);
}

/// How often a child looks whether its parent is there.
#[cfg(unix)]
const PARENT_INTERVAL: Duration = Duration::from_millis(50);

/// Tells how far the run is, if there is one.
fn last_line() {
    if let Some(count) = RUN.lock().unwrap_or_else(PoisonError::into_inner).as_ref() {
        out::note(&line(&count.lock().unwrap_or_else(PoisonError::into_inner)));
    }
}

/// The last line.
fn line(count: &Count) -> String {
    let Count { done, all, .. } = count;
    format!("stopped: {done} of {all} done, which the vault keeps; the same command goes on from there")
}

/// Waits for the signals in a thread of its own, tells, and lets the signal do what it does.
#[cfg(unix)]
fn watch() {
    use signal_hook::consts::{SIGINT, SIGTERM};

    let heard: Vec<i32> = [SIGINT, SIGTERM].into_iter().filter(|signal| !is_ignored(*signal)).collect();
    // Without it the process ends all the same, in silence.
    let Ok(mut signals) = signal_hook::iterator::Signals::new(heard) else { return };
    let wait = move || {
        for signal in signals.forever() {
            last_line();
            let _ = signal_hook::low_level::emulate_default_handler(signal);
        }
    };
    let _ = std::thread::Builder::new().name("signals".to_owned()).spawn(wait);
}

#[cfg(not(unix))]
fn watch() {}

/// Ends this process, with the last line, once it has another parent than this one: who stops the parent stops what it
/// started.
pub(super) fn end_without(parent: u32) {
    #[cfg(unix)]
    {
        let wait = move || {
            while std::os::unix::process::parent_id() == parent {
                std::thread::sleep(PARENT_INTERVAL);
            }
            last_line();
            // At once: an ordinary end would wait for libraries, while other threads go on and tell of more.
            let _ = signal_hook::low_level::emulate_default_handler(signal_hook::consts::SIGTERM);
        };
        let _ = std::thread::Builder::new().name("parent".to_owned()).spawn(wait);
    }
    #[cfg(not(unix))]
    let _ = parent;
}

/// Whether the process was started with a signal ignored, as `nohup` and shells do for what runs behind them: to listen
/// to it would end a process that it is not to end.
#[cfg(unix)]
fn is_ignored(signal: i32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).is_some_and(|mask| mask >> (signal - 1) & 1 == 1)
}
