//! Turns errors into one paragraph of text and an exit code.

use crate::codes;
use qkvault_base::{on_lines, on_one_line};
use qkvault_graph::Refusal;

/// The error and its causes, outermost first. Leaves out a cause that the text already contains. Each is on one line,
/// but for errors that list what was tried or refused, and escape what they put into their lines.
pub(super) fn text(error: &anyhow::Error) -> String {
    let lists = |cause: &&(dyn std::error::Error + 'static)| {
        cause.is::<Refusal>() || cause.is::<qkvault_sys::Error>() || cause.is::<qkvault_compile::NvrtcError>()
    };
    let lists: Vec<String> = error.chain().filter(lists).map(ToString::to_string).collect();
    let (mut raw, mut text) = (String::new(), String::new());
    for cause in error.chain().map(ToString::to_string) {
        if raw.contains(&cause) {
            continue;
        }
        if !raw.is_empty() {
            text.push_str(": ");
        }
        raw.push_str(&cause);
        // An error may repeat the one below it.
        let list = lists.iter().find_map(|list| cause.split_once(list.as_str()).map(|around| (around, list)));
        match list {
            Some(((before, after), list)) => text.extend([on_one_line(before), on_lines(list), on_one_line(after)]),
            None => text.push_str(&on_one_line(&cause)),
        }
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
    fn audit_8_an_error_is_one_line_unless_it_lists_reasons() {
        let hostile =
            anyhow::Error::new(std::io::Error::other("gone\n2 supported\u{1b}[2J")).context("a\nb could not be read");
        assert_eq!(text(&hostile), r"a\nb could not be read: gone\n2 supported\u{1b}[2J");
        let reason = || codes::CONFIG_JSON.reason("x\ny");
        let refusal = Refusal::from_reasons(vec![reason(), reason()]).expect("two");
        let told = refusal.to_string();
        assert_eq!(told.lines().count(), 2);
        assert_eq!(text(&anyhow::Error::new(refusal.clone())), told);
        let repeated = format!("file\n: {told}");
        assert_eq!(text(&anyhow::Error::new(refusal).context(repeated)), format!(r"file\n: {told}"));
    }

    #[test]
    fn an_unknown_gpu_is_wrong_usage_and_a_broken_disk_is_not() {
        let unknown = qkvault_cudnn::Profile::named("h2000").expect_err("there is none");
        assert_eq!(code(&unknown.into()), 2);
        assert_eq!(code(&std::io::Error::other("broken").into()), 1);
    }
}
