//! Errors with their sources in one line.

/// An error with the texts of its sources, on one line. libloading, for one, says only that dlopen failed and leaves the reason to its
/// source.
#[must_use]
pub fn with_sources(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(source) = next {
        text.push_str(": ");
        text.push_str(&source.to_string());
        next = source.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("outer")]
    struct Outer(#[source] std::num::ParseIntError);

    #[test]
    fn every_source_is_in_the_line() {
        let error = Outer("x".parse::<i32>().expect_err("no number"));
        assert_eq!(with_sources(&error), "outer: invalid digit found in string");
    }
}
