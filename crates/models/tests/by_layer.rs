//! Lists with an entry for each layer: read whole, and refused where their length does not fit.

#![allow(clippy::unwrap_used, reason = "tests")]

use qkvault_models::Model;
use qkvault_models::codes;
use serde_json::{Value, json};

/// The model of some fields over those of a usual config of `layers` layers.
fn read(layers: usize, fields: &Value) -> Result<Model, String> {
    let mut config = json!({
        "model_type": "mistral", "hidden_size": 512, "num_attention_heads": 8, "num_key_value_heads": 2,
        "num_hidden_layers": layers, "head_dim": 64, "torch_dtype": "bfloat16",
    });
    config.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    Model::from_config(&config.to_string()).map_err(|refusal| {
        assert!(refusal.has(&codes::CONFIG_FIELD), "{refusal}");
        refusal.to_string()
    })
}

/// The window of each layer.
fn windows(model: &Model) -> Vec<Option<i64>> {
    let mut all: Vec<(usize, Option<i64>)> =
        model.layers.iter().flat_map(|kind| kind.indices.iter().map(|&index| (index, kind.window))).collect();
    all.sort_unstable();
    all.into_iter().map(|(_, window)| window).collect()
}

/// Ministral's params.json: the list is a period over the layers, and null sees all keys.
#[test]
fn windows_of_params_json_repeat_over_the_layers() {
    let params = |windows: Value| {
        let text = json!({
            "dim": 4096, "n_layers": 36, "head_dim": 128, "n_heads": 32, "n_kv_heads": 8,
            "sliding_window": windows, "_sliding_window": windows,
        });
        Model::from_config(&text.to_string())
    };
    for period in [
        vec![None, Some(32768), Some(32768), Some(32768)],
        vec![Some(32768), Some(32768), Some(32768), None],
        vec![Some(131_072), Some(32768), Some(32768), Some(32768)],
    ] {
        let model = params(json!(period)).unwrap();
        let expected: Vec<Option<i64>> = period.iter().copied().cycle().take(36).collect();
        assert_eq!(windows(&model), expected);
        assert_eq!(model.layers.len(), 2, "{:?}", model.layers);
    }
    for list in [json!([32768, null, null, null, null]), json!([]), json!(vec![Value::Null; 72])] {
        let refusal = params(list).expect_err("no period of 36 layers").to_string();
        assert!(refusal.contains("sliding_window") && refusal.contains("for 36 layers"), "{refusal}");
    }
}

#[test]
fn a_list_of_windows_in_config_json_gives_each_layer_its_own() {
    let model = read(4, &json!({"sliding_window": [4096, null, 4096, null]})).unwrap();
    assert_eq!(windows(&model), [Some(4096), None, Some(4096), None]);
    let model = read(4, &json!({"sliding_window": [512, 1024, false, 4096]})).unwrap();
    assert_eq!(windows(&model), [Some(512), Some(1024), None, Some(4096)]);
    let refusal = read(4, &json!({"sliding_window": [512, "x"]})).expect_err("a word");
    assert!(refusal.contains("sliding_window[1]"), "{refusal}");
}

/// One list says that a layer sees all keys, another that it has a window, or the other way round.
#[test]
fn two_lists_of_layers_that_contradict_each_other_are_refused() {
    let words = json!(["sliding_attention", "full_attention"]);
    let both = |windows: Value| read(2, &json!({"layer_types": words, "sliding_window": windows}));
    assert_eq!(windows(&both(json!([64, null])).unwrap()), [Some(64), None]);
    assert!(both(json!([64, 64])).expect_err("full").contains("sliding_window[1]"));
    assert!(both(json!([null, 64])).is_err());
}

/// Seven layers, so that no shorter list is a period by chance; fourteen entries are two of each.
#[test]
fn a_list_of_another_length_than_the_layers_is_refused_by_its_name() {
    let word = json!("full_attention");
    let block = json!({"attention": {"n_heads_in_group": 4}});
    let lists: &[(&str, Value, Value)] = &[
        ("num_attention_heads", json!(8), json!({})),
        ("num_attention_heads_per_layer", json!(8), json!({})),
        ("num_key_value_heads", json!(2), json!({})),
        ("num_kv_heads", json!(2), json!({"num_key_value_heads": null})),
        ("num_key_value_heads_per_layer", json!(2), json!({})),
        ("head_dim", json!(64), json!({})),
        ("v_head_dim", json!(64), json!({})),
        ("block_configs", block, json!({})),
        ("per_layer_config", json!({}), json!({})),
        ("layer_types", word, json!({})),
        ("attn_type_list", json!(1), json!({})),
        ("hybrid_layer_pattern", json!(0), json!({})),
        ("sliding_window_pattern", json!(false), json!({})),
        ("sliding_window", json!(64), json!({})),
        ("no_rope_layers", json!(1), json!({"attention_chunk_size": 64})),
        (
            "no_rope_layers",
            json!(1),
            json!({"model_type": "smollm3", "sliding_window": 64, "use_sliding_window": true}),
        ),
    ];
    for (name, entry, beside) in lists {
        for count in [0, 2, 6, 8, 14] {
            let mut fields = beside.clone();
            fields[name] = vec![entry.clone(); count].into();
            // Without entries, these two are as absent as null.
            if count == 0 && *name == "no_rope_layers" {
                continue;
            }
            let refusal = read(7, &fields).expect_err(name);
            assert!(refusal.contains(&format!("{name}: {count} entries for 7 layers")), "{name}: {refusal}");
        }
        let mut fields = beside.clone();
        fields[name] = vec![entry.clone(); 7].into();
        assert_eq!(windows(&read(7, &fields).unwrap()).len(), 7, "{name}");
    }
}

/// Heads are by block, so a shorter list would leave blocks without their own.
#[test]
fn head_lists_are_no_period() {
    let block = |group: i64| json!({"attention": {"n_heads_in_group": group}});
    for fields in [
        json!({"num_key_value_heads": [2, 4]}),
        json!({"num_attention_heads": [8, 4]}),
        json!({"block_configs": [block(2), block(4)]}),
        json!({"per_layer_config": [{}, {"num_key_value_heads": 4}]}),
        json!({"per_layer_config": {"4": {"num_key_value_heads": 4}}}),
        json!({"per_layer_config": {"first": {"num_key_value_heads": 4}}}),
    ] {
        read(4, &fields).expect_err(&fields.to_string());
    }
    let model = read(4, &json!({"num_key_value_heads": [2, 4, 0, 2]})).unwrap();
    let heads: Vec<_> = model.layers.iter().map(|kind| (kind.kv_heads, kind.indices.clone())).collect();
    assert_eq!(heads, [(2, vec![0, 3]), (4, vec![1])]);
    assert_eq!(model.skipped[0].indices, [2], "no heads, no attention");
}

#[test]
fn a_window_that_no_layer_has_is_said() {
    let qwen = |more: Value| {
        let mut fields = json!({"model_type": "qwen2", "sliding_window": 4096});
        fields.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        read(4, &fields)
    };
    let said = |more: Value, words: &[&str]| {
        let model = qwen(more.clone()).unwrap();
        assert_eq!(windows(&model), [None; 4]);
        let [note] = &model.notes[..] else { panic!("{more}: {:?}", model.notes) };
        assert!(note.contains("sliding_window 4096 is not used"), "{note}");
        words.iter().for_each(|word| assert!(note.contains(word), "{note}"));
    };
    said(json!({"use_sliding_window": false}), &["use_sliding_window is false"]);
    said(json!({}), &["use_sliding_window is false, the default of the family"]);
    said(json!({"use_sliding_window": true, "max_window_layers": 4}), &["max_window_layers (4)", "there are 4"]);
    said(
        json!({"use_sliding_window": true, "layer_types": vec!["full_attention"; 4]}),
        &["no layer of layer_types slides"],
    );
    let model = qwen(json!({"use_sliding_window": true, "max_window_layers": 2})).unwrap();
    assert_eq!((windows(&model), model.notes.len()), (vec![None, None, Some(4096), Some(4096)], 0));
    let unset = qwen(json!({"use_sliding_window": false, "sliding_window": null})).unwrap();
    assert_eq!(unset.notes, Vec::<String>::new());
}

/// transformers refuses such a config too: it has sliding layers, and no window while the switch is off.
#[test]
fn sliding_layers_whose_window_is_switched_off_are_refused_by_the_switch() {
    let fields = json!({"model_type": "qwen3", "sliding_window": 2048, "layer_types": ["sliding_attention"]});
    let refusal = read(1, &fields).expect_err("off by default");
    assert!(refusal.contains("use_sliding_window: false, the default of the family"), "{refusal}");
    assert!(!refusal.contains("absent"), "the window is there: {refusal}");
}
