//! What `adapters/python/qkvault_record.py` writes down of PyTorch programs.
//!
//! The files of `recorded` are written by its tests (`cargo xtask record-tests`), which need PyTorch; here they are
//! read as every command reads them. A manifest must be of valid attentions. A modification's text must give at each
//! point what the Python function gave there.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use qkvault_graph::expr::{PointContext, ScoreExpr, Ty, Value};
use qkvault_graph::{Attention, Band, text, validate};
use qkvault_models::{Manifest, Phase};
use serde::Deserialize;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/recorded")
}

/// The manifests, by the names of their files.
fn manifests() -> BTreeMap<String, Manifest> {
    let files = std::fs::read_dir(folder()).unwrap().map(|file| file.unwrap().path());
    let manifests = files.filter(|path| !path.ends_with("modifications.json")).map(|path| {
        let text = std::fs::read_to_string(&path).unwrap();
        let manifest = Manifest::parse(&text).unwrap_or_else(|why| panic!("{}: {why}", path.display()));
        (path.file_name().unwrap().to_string_lossy().into_owned(), manifest)
    });
    manifests.collect()
}

#[test]
fn every_entry_of_a_recorded_program_is_a_valid_attention() {
    let manifests = manifests();
    assert!(manifests.len() >= 5, "{:?}", manifests.keys());
    for (name, manifest) in manifests {
        let listed = manifest.attentions().unwrap_or_else(|why| panic!("{name}: {why}"));
        assert!(!listed.is_empty(), "{name} has no attention");
        for listed in listed {
            let entry = &manifest.attention[listed.entry];
            let valid = validate(listed.attention.clone());
            assert!(valid.is_ok(), "{name}: {}\n{}", valid.unwrap_err(), entry.text);
            assert!(entry.layers > 0, "{name}: an entry without calls");
            assert_eq!(listed.attention.outputs.stats, entry.phase == Phase::Train, "{name}: {}", entry.text);
        }
        let text = manifest.to_toml();
        assert_eq!(Manifest::parse(&text).unwrap(), Manifest { attention: trimmed(&manifest), ..manifest }, "{name}");
    }
}

/// The entries as TOML has them: texts end with a new line.
fn trimmed(manifest: &Manifest) -> Vec<qkvault_models::AttentionEntry> {
    let text = |text: &str| format!("{}\n", text.trim_end());
    manifest
        .attention
        .iter()
        .map(|entry| qkvault_models::AttentionEntry { text: text(&entry.text), ..entry.clone() })
        .collect()
}

/// One modification: its lines of an attention's text, and what the Python function gave.
#[derive(Deserialize)]
struct Modification {
    name: String,
    sizes: [i64; 4],
    text: Vec<String>,
    scalars: BTreeMap<String, f64>,
    tensors: Vec<String>,
    /// Batch, head, query, key, score; whether it is kept; the modified score; the elements of the tensors.
    points: Vec<Vec<f64>>,
}

impl Modification {
    fn attention(&self) -> Attention {
        let [batch, heads, queries, keys] = self.sizes;
        let lines = self.text.join("\n");
        let whole = format!("q: bf16 [{batch},{heads},{queries},64]\nk: [{batch},{heads},{keys},64]\n{lines}");
        text::parse(&whole).unwrap_or_else(|why| panic!("{}: {why}\n{whole}", self.name))
    }

    /// The value of an expression at a point.
    fn value(&self, e: &ScoreExpr, point: &[f64]) -> Value {
        let scalars: Vec<Value> = e.scalar_names().iter().map(|name| Value::Float(self.scalars[name])).collect();
        let held = |name: &String| point[7 + self.tensors.iter().position(|tensor| tensor == name).unwrap()];
        let tensors = e.tensors().iter().zip(e.tensor_names()).map(|(spec, name)| match spec.ty() {
            Some(Ty::Int) => Value::Int(held(name) as i32),
            _ => Value::Float(held(name)),
        });
        let [batch, head, query, key] = [0, 1, 2, 3].map(|at| point[at] as i32);
        let lengths = [self.sizes[2] as i32, self.sizes[3] as i32];
        let tensors: Vec<Value> = tensors.collect();
        let at = [batch, head, query, key];
        let context =
            PointContext { score: point[4], at, lengths, scalars: &scalars, tensors: &tensors, upstream: 0.0 };
        e.eval(&context).unwrap()
    }
}

/// A number of float32 operations in another order, and constants that float32 rounds.
fn close(found: f64, wanted: f64) -> bool {
    (found - wanted).abs() <= 2e-5 * wanted.abs().max(1.0)
}

#[test]
fn the_text_of_a_modification_gives_what_the_python_function_gives() {
    // The chore names a file with more points.
    let path =
        std::env::var_os("QKVAULT_RECORDED_POINTS").map_or_else(|| folder().join("modifications.json"), Into::into);
    let all: Vec<Modification> = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    assert!(all.len() >= 65, "{} modifications", all.len());
    let (mut kept_points, mut hidden_points) = (0, 0);
    for one in &all {
        let attention = one.attention();
        let name = &one.name;
        let valid = validate(attention.clone()).unwrap_or_else(|why| panic!("{name}: {why}"));
        for point in &one.points {
            let [query, key] = [point[2] as i64, point[3] as i64];
            let band = |band: &Option<Band>| band.is_none_or(|b| b.keeps(query, key, one.sizes[2], one.sizes[3]));
            let predicate = |e: &Option<ScoreExpr>| e.as_ref().is_none_or(|e| one.value(e, point).bool().unwrap());
            let kept = band(&attention.mask.band) && predicate(&attention.mask.mask_mod);
            assert_eq!(kept, point[5] != 0.0, "{name} at {point:?}");
            // The canonical form, in which predicates become bands and expressions are simplified.
            let mask = &valid.mask;
            assert_eq!(band(&mask.band) && predicate(&mask.mask_mod), kept, "{name} at {point:?}, canonical");
            if !kept {
                hidden_points += 1;
                continue;
            }
            kept_points += 1;
            for e in [&attention.score_mod, &valid.score_mod] {
                let found = e.as_ref().map_or(point[4], |e| one.value(e, point).float().unwrap());
                assert!(close(found, point[6]), "{name} at {point:?}: {found} instead of {}", point[6]);
            }
        }
    }
    assert!(kept_points > 300 && hidden_points > 200, "{kept_points} points are kept and {hidden_points} are hidden");
}
