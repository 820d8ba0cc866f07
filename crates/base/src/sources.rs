//! Formats an error and its sources on one line.

/// Formats an error and all its sources on one line. Some errors carry the reason only in their source: the text of a
/// libloading error, for example, is only that dlopen failed.
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
