//! Manifests that are written and read again, and those that are refused.

use super::*;

const TOML: &str = r#"
qkvault-manifest = 1

[[attention]]
model = "a"
phase = "decode"
batch = [1, 8]
seq = [1024]
text = '''
q: bf16 [$batch,32,1,128]
k: bf16 [$batch,8,$seq,128]
mask: causal bottom-right
'''

[[attention]]
text = "q: f16 [1,8,64,64]"
"#;

#[test]
fn a_manifest_lists_an_attention_for_each_pair_of_sizes() {
    let manifest = Manifest::parse(TOML).expect("it reads");
    let list = manifest.attentions().expect("they are attentions");
    let facts: Vec<_> = list.iter().map(|l| (l.entry, l.sizes, l.attention.heads().0)).collect();
    assert_eq!(facts, [(0, (1, 1024), 32), (0, (8, 1024), 32), (1, (1, 64), 8)]);
    assert_eq!((manifest.attention[1].phase, manifest.attention[1].layers), (Phase::Prefill, 1));
}

#[test]
fn what_is_written_reads_the_same_as_toml_and_as_json() {
    let mut manifest = Manifest::parse(TOML).expect("it reads");
    manifest.attention[0].scale = Some(0.1);
    manifest.attention[1].model = "quotes \" and\nlines".to_owned();
    manifest.notes = vec!["not recorded: \"x\"".to_owned(), "a\nline".to_owned()];
    for text in [manifest.to_toml(), serde_json::to_string(&manifest).expect("it writes")] {
        assert!(Manifest::is_meant(&text));
        let mut again = Manifest::parse(&text).unwrap_or_else(|e| panic!("{text}\n{e}"));
        for (entry, first) in again.attention.iter_mut().zip(&manifest.attention) {
            assert_eq!(entry.text.trim_end(), first.text.trim_end());
            entry.text.clone_from(&first.text);
        }
        assert_eq!(again, manifest);
    }
    assert!(!Manifest::is_meant(r#"{"model_type": "llama"}"#));
}

#[test]
fn a_newer_version_is_refused_before_its_fields_are_read() {
    for text in ["qkvault-manifest = 2\nnew = 1", r#"{"qkvault-manifest": 2, "new": 1}"#] {
        let refusal = Manifest::parse(text).expect_err("it is newer");
        assert!(refusal.has(&codes::MANIFEST_VERSION), "{refusal}");
        assert!(refusal.to_string().contains("version 2") && refusal.to_string().contains("update"), "{refusal}");
    }
    assert!(Manifest::parse("[[attention]]\ntext = ''").expect_err("no version").has(&codes::MANIFEST_VERSION));
}

#[test]
fn faults_of_entries_are_all_named_with_their_place() {
    let text = r#"
qkvault-manifest = 1
[[attention]]
text = "q: bf16 [$batch,8,64,64]"
[[attention]]
seq = [0]
scale = -1.0
text = "q: bf16 [1,8,$seq"
"#;
    let refusal = Manifest::parse(text).expect("it reads").attentions().expect_err("faults");
    let text = refusal.to_string();
    for words in ["attention[0].batch", "attention[1].seq", "attention[1].scale", "attention[1].text"] {
        assert!(text.contains(words), "no {words}: {text}");
    }
    for (text, words) in [
        ("qkvault-manifest = 1\n[[attention]]\ntxet = ''", "txet"),
        ("qkvault-manifest = 1\n[[attention]]\nphase = 'x'\ntext = ''", "phase"),
        ("qkvault-manifest = 1\n[[attention]]\nlayers = 2", "text"),
        ("qkvault-manifest = 1\n[[attention]", "line 2"),
        ("{\"qkvault-manifest\": 1, \"attention\": 3}", "line 1"),
    ] {
        let refusal = Manifest::parse(text).expect_err(text).to_string();
        assert!(refusal.contains(words) && !refusal.contains('\n'), "{refusal}");
    }
}

#[test]
fn a_grid_of_too_many_sizes_is_refused() {
    let sizes: Vec<i64> = (1..=300).collect();
    let entry = AttentionEntry {
        model: String::new(),
        layer: String::new(),
        layers: 1,
        phase: Phase::Prefill,
        scale: None,
        batch: sizes.clone(),
        seq: sizes,
        text: "q: bf16 [$batch,1,$seq,64]".to_owned(),
    };
    let refusal = Manifest::new(vec![entry]).attentions().expect_err("too many").to_string();
    assert!(refusal.contains("32768"), "{refusal}");
}
