//! Makes cuDNN's messages readable: cuDNN reports a refusal as one error stack per engine that it considered.
//!
//! The first line of a stack is the cause, and the lines below are the calls above it; a message ends with the time and
//! the process. Each distinct cause is kept once, with the engines that gave it, so that the same refusal is equal in
//! every process.

use std::collections::BTreeSet;

use qkvault_cudnn::registry::codes;
use qkvault_graph::Reason;
use qkvault_graph::registry::Code;
use qkvault_sys::log::Message;

/// One cause, with the engines that gave it.
struct Cause {
    status: String,
    text: String,
    engines: BTreeSet<i64>,
}

/// The distinct causes in the messages of a refused attempt, as reasons.
///
/// Causes that do not concern the request are left out if there are others: engines for other architectures, and
/// fallback entries whose knobs cuDNN itself left unset.
pub(crate) fn reasons(messages: &[Message]) -> Vec<Reason> {
    let mut causes: Vec<Cause> = Vec::new();
    for message in messages {
        for (engine, line) in stacks(&message.text) {
            let Some((status, text)) = cause(line) else { continue };
            let known = causes.iter_mut().find(|c| c.status == status && c.text == text);
            match known {
                Some(cause) => cause.engines.extend(engine),
                None => causes.push(Cause {
                    status: status.to_owned(),
                    text: text.to_owned(),
                    engines: engine.into_iter().collect(),
                }),
            }
        }
    }
    let idle = |c: &Cause| c.status.ends_with("ARCH_MISMATCH") || c.text.contains("knob must be set");
    if causes.iter().any(|c| !idle(c)) {
        causes.retain(|c| !idle(c));
    }
    causes.into_iter().map(reason).collect()
}

/// (engine, first line) of every error stack of a message; of a message without stacks, its first warning or error.
fn stacks(text: &str) -> Vec<(Option<i64>, &str)> {
    let mut list = Vec::new();
    let mut engine = None;
    let mut open = !text.contains("=== error stack");
    for line in text.lines().map(str::trim) {
        if line.starts_with("=== error stack") {
            (open, engine) = (true, None);
        } else if line.starts_with("engineConfig:") {
            engine = engine_id(line);
        } else if open && cause(line).is_some() {
            list.push((engine, line));
            open = false;
        }
    }
    list
}

/// The engine of an engine configuration's JSON, such as `"engineId":2`.
fn engine_id(line: &str) -> Option<i64> {
    let rest = &line[line.find("\"engineId\":")? + "\"engineId\":".len()..];
    let end = rest.find(|c: char| c != '-' && !c.is_ascii_digit()).unwrap_or(rest.len());
    rest[..end].parse().ok()
}

/// (status, text) of a line such as `Warning: CUDNN_STATUS_NOT_SUPPORTED_SHAPE; Reason: text`.
///
/// A warning with the status of success is not a cause: with it, cuDNN reports once per process which of its libraries
/// are missing.
fn cause(line: &str) -> Option<(&str, &str)> {
    let rest = line.strip_prefix("Warning: ").or_else(|| line.strip_prefix("Error: "))?;
    let (status, text) = rest.split_once("; Reason: ")?;
    let status = status.strip_prefix("CUDNN_STATUS_").unwrap_or(status);
    (status != "SUCCESS").then_some((status, text.trim()))
}

fn reason(cause: Cause) -> Reason {
    let Cause { status, text, engines } = cause;
    let list: Vec<String> = engines.iter().map(i64::to_string).collect();
    let field = match &list[..] {
        [] => "library".to_owned(),
        [one] => format!("engine {one}"),
        many => format!("engines {}", many.join(", ")),
    };
    let mut reason = codes::LIBRARY_REFUSED.reason(text).at(field);
    reason.code = code(&status);
    reason
}

/// The code of a status by name: `library.not-supported` for `CUDNN_STATUS_NOT_SUPPORTED`.
pub(crate) fn code(status: &str) -> Code {
    let status = status.strip_prefix("CUDNN_STATUS_").unwrap_or(status);
    Code::from(format!("library.{}", status.to_lowercase().replace(['_', ' '], "-")))
}

/// Whether a cause is a library that this machine lacks: where cuDNN tells it of one engine in its messages, the status
/// of the whole may still be that of another engine, which the request does not fit.
pub(crate) fn is_of_machine(reason: &Reason) -> bool {
    reason.code == code("NOT_SUPPORTED_RUNTIME_PREREQUISITE_MISSING")
}

#[cfg(test)]
mod tests {
    use super::*;
    use qkvault_sys::{Severity, Status};

    fn message(text: &str) -> Message {
        Message { severity: Severity::WARNING, status: Status::SUCCESS, text: text.into() }
    }

    const REFUSED: &str = r#"CuDNN (v92700 42) function x() called:
    Warning: No viable engine configs among (2) heuristics result(s).
    === error stack (1/3) ===
    engineConfig: type=json; val={"engineId":2,"smVersion":900};
    Warning: CUDNN_STATUS_NOT_SUPPORTED_SHAPE; Reason: not a multiple of 8 at: d_qk % 8 != 0
    Warning: CUDNN_STATUS_NOT_SUPPORTED_SHAPE; Reason: kernelGeneration()
    === error stack (2/3) ===
    engineConfig: type=json; val={"engineId":1,"smVersion":900};
    Warning: CUDNN_STATUS_NOT_SUPPORTED_SHAPE; Reason: not a multiple of 8 at: d_qk % 8 != 0
    === error stack (3/3) ===
    engineConfig: type=json; val={"engineId":3,"smVersion":900};
    Warning: CUDNN_STATUS_NOT_SUPPORTED_ARCH_MISMATCH; Reason: only Blackwell at: deviceVer < 1000
Time: 2026-11-21T12:18:22.266067 (0d+0h+0m+12s since start)
Process=3322; Thread=3322; GPU=NULL"#;

    #[test]
    fn each_cause_is_reported_once_with_its_engines() {
        let reasons = reasons(&[message(REFUSED), message(REFUSED)]);
        let texts: Vec<String> = reasons.iter().map(ToString::to_string).collect();
        assert_eq!(
            texts,
            ["[library / library.not-supported-shape] engines 1, 2: not a multiple of 8 at: d_qk % 8 != 0"]
        );
    }

    /// Chance decides which attempt of a process gets this message, so a refusal that contained it differed between
    /// processes.
    #[test]
    fn a_message_of_success_is_not_a_cause() {
        let text = "Warning: CUDNN_STATUS_SUCCESS; Reason: Unable to load any of {libcudnn_engines_precompiled.so.9}.";
        assert!(reasons(&[message(text)]).is_empty());
        assert_eq!(reasons(&[message(text), message(REFUSED)]).len(), 1);
    }

    #[test]
    fn idle_causes_are_reported_if_there_is_no_other() {
        let text =
            "=== error stack (1/1) ===\nWarning: CUDNN_STATUS_NOT_SUPPORTED_ARCH_MISMATCH; Reason: only Blackwell";
        assert_eq!(reasons(&[message(text)]).len(), 1);
    }

    #[test]
    fn a_message_without_stacks_gives_its_first_cause() {
        let text =
            "called:\n Error: CUDNN_STATUS_BAD_PARAM; Reason: dim < 1\n Error: CUDNN_STATUS_BAD_PARAM; Reason: up()";
        let reasons = reasons(&[message(text), message("chatter")]);
        assert_eq!(reasons.len(), 1);
        assert_eq!(reasons[0].code, Code::from("library.bad-param"));
        assert_eq!(reasons[0].given, "dim < 1");
    }

    /// A stub of libcuda.so in the search path made every attention of some engines refused, for ever: the refusal was
    /// kept in the vault.
    #[test]
    fn a_library_that_an_engine_lacks_is_of_the_machine() {
        let told =
            "Warning: CUDNN_STATUS_NOT_SUPPORTED_RUNTIME_PREREQUISITE_MISSING; Reason: cannot load libcuda at: true";
        let reasons = reasons(&[message(told)]);
        assert!(reasons.len() == 1 && is_of_machine(&reasons[0]), "{reasons:?}");
        let other =
            super::reasons(&[message("Warning: CUDNN_STATUS_NOT_SUPPORTED_SHAPE; Reason: not a multiple of 8 at: x")]);
        assert!(other.len() == 1 && !is_of_machine(&other[0]), "{other:?}");
    }
}
