//! Several cuDNN versions in one call. A process holds one cuDNN, so each version has a process of its own: the same
//! command with the same words, but for `--cudnn`.

use std::ffi::{OsStr, OsString};
use std::process::{Command, Stdio};

use anyhow::Context as _;
use serde_json::{Value, json};

use super::report::{OF_VAULT, sum, whole};
use crate::{Globals, Outcome, out};

/// Runs the command once for each version, one after the other: each uses every core.
pub(super) fn run(globals: &Globals, versions: &[String]) -> anyhow::Result<Outcome> {
    let program = super::this_program()?;
    let words: Vec<OsString> = std::env::args_os().skip(1).collect();
    let mut reports = Vec::new();
    let mut outcome = Outcome::Good;
    for version in versions {
        let mut command = Command::new(&program);
        command.args(with_version(&words, version)).stdin(Stdio::null()).stderr(Stdio::inherit());
        let cannot = || format!("the process for cuDNN {version} could not be run");
        let status = if globals.json {
            let done = command.stdout(Stdio::piped()).output().with_context(cannot)?;
            reports.push(printed(version, &done.stdout));
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
        out::json(&together(&reports));
    }
    Ok(outcome)
}

/// The report that a process has printed, or one of its error.
fn printed(version: &str, text: &[u8]) -> Value {
    let why = match serde_json::from_slice::<Value>(text) {
        Ok(report) if report["runs"].is_array() => return report,
        Ok(report) => report.get("error").cloned().unwrap_or_else(|| "its report has no targets".into()),
        Err(error) => format!("its process printed no report: {error}").into(),
    };
    json!({ "runs": [{ "cudnn": version, "error": why }] })
}

/// The reports of all processes as one.
fn together(reports: &[Value]) -> Value {
    let all =
        |name: &str| -> Vec<Value> { reports.iter().filter_map(|r| r[name].as_array()).flatten().cloned().collect() };
    let mut notes: Vec<Value> = Vec::new();
    for note in all("notes") {
        if !notes.contains(&note) {
            notes.push(note);
        }
    }
    let seconds: f64 = reports.iter().filter_map(|report| report["seconds"].as_f64()).sum();
    let vault = reports.iter().find_map(|report| report.get("vault")).cloned();
    let mut rest = json!({ "vault": vault, "notes": notes, "seconds": seconds });
    for name in OF_VAULT {
        rest[name] = sum(reports, name).into();
    }
    whole(all("runs"), all("plans"), rest)
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
        let one = printed("9.19", br#"{"runs":[{"a":1},{"a":2}],"plans":[{"b":1}],"uploads":2}"#);
        let error = printed("9.14", br#"{"error":"no"}"#);
        assert_eq!(error["runs"], json!([{ "cudnn": "9.14", "error": "no" }]));
        let both = together(&[one, error]);
        let counts = [both["runs"].as_array(), both["plans"].as_array()].map(|list| list.map(Vec::len));
        assert_eq!((counts, &both["uploads"], &both["errors"]), ([Some(3), Some(1)], &2.into(), &1.into()), "{both}");
        let none = printed("9.19", b"");
        assert!(none["runs"][0]["error"].as_str().is_some_and(|error| error.contains("no report")), "{none}");
    }
}
