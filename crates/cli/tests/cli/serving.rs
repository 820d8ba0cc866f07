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
    // The token limit is not part of any key.
    let (_, tokens) = place.json(&format!("{words} --max-tokens 4096"));
    assert_eq!(&tokens["hits"], &4, "{tokens:#}");
}

#[test]
fn the_decodes_of_a_layer_with_sinks_are_refused_with_the_reason_and_kernels_take_them() {
    let Some(place) = Place::with_cudnn("9.27.0") else { return };
    let words = format!("warm --model ../../models/gpt-oss-20b.json --phase serve {SMALL} --growth 0,0,0");
    let words = words.replace("--growth 8,0,0 ", "");
    let (code, report) = place.json(&format!("{words} --engine cudnn"));
    assert_eq!(code, 1, "{report:#}");
    let refused = report["plans"].as_array().unwrap().iter().filter(|p| p["status"] == "refused");
    for plan in refused {
        assert!(plan["what"].as_str().unwrap().contains("decode"), "{plan:#}");
        assert_eq!(plan["reasons"][0]["code"], "storage.paged-one-query-sink");
    }
    assert_eq!((&report["built"], &report["refused"]), (&2.into(), &2.into()));
    let (code, report) = place.json(&words);
    assert_eq!((code, &report["refused"]), (0, &0.into()), "{report:#}");
    let by_kernels = report["plans"].as_array().unwrap().iter().filter(|p| p["chosen"]["engine"] == "kernels");
    let why: Vec<&str> = by_kernels.map(|plan| plan["instead"][0]["code"].as_str().unwrap_or("none")).collect();
    assert_eq!(why, ["storage.paged-one-query-sink"; 2], "{report:#}");
}

#[test]
fn a_bad_range_is_refused_by_its_name() {
    let Some(place) = Place::with_cudnn("9.27.0") else { return };
    let words = "warm --model ../../models/llama-3.1-8b.json --phase serve --growth 1,2,2";
    let (code, report) = place.json(words);
    assert_eq!(code, 1);
    assert_eq!(report["plans"][0]["reasons"][0]["code"], "serve.growth", "{report:#}");
}
