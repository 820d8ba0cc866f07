//! Users on a pool that is too small for them: short prompts are admitted, and while their answers grow the pool runs
//! out, so sequences lose their pages, wait, and are computed again. Their answers must be right all the same.

use std::time::Duration;

use serde_json::{Value, json};

use super::LoadOptions;
use super::bench::faults;
use super::check::AnswerCheck;
use super::process::ServerProcess;
use super::users::{Answered, RequestSizes, run as users_run};
use crate::ServerError;

pub(super) fn run(
    common: &LoadOptions,
    users: usize,
    seconds: f64,
    (least, scored): (u64, usize),
) -> Result<Value, ServerError> {
    let vocab = common.shape()?.vocab;
    // Answers are long beside prompts, so most pages are taken after the admission; there are pages for about half of
    // the users, and for the longest request.
    let (page, sizes) = match common.cpu {
        true => (16, RequestSizes { prompt: (8, 32), answer: (32, 80), vocab }),
        false => (64, RequestSizes { prompt: (64, 128), answer: (256, 512), vocab }),
    };
    let longest = (sizes.prompt.1 + sizes.answer.1).div_ceil(page);
    let pages = (users * longest / 4).max(longest);
    let server = ServerProcess::start(common, &["--pages", &pages.to_string()])?;
    let mut record = common.record(&server)?;
    let seen =
        users_run(&server.base, (users, common.seed), sizes, (Duration::ZERO, Duration::from_secs_f64(seconds)))?;
    let page = server.settle()?;
    let mut wrong = faults(
        &format!("{users} users on {pages} pages"),
        &seen,
        [
            ("plans were built while the server served", page.count("plan_builds_total")),
            ("pages are not free at rest", page.count("pages_used")),
        ],
    );
    let preempted = page.count("preemptions_total");
    if preempted < least {
        wrong.push(format!("{preempted} preemptions where {least} or more were to be"));
    }
    let tokens = seen.tokens as f64 / seen.seconds;
    let whole = seen.answers.len();
    let resumed: Vec<Answered> = seen.answers.into_iter().filter(|answered| answered.preempted > 0).collect();
    let checked = AnswerCheck::new(&server.client, &resumed, scored)?;
    wrong.extend(checked.problems("answers of preempted sequences"));
    record["users"] = json!(users);
    record["pages"] = json!(pages);
    record["pages_most"] = json!(page.count("pages_most"));
    record["pages_left"] = json!(page.count("pages_used"));
    record["preempted"] = json!(preempted);
    record["tokens_per_s"] = json!(tokens.round());
    record["answers"] = json!({
        "whole": whole, "of_preempted_sequences": resumed.len(), "refused": seen.refused,
        "most_preemptions_of_one": resumed.iter().map(|answered| answered.preempted).max(),
    });
    record["scored"] = checked.record();
    record["wrong"] = json!(wrong);
    server.stop()?;
    Ok(record)
}
