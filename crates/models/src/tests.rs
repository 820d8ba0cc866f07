//! The published configs in the folder `models` of the repository, and invalid configs.

use super::*;
use crate::codes;
use qkvault_cudnn::{CompileOptions, Profile, lower};
use qkvault_graph::registry::Code;
use qkvault_graph::{Attention, Band, Corner, DType};
use qkvault_graph::{CudnnVersion, LibrarySet, validate};
use qkvault_serving::PageLayout;

/// The names of the published configs.
fn names() -> Vec<String> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models");
    let files = std::fs::read_dir(folder).expect("models are checked in").map(|file| file.expect("an entry").path());
    let names = files.filter(|path| path.extension().is_some_and(|end| end == "json"));
    names.map(|path| path.file_stem().expect("a name").to_string_lossy().into_owned()).collect()
}

fn published(name: &str) -> String {
    let path = format!("{}/../../models/{name}.json", env!("CARGO_MANIFEST_DIR"));
    std::fs::read_to_string(path).expect("models are checked in")
}

fn model(name: &str) -> Model {
    Model::from_config(&published(name)).expect("a published config reads")
}

#[test]
fn llama_groups_heads() {
    let m = model("llama-3.1-8b");
    let [kind] = &m.layers[..] else { panic!("one kind of layer: {m:?}") };
    assert_eq!((kind.count, kind.heads, kind.kv_heads, kind.d_qk, kind.d_v), (32, 32, 8, 128, 128));
    assert!(kind.causal && kind.window.is_none() && (kind.scale - 0.088_388_35).abs() < 1e-6);
    let a = kind.attention(Phase::Prefill, 4, 512).expect("a phase it has");
    assert_eq!((a.q.dims, a.k.dims), ([4, 32, 512, 128], [4, 8, 512, 128]));
    assert_eq!(a.mask.band, Some(Band::CAUSAL));
}

#[test]
fn mistral_slides_in_both_phases() {
    let m = model("mistral-7b-v0.1");
    assert_eq!(m.layers.len(), 1);
    assert_eq!(m.layers[0].window, Some(4096));
    let a = m.layers[0].attention(Phase::Decode, 8, 8192).expect("a phase it has");
    assert_eq!(a.seq(), (1, 8192));
    assert_eq!(a.mask.band, Some(Band::window(Corner::BottomRight, 4096)));
}

#[test]
fn qwen2_does_not_slide_when_told_not_to() {
    let m = model("qwen2.5-7b");
    assert_eq!(m.layers.len(), 1);
    assert_eq!((m.layers[0].window, m.layers[0].heads, m.layers[0].kv_heads), (None, 28, 4));
}

#[test]
fn gemma2_alternates_and_caps() {
    let m = model("gemma-2-27b");
    let labels: Vec<_> = m.layers.iter().map(|k| (k.label.as_str(), k.count, k.window)).collect();
    assert_eq!(labels, [("sliding 4096", 23, Some(4096)), ("full", 23, None)]);
    for kind in &m.layers {
        assert_eq!(kind.softcap, Some(50.0));
        assert!((kind.scale - 1.0 / 12.0).abs() < 1e-6);
        assert!(kind.attention(Phase::Prefill, 1, 512).expect("a phase it has").score_mod.is_some());
    }
}

#[test]
fn gpt_oss_has_sinks_in_every_layer() {
    let m = model("gpt-oss-20b");
    let labels: Vec<_> = m.layers.iter().map(|k| (k.label.as_str(), k.count, k.sink)).collect();
    assert_eq!(labels, [("sliding 128", 12, true), ("full", 12, true)]);
    assert!(m.layers[0].attention(Phase::Decode, 1, 1024).expect("a phase it has").sink);
}

#[test]
fn bert_sees_everything_and_does_not_decode() {
    let m = model("bert-base");
    assert_eq!((m.layers[0].d_qk, m.max_positions), (64, Some(512)));
    assert_eq!(m.notes.len(), 1, "the dtype is an assumption: {:?}", m.notes);
    let a = m.layers[0].attention(Phase::Prefill, 1, 512).expect("a phase it has");
    assert_eq!(a.mask.band, None);
    assert!(m.layers[0].attention(Phase::Decode, 1, 512).expect_err("no decode").has(&codes::MODEL_PHASE));
}

#[test]
fn mpt_biases_by_distance() {
    let m = model("mpt-7b");
    assert_eq!(
        (m.layers[0].alibi.map(|alibi| alibi.bias_max), m.layers[0].d_qk, m.max_positions),
        (Some(8.0), 128, Some(2048))
    );
    assert!(m.layers[0].attention(Phase::Prefill, 1, 512).expect("a phase it has").score_mod.is_some());
}

/// In mpt-7b-storywriter `alibi_bias_max` is 16, which makes the slope of its first head 0.7071.
#[test]
fn b5_mpts_alibi_bias_max_is_in_the_slopes_and_under_the_key() {
    let read = |max: f32| {
        let text = published("mpt-7b").replace("\"alibi_bias_max\": 8", &format!("\"alibi_bias_max\": {max}"));
        let layer = Model::from_config(&text).expect("reads").layers.remove(0);
        let slopes = |a: &Attention| {
            let spec = a.score_mod.as_ref().map(|e| e.tensors()[0]).expect("a tensor of slopes");
            spec.alibi.expect("slopes of ALiBi").values(32)
        };
        let a = layer.attention(Phase::Prefill, 1, 512).expect("a phase it has");
        let served = layer.serving(8, 16, PageLayout::Nhd).expect("it decodes").score_mod;
        assert_eq!(served, a.score_mod);
        (slopes(&a)[0], validate(a).expect("sound"))
    };
    let (usual, steep) = (read(8.0), read(16.0));
    assert_eq!([usual.0, steep.0], [0.840_896_4, std::f32::consts::FRAC_1_SQRT_2]);
    assert_ne!(usual.1.key(), steep.1.key(), "two slopes are two attentions");
    let target = Profile::named("h200").expect("built in").target(CudnnVersion::v9(19, 0), LibrarySet::Slim);
    let graphs = [usual.1, steep.1].map(|a| lower(&a, &target, &CompileOptions::default()).expect("lowers"));
    assert_eq!(graphs[0], graphs[1], "and share a plan");
}

#[test]
fn b5_mpts_prefix_lm_is_planned_with_its_prefix_and_not_as_causal() {
    let with =
        |on: bool| published("mpt-7b").replace("\"alibi\": true", &format!("\"alibi\": true, \"prefix_lm\": {on}"));
    let layer = Model::from_config(&with(true)).expect("it reads").layers.remove(0);
    let prefill = layer.attention(Phase::Prefill, 2, 512).expect("a phase it has");
    let mask = prefill.mask.mask_mod.as_ref().expect("a mask of prefixes").to_string();
    assert!(prefill.mask.band.is_none() && mask.contains("prefix"), "{mask}");
    validate(prefill).expect("sound");
    let decode = layer.attention(Phase::Decode, 2, 512).expect("a phase it has");
    assert_eq!((decode.mask.band, decode.mask.mask_mod), (Some(Band::CAUSAL_BOTTOM_RIGHT), None));
    assert!(layer.serving(8, 16, PageLayout::Nhd).expect_err("no prefixes").has(&codes::MODEL_SERVE_LAYER));
    assert_eq!(Model::from_config(&with(false)), Model::from_config(&published("mpt-7b")));
}

#[test]
fn deepseek_unfolds_prompts_and_decodes_over_the_latent_cache() {
    let m = model("deepseek-v3");
    let p = m.layers[0].attention(Phase::Prefill, 1, 512).expect("a phase it has");
    assert_eq!((p.head_dims(), p.heads()), ((192, 128), (128, 128, 128)));
    let d = m.layers[0].attention(Phase::Decode, 1, 1024).expect("a phase it has");
    assert_eq!((d.head_dims(), d.heads()), ((576, 512), (128, 1, 1)));
    assert_eq!(d.v.strides, d.k.strides, "values are the first part of the keys' rows");
}

#[test]
fn every_attention_of_every_model_is_valid() {
    for name in names() {
        for kind in model(&name).layers {
            for phase in Phase::ALL {
                if let Ok(a) = kind.attention(phase, 4, 2048) {
                    validate(a).unwrap_or_else(|r| panic!("{name} {phase}: {r}"));
                }
            }
        }
    }
}

#[test]
fn bad_configs_get_every_reason() {
    let cases: [(&str, &[&str]); 8] = [
        ("", &["config.json"]),
        ("[1]", &["config.json"]),
        ("{}", &["config.family"]),
        (r#"{"model_type":"mamba"}"#, &["config.family"]),
        (r#"{"model_type":"llama","hidden_size":4096}"#, &["config.missing"]),
        (
            r#"{"model_type":"llama","num_attention_heads":-3,"num_hidden_layers":"x","hidden_size":4096}"#,
            &["config.field"],
        ),
        (
            r#"{"model_type":"llama","num_attention_heads":3,"num_hidden_layers":2,"hidden_size":4096}"#,
            &["config.head-dim"],
        ),
        (
            r#"{"model_type":"gpt_oss","num_attention_heads":4,"num_hidden_layers":3,"head_dim":64,"sliding_window":8,"layer_types":["full_attention","sideways"],"torch_dtype":"int8"}"#,
            &["config.field", "config.dtype"],
        ),
    ];
    for (text, codes) in cases {
        let refusal = Model::from_config(text).expect_err(text);
        for code in codes {
            assert!(refusal.has(&Code::from(*code)), "{text}: {refusal}");
        }
    }
}

#[test]
fn a_planned_layer_has_the_key_of_one_that_is_written_by_hand() {
    let planned = model("llama-3.1-8b").layers[0].attention(Phase::Prefill, 1, 4096).expect("it prefills");
    let built = Attention::bshd(1, (32, 8), (4096, 4096), 128, DType::BF16).with_band(Band::CAUSAL);
    let key = |a| validate(a).expect("sound").key();
    assert_eq!(key(planned), key(built));
}

/// Llama 4: a query sees its own chunk. The last query of a cache of any length sees the keys since the chunk began.
#[test]
fn a_chunk_hides_the_keys_before_it_in_both_phases() {
    let text = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/popular/llama-4-scout.json"));
    let model = Model::from_config(&text.expect("it is checked in")).expect("it reads");
    let layer = LayerKind { chunk: Some(8), ..model.layers[0].clone() };
    for seq in [5, 8, 9, 16, 23] {
        let prefill = layer.attention(Phase::Prefill, 1, seq).expect("a phase it has");
        assert_eq!(prefill.mask.band, Some(Band::CAUSAL));
        assert_eq!(prefill.mask.mask_mod.is_some(), seq > 8, "one chunk needs no expression");
        let decode = layer.attention(Phase::Decode, 1, seq).expect("a phase it has");
        let band = decode.mask.band.expect("a band");
        for key in 0..seq {
            assert_eq!(band.keeps(0, key, 1, seq), key / 8 == (seq - 1) / 8, "key {key} of {seq}");
        }
        for a in [prefill, decode] {
            validate(a).expect("sound");
        }
    }
    let mask = layer.attention(Phase::Prefill, 1, 23).expect("a phase it has").mask.mask_mod.expect("chunks");
    assert_eq!(mask.to_string().matches("% 8").count(), 1, "{mask}");
    assert!(layer.serving(8, 16, PageLayout::Nhd).expect_err("no chunks").has(&codes::MODEL_SERVE_LAYER));
}

#[test]
fn distances_to_both_sides_are_named_and_not_planned_as_alibi() {
    let text = r#"{"model_type":"bert","num_attention_heads":12,"num_hidden_layers":3,"hidden_size":768,
        "position_embedding_type":"alibi"}"#;
    let model = Model::from_config(text).expect("it reads");
    assert_eq!((model.layers.len(), model.skipped[0].count), (0, 3));
    assert!(model.skipped[0].why.contains("ALiBi"), "{model:?}");
}

/// Python writes what JSON does not have.
#[test]
fn infinity_and_nan_are_read_as_nothing() {
    let text = r#"{"model_type":"llama","num_attention_heads":8,"num_hidden_layers":2,"hidden_size":512,
        "time_step_limit":[0.0,Infinity],"x":-Infinity,"y":NaN,"name":"Infinity and NaN \" NaN"}"#;
    assert_eq!(Model::from_config(text).expect("it reads").layers[0].count, 2);
}
