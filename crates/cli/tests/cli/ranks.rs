//! `--ranks`: the parts of attentions that several GPUs share.

use crate::kit::Place;

const MODEL: &str = "--model ../../models/llama-3.1-8b.json";

#[test]
fn a_probe_of_several_ranks_tells_bytes_memory_and_why_a_scheme_is_chosen() {
    let place = Place::new().set("QKVAULT_CUDNN_PATH", "/nonexistent");
    let (code, report) = place.json(&format!("probe {MODEL} --phase train --batch 1 --seq 8192 --ranks 2"));
    assert_eq!(code, 0, "{report:#}");
    let notes: Vec<&str> = report["notes"].as_array().unwrap().iter().filter_map(|note| note.as_str()).collect();
    for part in ["a rank sends", "besides its operands", "gather over 2 ranks", "bound by", "not ring over 2 ranks"] {
        assert!(notes.iter().any(|note| note.contains(part)), "no note has '{part}': {notes:#?}");
    }
    // Four chunks of 2048 queries over the keys that they see, forward and backward.
    let parts = report["supported"].as_array().unwrap();
    let text: Vec<&str> = parts.iter().filter_map(|part| part["attention"].as_str()).collect();
    assert!(parts.len() == 8 && report["refused"].as_array().unwrap().is_empty(), "{text:#?}");
}

#[test]
fn ranks_that_do_not_divide_are_refused_with_the_length_to_pad_to() {
    let place = Place::new().set("QKVAULT_CUDNN_PATH", "/nonexistent");
    let command = format!("probe {MODEL} --phase train --batch 1 --seq 8192 --ranks 3 --scheme gather");
    let (code, report) = place.json(&command);
    let reason = &report["refused"][0]["reasons"][0];
    assert_eq!((code, reason["code"].as_str()), (1, Some("shard.sequence")), "{report:#}");
    assert_eq!(reason["needed"].as_str(), Some("a multiple of 6: 8196"));
    let unknown = place.run(&format!("probe {MODEL} --ranks 2 --scheme star"));
    assert!(unknown.code != 0 && unknown.err.contains("gather, gather:GROUPS, heads, ring"), "{}", unknown.err);
}
