//! Every published model compiles, or `REFUSED` lists what is not supported.

use crate::kit::Place;

/// The names of the configs in a folder of `models` of the repository.
fn models(folder: &str) -> Vec<String> {
    let files = std::fs::read_dir(format!("../../models{folder}")).unwrap().map(|file| file.unwrap().path());
    let mut names: Vec<String> = files
        .filter(|path| path.extension().is_some_and(|end| end == "json"))
        .map(|path| path.file_stem().unwrap().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

/// The refused shapes, as (model, phase, code). Review every change.
const REFUSED: [(&str, &str, &str); 0] = [];

/// Compiles the models of a folder, of which those in `encoders` do not decode.
fn warm(version: &str, folder: &str, encoders: &[&str]) {
    let Some(place) = Place::with_cudnn(version) else { return };
    let models = models(folder);
    let given: Vec<String> = models.iter().map(|m| format!("--model ../../models{folder}/{m}.json")).collect();
    let (code, report) = place.json(&format!("warm {} --seq 512 --batch 1 --target h200", given.join(" ")));
    let plans = report["plans"].as_array().unwrap();
    let mut refused = Vec::new();
    for plan in plans {
        let what = plan["what"].as_str().unwrap();
        match plan["status"].as_str().unwrap() {
            "built" => assert!(plan["bytes"].as_u64() > Some(20_000), "{plan:#}"),
            "refused" => {
                let (model, phase) =
                    (what.split(' ').next().unwrap(), if what.contains("decode") { "decode" } else { "prefill" });
                let codes: Vec<&str> =
                    plan["reasons"].as_array().unwrap().iter().map(|r| r["code"].as_str().unwrap()).collect();
                refused.push((model.to_owned(), phase, codes.join(" ")));
            }
            other => panic!("{other}: {plan:#}"),
        }
    }
    let expected: Vec<_> = REFUSED.iter().map(|&(m, p, c)| (m.to_owned(), p, c.to_owned())).collect();
    assert_eq!(refused, expected);
    assert_eq!(code, i32::from(!refused.is_empty()));
    // Every model has a plan for each of its phases, possibly shared with another model.
    let uses: Vec<&str> =
        plans.iter().flat_map(|p| p["uses"].as_array().unwrap()).map(|u| u.as_str().unwrap()).collect();
    assert!(models.len() >= 8, "{models:?}");
    for model in &models {
        let phases = if encoders.contains(&model.as_str()) { &["prefill"][..] } else { &["prefill", "decode"] };
        for phase in phases {
            assert!(
                uses.iter().any(|u| u.starts_with(model.as_str()) && u.contains(phase)),
                "no {phase} of {model} in {uses:?}"
            );
        }
    }
}

#[test]
fn the_published_models_compile_with_9_27() {
    warm("9.27.0", "", &["bert-base"]);
}

#[test]
fn the_published_models_compile_with_9_19() {
    warm("9.19.0", "", &["bert-base"]);
}

/// Qwen3, Qwen3-Next, Gemma 3, Llama 4, Phi-4, Command R, Mixtral, Kimi K2 and Wan 2.2.
#[test]
fn popular_models_compile_with_9_27() {
    warm("9.27.0", "/popular", &[]);
}

#[test]
fn popular_models_compile_with_9_19() {
    warm("9.19.0", "/popular", &[]);
}
