//! The support matrix of models and features by GPU and cuDNN version, from rules alone, as JSON, Markdown and one HTML
//! page.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Instant;

use crate::codes;
use anyhow::Context as _;
use qkvault_cudnn::Profile;
use qkvault_graph::{CudnnVersion, LibrarySet, Reason, Refusal, Valid};
use qkvault_models::Phase;
use qkvault_probe::{Request, TRIED, check};
use serde::Serialize;

use super::super::jobs::{self, ModelArgs};
use super::super::{Globals, Outcome, out};
use super::ProbeArgs;
use super::features::{FEATURES, MatrixFeature, SERVING};
use super::page;
use crate::target::profile;

/// The whole matrix.
#[derive(Serialize)]
pub(super) struct Matrix {
    /// GPUs, each a group of columns.
    pub(super) gpus: Vec<String>,
    /// Versions, a column each within every group.
    pub(super) versions: Vec<String>,
    /// Groups of rows.
    pub(super) groups: Vec<Group>,
    /// Every distinct list of reasons. Cells refer to them by number.
    pub(super) reasons: Vec<Vec<String>>,
}

/// A group of rows.
#[derive(Serialize)]
pub(super) struct Group {
    pub(super) name: &'static str,
    pub(super) rows: Vec<MatrixLine>,
}

/// One description on every GPU under every version.
#[derive(Serialize)]
pub(super) struct MatrixLine {
    pub(super) name: String,
    pub(super) attention: String,
    /// For each GPU and each version: `None` if supported, otherwise the number of the list of reasons.
    pub(super) cells: Vec<Vec<Option<usize>>>,
}

/// A description, or the reasons why there is none.
type Described = Result<Valid, Refusal>;

/// The name of the group of models.
pub(super) const MODELS: &str = "Models";

/// Lengths of the prompt, or of the KV cache of a decode, in the models' rows.
const LENGTHS: [i64; 3] = [512, 2048, 4096];

/// JSON with a line for each row and each list of texts. A text contains neither pattern, because JSON escapes its
/// quotes.
fn lines(json: &str) -> String {
    format!("{}\n", json.replace("{\"name\":", "\n{\"name\":").replace("[\"", "\n[\""))
}

/// Writes the matrix to `file` with the endings html, md and json.
pub(super) fn write(globals: &Globals, args: &ProbeArgs, file: &Path) -> anyhow::Result<Outcome> {
    let started = Instant::now();
    let matrix = matrix(args)?;
    let milliseconds = started.elapsed().as_secs_f64() * 1e3;
    let json = lines(&serde_json::to_string(&matrix)?);
    for (end, text) in [("html", page::html(&matrix)), ("md", page::markdown(&matrix)), ("json", json)] {
        let path = file.with_extension(end);
        std::fs::write(&path, text).with_context(|| format!("{} could not be written", path.display()))?;
    }
    let rows: usize = matrix.groups.iter().map(|g| g.rows.len()).sum();
    let cells = rows * matrix.gpus.len() * matrix.versions.len();
    let shown = file.display();
    if globals.json {
        out::json(&serde_json::json!({ "file": file, "rows": rows, "cells": cells, "milliseconds": milliseconds }));
    } else {
        out::line(&format!(
            "{shown}.html, {shown}.md, {shown}.json: {rows} rows, {cells} answers in {milliseconds:.0} ms"
        ));
    }
    Ok(Outcome::Good)
}

/// The matrix of the options: their GPU and version, else all that are known.
fn matrix(args: &ProbeArgs) -> anyhow::Result<Matrix> {
    let models = &args.model;
    let profiles: Vec<Profile> = match &args.target {
        Some(name) => vec![profile(name)?],
        None => Profile::built_in().collect(),
    };
    let versions = match &args.library.cudnn {
        Some(version) => vec![version.parse()?],
        None => TRIED.to_vec(),
    };
    let set = if args.library.full { LibrarySet::Full } else { LibrarySet::Slim };
    let mut matrix = Matrix {
        gpus: profiles.iter().map(|p| p.name.clone()).collect(),
        versions: versions.iter().map(ToString::to_string).collect(),
        groups: Vec::new(),
        reasons: Vec::new(),
    };
    if !models.model.is_empty() {
        fn given<T: Clone>(given: &[T], usual: &[T]) -> Vec<T> {
            if given.is_empty() { usual.to_vec() } else { given.to_vec() }
        }
        let phase = given(&models.phase, &[Phase::Prefill, Phase::Decode, Phase::Train]);
        let (batch, seq) = (given(&models.batch, &[1]), given(&models.seq, &LENGTHS));
        let args = ModelArgs { batch, seq, phase, ..models.clone() };
        let jobs = jobs::plan(&args)?.jobs;
        // Every use of an attention has a row, at the greatest length that its model supports.
        let mut rows: BTreeMap<(String, String, Phase, bool), (i64, Described)> = BTreeMap::new();
        // An encoder has no decode phase: that refusal does not concern a GPU.
        let is_relevant =
            |job: &jobs::AttentionJob| !job.attention.as_ref().is_err_and(|refusal| refusal.has(&codes::MODEL_PHASE));
        for job in jobs.into_iter().filter(is_relevant) {
            for one in &job.uses {
                let row = rows.entry((one.model.clone(), one.layer.clone(), one.phase, one.backward));
                let held = row.or_insert_with(|| (one.seq, job.attention.clone()));
                if one.seq > held.0 {
                    *held = (one.seq, job.attention.clone());
                }
            }
        }
        let rows = rows.into_iter().map(|((model, layer, phase, backward), (seq, attention))| {
            let pass = if backward { ", backward" } else { "" };
            (format!("{model} [{layer}] {phase} {seq}{pass}"), attention)
        });
        matrix.add(MODELS, (&profiles, &versions, set), rows);
    }
    let rows = |list: &'static [MatrixFeature], backward| {
        list.iter().filter_map(move |f| Some((f.name.to_owned(), Ok(f.attention(backward)?))))
    };
    matrix.add("Forward", (&profiles, &versions, set), rows(FEATURES, false));
    matrix.add("Backward", (&profiles, &versions, set), rows(FEATURES, true));
    matrix.add("Serving", (&profiles, &versions, set), rows(SERVING, false));
    Ok(matrix)
}

impl Matrix {
    fn add(
        &mut self,
        name: &'static str,
        (profiles, versions, set): (&[Profile], &[CudnnVersion], LibrarySet),
        rows: impl Iterator<Item = (String, Described)>,
    ) {
        let rows = rows
            .map(|(name, attention)| {
                let mut cell = |profile: &Profile, version| {
                    let reasons = match &attention {
                        Ok(a) => check(&Request::new(a, &profile.target(version, set))).reasons,
                        Err(refusal) => refusal.reasons().to_vec(),
                    };
                    self.number(&reasons)
                };
                let cells = profiles.iter().map(|p| versions.iter().map(|&v| cell(p, v)).collect()).collect();
                MatrixLine { name, attention: attention.map_or_else(|r| r.to_string(), |a| a.to_string()), cells }
            })
            .collect();
        self.groups.push(Group { name, rows });
    }

    /// The number of a list of reasons; `None` for an empty list.
    fn number(&mut self, reasons: &[Reason]) -> Option<usize> {
        if reasons.is_empty() {
            return None;
        }
        let texts: Vec<String> = reasons.iter().map(ToString::to_string).collect();
        Some(self.reasons.iter().position(|known| *known == texts).unwrap_or_else(|| {
            self.reasons.push(texts);
            self.reasons.len() - 1
        }))
    }
}
