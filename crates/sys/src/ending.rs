//! Delays the end of a process until cuDNN has finished compiling.
//!
//! `exit` runs the exit handlers of all libraries on its own thread, while other threads continue. A compile in
//! progress then uses data that no longer exists: of 42 processes that ended during their first compile (9.14, 9.19 and
//! 9.27), 13 ended with SIGSEGV, SIGABRT or `LLVM ERROR: out of memory`, whatever exit code they had asked for. The
//! exit handler of this module therefore waits for compiles in progress.
//!
//! Handlers run in the reverse of the order in which they were registered. A compile registers handlers of its own
//! (about 3,000 by the engines, and five by NVRTC when it initialises), and those run before a handler that was
//! registered earlier. So this module registers its handler again before and after each compile, and repeatedly during
//! the first ones: of 45 such processes none crashed. That is still a race, and on a busy machine about one process in
//! some hundred crashed. But most programs end when their main thread does, and the main thread drops its thread-locals
//! before any handler runs. A thread-local that waits when it is dropped, on the threads that opened cuDNN or compiled,
//! is always in time.

use std::cell::Cell;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::Error;

/// Longest time that the end of a process waits. A compile takes about a second, and several on a busy machine.
const LONGEST: Duration = Duration::from_secs(30);

/// Number of pieces of work during which the handler is registered repeatedly, and the interval.
const WATCHED: usize = 3;
const EVERY: Duration = Duration::from_millis(1);

/// Maximum number of registrations; each takes 32 bytes.
const REGISTERED: usize = 8192;

/// The work in progress in this process.
struct WorkState {
    working: usize,
    ending: bool,
    /// Whether the wait timed out. The process waits once, however often the handler is registered.
    given_up: bool,
}

static STATE: Mutex<WorkState> = Mutex::new(WorkState { working: 0, ending: false, given_up: false });
static OVER: Condvar = Condvar::new();

thread_local! {
    /// Pieces of work in progress on this thread. If this thread itself ends the process, for example from within
    /// cuDNN's log callback, it does not wait for them.
    static MINE: Cell<usize> = const { Cell::new(0) };
}

thread_local! {
    /// Waits when the main thread ends, which ends the process.
    static LAST: MainThread = const { MainThread };
}

/// Waits when it is dropped on the main thread. On other threads it does nothing, because the process continues.
struct MainThread;

impl Drop for MainThread {
    fn drop(&mut self) {
        if is_main_thread() {
            wait();
        }
    }
}

#[cfg(target_os = "linux")]
fn is_main_thread() -> bool {
    // SAFETY: both functions take no arguments and cannot fail.
    unsafe { libc::gettid() == libc::getpid() }
}

#[cfg(not(target_os = "linux"))]
fn is_main_thread() -> bool {
    false
}

/// Makes the end of the process wait for compiles if this is the main thread.
pub(crate) fn on_this_thread() {
    // The thread-local is unreachable only on a thread that is ending.
    let _ = LAST.try_with(|_| ());
}

/// Marks this thread as working in cuDNN while it lives. A process that ends waits for it, half a minute at most.
#[derive(Debug)]
#[must_use]
pub struct Working(PhantomData<*const ()>);

/// Begins a piece of work that the end of the process must not interrupt: a compile.
///
/// # Errors
///
/// [`Error::Ending`] if the process is already ending.
pub fn working() -> Result<Working, Error> {
    let mut state = state();
    if state.ending {
        return Err(Error::Ending);
    }
    state.working += 1;
    drop(state);
    on_this_thread();
    MINE.set(MINE.get() + 1);
    register();
    watch();
    Ok(Working(PhantomData))
}

impl Drop for Working {
    fn drop(&mut self) {
        // Code that this piece of work used for the first time has registered its handlers after ours.
        register();
        MINE.set(MINE.get() - 1);
        state().working -= 1;
        OVER.notify_all();
    }
}

/// No foreign code runs under this lock, so the state is consistent even if the lock is poisoned.
fn state() -> MutexGuard<'static, WorkState> {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Registers the handler repeatedly during the first pieces of work, in which the compilers initialise.
fn watch() {
    static PIECES: AtomicUsize = AtomicUsize::new(0);
    if PIECES.load(Ordering::Relaxed) >= WATCHED || PIECES.fetch_add(1, Ordering::Relaxed) >= WATCHED {
        return;
    }
    let watching = || {
        while matches!(*state(), WorkState { working: 1.., ending: false, .. }) {
            register();
            std::thread::sleep(EVERY);
        }
    };
    // If the thread cannot be started, handlers registered during this work run before ours, as those do that are
    // registered between two rounds.
    let _ = std::thread::Builder::new().name("qkvault-ending".to_owned()).spawn(watching);
}

fn register() {
    static TIMES: AtomicUsize = AtomicUsize::new(0);
    if TIMES.load(Ordering::Relaxed) < REGISTERED && TIMES.fetch_add(1, Ordering::Relaxed) < REGISTERED {
        // SAFETY: the handler takes no arguments, does not unwind, and exists as long as this code. If it cannot be
        // registered, for lack of memory, the process does not wait.
        unsafe { libc::atexit(wait) };
    }
}

/// Waits for the work of other threads. The handler may be registered several times; later runs find nothing to wait
/// for.
extern "C" fn wait() {
    let mine = MINE.get();
    let mut state = state();
    state.ending = true;
    if state.given_up {
        return;
    }
    let others = |state: &mut WorkState| state.working > mine;
    let (mut state, waited) = OVER.wait_timeout_while(state, LONGEST, others).unwrap_or_else(PoisonError::into_inner);
    state.given_up = waited.timed_out();
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    /// Set in the child process that runs the test's body.
    const CHILD: &str = "QKVAULT_TEST_CHILD";
    const NAME: &str = "ending::tests::a_process_that_ends_waits_for_what_is_under_way_and_begins_nothing";

    #[test]
    fn a_process_that_ends_waits_for_what_is_under_way_and_begins_nothing() {
        if std::env::var_os(CHILD).is_some() {
            let (begun, seen) = std::sync::mpsc::channel();
            std::thread::spawn(move || {
                let work = working().expect("it goes on");
                begun.send(()).expect("somebody waits");
                std::thread::sleep(Duration::from_millis(300));
                // SAFETY: writes three bytes of a static string to standard error without taking a lock of Rust's,
                // which `exit` may hold.
                unsafe { libc::write(2, c"end".as_ptr().cast(), 3) };
                assert!(matches!(working(), Err(Error::Ending)));
                drop(work);
            });
            seen.recv().expect("it begins");
            let own = working().expect("it goes on");
            std::process::exit(if MINE.get() == 1 {
                7
            } else {
                drop(own);
                8
            });
        }
        let mut command = Command::new(std::env::current_exe().expect("a test has a program"));
        let done = command.args(["--exact", NAME, "--nocapture"]).env(CHILD, "1").output().expect("it can be started");
        let said = String::from_utf8_lossy(&done.stderr);
        assert_eq!((done.status.code(), said.contains("end")), (Some(7), true), "{}: {said}", done.status);
        assert!(!said.contains("panicked"), "{said}");
    }
}
