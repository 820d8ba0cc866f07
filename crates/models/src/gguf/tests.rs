//! GGUF files made by hand: whole, cut short at every byte, and lying about lengths.

use super::*;
use crate::{AttentionKind, LayerKind};

#[derive(Clone)]
enum GgufEntry<'a> {
    Text(&'a str),
    U32(u32),
    F32(f32),
    Bools(&'a [bool]),
    U32s(&'a [u32]),
    Words(usize),
}

fn text(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text.as_bytes());
}

fn file(entries: &[(&str, GgufEntry<'_>)]) -> Vec<u8> {
    let mut out = b"GGUF".to_vec();
    out.extend(3_u32.to_le_bytes());
    out.extend(0_u64.to_le_bytes());
    out.extend((entries.len() as u64).to_le_bytes());
    let list = |out: &mut Vec<u8>, kind: u32, count: usize| {
        out.extend(9_u32.to_le_bytes());
        out.extend(kind.to_le_bytes());
        out.extend((count as u64).to_le_bytes());
    };
    for (key, value) in entries {
        text(&mut out, key);
        match value {
            GgufEntry::Text(value) => {
                out.extend(8_u32.to_le_bytes());
                text(&mut out, value);
            }
            GgufEntry::U32(value) => {
                out.extend(4_u32.to_le_bytes());
                out.extend(value.to_le_bytes());
            }
            GgufEntry::F32(value) => {
                out.extend(6_u32.to_le_bytes());
                out.extend(value.to_le_bytes());
            }
            GgufEntry::Bools(values) => {
                list(&mut out, 7, values.len());
                out.extend(values.iter().map(|&value| u8::from(value)));
            }
            GgufEntry::U32s(values) => {
                list(&mut out, 4, values.len());
                values.iter().for_each(|value| out.extend(value.to_le_bytes()));
            }
            GgufEntry::Words(count) => {
                list(&mut out, 8, *count);
                (0..*count).for_each(|i| text(&mut out, &format!("word {i}")));
            }
        }
    }
    out
}

fn read(bytes: &[u8]) -> Result<Model, Refusal> {
    super::read(&bytes::metadata(bytes, bytes.len() as u64, is_wanted)?)
}

fn llama() -> Vec<u8> {
    file(&[
        ("general.architecture", GgufEntry::Text("llama")),
        ("tokenizer.ggml.tokens", GgufEntry::Words(5000)),
        ("llama.block_count", GgufEntry::U32(32)),
        ("llama.context_length", GgufEntry::U32(131_072)),
        ("llama.embedding_length", GgufEntry::U32(4096)),
        ("llama.attention.head_count", GgufEntry::U32(32)),
        ("llama.attention.head_count_kv", GgufEntry::U32(8)),
    ])
}

#[test]
fn a_gguf_file_is_the_model_of_its_config() {
    let model = read(&llama()).expect("it reads");
    let [LayerKind { count, heads, kv_heads, d_qk, d_v, kind, causal, window, .. }] = model.layers[..] else {
        panic!("one kind of layer: {model:?}")
    };
    assert_eq!((count, heads, kv_heads, d_qk, d_v, kind), (32, 32, 8, 128, 128, AttentionKind::SelfAttention));
    assert_eq!((causal, window, model.max_positions), (true, None, Some(131_072)));
}

#[test]
fn windows_scales_and_softcaps_of_gemma_follow_from_its_architecture() {
    let model = read(&file(&[
        ("general.architecture", GgufEntry::Text("gemma2")),
        ("gemma2.block_count", GgufEntry::U32(46)),
        ("gemma2.embedding_length", GgufEntry::U32(4608)),
        ("gemma2.attention.head_count", GgufEntry::U32(32)),
        ("gemma2.attention.head_count_kv", GgufEntry::U32(16)),
        ("gemma2.attention.key_length", GgufEntry::U32(128)),
        ("gemma2.attention.value_length", GgufEntry::U32(128)),
        ("gemma2.attention.sliding_window", GgufEntry::U32(4096)),
        ("gemma2.attn_logit_softcapping", GgufEntry::F32(50.0)),
    ]));
    let model = model.expect("it reads");
    let facts: Vec<_> = model.layers.iter().map(|l| (l.window, l.count, l.softcap, l.scale)).collect();
    let scale = 1.0 / 12.0;
    assert_eq!(facts, [(Some(4096), 23, Some(50.0), scale), (None, 23, Some(50.0), scale)]);
}

#[test]
fn lists_with_a_value_for_each_layer_are_read() {
    let model = read(&file(&[
        ("general.architecture", GgufEntry::Text("gemma4")),
        ("gemma4.block_count", GgufEntry::U32(3)),
        ("gemma4.embedding_length", GgufEntry::U32(1024)),
        ("gemma4.attention.head_count", GgufEntry::U32(8)),
        ("gemma4.attention.head_count_kv", GgufEntry::U32s(&[4, 0, 2])),
        ("gemma4.attention.key_length", GgufEntry::U32(512)),
        ("gemma4.attention.value_length", GgufEntry::U32(512)),
        ("gemma4.attention.key_length_swa", GgufEntry::U32(256)),
        ("gemma4.attention.value_length_swa", GgufEntry::U32(256)),
        ("gemma4.attention.sliding_window", GgufEntry::U32(64)),
        ("gemma4.attention.sliding_window_pattern", GgufEntry::Bools(&[true, true, false])),
    ]));
    let model = model.expect("it reads");
    let facts: Vec<_> = model.layers.iter().map(|l| (l.indices[0], l.kv_heads, l.d_qk, l.d_v, l.window)).collect();
    assert_eq!(facts, [(0, 4, 256, 256, Some(64)), (2, 2, 512, 512, None)]);
    assert_eq!(model.skipped[0].indices, [1]);
}

/// A model with a list of heads, of more and fewer entries than it has blocks.
fn heads(architecture: &str, blocks: u32, more: &[(&str, GgufEntry<'_>)]) -> Result<Model, Refusal> {
    let key = |name: &str| format!("{architecture}.{name}");
    let (count, width, heads) = (key("block_count"), key("embedding_length"), key("attention.head_count"));
    let mut entries = vec![
        ("general.architecture", GgufEntry::Text(architecture)),
        (count.as_str(), GgufEntry::U32(blocks)),
        (width.as_str(), GgufEntry::U32(2048)),
        (heads.as_str(), GgufEntry::U32(32)),
    ];
    let more: Vec<(String, &GgufEntry<'_>)> = more.iter().map(|(name, value)| (key(name), value)).collect();
    for (name, value) in &more {
        entries.retain(|(known, _)| known != name);
        entries.push((name.as_str(), (*value).clone()));
    }
    read(&file(&entries))
}

/// llama.cpp refuses such a file ("has wrong array length", llama.cpp PR 27773); here it was filled and cut silently.
#[test]
fn a_list_of_heads_shorter_or_longer_than_the_blocks_is_refused_by_its_key() {
    let list = [0, 0, 8, 0, 0, 8];
    for (architecture, blocks) in [("lfm2", 5), ("lfm2", 7), ("lfm2", 24), ("llama", 12), ("llama", 3)] {
        for name in ["attention.head_count_kv", "attention.head_count"] {
            let refusal = heads(architecture, blocks, &[(name, GgufEntry::U32s(&list))]).expect_err(name).to_string();
            let said = format!("{architecture}.{name}: 6 entries for {blocks} layers");
            assert!(!refusal.contains("absent"), "the list is there: {refusal}");
            assert!(refusal.contains(&said) && refusal.contains("GGUF"), "{refusal}");
        }
        let pattern = ("attention.sliding_window_pattern", GgufEntry::Bools(&[true, false]));
        let window = ("attention.sliding_window", GgufEntry::U32(64));
        let refusal = heads(architecture, blocks, &[pattern, window]).expect_err("two flags").to_string();
        assert!(refusal.contains("attention.sliding_window_pattern: 2 entries for"), "{refusal}");
    }
    let model = heads("lfm2", 6, &[("attention.head_count_kv", GgufEntry::U32s(&list))]).expect("it fits");
    assert_eq!((&model.layers[0].indices[..], &model.skipped[0].indices[..]), (&[2, 5][..], &[0, 1, 3, 4][..]));
}

/// `set_swa_pattern(n)` of llama.cpp: of each n blocks the last sees all keys.
#[test]
fn a_period_of_windows_that_is_one_number_is_read() {
    let pattern = ("attention.sliding_window_pattern", GgufEntry::U32(4));
    let model = heads("cohere2", 8, &[("attention.sliding_window", GgufEntry::U32(64)), pattern]).expect("it reads");
    let pattern = ("attention.sliding_window_pattern", GgufEntry::U32(2));
    let other = heads("cohere2", 8, &[("attention.sliding_window", GgufEntry::U32(64)), pattern]).expect("it reads");
    let full = |model: &Model| model.layers.iter().find(|l| l.window.is_none()).expect("full layers").indices.clone();
    assert_eq!((full(&model), full(&other)), (vec![3, 7], vec![1, 3, 5, 7]));
}

/// `block_count` and lists count the blocks that predict further tokens; llama.cpp runs the others.
#[test]
fn blocks_that_predict_further_tokens_are_named_and_not_planned() {
    let further = || ("nextn_predict_layers", GgufEntry::U32(1));
    let model = heads("glm4moe", 47, &[further(), ("attention.head_count_kv", GgufEntry::U32(8))]).expect("it reads");
    assert_eq!((model.layers[0].count, &model.skipped[0].indices[..]), (46, &[46][..]));
    for list in [&[8, 8, 4, 2][..], &[8, 8, 4][..]] {
        let model =
            heads("llama", 4, &[further(), ("attention.head_count_kv", GgufEntry::U32s(list))]).expect("it fits");
        let facts: Vec<_> = model.layers.iter().map(|l| (l.kv_heads, l.count)).collect();
        assert_eq!(facts, [(8, 2), (4, 1)]);
    }
    let alone = heads("llama", 1, &[further()]).expect("a file of such blocks");
    assert_eq!((alone.layers[0].count, alone.skipped.len()), (1, 0));
}

#[test]
fn latent_attention_of_a_gguf_file_has_the_dims_of_its_expanded_heads() {
    let model = read(&file(&[
        ("general.architecture", GgufEntry::Text("deepseek2")),
        ("deepseek2.block_count", GgufEntry::U32(61)),
        ("deepseek2.embedding_length", GgufEntry::U32(7168)),
        ("deepseek2.attention.head_count", GgufEntry::U32(128)),
        ("deepseek2.attention.head_count_kv", GgufEntry::U32(1)),
        ("deepseek2.attention.key_length", GgufEntry::U32(576)),
        ("deepseek2.attention.value_length", GgufEntry::U32(512)),
        ("deepseek2.attention.key_length_mla", GgufEntry::U32(192)),
        ("deepseek2.attention.value_length_mla", GgufEntry::U32(128)),
        ("deepseek2.attention.kv_lora_rank", GgufEntry::U32(512)),
        ("deepseek2.rope.dimension_count", GgufEntry::U32(64)),
        ("deepseek2.rope.scaling.factor", GgufEntry::F32(40.0)),
        ("deepseek2.rope.scaling.yarn_log_multiplier", GgufEntry::F32(0.1)),
    ]));
    let layer = model.expect("it reads").layers.remove(0);
    assert_eq!((layer.heads, layer.kv_heads, layer.d_qk, layer.d_v), (128, 128, 192, 128));
    let latent = layer.latent.expect("latent");
    assert_eq!((latent.d_qk, latent.d_v), (576, 512));
    assert!((layer.scale - 0.135_234).abs() < 1e-5, "{}", layer.scale);
}

#[test]
fn a_file_that_is_cut_short_at_any_byte_is_refused_by_key() {
    let whole = llama();
    for end in (0..whole.len()).filter(|end| *end < 600 || whole.len() - end < 400 || end % 997 == 0) {
        let refusal = read(&whole[..end]).expect_err("it is cut short");
        assert!(refusal.has(&codes::CONFIG_GGUF), "{end}: {refusal}");
    }
    let refusal = read(&whole[..whole.len() - 1]).expect_err("it is cut short");
    assert!(refusal.to_string().contains("llama.attention.head_count_kv"), "{refusal}");
}

#[test]
fn lengths_beyond_the_file_take_no_memory() {
    let whole = llama();
    // The number of entries, the length of the first key, and that of the list of words.
    for at in [16, 24] {
        let mut bytes = whole.clone();
        bytes[at..at + 8].copy_from_slice(&u64::MAX.to_le_bytes());
        assert!(read(&bytes).expect_err("a length is wrong").has(&codes::CONFIG_GGUF));
    }
    let mut bytes = whole;
    let words = bytes.windows(21).position(|w| w == b"tokenizer.ggml.tokens").expect("it is there") + 21;
    bytes[words + 8..words + 16].copy_from_slice(&(u64::MAX / 2).to_le_bytes());
    assert!(read(&bytes).expect_err("a length is wrong").has(&codes::CONFIG_GGUF));
}

#[test]
fn other_versions_and_other_files_are_refused() {
    let mut bytes = llama();
    bytes[4] = 9;
    assert!(read(&bytes).expect_err("a newer version").to_string().contains("version 9"));
    assert!(read(b"GGML and more").expect_err("another file").has(&codes::CONFIG_GGUF));
    let nothing = read(&file(&[("general.name", GgufEntry::Text("x"))])).expect_err("no architecture");
    assert!(nothing.to_string().contains("general.architecture"), "{nothing}");
}

/// Any byte of the header, the keys and the numbers may be wrong.
#[test]
fn a_wrong_byte_gives_a_model_or_a_reason() {
    let whole = llama();
    let places = (0..200).chain(whole.len() - 260..whole.len());
    for place in places {
        for value in [0, 1, 9, 0x7f, 0x80, 0xff] {
            let mut bytes = whole.clone();
            bytes[place] = value;
            if let Err(refusal) = read(&bytes) {
                assert!(!refusal.reasons()[0].field.is_empty(), "{place}: {refusal}");
            }
        }
    }
}
