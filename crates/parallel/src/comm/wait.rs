//! A wait of the host that always ends.

use std::time::{Duration, Instant};

use super::{CommError, Communicator};

/// Waits until work that was queued is done: asks `done` again and again, and the communicator whether all is well.
///
/// # Errors
///
/// What the communicator knows; [`CommError::Late`] after the deadline. The communicator has ended then, and what the
/// exchanges were to receive is undefined.
pub fn wait(
    communicator: &mut dyn Communicator,
    deadline: Duration,
    mut done: impl FnMut() -> Result<bool, String>,
) -> Result<(), CommError> {
    let begin = Instant::now();
    let mut asked = begin;
    let mut pause = Duration::from_micros(5);
    loop {
        match done() {
            Ok(true) => return Ok(()),
            Ok(false) => {}
            Err(what) => {
                communicator.abort();
                return Err(CommError::Call { call: "a query of the stream", what });
            }
        }
        if asked.elapsed() > Duration::from_millis(20) {
            asked = Instant::now();
            communicator.check()?;
        }
        if begin.elapsed() > deadline {
            let late = communicator.late("the end of its exchanges", begin.elapsed());
            communicator.abort();
            return Err(late);
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(1));
    }
}
