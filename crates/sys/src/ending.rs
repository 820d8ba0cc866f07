//! The end of a process while cuDNN compiles: it waits until the compile is over.
//!
//! `exit` takes down what libraries hold, on its own thread, while other threads go on. A compile that is under way then works on what
//! is gone: of 42 processes that ended in their first compile (9.14, 9.19 and 9.27) 13 ended with SIGSEGV, SIGABRT or
//! `LLVM ERROR: out of memory`, whatever code they had asked to end with. So a handler waits for what is under way.
//!
//! Handlers run in the reverse of the order in which they were registered, and what is registered in a compile, some 3,000 by the
//! engines and five by NVRTC as it comes to life, runs before one that was registered before it. So ours is registered again
//! before and after each compile, and in the first ones over and over: of 45 such processes none crashed. That is a race all the same,
//! and one process in some hundred still crashed on a busy machine. What ends a program is mostly its main thread, though, and its
//! thread-locals are dropped before any handler runs: one that waits there, on the threads that opened cuDNN or compiled, is always in time.

use std::cell::Cell;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::Error;

/// How long the end of a process waits at most: a compile takes about a second, and on a busy machine some.
const LONGEST: Duration = Duration::from_secs(30);

/// Pieces of work during which the handler is registered over and over, and how often.
const WATCHED: usize = 3;
const EVERY: Duration = Duration::from_millis(1);

/// How often the handler is registered at most, 32 bytes each time.
const REGISTERED: usize = 8192;

/// What is under way in this process.
struct State {
    working: usize,
    ending: bool,
    /// Whether it was waited for long enough: once in a process, however often the handler is registered.
    given_up: bool,
}

static STATE: Mutex<State> = Mutex::new(State { working: 0, ending: false, given_up: false });
static OVER: Condvar = Condvar::new();

thread_local! {
    /// What is under way on this thread: should it be the one that ends the process, from within cuDNN's log for example, then nobody
    /// waits for it.
    static MINE: Cell<usize> = const { Cell::new(0) };
}

thread_local! {
    /// Waits when the main thread ends, which is when the process does.
    static LAST: MainThread = const { MainThread };
}

/// Waits when it is dropped on the main thread. Other threads end while the process goes on, and wait for nothing.
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
    // SAFETY: both take nothing and cannot fail.
    unsafe { libc::gettid() == libc::getpid() }
}

#[cfg(not(target_os = "linux"))]
fn is_main_thread() -> bool {
    false
}

/// Has the end of the process wait for compiles, should this thread be the main one.
pub(crate) fn on_this_thread() {
    // What cannot be reached any more belongs to a thread that is ending.
    let _ = LAST.try_with(|_| ());
}

/// While it lives, cuDNN works on this thread, and a process that ends waits for it (half a minute at most).
#[derive(Debug)]
#[must_use]
pub struct Working(PhantomData<*const ()>);

/// Begins a piece of work during which the process must not be taken down: a compile.
///
/// # Errors
///
/// [`Error::Ending`]: the process is about to end, and begins nothing more.
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
        // What was first used during this piece of work has registered its handlers after ours.
        register();
        MINE.set(MINE.get() - 1);
        state().working -= 1;
        OVER.notify_all();
    }
}

/// No code of others runs under this lock, so that a poisoned one holds what is true.
fn state() -> MutexGuard<'static, State> {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Registers the handler again and again while the first pieces of work are under way, in which the compilers come to life.
fn watch() {
    static PIECES: AtomicUsize = AtomicUsize::new(0);
    if PIECES.load(Ordering::Relaxed) >= WATCHED || PIECES.fetch_add(1, Ordering::Relaxed) >= WATCHED {
        return;
    }
    let watching = || {
        while matches!(*state(), State { working: 1.., ending: false, .. }) {
            register();
            std::thread::sleep(EVERY);
        }
    };
    // Without it the wait comes too late for what is registered meanwhile, as it does in the moment between two rounds.
    let _ = std::thread::Builder::new().name("qkvault-ending".to_owned()).spawn(watching);
}

fn register() {
    static TIMES: AtomicUsize = AtomicUsize::new(0);
    if TIMES.load(Ordering::Relaxed) < REGISTERED && TIMES.fetch_add(1, Ordering::Relaxed) < REGISTERED {
        // SAFETY: the handler takes nothing, does not unwind, and is there as long as this code is. That it cannot be registered, for
        // want of memory, costs the wait alone.
        unsafe { libc::atexit(wait) };
    }
}

/// Waits for what other threads have under way; what is registered several times finds nothing to wait for the second time.
extern "C" fn wait() {
    let mine = MINE.get();
    let mut state = state();
    state.ending = true;
    if state.given_up {
        return;
    }
    let others = |state: &mut State| state.working > mine;
    let (mut state, waited) = OVER.wait_timeout_while(state, LONGEST, others).unwrap_or_else(PoisonError::into_inner);
    state.given_up = waited.timed_out();
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    /// For a process of its own.
    const CHILD: &str = "QKVAULT_TEST_ENDING";
    const NAME: &str = "ending::tests::a_process_that_ends_waits_for_what_is_under_way_and_begins_nothing";

    #[test]
    fn a_process_that_ends_waits_for_what_is_under_way_and_begins_nothing() {
        if std::env::var_os(CHILD).is_some() {
            let (begun, seen) = std::sync::mpsc::channel();
            std::thread::spawn(move || {
                let work = working().expect("it goes on");
                begun.send(()).expect("somebody waits");
                std::thread::sleep(Duration::from_millis(300));
                // SAFETY: writes three bytes of this function to standard error; no lock of Rust's, which `exit` may hold.
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
