//! `warm --phase serve`.

use std::collections::BTreeSet;

use crate::kit::Place;

/// A set of four plans: two of decodes, two of mixed steps.
const SMALL: &str = "--max-batch 8 --max-new 256 --max-keys 1024 --page-size 64 --pages 64 --growth 8,0,0";

#[test]
fn warming_a_set_compiles_each_of_its_plans_once_and_notes_the_padding() {
    let Some(place) = Place::with_cudnn("9.27.0") else { return };
    let words = format!("warm --model ../../models/llama-3.1-8b.json --phase serve {SMALL}");
    let (code, report) = place.json(&words);
    assert_eq!((code, &report["built"], &report["refused"]), (0, &4.into(), &0.into()), "{report:#}");
    let uses: BTreeSet<&str> =
        report["plans"].as_array().unwrap().iter().map(|p| p["what"].as_str().unwrap()).collect();
    let each = ["decode b1 s1024", "decode b8 s1024", "mixed q256 b1 s1024", "mixed q256 b8 s1024"];
    for what in each {
        assert!(uses.iter().any(|u| u.contains(&format!("serve {what}"))), "{what}: {uses:?}");
    }
    assert!(report["notes"].to_string().contains("4 plans"), "{}", report["notes"]);
    let (_, again) = place.json(&words);
    assert_eq!((&again["built"], &again["hits"]), (&0.into(), &4.into()));
    // The token limit is not part of any key; it may decide whose plan is taken.
    let words = format!("{words} --engine cudnn");
    place.json(&words);
    let (_, tokens) = place.json(&format!("{words} --max-tokens 4096"));
    assert_eq!(&tokens["hits"], &4, "{tokens:#}");
}

#[test]
fn the_decodes_of_a_layer_with_sinks_are_refused_with_the_reason_and_kernels_take_them() {
    let Some(place) = Place::with_cudnn("9.27.0") else { return };
    let words = format!("warm --model ../../models/gpt-oss-20b.json --phase serve {SMALL} --growth 0,0,0");
    let words = words.replace("--growth 8,0,0 ", "");
    let (code, report) = place.json(&format!("{words} --engine cudnn"));
    // Mixed plans serve them.
    assert_eq!(code, 0, "{report:#}");
    assert!(report["notes"].to_string().contains("2 decodes that are refused go another way"), "{report:#}");
    let refused = report["plans"].as_array().unwrap().iter().filter(|p| p["status"] == "refused");
    for plan in refused {
        assert!(plan["what"].as_str().unwrap().contains("decode"), "{plan:#}");
        assert_eq!(plan["reasons"][0]["code"], "storage.paged-one-query-sink");
    }
    assert_eq!((&report["built"], &report["refused"]), (&2.into(), &2.into()));
    let (code, report) = place.json(&words);
    assert_eq!((code, &report["refused"]), (0, &0.into()), "{report:#}");
    let decodes = report["plans"].as_array().unwrap().iter().filter(|p| p["what"].as_str().unwrap().contains("decode"));
    let by_kernels = decodes.filter(|p| p["chosen"]["engine"] == "kernels");
    assert_eq!(by_kernels.count(), 2, "{report:#}");
}

/// On compute capability 10.x every step has a plan. On 9.0 decodes have: mixed steps are varlen and end bottom right,
/// which no GPU has judged together, and are refused by that name until they are allowed.
#[test]
fn pages_in_8_bits_have_plans_for_every_step_on_blackwell_and_for_decodes_on_hopper() {
    let Some(place) = Place::with_cudnn("9.27.0") else { return };
    let words = format!("warm --model ../../models/llama-3.1-8b.json --phase serve {SMALL}");
    for format in ["fp8-delayed", "fp8-current"] {
        let (code, report) = place.json(&format!("{words} --target b200 --kv {format}"));
        assert_eq!((code, &report["built"], &report["refused"]), (0, &4.into(), &0.into()), "{report:#}");
    }
    let (code, report) = place.json(&format!("{words} --target h200 --kv fp8-delayed"));
    let plans = report["plans"].as_array().unwrap();
    let (mixed, decodes): (Vec<_>, Vec<_>) =
        plans.iter().partition(|plan| plan["what"].as_str().unwrap().contains("mixed"));
    assert_eq!((code, mixed.len(), decodes.len()), (1, 2, 2), "{report:#}");
    assert!(decodes.iter().all(|plan| plan["status"] == "built"), "{report:#}");
    for plan in mixed {
        let codes: Vec<&str> =
            plan["reasons"].as_array().unwrap().iter().map(|reason| reason["code"].as_str().unwrap()).collect();
        assert_eq!((plan["status"].as_str(), &codes[..]), (Some("refused"), &HOPPER[..]), "{plan:#}");
    }
    let (code, report) = place.json(&format!("{words} --target h200 --kv fp8-delayed --allow {}", HOPPER.join(",")));
    assert_eq!((code, &report["built"], &report["hits"]), (0, &2.into(), &2.into()), "{report:#}");
    // Outputs in 16 bits are of compute capability 10.x.
    let (code, report) = place.json(&format!("{words} --target h200 --kv fp8-current"));
    assert_eq!((code, &report["refused"]), (1, &4.into()), "{report:#}");
    assert_eq!(place.run(&format!("{words} --kv int4")).code, 2);
}

/// Queries of 16 bits over pages of 8: every step of a whole model has a plan by own kernels.
#[test]
fn pages_in_8_bits_beside_queries_of_16_have_plans_for_whole_models() {
    let place = Place::new();
    for model in ["llama-3.1-8b", "gpt-oss-20b", "gemma-2-27b"] {
        let words = format!("warm --model ../../models/{model}.json --phase serve {SMALL} --kv fp8 --dry-run");
        let (_, report) = place.json(&format!("{words} --target h200 --engine kernels"));
        let plans = report["plans"].as_array().unwrap();
        assert!(plans.len() >= 4 && report["refused"] == 0, "{model}: {report:#}");
        let of_caches = |plan: &&serde_json::Value| plan["attention"].as_str().unwrap().contains("fp8-cache-e4m3");
        assert_eq!(plans.iter().filter(of_caches).count(), plans.len(), "{report:#}");
        let appends = report["notes"].as_array().unwrap().iter().filter_map(|note| note.as_str());
        assert_eq!(
            appends.filter(|note| note.ends_with("missing") && note.contains("appends")).count(),
            1,
            "{report:#}"
        );
    }
}

/// What only a GPU can judge of a chunk over pages in 8 bits on compute capability 9.0.
const HOPPER: [&str; 1] = ["fp8.hopper-bottom-right"];

#[test]
fn a_bad_range_is_refused_by_its_name() {
    let Some(place) = Place::with_cudnn("9.27.0") else { return };
    let words = "warm --model ../../models/llama-3.1-8b.json --phase serve --growth 1,2,2";
    let (code, report) = place.json(words);
    assert_eq!(code, 1);
    assert_eq!(report["plans"][0]["reasons"][0]["code"], "serve.growth", "{report:#}");
}

/// Sizes below the smallest step of a usual set have no plan of their own there; trees of drafts need one.
#[test]
fn a_set_for_trees_of_drafts_has_steps_of_as_many_and_needs_kernels() {
    let place = Place::new();
    let words = "warm --model ../../models/llama-3.1-8b.json --phase serve --target h200 --dry-run";
    let (_, report) = place.json(&format!("{words} --engine kernels --drafts 64 --max-batch 16"));
    let uses: Vec<&str> = report["plans"]
        .as_array()
        .unwrap()
        .iter()
        .flat_map(|plan| plan["uses"].as_array().unwrap())
        .map(|each| each.as_str().unwrap())
        .filter(|each| each.contains("mixed"))
        .collect();
    assert!(!uses.is_empty() && uses.iter().all(|each| each.contains(" q64 ")), "{uses:?}");
    place.run(&format!("{words} --drafts 65")).failed(2, &["65 is not in 2..=64"]);
    place.run(&format!("{words} --drafts 8 --max-new 8")).failed(2, &["cannot be used with"]);
}
