//! `--ranks`: the parts of attentions that several GPUs share.

use crate::kit::{Place, numbers};

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

/// Each rank warms by the same command, so the second one finds what the first has built: the keys are the same.
#[test]
fn the_plans_of_two_ranks_are_built_once_with_their_merges_and_sums() {
    let Some(place) = Place::with_cudnn("9.27.0") else { return };
    let config = r#"{"model_type":"llama","num_attention_heads":4,"num_key_value_heads":2,"num_hidden_layers":1,"hidden_size":256}"#;
    let model = place.file("small.json", config);
    let words = format!("warm --model {model} --phase train --seq 256 --batch 1 --ranks 2 --scheme ring");
    let (code, first) = place.json(&words);
    let [built, hits, refused, failed] = numbers(&first, ["built", "hits", "refused", "failed"]);
    assert_eq!((code, hits, refused, failed), (0, 0, 0, 0), "{first:#}");
    // Each direction has the diagonal, a chunk with a chunk, and both chunks of queries or of keys with one of the
    // others. Merges, sums and copies are told in a note.
    assert_eq!(built, 8, "{first:#}");
    let notes = first["notes"].as_array().unwrap().iter().filter_map(|note| note.as_str());
    let merges: Vec<&str> = notes.filter(|note| note.contains("plans of merges, sums")).collect();
    assert!(merges.len() == 1 && merges[0].ends_with(", 0 missing"), "{first:#}");
    let (code, second) = place.json(&words);
    assert_eq!((code, numbers(&second, ["built", "hits"])), (0, [0, built]), "{second:#}");
}
