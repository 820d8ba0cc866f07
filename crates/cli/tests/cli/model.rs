//! `model`: what a config says, as JSON and as a table, from every place where configs are.

use serde_json::{Value, json};

use crate::kit::Place;

const POPULAR: &str = "../../models/popular";

fn keys(value: &Value) -> Vec<String> {
    value.as_object().unwrap().keys().cloned().collect()
}

#[test]
fn json_has_an_object_for_each_distinct_attention_with_every_field() {
    let (code, report) = Place::new().json(&format!("model {POPULAR}/gemma-3-27b.json"));
    assert_eq!(code, 0);
    assert_eq!(keys(&report), ["layers", "notes", "skipped"]);
    let layers = report["layers"].as_array().unwrap();
    let fields = [
        "alibi", "causal", "chunk", "count", "d_qk", "d_v", "heads", "indices", "kind", "kv_heads", "scale", "sink",
        "softcap", "window",
    ];
    for layer in layers {
        assert_eq!(keys(layer), fields);
        assert_eq!(layer["count"].as_u64(), Some(layer["indices"].as_array().unwrap().len() as u64));
    }
    let facts: Vec<Value> = layers.iter().map(|l| json!([l["kind"], l["count"], l["window"], l["causal"]])).collect();
    let expected =
        [json!(["self", 52, 1024, true]), json!(["self", 10, null, true]), json!(["vision", 27, null, false])];
    assert_eq!(facts, expected);
    assert_eq!(layers[1]["indices"], json!([5, 11, 17, 23, 29, 35, 41, 47, 53, 59]));
}

#[test]
fn layers_without_attention_are_named_with_how_many() {
    let (_, report) = Place::new().json(&format!("model {POPULAR}/qwen3-next-80b-a3b.json"));
    assert_eq!(report["layers"][0]["count"], 12);
    assert_eq!(
        (&report["skipped"][0]["what"], &report["skipped"][0]["count"]),
        (&json!("linear_attention"), &json!(36))
    );
    let done = Place::new().run(&format!("model {POPULAR}/qwen3-next-80b-a3b.json"));
    assert!(done.out.contains("not planned: linear_attention x36"), "{}", done.out);
}

#[test]
fn a_family_that_nobody_knows_is_planned_from_its_fields_with_a_note() {
    let place = Place::new();
    let path = place.file(
        "new.json",
        r#"{"model_type":"brand_new","num_attention_heads":16,"num_key_value_heads":4,"num_hidden_layers":6,
            "hidden_size":2048,"sliding_window":512,"layer_types":["sliding_attention","full_attention",
            "sliding_attention","mamba","sliding_attention","full_attention"],"torch_dtype":"bfloat16"}"#,
    );
    let (code, report) = place.json(&format!("model {path}"));
    assert_eq!(code, 0, "{report}");
    let facts: Vec<Value> =
        report["layers"].as_array().unwrap().iter().map(|l| json!([l["indices"], l["window"]])).collect();
    assert_eq!(facts, [json!([[0, 2, 4], 512]), json!([[1, 5], null])]);
    assert!(report["notes"][0].as_str().unwrap().contains("brand_new"), "{report}");
    // Without its width it cannot be planned, and the field is named.
    let path = place.file("less.json", r#"{"model_type":"brand_new","num_attention_heads":16,"num_hidden_layers":6}"#);
    place.run(&format!("model {path}")).failed(1, &["head_dim or hidden_size", "absent"]);
}

#[test]
fn a_shard_has_its_part_of_the_heads_and_of_the_slopes() {
    let shard = |rank: usize| {
        let words = format!("model ../../models/mpt-7b.json --tensor-parallel 4 --rank {rank}");
        Place::new().json(&words).1["layers"][0].clone()
    };
    let (whole, last) = (Place::new().json("model ../../models/mpt-7b.json").1["layers"][0].clone(), shard(3));
    assert_eq!((&last["heads"], &last["kv_heads"]), (&json!(8), &json!(8)));
    let slopes = |layer: &Value| layer["alibi"]["slopes"].as_array().unwrap().clone();
    let shards: Vec<Value> = (0..4).flat_map(|rank| slopes(&shard(rank))).collect();
    assert_eq!(shards, slopes(&whole));

    // Fewer key/value heads than GPUs: each GPU has one.
    let (_, report) = Place::new().json("model ../../models/llama-3.1-8b.json --tensor-parallel 16");
    assert_eq!((&report["layers"][0]["heads"], &report["layers"][0]["kv_heads"]), (&json!(2), &json!(1)));
    // Latent attention shares query heads and keeps its cache.
    let (_, report) = Place::new().json("model ../../models/deepseek-v3.json --tensor-parallel 8");
    assert_eq!(report["layers"][0]["heads"], 16);
    let done = Place::new().run("model ../../models/qwen2.5-7b.json --tensor-parallel 8");
    done.failed(1, &["28 query heads", "--tensor-parallel", "divides"]);
    Place::new().run("model ../../models/mpt-7b.json --tensor-parallel 4 --rank 4").failed(1, &["rank 4 of 4"]);
    // Sinks are those of the shard's heads.
    let (_, report) = Place::new().json("model ../../models/gpt-oss-20b.json --tensor-parallel 2 --rank 1");
    assert!(report["notes"].to_string().contains("sinks of heads 32 to 63"), "{report}");
}

#[test]
fn a_folder_and_a_name_in_the_hubs_cache_are_models() {
    let place = Place::new();
    let hub = place.path("hub");
    let repository = hub.join("models--meta-llama--Llama-3.1-8B");
    let snapshots = ["aaa", "bbb"].map(|commit| repository.join("snapshots").join(commit));
    let config = std::fs::read_to_string("../../models/llama-3.1-8b.json").unwrap();
    for snapshot in &snapshots {
        std::fs::create_dir_all(snapshot).unwrap();
    }
    std::fs::write(snapshots[1].join("config.json"), config).unwrap();
    std::fs::create_dir_all(repository.join("refs")).unwrap();
    std::fs::write(repository.join("refs/main"), "bbb").unwrap();
    let place = place.set("HF_HUB_CACHE", hub.display().to_string());
    let name = "meta-llama/Llama-3.1-8B";
    for given in [name.to_owned(), repository.display().to_string(), snapshots[1].display().to_string()] {
        let (code, report) = place.json(&format!("model {given}"));
        assert_eq!((code, &report["layers"][0]["count"]), (0, &json!(32)), "{given}: {report}");
    }
    assert!(place.run(&format!("model {name}")).out.starts_with("Llama-3.1-8B (llama): 32 attentions"));
    let (code, _) = place.json(&format!("probe --model {name} --target h200 --seq 512 --batch 1"));
    assert_eq!(code, 0);
    place.run(&format!("model {name}@aaa")).failed(1, &["aaa", "config.json"]);
    place.run(&format!("model {name}@v2")).failed(1, &["snapshot of v2"]);
    place.run("model nobody/nothing").failed(1, &["models--nobody--nothing", "hub"]);
    let empty = place.path("empty");
    std::fs::create_dir(&empty).unwrap();
    place.run(&format!("model {}", empty.display())).failed(1, &["config.json"]);
}

#[test]
fn a_file_that_is_no_config_is_refused_by_what_is_wrong_with_it() {
    let place = Place::new();
    let comment = place.file("comment.json", "{\n  // the model\n  \"model_type\": \"llama\"\n}");
    place.run(&format!("model {comment}")).failed(1, &["comment", "line 2", "remove"]);
    let large = place.path("model.safetensors");
    std::fs::File::create(&large).unwrap().set_len(3 << 30).unwrap();
    place.run(&format!("model {}", large.display())).failed(1, &["3221225472 bytes", "config.json"]);
    let cut = place.file("cut.gguf", "GGUF\u{3}\0\0\0\0\0\0\0");
    place.run(&format!("model {cut}")).failed(1, &["cut short", "GGUF"]);
    let binary = place.path("binary.json");
    std::fs::write(&binary, [b'{', 0xff, 0xfe]).unwrap();
    place.run(&format!("model {}", binary.display())).failed(1, &["UTF-8"]);
    for (name, fields, words) in [
        ("heads", r#""num_attention_heads":32,"num_key_value_heads":5"#, ["num_key_value_heads", "divisor of the 32"]),
        ("width", r#""num_attention_heads":30,"num_key_value_heads":30"#, ["hidden_size", "4096 over 30"]),
        ("depths", r#""num_attention_heads":32,"n_layer":5"#, ["n_layer", "num_hidden_layers is 4"]),
        ("names", r#""num_attention_heads":32,"n_head":16"#, ["n_head", "num_attention_heads is 32"]),
        (
            "list",
            r#""num_attention_heads":32,"sliding_window":8,"layer_types":["full_attention","sliding_attention","full_attention"]"#,
            ["layer_types", "3 entries for 4 layers"],
        ),
        (
            "window",
            r#""num_attention_heads":32,"layer_types":["sliding_attention","full_attention"]"#,
            ["sliding_window", "absent"],
        ),
        (
            "word",
            r#""num_attention_heads":32,"layer_types":["sideways","full_attention"]"#,
            ["layer_types[0]", "sideways"],
        ),
        ("type", r#""num_attention_heads":"32""#, ["num_attention_heads", "whole number"]),
        ("most", r#""num_attention_heads":32,"head_dim":1e30"#, ["head_dim", "1e+30"]),
    ] {
        let text = format!(r#"{{"model_type":"llama","hidden_size":4096,"num_hidden_layers":4,{fields}}}"#);
        let path = place.file(&format!("{name}.json"), &text);
        place.run(&format!("model {path}")).failed(1, &words);
    }
}
