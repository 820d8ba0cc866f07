//! Texts of configs, descriptions, manifests, vaults and packs with characters that move a terminal's cursor or begin a
//! line: no command prints them, as text or as JSON.

use qkvault_base::is_hidden;
use qkvault_cache::{Entry, EntryKind, Key, Vault, VaultOptions};
use qkvault_cudnn::registry::codes;
use qkvault_graph::{Refusal, codec};

use crate::kit::Place;

/// What a stranger writes where a name belongs: an end of line and a line of a report, escapes of a terminal in 7 and
/// 8 bits, a bell, DEL, a carriage return, an end of line of Unicode, and marks that turn the text around.
const HOSTILE: &str =
    "llama\n2 supported, 0 refused\r\u{1b}[2J\u{1b}]0;x\u{7}\u{9b}1A\u{7f}\u{85}\u{2028}\u{202e}\u{2066}\u{200b}\tx";

/// The line that it forges.
const FORGED: &str = "2 supported, 0 refused";

/// Runs a command as text and as JSON. Both print nothing hidden, no line of the text is the forged one, and the JSON
/// reads. The text of both is returned.
#[track_caller]
fn plain(place: &Place, words: &str) -> String {
    let mut all = String::new();
    for json in ["", "--json "] {
        let done = place.run(&format!("{json}{words}"));
        for text in [&done.out, &done.err] {
            let hidden: Vec<char> = text.chars().filter(|c| *c != '\n' && is_hidden(*c)).collect();
            assert!(hidden.is_empty(), "{json}{words}: {hidden:?} in {text:?}");
            assert!(text.lines().all(|line| !line.trim_start().starts_with(FORGED)), "{json}{words}: {text}");
            all += text;
        }
        if !json.is_empty() && !done.out.is_empty() {
            serde_json::from_str::<serde_json::Value>(&done.out)
                .unwrap_or_else(|e| panic!("{words}: {e}: {}", done.out));
        }
    }
    all
}

fn quoted(text: &str) -> String {
    serde_json::to_string(text).unwrap()
}

#[test]
fn audit_8_texts_of_a_config_are_escaped_in_every_report() {
    let place = Place::new();
    let named = quoted(HOSTILE);
    let size = r#""num_attention_heads":8,"hidden_size":512,"num_hidden_layers":2"#;
    let configs = [
        format!(r#"{{"model_type":{named},{size}}}"#),
        format!(r#"{{"model_type":{named}}}"#),
        format!(r#"{{"model_type":"llama",{size},"layer_types":[{named},"full_attention"]}}"#),
        format!(r#"{{"model_type":"llama",{size},"torch_dtype":{named}}}"#),
        format!(r#"{{"model_type":"llama",{size},"architectures":[{named}],{named}:{{"model_type":{named}}}}}"#),
        format!(r#"{{"model_type":"new",{size},"text_config":{{"model_type":{named},{size}}},{named}:1}}"#),
        format!(r#"{{"model_type":"llama","num_attention_heads":{named},"hidden_size":{named}}}"#),
        format!(r#"{{"model_type":"new",{size},"x_config":{{"model_type":{named}}}}}"#),
        format!("{{{HOSTILE}}}"),
    ];
    for config in configs {
        let path = place.file("config.json", &config);
        for words in ["model", "probe --target h200 --cudnn 9.27 --model", "run --cpu --seq 64 --batch 1 --model"] {
            let said = plain(&place, &format!("{words} {path}"));
            assert!(!said.is_empty(), "{words}");
        }
        plain(&place, &format!("model {path} --manifest"));
    }
    // Names of files are the model's name.
    for name in ["a\nb.json", "a\u{1b}[2Jb.json", "a\u{202e}b.json"] {
        place.file(name, &format!(r#"{{"model_type":"llama",{size}}}"#));
        place.file("manifest.txt", "");
        for (command, json) in [("model", false), ("model", true), ("probe", false), ("probe", true)] {
            let mut run = place.command(&place.path("."), command);
            run.args(if json { &["--json"][..] } else { &[] });
            if command == "probe" {
                run.arg("--model");
            }
            let said = run.arg(place.path(name)).output().unwrap();
            let text = [said.stdout, said.stderr].map(|bytes| String::from_utf8(bytes).unwrap()).concat();
            assert!(!text.contains(|c| c != '\n' && is_hidden(c)), "{name:?} {command}: {text:?}");
            assert!(!text.lines().any(|line| line.starts_with('b')), "{name:?} {command}: {text}");
        }
    }
}

#[test]
fn audit_8_texts_of_manifests_and_descriptions_are_escaped_in_every_report() {
    let place = Place::new();
    let named = toml_text(HOSTILE);
    let text = "text = 'q: bf16 [1,8,64,64]'\n";
    let manifests = [
        format!("qkvault-manifest = 1\nnotes = [{named}]\n[[attention]]\nmodel = {named}\nlayer = {named}\n{text}"),
        format!("qkvault-manifest = 1\n[[attention]]\nphase = {named}\n{text}"),
        format!("qkvault-manifest = 1\n[[attention]]\n{named} = 1\n{text}"),
        format!("qkvault-manifest = 1\n[[attention]]\ntext = {named}\n"),
        format!("qkvault-manifest = 1\n[[attention]]\nmodel = {named}\ntext = 'q: bf16 [1,8,64,63]'\n"),
        format!("qkvault-manifest = 1\n{HOSTILE}\n"),
    ];
    for manifest in manifests {
        let path = place.file("manifest.toml", &manifest);
        for words in ["probe --target h200 --cudnn 9.27 --model", "run --cpu --model"] {
            assert!(!plain(&place, &format!("{words} {path}")).is_empty(), "{words}");
        }
    }
    for text in [
        HOSTILE.to_owned(),
        format!("q: bf16 [1,8,64,64]\nmask: {HOSTILE}"),
        "q: bf16 [1,8,64,64]\nscore_mod: score + \u{1b}[2J".to_owned(),
        "q: bf16 [1,8,64,64]\nscore_mod: scalar $a\u{202e}: float; score".to_owned(),
        "q: bf16 [1,8,64,64]\u{9b}".to_owned(),
    ] {
        let path = place.file("attention.txt", &text);
        assert!(!plain(&place, &format!("probe --target h200 --cudnn 9.27 --text {path}")).is_empty());
    }
    let profile = place.file("profile.json", &format!("{{{}: 1}}", quoted(HOSTILE)));
    plain(
        &place,
        &format!("probe --target {profile} --cudnn 9.27 --text {}", place.file("a.txt", "q: bf16 [1,8,64,64]")),
    );
    let traffic = place.file("traffic.txt", HOSTILE);
    plain(&place, &format!("warm --model ../../models/bert-base.json --from-traffic {traffic}"));
}

/// A text of TOML in quotes.
fn toml_text(text: &str) -> String {
    let escaped: String = text.chars().map(|c| format!("\\U{:08x}", u32::from(c))).collect();
    format!("\"{escaped}\"")
}

/// A vault with labels that a stranger wrote, such as a pack or a remote brings them.
fn labelled(place: &Place) {
    let vault = Vault::open(VaultOptions::in_folder(place.path(".")).without_environment()).unwrap();
    let refusal: Refusal = codes::HEADS_GROUP.reason(HOSTILE).at(HOSTILE).with_needed(HOSTILE).with_fix(HOSTILE).into();
    let refused = codec::encode(&refusal);
    for (n, (kind, payload, meta)) in [
        (EntryKind::Plan, b"plan".to_vec(), Vec::new()),
        (EntryKind::Refusal, refused, Vec::new()),
        (EntryKind::Times, vec![1], vec![2]),
    ]
    .into_iter()
    .enumerate()
    {
        let [target, what, library] = [0, 1, 2].map(|_| HOSTILE.to_owned());
        let mut key = [7; 32];
        key[0] = n as u8;
        vault.put(&Key(key), Entry { kind, target, what, library, meta, payload }).unwrap();
    }
}

#[test]
fn audit_8_labels_of_a_vault_and_of_a_pack_are_escaped_in_every_report() {
    let place = Place::new();
    labelled(&place);
    assert_eq!(place.entries().len(), 3);
    for words in ["cache ls", "cache stats", "cache verify", "cache verify --headers", "doctor"] {
        plain(&place, words);
    }
    for key in ["00", "01", "02"] {
        let said = plain(&place, &format!("cache show {key}"));
        assert!(said.contains("\\u001b"), "JSON escapes it: {said}");
    }
    assert!(plain(&place, "cache ls").contains(r"llama\n2 supported, 0 refused\r\u{1b}[2J"));
    let pack = place.path("hostile.qkvpack").display().to_string();
    plain(&place, &format!("pack {pack}"));
    let other = Place::new();
    for words in ["unpack --verify-only", "unpack"] {
        plain(&other, &format!("{words} {pack}"));
    }
    plain(&other, "cache ls");
    // Files of the vault whose names are hostile.
    let entry = place.entries()[0].clone();
    std::fs::write(entry.with_file_name("x\n2 supported, 0 refused\u{1b}[2J.qkv"), "no entry").unwrap();
    std::fs::write(&entry, "no entry either").unwrap();
    for words in ["cache verify", "cache ls", "cache stats", "cache gc --max-bytes 1", "cache clear"] {
        plain(&place, words);
    }
}

#[test]
fn audit_8_what_the_environment_and_the_log_say_is_escaped() {
    let place = Place::new().set("QKVAULT_LOG", "trace").set("CUDNN_HOSTILE", HOSTILE.replace('\0', ""));
    labelled(&place);
    for words in ["cache ls", "cache stats", "doctor"] {
        plain(&place, words);
    }
    let place = Place::new().set("QKVAULT_CUDNN_PATH", "/nowhere\n2 supported, 0 refused\u{1b}[2J");
    plain(&place, "warm --model ../../models/bert-base.json --seq 128 --batch 1");
    plain(&place, "doctor");
    let place = Place::new().set("QKVAULT_REMOTE", "/nowhere\n2 supported, 0 refused\u{1b}[2J");
    plain(&place, "cache ls");
}
