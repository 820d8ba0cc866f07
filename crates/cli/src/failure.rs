//! Turns errors into one paragraph of text and an exit code.

use qkvault_graph::Refusal;
use qkvault_graph::registry::codes;

/// The error and its causes, outermost first. Leaves out a cause that the text already contains.
pub(super) fn text(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain() {
        let cause = cause.to_string();
        if text.contains(&cause) {
            continue;
        }
        if !text.is_empty() {
            text.push_str(": ");
        }
        text.push_str(&cause);
    }
    text
}

/// The exit code: 2 if the options name something that does not exist, otherwise 1.
pub(super) fn code(error: &anyhow::Error) -> u8 {
    let usage = |r: &Refusal| {
        [&codes::TARGET_UNKNOWN, &codes::WARM_NOTHING, &codes::RUN_TRAIN, &codes::RUN_SERVE]
            .iter()
            .any(|code| r.has(code))
    };
    if error.downcast_ref::<Refusal>().is_some_and(usage) { 2 } else { 1 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::Context as _;

    #[test]
    fn a_cause_that_the_text_contains_is_not_repeated() {
        let disk = || std::io::Error::other("the disk is gone");
        let contained = anyhow::Error::new(disk()).context("could not write x: the disk is gone; look at the disk");
        assert_eq!(text(&contained), "could not write x: the disk is gone; look at the disk");
        let new: anyhow::Result<()> = Err(disk()).context("could not write x");
        assert_eq!(text(&new.expect_err("it is one")), "could not write x: the disk is gone");
    }

    #[test]
    fn an_unknown_gpu_is_wrong_usage_and_a_broken_disk_is_not() {
        let unknown = qkvault_graph::Profile::named("h2000").expect_err("there is none");
        assert_eq!(code(&unknown.into()), 2);
        assert_eq!(code(&std::io::Error::other("broken").into()), 1);
    }
}
