//! Several cuDNN versions in one call. A process holds one cuDNN, so each version has a process of its own: the same
//! command with the same words, but for `--cudnn`.

use std::ffi::{OsStr, OsString};
use std::process::{Command, Stdio};

use anyhow::Context as _;
use serde_json::{Value, json};

use crate::{Globals, Outcome, out};

/// Runs the command once for each version, one after the other: each uses every core.
pub(super) fn run(globals: &Globals, versions: &[String]) -> anyhow::Result<Outcome> {
    let program = std::env::current_exe().context("this program's file is not known, so it cannot be started again")?;
    let words: Vec<OsString> = std::env::args_os().skip(1).collect();
    let mut runs = Vec::new();
    let mut outcome = Outcome::Good;
    for version in versions {
        let mut command = Command::new(&program);
        command.args(with_version(&words, version)).stdin(Stdio::null()).stderr(Stdio::inherit());
        let cannot = || format!("the process for cuDNN {version} could not be run");
        let status = if globals.json {
            let done = command.stdout(Stdio::piped()).output().with_context(cannot)?;
            runs.extend(reports(version, &done.stdout));
            done.status
        } else {
            out::line(&format!("cuDNN {version}"));
            command.status().with_context(cannot)?
        };
        if !status.success() {
            outcome = Outcome::Bad;
        }
    }
    if globals.json {
        out::json(&super::report::several(runs));
    }
    Ok(outcome)
}

/// The reports that a process has printed: one for each target, or its error.
fn reports(version: &str, printed: &[u8]) -> Vec<Value> {
    let failed = |why: Value| vec![json!({ "cudnn": version, "error": why })];
    match serde_json::from_slice::<Value>(printed) {
        Ok(mut report) => match (report.get_mut("runs").map(Value::take), report.get("error")) {
            (Some(Value::Array(runs)), _) => runs,
            (_, Some(error)) => failed(error.clone()),
            _ => vec![report],
        },
        Err(error) => failed(format!("its process printed no report: {error}").into()),
    }
}

/// The words of the command, with one version in the place of all.
fn with_version(words: &[OsString], version: &str) -> Vec<OsString> {
    const OPTION: &str = "--cudnn";
    let mut kept = Vec::new();
    let mut words = words.iter();
    while let Some(word) = words.next() {
        let text = word.to_string_lossy();
        if word == OsStr::new(OPTION) {
            // Its value.
            words.next();
        } else if !text.starts_with(&format!("{OPTION}=")) {
            kept.push(word.clone());
        }
    }
    kept.extend([OPTION.into(), version.into()]);
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_of_versions_becomes_one_and_other_words_stay() {
        let words = |text: &str| text.split(' ').map(OsString::from).collect::<Vec<_>>();
        for given in ["warm --cudnn 9.19,9.27 --model x --full", "warm --model x --cudnn=9.19,9.27 --full"] {
            assert_eq!(with_version(&words(given), "9.19"), words("warm --model x --full --cudnn 9.19"));
        }
    }

    #[test]
    fn a_process_without_a_report_is_an_error_and_not_a_report() {
        assert_eq!(reports("9.19", br#"{"runs":[{"a":1},{"a":2}]}"#).len(), 2);
        assert_eq!(reports("9.19", br#"{"built":1}"#), [json!({ "built": 1 })]);
        assert_eq!(reports("9.19", br#"{"error":"no"}"#), [json!({ "cudnn": "9.19", "error": "no" })]);
        let [none] = &reports("9.19", b"")[..] else { panic!("one") };
        assert!(none["error"].as_str().is_some_and(|error| error.contains("no report")), "{none}");
    }
}
