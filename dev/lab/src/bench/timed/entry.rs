//! One line of the table: a case in one form, the results of its two plans, and their times.

use qkvault_compile::{OnMiss, PlanFacts, Planner};
use qkvault_cudnn::{CompileOptions, Target};
use qkvault_graph::Valid;
use serde_json::{Value, json};

use super::file::TimedCase;
use qkvault_cli::clock::median;

/// A case in one form.
#[derive(Clone, Debug)]
pub(in crate::bench) struct TimedEntry {
    pub(in crate::bench) case: TimedCase,
    pub(in crate::bench) form: String,
    /// The forward and the backward.
    pub(in crate::bench) passes: [TimedPass; 2],
}

/// The result of one pass.
#[derive(Clone, Debug)]
pub(in crate::bench) struct TimedPass {
    /// `right`, `compiled`, `wrong`, `refused`, `failed`, or `none` for a backward that the case does not have.
    pub(in crate::bench) status: &'static str,
    pub(in crate::bench) why: Option<String>,
    pub(in crate::bench) facts: Option<PlanFacts>,
    /// Bytes of the plan's constant operands on the GPU.
    pub(in crate::bench) resident: u64,
    /// Milliseconds of one launch, for each round.
    pub(in crate::bench) times: Vec<f64>,
    /// The checks of its outputs.
    pub(in crate::bench) checks: Vec<Value>,
}

impl TimedPass {
    pub(in crate::bench) fn new(status: &'static str, why: Option<String>) -> TimedPass {
        TimedPass { status, why, facts: None, resident: 0, times: Vec::new(), checks: Vec::new() }
    }

    fn median(&self) -> Option<f64> {
        median(&mut self.times.clone())
    }

    fn json(&self, flops: f64) -> Value {
        let ms = self.median();
        let mut value = json!({
            "status": self.status, "why": self.why, "flops": flops, "checks": self.checks,
            "ms": ms, "best_ms": self.times.iter().copied().reduce(f64::min), "rounds": self.times.len(),
            "tflops": ms.map(|ms| flops / ms / 1e9),
        });
        if let Some(facts) = &self.facts {
            value["key"] = facts.key.to_string().into();
            value["engine"] = facts.engine.clone().into();
            value["resident"] = self.resident.into();
            value["workspace"] = facts.scratch().bytes.into();
            value["workspace_of_cudnn"] = facts.workspace.into();
            value["workspace_buffers"] = facts
                .scratch()
                .buffers
                .iter()
                .map(|(role, _, bytes)| json!({ "role": role, "bytes": bytes }))
                .collect();
        }
        value
    }
}

impl TimedEntry {
    /// The case's name, followed by the form unless it is `auto`.
    pub(in crate::bench) fn name(&self) -> String {
        let TimedEntry { case, form, passes: _ } = self;
        if form == "auto" { case.name.clone() } else { format!("{}/{form}", case.name) }
    }

    pub(in crate::bench) fn good(&self) -> bool {
        self.passes.iter().all(|p| matches!(p.status, "right" | "compiled" | "none"))
    }

    /// The status of the forward or the backward.
    pub(in crate::bench) fn status(&self, backward: bool) -> &'static str {
        self.passes[usize::from(backward)].status
    }

    pub(in crate::bench) fn why(&self) -> Option<String> {
        let why: Vec<String> = self.passes.iter().filter_map(|p| p.why.clone()).collect();
        (!why.is_empty()).then(|| why.join("\n"))
    }

    pub(in crate::bench) fn json(&self) -> Value {
        let a = &self.case.described;
        let documents = self.case.recipe.documents.lengths(a.seq().0.unsigned_abs());
        let (seq, head_dim) = (a.seq(), a.head_dims());
        let directions = ["forward", "backward"].into_iter().zip(&self.passes).enumerate();
        let mut value = json!({
            "entry": self.name(), "case": self.case.name, "form": self.form, "attention": a.to_string(),
            "batch": a.batch(), "heads": a.q.heads(), "kv_heads": a.k.heads(), "seq_q": seq.0, "seq_kv": seq.1,
            "d_qk": head_dim.0, "d_v": head_dim.1, "dtype": a.q.dtype.to_string(), "scale": a.default_scale(),
            "score_mod": a.score_mod.as_ref().map(ToString::to_string), "mask_mod": a.mask.mask_mod.as_ref().map(ToString::to_string),
            "band": a.mask.band, "documents": documents, "varlen": self.case.varlen, "run": self.case.forward().to_string(), "share": self.case.share(),
            "scalars": self.case.recipe.scalars.iter().cloned().collect::<std::collections::BTreeMap<_, _>>(),
            "notes": self.case.notes.iter().cloned().collect::<std::collections::BTreeMap<_, _>>(),
        });
        for (i, (direction, pass)) in directions {
            value[direction] = pass.json(self.case.flops(i == 1));
        }
        value
    }

    pub(in crate::bench) fn cells(&self) -> Vec<String> {
        let dash = || "-".to_owned();
        let [forward, backward] = &self.passes;
        let status = if [forward.status, "none"].contains(&backward.status) {
            forward.status.to_owned()
        } else {
            format!("{}, {}", forward.status, backward.status)
        };
        let mut cells = vec![self.name(), status];
        for (pass, flops) in [(forward, self.case.flops(false)), (backward, self.case.flops(true))] {
            cells.push(pass.median().map_or_else(dash, |ms| format!("{ms:.4}")));
            cells.push(pass.median().map_or_else(dash, |ms| format!("{:.0}", flops / ms / 1e9)));
        }
        for pass in [forward, backward] {
            cells.push(pass.facts.as_ref().map_or_else(dash, |f| f.scratch().bytes.to_string()));
        }
        cells
    }
}

/// Compiles every case in every form. The target GPU need not be present.
pub(in crate::bench) fn plan(
    cases: &[TimedCase],
    option_sets: &[(String, CompileOptions)],
    planner: &Planner,
    target: &Target,
) -> Vec<TimedEntry> {
    let pass =
        |attention: &Valid, options: &CompileOptions| match planner.plan(attention, target, options, OnMiss::Compile) {
            Err(error) => TimedPass::new("failed", Some(error.to_string())),
            Ok(answer) => match answer.outcome {
                Err(refusal) => TimedPass::new("refused", Some(refusal.to_string())),
                Ok(plan) => TimedPass { facts: Some(plan.facts.clone()), ..TimedPass::new("compiled", None) },
            },
        };
    let of = |case: &TimedCase| {
        let passes = |options: &CompileOptions| {
            [Some(case.forward()), case.backward()]
                .map(|a| a.map_or_else(|| TimedPass::new("none", None), |a| pass(a, options)))
        };
        let entry = |(form, options): &(String, CompileOptions)| TimedEntry {
            case: case.clone(),
            form: form.clone(),
            passes: passes(options),
        };
        option_sets.iter().map(entry).collect::<Vec<_>>()
    };
    cases.iter().flat_map(of).collect()
}
