//! Compares three verdicts on one case: of the rules, of the library without a GPU, and of the GPU. They must agree.

use std::collections::BTreeMap;

use qkvault_compile::{CUDNN, OnMiss, Planner};
use qkvault_graph::registry::{Code, codes};
use qkvault_graph::{CompileOptions, EnginePolicy, Target, Valid};
use qkvault_probe::{Request, check};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// The answers of rules and library for a case, before its launch.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Predictions {
    /// Reason codes of the rules; empty if they support the case.
    rules: Vec<String>,
    library: Library,
}

/// The library's answer, from device properties alone.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Library {
    /// The library made a plan.
    Supported,
    /// The library refused, for these reasons.
    Refused(Vec<String>),
    /// The library was not asked, because the case is computed wrongly or not built. Holds the reason code.
    NotAsked(String),
    /// The library could not be asked.
    Broken(String),
}

/// The compiler's refusal code for graphs that every supporting engine computes wrongly. It is not an answer of the
/// library.
const ENGINES: &Code = &codes::ENGINE_WRONG;

impl Predictions {
    /// Asks rules and library. The planner keeps the library's plan, so the launch does not compile again.
    pub(super) fn of(attention: &Valid, target: &Target, planner: &Planner, options: &CompileOptions) -> Predictions {
        let named = match options.engine {
            EnginePolicy::Named(name) if name != CUDNN.name() => planner.engines().named(name),
            EnginePolicy::Auto | EnginePolicy::Named(_) => None,
        };
        let reasons = match named {
            Some(engine) => {
                let work = engine.work(attention, target.into(), options);
                work.err().map_or_else(Vec::new, |refusal| refusal.reasons().to_vec())
            }
            None => check(&Request::new(attention, target).with_policy(*options)).reasons,
        };
        let rules = reasons.iter().map(|r| r.code.to_string()).collect();
        let library = match planner.plan(attention, target, options, OnMiss::Compile) {
            Ok(answer) => match (answer.outcome, answer.key) {
                (Ok(_), _) => Library::Supported,
                (Err(refusal), None) => Library::NotAsked(refusal.reasons()[0].code.to_string()),
                (Err(refusal), Some(_)) if refusal.has(ENGINES) => Library::NotAsked(ENGINES.to_string()),
                (Err(refusal), Some(_)) => {
                    Library::Refused(refusal.reasons().iter().map(|r| format!("{}: {}", r.code, r.given)).collect())
                }
            },
            Err(error) => Library::Broken(error.to_string()),
        };
        Predictions { rules, library }
    }

    /// Whether all three agree; `status` is the result of the GPU.
    pub(super) fn agrees(&self, status: &str) -> bool {
        match (&self.library, self.rules.is_empty()) {
            (Library::Supported, true) => status == "right",
            (Library::Refused(_), false) => status == "refused",
            (Library::NotAsked(_), _) => true,
            (Library::Supported, false) | (Library::Refused(_), true) | (Library::Broken(_), _) => false,
        }
    }
}

/// The comparison of a run's verdicts.
#[derive(Debug, Default)]
pub(super) struct Agreement {
    supported: u64,
    refused: u64,
    not_asked: BTreeMap<String, u64>,
    /// Cases whose verdicts differ.
    differed: Vec<Value>,
}

impl Agreement {
    /// Counts a case; `row` describes it if the verdicts differ.
    pub(super) fn take(&mut self, predictions: &Predictions, status: &str, row: &Value) {
        match &predictions.library {
            _ if !predictions.agrees(status) => {
                self.differed.push(
                    json!({ "rules": predictions.rules, "library": predictions.library, "card": status, "case": row }),
                );
            }
            Library::NotAsked(code) => *self.not_asked.entry(code.clone()).or_default() += 1,
            Library::Supported => self.supported += 1,
            Library::Refused(_) => self.refused += 1,
            // `agrees` is false for it.
            Library::Broken(_) => {}
        }
    }

    /// Counts a case that ended its process before rules and library answered.
    pub(super) fn silent(&mut self, status: &str, row: &Value) {
        self.differed.push(json!({ "rules": null, "library": null, "card": status, "case": row }));
    }

    /// Whether the verdicts agree in all cases.
    pub(super) fn is_complete(&self) -> bool {
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

    fn predict(rules: &[&str], library: Library) -> Predictions {
        Predictions { rules: rules.iter().map(|code| (*code).to_owned()).collect(), library }
    }

    #[test]
    fn verdicts_agree_only_if_all_three_are_the_same() {
        let (yes, no) = (|| Library::Supported, || Library::Refused(vec!["no".into()]));
        let cases = [
            (predict(&[], yes()), "right", true),
            (predict(&[], yes()), "wrong", false),
            (predict(&[], yes()), "failed", false),
            (predict(&["a.b"], yes()), "right", false),
            (predict(&[], no()), "refused", false),
            (predict(&["a.b"], no()), "refused", true),
            (predict(&["a.b"], Library::NotAsked("a.b".into())), "refused", true),
            (predict(&[], Library::Broken("gone".into())), "failed", false),
        ];
        let mut agreement = Agreement::default();
        for (predictions, status, agrees) in &cases {
            assert_eq!(predictions.agrees(status), *agrees, "{predictions:?} {status}");
            agreement.take(predictions, status, &json!(7));
        }
        let record = agreement.record();
        assert_eq!((record["agreed"].as_u64(), record["differed"].as_u64()), (Some(2), Some(5)));
        assert_eq!(record["not_asked"]["a.b"], 1);
        assert!(!agreement.is_complete() && record["disagreed"][0]["card"] == "wrong");
    }
}
