//! Numbers of threads that a user asks for, with a bound: each thread takes memory, and the system has a limit of them.

/// Most threads that a command starts for its work. More than the cores of any machine, and few enough to start.
pub(crate) const MOST: usize = 1024;

/// Parses a number of threads, for `value_parser` of every option that has one.
///
/// # Errors
///
/// The text is no number from 1 to [`MOST`].
pub(crate) fn threads(text: &str) -> Result<usize, String> {
    match text.trim().parse::<usize>() {
        Ok(number @ 1..=MOST) => Ok(number),
        Ok(0) => Err(format!("0 threads do nothing: give 1 to {MOST}, or leave the option out for one per core")),
        Ok(number) => Err(format!("{number} threads are more than the limit of {MOST}")),
        Err(_) => Err(format!("expected a number of threads from 1 to {MOST}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn audit_14_a_number_of_threads_is_bounded_and_the_limit_told() {
        for (text, number) in [("1", 1), (" 8", 8), ("1024", MOST)] {
            assert_eq!(threads(text), Ok(number));
        }
        for text in ["0", "1025", "20000", "18446744073709551616", "-1", "many", ""] {
            let error = threads(text).expect_err(text);
            assert!(error.contains("1024"), "{error}");
        }
    }
}
