//! Plans of attentions with origins: cuDNN accepts them, and they have the kernels of constant bands, so that hidden
//! blocks are skipped as they are there.

use qkvault_compile::Compiler;
use qkvault_cudnn::{CompileOptions, lower};
use qkvault_graph::expr::{key, library, query, scalar, score};
use qkvault_graph::{Attention, BackwardOptions, Band, Corner, DType, Origins, ScoreExpr, validate};
use qkvault_probe::{Request, check as probe};
use rayon::prelude::*;

use crate::cudnn::{compiler, target};
use crate::golden::{VERSIONS, turn};
use crate::kernel::cubins;

/// The version, and what the registry refuses there of the expressions below.
const REFUSED: [(&str, &str); 2] =
    [("9.14.0", "a window of one side, forward"), ("9.14.0", "a window of one side, backward")];

/// A chunk of 512 queries over 2048 keys.
fn chunk() -> Attention {
    Attention::bshd(1, (8, 2), (512, 2048), 128, DType::BF16).with_stats()
}

fn backward(a: &Attention) -> Attention {
    a.backward(BackwardOptions::default())
}

fn band(left: Option<i64>, right: Option<i64>) -> Band {
    Band { corner: Corner::TopLeft, left, right }
}

/// The kernels of an attention for a GPU; none if the registry refuses it by name.
fn kernels(compiler: &Compiler, gpu: &str, what: &str, a: Attention) -> Result<Option<Vec<String>>, String> {
    let options = CompileOptions::cudnn();
    let target = target(compiler, gpu);
    let attention = validate(a).map_err(|refusal| format!("{what}: {refusal}"))?;
    if !probe(&Request::new(&attention, &target).with_policy(options)).reasons.is_empty() {
        return Ok(None);
    }
    let graph = lower(&attention, &target, &options).map_err(|refusal| format!("{what}: {refusal}"))?;
    let compiled =
        compiler.compile(&graph, &target, &options).map_err(|failure| format!("{what} for {gpu}: {failure}"))?;
    Ok(Some(cubins(&compiled.blob)))
}

/// Compares bands with origins and constant bands, and compiles expressions with origins in both directions: those of
/// its turn, with the fetched slim cuDNN of this version.
///
/// # Panics
///
/// Panics with every attention that has another kernel, and with every one that is refused here and not in the list of
/// known refusals, or the other way round.
pub fn check(version: &str) {
    let Some(compiler) = compiler(version) else { return };
    let mut bands = Vec::new();
    for gpu in ["h200", "b200"] {
        for (left, right) in [(None, Some(7)), (Some(300), Some(7))] {
            let with = |origins: Option<Origins>| {
                let a = chunk().with_band(band(left, right));
                origins.map_or(a.clone(), |origins| a.with_origins(origins))
            };
            bands.push((gpu, format!("forward {left:?} {right:?}"), with(None), with(Some(Origins::Any))));
            let promised = with(Some(Origins::EveryQuerySeesAKey));
            bands.push((gpu, format!("backward {left:?} {right:?}"), backward(&with(None)), backward(&promised)));
        }
    }
    let mut faults: Vec<String> = turn(bands, version, &VERSIONS)
        .into_par_iter()
        .filter_map(|(gpu, what, constant, moved)| {
            let constant = kernels(&compiler, gpu, &format!("{what}, constant"), constant);
            let moved = kernels(&compiler, gpu, &format!("{what}, with origins"), moved);
            match (constant, moved) {
                // Origins are refused where constant bands are, and nowhere else.
                (Ok(None), Ok(None)) => None,
                (Ok(Some(constant)), Ok(Some(moved))) if constant == moved && !moved.is_empty() => None,
                (Ok(constant), Ok(moved)) => {
                    let told = |list: Option<Vec<String>>| list.map_or("refused".to_owned(), |list| list.join(" "));
                    Some(format!("{what} for {gpu}: {}, with origins {}", told(constant), told(moved)))
                }
                (constant, moved) => {
                    Some([constant.err(), moved.err()].into_iter().flatten().collect::<Vec<_>>().join("; "))
                }
            }
        })
        .collect();
    let modified = |e: qkvault_graph::expr::Expr| -> ScoreExpr { e.build_score_mod().unwrap() };
    let absolute = score() + (query().to_float() * scalar("a")).sin() * (key().to_float() * scalar("b")).cos();
    let expressions = [
        ("alibi", chunk().with_score_mod(modified(library::alibi(score(), 8)))),
        ("causal alibi", chunk().causal().with_score_mod(modified(library::alibi(score(), 8)))),
        (
            "causal softcap of alibi",
            chunk().causal().with_score_mod(modified(library::softcap(library::alibi(score(), 8), scalar("cap")))),
        ),
        ("absolute positions", chunk().causal().with_score_mod(modified(absolute))),
        ("a predicate", chunk().with_mask_mod(library::dilated_window(64, 4).build_mask_mod().unwrap())),
        ("causal", chunk().causal()),
        ("a window of one side", chunk().with_band(band(Some(300), None))),
        ("lengths", chunk().with_band(Band::window(Corner::BottomRight, 300)).with_lengths()),
    ];
    let passes = expressions.into_iter().flat_map(|(name, a)| {
        let a = a.with_origins(Origins::Any);
        [(format!("{name}, forward"), a.clone()), (format!("{name}, backward"), backward(&a))]
    });
    let passes: Vec<(String, Attention)> = turn(passes.collect(), version, &VERSIONS);
    let refused: Vec<&str> = REFUSED.iter().filter(|(of, _)| *of == version).map(|(_, what)| *what).collect();
    let answers = passes.into_par_iter().filter_map(|(what, a)| match kernels(&compiler, "h200", &what, a) {
        Err(fault) => Some(fault),
        Ok(found) if found.is_none() == refused.contains(&what.as_str()) => None,
        Ok(found) => Some(format!("{what}: {}", if found.is_some() { "compiles" } else { "is refused" })),
    });
    faults.extend(answers.collect::<Vec<_>>());
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}
