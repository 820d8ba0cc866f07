//! Compiles deterministic backwards for a B200 with the engine that lowering names for them. NVIDIA states that this
//! engine gives the same bits on every run; a test without such a GPU cannot check it. These tests check that the
//! engine compiles the graph, uses the knobs, and gives reasons if it refuses.

use qkvault_compile::{Compiled, Compiler, Failure};
use qkvault_cudnn::op::{Knob, NamedEngine};
use qkvault_cudnn::{CompileOptions, OpGraph, Target, lower};
use qkvault_graph::{Valid, text, validate};
use rayon::prelude::*;

use crate::cudnn::{compiler, target};
use crate::golden::{RECENT, turn};
use crate::kernel::cubins;

/// Backwards that every tested version compiles.
const TAKEN: [&str; 6] = [
    "q: bf16 [2,4,512,64]\nk: [2,2,512,64]",
    "q: f16 [2,4,300,128]\nk: [2,4,1000,128]\nmask: causal bottom-right\nlengths: per-sequence",
    "q: bf16 [2,4,256,192]\nk: [2,2,256,192]\nv: [2,2,256,128]\nmask: causal",
    "q: bf16 [2,4,256,64]\nsink: yes\nmask: causal window 64",
    "q: bf16 [2,4,256,128] varlen tokens 500\nk: [2,2,256,128] varlen tokens 500\nlengths: per-sequence",
    "q: bf16 [2,4,1,80]\nk: [2,4,100,80]",
];

/// Backwards that cuDNN compiles since 9.23.
const TAKEN_SINCE: [&str; 4] = [
    "q: bf16 [2,4,256,64]\nmask: causal\nscore_mod: scalar $c: float; tanh(score / $c) * $c",
    "q: bf16 [2,4,256,64]\nscore_mod: tensor @s: f32[1, 4, 1, 1]; score + @s * float(key - query)",
    "q: bf16 [2,4,256,64]\ndropout: mask 0.1",
    "q: bf16 [2,4,256,256]\nk: [2,2,256,256]",
];

/// Backwards that no version compiles, each with a part of the library's message.
const REFUSED: [(&str, &str); 3] = [
    ("q: bf16 [2,4,256,64]\ndropout: philox 0.1", "compilationResult != NVRTC_SUCCESS"),
    ("q: bf16 [2,4,256,64]\nscore_mod: tensor @b: bf16[1, 4, 256, 256] grad; score + @b", "wrong tile selected"),
    ("q: bf16 [1,4,1,64]\nk: [1,4,64,64]", "compilationResult != NVRTC_SUCCESS"),
];

fn attention(given: &str, deterministic: bool) -> Valid {
    let end = if deterministic { "\ndeterministic: yes" } else { "" };
    validate(text::parse(&format!("pass: backward\n{given}{end}")).unwrap()).unwrap()
}

fn graph(given: &str, target: &Target) -> OpGraph {
    lower(&attention(given, true), target, &CompileOptions::cudnn()).unwrap_or_else(|e| panic!("{given}: {e}"))
}

fn compile(compiler: &Compiler, graph: &OpGraph, target: &Target) -> Result<Compiled, String> {
    match compiler.compile(graph, target, &CompileOptions::cudnn()) {
        Ok(compiled) => Ok(compiled),
        Err(Failure::Refused(refusal)) => Err(refusal.to_string()),
        // The compiler does not report it as a refusal: only rules can tell it from a temporary failure.
        Err(failure) if failure.is_uncompiled() => Err(failure.to_string()),
        Err(other) => panic!("compiling does not work here: {other}"),
    }
}

/// Compiles deterministic backwards, those of its turn, with the fetched slim cuDNN of this version for a B200.
///
/// # Panics
///
/// Panics if a result is not the expected one.
pub fn check(version: &str) {
    let Some(compiler) = compiler(version) else { return };
    let target = target(&compiler, "b200");
    let tiles = target.cudnn >= qkvault_graph::CudnnVersion::v9(23, 0);
    let taken = TAKEN.map(|given| (given, None));
    let since = TAKEN_SINCE.map(|given| (given, (!tiles).then_some("")));
    let rows: Vec<_> = taken.into_iter().chain(since).chain(REFUSED.map(|(given, why)| (given, Some(why)))).collect();
    let faults: Vec<String> = turn(rows, version, RECENT)
        .par_iter()
        .filter_map(|(given, refused)| {
            let graph = graph(given, &target);
            let named = graph.engine.as_ref().map(ToString::to_string);
            match (compile(&compiler, &graph, &target), refused) {
                (Ok(plan), None) if Some(&plan.engine) == named.as_ref() && !cubins(&plan.blob).is_empty() => None,
                (Ok(plan), _) => Some(format!("{given}: a plan by {} instead of {named:?}", plan.engine)),
                (Err(why), Some(words)) if why.contains(words) => None,
                (Err(why), _) => Some(format!("{given}: {why}")),
            }
        })
        .collect();
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

/// Checks that a named engine has another kernel than the engine that heuristics choose, and that the library refuses
/// an engine or a knob that does not exist.
///
/// # Panics
///
/// Panics if one of these does not hold.
pub fn check_named(version: &str) {
    let Some(compiler) = compiler(version) else { return };
    let target = target(&compiler, "b200");
    let named = graph(TAKEN[0], &target);
    let engine = |engine: Option<NamedEngine>| compile(&compiler, &OpGraph { engine, ..named.clone() }, &target);
    let plan = engine(named.engine.clone()).unwrap();
    let other = engine(None).unwrap();
    assert!(
        plan.engine.starts_with("engine 5 ") && plan.engine != other.engine,
        "{} and {}",
        plan.engine,
        other.engine
    );
    assert!(
        cubins(&plan.blob) != cubins(&other.blob),
        "the named engine has the same kernel as the heuristics' choice"
    );

    let with = |index: i64, knobs: &[(Knob, i64)]| engine(Some(NamedEngine { index, knobs: knobs.to_vec() }));
    let knobs = named.engine.as_ref().map(|engine| engine.knobs.clone()).unwrap();
    let refused =
        |answer: Result<Compiled, String>| answer.map(|plan| plan.engine).expect_err("the library compiles it");
    let absent = refused(with(99, &knobs));
    assert!(absent.contains("engine with global index 99 is not found"), "{absent}");
    let elsewhere = refused(with(6, &knobs));
    assert!(elsewhere.contains("only Hopper is supported for this engine"), "{elsewhere}");
    let unknown = refused(with(5, &[(Knob::KernelCfg, 999), (Knob::Stages, 2)]));
    assert!(unknown.contains("isValidSetting"), "{unknown}");
}
