//! Three verdicts on one case: what the rules say, what the library says without a GPU, and what the card computes. They must be one.

use std::collections::BTreeMap;

use qkvault_compile::{OnMiss, Planner};
use qkvault_graph::{CompileOptions, Target, Valid};
use qkvault_probe::{Request, check};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// What was said of a case before it was launched.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Said {
    /// Codes of the rules that speak against it.
    rules: Vec<String>,
    library: Library,
}

/// What the library says, asked for device properties alone.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Library {
    /// It made a plan.
    Supported,
    /// It refuses, in its words.
    Refused(Vec<String>),
    /// It is not put to it: computed wrongly, or not built, by the code that says so.
    NotAsked(String),
    /// It could not be asked.
    Broken(String),
}

/// Codes of what the library takes and computes wrongly in the engines it would take: no answer of the library.
const ENGINES: &str = "engine.wrong";

impl Said {
    /// Asks rules and library. What the library says is kept: who wants the plan then has it.
    pub(super) fn of(attention: &Valid, target: &Target, planner: &Planner, policy: &CompileOptions) -> Said {
        let verdict = check(&Request::new(attention, target).with_policy(*policy));
        let rules = verdict.reasons.iter().map(|r| r.code.to_string()).collect();
        let library = match planner.plan(attention, target, policy, OnMiss::Compile) {
            Ok(answer) => match (answer.outcome, answer.key) {
                (Ok(_), _) => Library::Supported,
                (Err(refusal), None) => Library::NotAsked(refusal.reasons()[0].code.to_string()),
                (Err(refusal), Some(_)) if refusal.has(ENGINES) => Library::NotAsked(ENGINES.to_owned()),
                (Err(refusal), Some(_)) => {
                    Library::Refused(refusal.reasons().iter().map(|r| format!("{}: {}", r.code, r.given)).collect())
                }
            },
            Err(error) => Library::Broken(error.to_string()),
        };
        Said { rules, library }
    }

    /// Whether all say the same; `status` is how the case ended on the card.
    pub(super) fn agrees(&self, status: &str) -> bool {
        match (&self.library, self.rules.is_empty()) {
            (Library::Supported, true) => status == "right",
            (Library::Refused(_), false) => status == "refused",
            (Library::NotAsked(_), _) => true,
            (Library::Supported, false) | (Library::Refused(_), true) | (Library::Broken(_), _) => false,
        }
    }
}

/// How the verdicts of a run compare.
#[derive(Debug, Default)]
pub(super) struct Agreement {
    supported: u64,
    refused: u64,
    not_asked: BTreeMap<String, u64>,
    /// Every case in which they differ.
    differed: Vec<Value>,
}

impl Agreement {
    /// Counts a case; `row` tells it where the verdicts differ.
    pub(super) fn take(&mut self, said: &Said, status: &str, row: &Value) {
        match &said.library {
            _ if !said.agrees(status) => {
                self.differed
                    .push(json!({ "rules": said.rules, "library": said.library, "card": status, "case": row }));
            }
            Library::NotAsked(code) => *self.not_asked.entry(code.clone()).or_default() += 1,
            Library::Supported => self.supported += 1,
            Library::Refused(_) => self.refused += 1,
            // Never one with what the rules say.
            Library::Broken(_) => {}
        }
    }

    /// Counts a case that ended its process before rules and library could be heard.
    pub(super) fn silent(&mut self, status: &str, row: &Value) {
        self.differed.push(json!({ "rules": null, "library": null, "card": status, "case": row }));
    }

    /// Whether no case differs.
    pub(super) fn is_one(&self) -> bool {
        self.differed.is_empty()
    }

    /// Counts, and every difference.
    pub(super) fn record(&self) -> Value {
        let Agreement { supported, refused, not_asked, differed } = self;
        json!({
            "agreed": supported + refused, "supported_and_right": supported, "refused": refused, "not_asked": not_asked,
            "differed": differed.len(), "disagreed": differed,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(rules: &[&str], library: Library) -> Said {
        Said { rules: rules.iter().map(|code| (*code).to_owned()).collect(), library }
    }

    #[test]
    fn only_three_verdicts_that_say_the_same_agree() {
        let (yes, no) = (|| Library::Supported, || Library::Refused(vec!["no".into()]));
        let cases = [
            (said(&[], yes()), "right", true),
            (said(&[], yes()), "wrong", false),
            (said(&[], yes()), "failed", false),
            (said(&["a.b"], yes()), "right", false),
            (said(&[], no()), "refused", false),
            (said(&["a.b"], no()), "refused", true),
            (said(&["a.b"], Library::NotAsked("a.b".into())), "refused", true),
            (said(&[], Library::Broken("gone".into())), "failed", false),
        ];
        let mut agreement = Agreement::default();
        for (said, status, agrees) in &cases {
            assert_eq!(said.agrees(status), *agrees, "{said:?} {status}");
            agreement.take(said, status, &json!(7));
        }
        let record = agreement.record();
        assert_eq!((record["agreed"].as_u64(), record["differed"].as_u64()), (Some(2), Some(5)));
        assert_eq!(record["not_asked"]["a.b"], 1);
        assert!(!agreement.is_one() && record["disagreed"][0]["card"] == "wrong");
    }
}
