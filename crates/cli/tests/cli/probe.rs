//! `probe`: answers without a library and with it, and the matrix as a page.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use qkvault_skip::{Need, skip};

use crate::kit::{Place, fields};

#[test]
fn rules_alone_decide_about_a_model() {
    // Rules need no cuDNN.
    let place = Place::new().set("QKVAULT_CUDNN_PATH", "/nonexistent");
    let (code, report) = place.json("probe --model ../../models/llama-3.1-8b.json --target a100 --seq 1024");
    fields(&report, &["target", "cudnn", "memory", "supported", "refused", "notes"]);
    assert_eq!((code, report["refused"].as_array().unwrap().len()), (0, 0), "{report:#}");
    let first = &report["supported"][0];
    fields(first, &["what", "key", "attention", "reasons", "nearest", "bytes", "library", "chosen"]);
    assert!(first["bytes"].as_u64() > Some(1 << 20) && first["library"].is_null());
    assert!(place.entries().is_empty());
}

/// Others measured that FP8 is slower there. It is supported all the same.
#[test]
fn where_fp8_is_slower_than_bf16_is_told_with_its_source() {
    let place = Place::new();
    let of = |keys: i64| {
        let text = format!("pass: backward\nq: e4m3 [1,8,{keys},128]\nmask: causal\nfp8: delayed");
        place.file(&format!("{keys}.txt"), &text)
    };
    let text = place.run(&format!("probe --text {} --target h200", of(8192)));
    assert_eq!(text.code, 0, "{}", text.out);
    assert!(text.out.contains("advice: a causal backward from 4096 keys on is slower than bf16"), "{}", text.out);
    let (_, report) = place.json(&format!("probe --text {} --target h200", of(8192)));
    let advice = &report["supported"][0]["advice"][0];
    assert!(advice["source"].as_str().unwrap().contains("cudnn-frontend 1.19"), "{report:#}");
    let (_, report) = place.json(&format!("probe --text {} --target h200", of(2048)));
    assert!(report["supported"][0]["advice"].is_null(), "{report:#}");
}

#[test]
fn a_refusal_has_every_reason_and_a_change_that_would_be_accepted() {
    let place = Place::new();
    let file = place.file("odd.txt", "pass: backward\nq: bf16 [1,8,512,300]\nsink: yes\nd_sink: yes");
    let (code, report) = place.json(&format!("probe --text {file} --target l40s --cudnn 9.12"));
    let refused = &report["refused"][0];
    let codes: Vec<&str> = refused["reasons"].as_array().unwrap().iter().map(|r| r["code"].as_str().unwrap()).collect();
    assert_eq!(code, 1, "{report:#}");
    for code in ["head-dim.multiple-of-8", "head-dim.backward", "sink.old"] {
        assert!(codes.contains(&code), "{code} is not in {codes:?}");
    }
    for reason in refused["reasons"].as_array().unwrap() {
        fields(reason, &["code", "origin", "field", "given", "needed", "fix", "since"]);
    }
    let odd = place.file("100.txt", "q: bf16 [1,8,512,100]");
    let text = place.run(&format!("probe --text {odd}"));
    assert!(text.out.contains("nearest supported: head dims padded with zeros to multiples of 8"), "{}", text.out);
    // An inconsistent description is refused with its own reasons.
    let broken = place.file("broken.txt", "q: bf16 [1,8,512,64]\nk: [1,3,512,64]");
    let (code, report) = place.json(&format!("probe --text {broken}"));
    assert_eq!((code, report["refused"][0]["reasons"][0]["code"].as_str()), (1, Some("heads.group")));
}

/// jax #32242, and a batch beyond a grid: advice to leave it to cuDNN stood below cuDNN's refusal, and something
/// farther than another element type was the nearest.
#[test]
fn what_a_probe_says_does_not_contradict_itself() {
    let place = Place::new().set("QKVAULT_CUDNN_PATH", "/nonexistent");
    let bias = "pass: backward\nq: bf16 [8,4,128,32]\nscore_mod: tensor @bias: f32[1, 4, 128, 128] grad; score + @bias";
    let file = place.file("bias.txt", bias);
    for target in ["h100", "b200"] {
        let said = place.run(&format!("probe --text {file} --target {target} --cudnn 9.19"));
        assert!(said.out.contains("backward.tensor-type") && !said.out.contains("leave it to cuDNN"), "{}", said.out);
        assert!(said.out.contains("nearest supported: tensors whose gradient"), "{}", said.out);
        // Ranks launch several parts, all refused for these reasons: they stand there once.
        let shared = place.run(&format!("probe --text {file} --target {target} --cudnn 9.19 --ranks 4 --scheme ring"));
        assert_eq!(shared.out.matches("backward.tensor-type").count(), 1, "{}", shared.out);
    }
    let sink = "pass: backward\nq: bf16 [2,8,256,96] varlen tokens 400\nk: [2,2,256,96] varlen tokens 400\n\
                lengths: per-sequence\nsink: yes\nmask: causal";
    let file = place.file("sink.txt", sink);
    let said = place.run(&format!("probe --text {file} --target a100 --cudnn 9.19 --ranks 4"));
    assert!(said.out.matches("refused  ").count() > 2, "{}", said.out);
    assert_eq!(said.out.matches("storage.varlen-sink").count(), 1, "{}", said.out);
    // Another engine takes what cuDNN refuses: then it is supported, and nothing is nearer.
    let large =
        place.file("large.txt", "pass: backward\nq: bf16 [1,8,512,64]\nk: [1,8,256,64]\nmask: causal bottom-right");
    let said = place.run(&format!("probe --text {large} --target h100 --cudnn 9.19"));
    if said.out.contains("1 supported") {
        assert!(said.out.contains("takes it; cuDNN refuses it:") && !said.out.contains("nearest"), "{}", said.out);
    }
    assert!(!said.out.contains("leave it to cuDNN"), "{}", said.out);
}

/// `--ranks` had no effect on descriptions of `--text`, so what only ranks compute was refused.
#[test]
fn a_description_in_text_is_shared_by_ranks() {
    let place = Place::new();
    let file = place.file("places.txt", "q: bf16 [1,8,4096,64]\nmask: causal\ndropout: places 0.1");
    let (code, report) = place.json(&format!("probe --text {file} --target h200 --ranks 2 --scheme ring"));
    assert_eq!((code, report["supported"].as_array().unwrap().len()), (0, 2), "{report:#}");
    let (code, report) = place.json(&format!("probe --text {file} --target h200"));
    assert_eq!((code, &report["refused"][0]["reasons"][0]["code"]), (1, &"not-built.dropout-places".into()));
}

#[test]
fn what_does_not_fit_in_memory_is_refused_with_alternatives() {
    let place = Place::new();
    let file =
        place.file("long.txt", "pass: backward\nq: bf16 [1,128,32768,192]\nv: [1,128,32768,128]\ndeterministic: yes");
    let (code, report) = place.json(&format!("probe --text {file} --cudnn 9.19 --target a100"));
    let reasons = report["refused"][0]["reasons"].as_array().unwrap();
    let reason = reasons.iter().find(|reason| reason["code"] == "workspace.quadratic").expect("it is told");
    assert!(code == 1 && reason["fix"].as_str().unwrap().contains("deterministic: no"), "{report:#}");
    // FlashAttention-4 keeps no gradient of every score.
    let (code, report) = place.json(&format!("probe --text {file} --cudnn 9.19 --target h200"));
    let row = &report["supported"][0];
    assert_eq!((code, row["reasons"][0]["code"].as_str()), (0, Some("workspace.quadratic")), "{report:#}");
    assert_eq!((row["chosen"]["engine"].as_str(), row["fa4"].as_str()), (Some("fa4"), Some("supported")), "{row:#}");
    let plain = place.file("plain.txt", "q: bf16 [1,8,512,64]");
    assert_eq!(place.run(&format!("probe --text {plain}")).code, 0);
    // No engine makes room for operands.
    let tight = place.run(&format!("probe --text {plain} --memory 100000"));
    assert!(tight.code == 1 && tight.out.contains("memory.budget"), "{}", tight.out);
}

/// The report names its memory figure: the free memory of a GPU of the target's name, or the target's total memory
/// without one.
#[test]
fn the_report_of_a_probe_names_its_memory_figure() {
    let place = Place::new();
    let plain = place.file("plain.txt", "q: bf16 [1,8,512,64]");
    let basis = |words: &str| {
        let (_, report) = place.json(&format!("probe --text {plain} --target h200 {words}"));
        (report["memory"]["basis"].as_str().unwrap().to_owned(), report["memory"]["bytes"].as_u64().unwrap())
    };
    assert_eq!(basis("--memory 1000000000"), ("given".to_owned(), 1_000_000_000));
    let (_, doctor) = place.json("doctor");
    let gpu = &doctor["findings"]["gpu"];
    if gpu["name"] == "NVIDIA H200" {
        let (basis, bytes) = basis("");
        let total = gpu["memory"]["total"].as_u64().unwrap();
        assert!(basis == "free" && bytes < total && gpu["memory"]["free"].as_u64() < Some(total), "{basis} {bytes}");
    } else {
        assert_eq!(basis(""), ("total".to_owned(), 150_109_880_320));
    }
    let text = place.run(&format!("probe --text {plain} --target h200 --memory 1000")).out;
    assert!(text.contains("1000 bytes, the given budget"), "{text}");
}

#[test]
fn the_bytes_of_a_varlen_backward_count_its_tokens() {
    let place = Place::new();
    let varlen = |tokens: i64| {
        let rows = format!("bf16 [1024,32,32768,128] varlen tokens {tokens} thd");
        place.file("varlen.txt", &format!("pass: backward\nlengths: per-sequence\nq: {rows}\nk: {rows}\nv: {rows}"))
    };
    let (code, report) = place.json(&format!("probe --text {} --target h200 --cudnn 9.19", varlen(65_536)));
    let bytes = report["supported"][0]["bytes"].as_u64().unwrap_or_else(|| panic!("{report:#}"));
    assert!(code == 0 && (1 << 30..8 << 30).contains(&bytes), "{bytes} bytes\n{report:#}");
    let (code, report) = place.json(&format!("probe --text {} --target h200 --cudnn 9.19", varlen(16 << 20)));
    let reasons = report["refused"][0]["reasons"].as_array().unwrap();
    let codes: Vec<&str> = reasons.iter().filter_map(|reason| reason["code"].as_str()).collect();
    assert!(code == 1 && codes.contains(&"memory.budget"), "{codes:?}: {report:#}");
}

#[test]
fn the_answers_of_the_library_are_in_the_vault() {
    let Some(place) = Place::with_cudnn("9.27.0") else { return };
    let good = place.file("good.txt", "q: bf16 [1,4,256,64]\nmask: causal");
    let (code, report) = place.json(&format!("probe --library --text {good}"));
    assert_eq!((code, report["supported"][0]["library"].as_str()), (0, Some("supported")), "{report:#}");
    assert_eq!(place.entries().len(), 1);
    // A second run builds nothing.
    assert_eq!(place.json(&format!("probe --library --text {good}")).0, 0);
    let (_, stats) = place.json("cache ls");
    assert_eq!(stats["entries"].as_array().map(Vec::len), Some(1), "{stats:#}");
    let odd = place.file("odd.txt", "q: bf16 [1,4,256,100]");
    let (code, report) = place.json(&format!("probe --library --text {odd}"));
    let reasons = report["refused"][0]["reasons"].to_string();
    assert_eq!((code, report["refused"][0]["library"].as_str()), (1, Some("refused")));
    // Both the rule's reason and cuDNN's own are there.
    assert!(reasons.contains("head-dim.multiple-of-8") && reasons.contains("d_qk % 8 != 0"), "{reasons}");
}

#[test]
fn the_library_confirms_a_proposed_change_on_request() {
    let Some(place) = Place::with_cudnn("9.27.0") else { return };
    let odd = place.file("odd.txt", "q: bf16 [1,4,256,100]");
    let (code, report) = place.json(&format!("probe --library --confirm --text {odd}"));
    let nearest = report["refused"][0]["nearest"].as_array().unwrap();
    fields(&nearest[0], &["change", "attention", "cudnn", "library"]);
    assert_eq!((code, nearest[0]["library"].as_str()), (1, Some("supported")), "{report:#}");
    // One accepted change is enough. The refusal and the plan are in the vault.
    assert!(nearest[1..].iter().all(|n| n["library"].is_null()), "{report:#}");
    assert_eq!(place.entries().len(), 2);
    let text = place.run(&format!("probe --library --confirm --text {odd}"));
    assert!(text.out.contains("nearest supported, confirmed by the library: head dims padded"), "{}", text.out);
    place.run(&format!("probe --confirm --text {odd}")).failed(2, &["--library"]);
}

#[test]
fn a_quirk_is_accepted_by_its_code_and_a_wrong_code_is_an_error() {
    let Some(place) = Place::with_cudnn("9.27.0") else { return };
    let quirk =
        place.file("quirk.txt", "pass: backward\nq: bf16 [1,2,128,64]\nsink: yes\nd_sink: yes\ndropout: philox 0.1");
    let (code, report) = place.json(&format!("probe --library --text {quirk}"));
    assert_eq!((code, report["refused"][0]["reasons"][0]["code"].as_str()), (1, Some("backward.sink-philox")));
    let (code, report) = place.json(&format!("probe --library --allow backward.sink-philox --text {quirk}"));
    assert_eq!((code, report["supported"][0]["library"].as_str()), (0, Some("supported")), "{report:#}");
    place
        .run(&format!("probe --allow head-dim.backward --text {quirk}"))
        .failed(2, &["head-dim.backward", "is not a quirk"]);
}

#[test]
fn probe_without_an_attention_is_an_error() {
    let place = Place::new();
    place.run("probe").failed(2, &["--model"]);
    place.run("probe --text nothing.txt").failed(1, &["nothing.txt"]);
    let bad = place.file("bad.txt", "q: bf16 [1,8,512");
    place.run(&format!("probe --text {bad}")).failed(1, &["bad.txt", "line 1"]);
    place.run("probe --model ../../models/bert-base.json --target gtx-1080").failed(2, &["gtx-1080"]);
}

fn docs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs")
}

fn models() -> String {
    let mut list: Vec<String> = std::fs::read_dir(docs().join("../models"))
        .unwrap()
        .map(|entry| entry.unwrap().path().display().to_string())
        .filter(|path| path.ends_with(".json"))
        .collect();
    list.sort();
    list.join(" ")
}

#[test]
fn the_matrix_in_docs_is_up_to_date() {
    let place = Place::new();
    let done = place.run(&format!("probe --matrix {} --model {}", place.path("support").display(), models()));
    done.good();
    for end in ["html", "md", "json"] {
        let fresh = std::fs::read_to_string(place.path(&format!("support.{end}"))).unwrap();
        let path = docs().join(format!("support.{end}"));
        if std::env::var_os("UPDATE_GOLDENS").is_some_and(|v| v == "1") {
            std::fs::write(&path, &fresh).unwrap();
        }
        let stale = std::fs::read_to_string(&path).unwrap_or_default() != fresh;
        assert!(!stale, "docs/support.{end} is stale: cargo xtask probe --matrix docs/support --model models/*.json");
    }
}

/// A Chromium on the path, or `None`; the test is then skipped. With `QKVAULT_REQUIRE=chromium` a missing one is a
/// failure.
fn chromium() -> Option<&'static str> {
    let found = ["chromium", "chromium-browser", "google-chrome"]
        .into_iter()
        .find(|name| Command::new(name).arg("--version").output().is_ok_and(|out| out.status.success()));
    if found.is_none() {
        skip(Need::Chromium, "no Chromium on the path to show the matrix in");
    }
    found
}

#[test]
fn the_matrix_shows_its_reasons_when_a_cell_is_tapped() {
    let Some(chromium) = chromium() else { return };
    let place = Place::new();
    let page = std::fs::read_to_string(docs().join("support.html")).unwrap();
    let probe = "<script>const b=document.querySelectorAll('button')[0];b.click();\
                 document.title=[b.title,document.querySelectorAll('#why li').length,\
                 document.documentElement.scrollWidth<=innerWidth,document.querySelectorAll('table').length].join('|')</script></html>";
    let file = place.file("page.html", &page.replace("</html>", probe));
    let profile = place.path("chromium");
    let out = Command::new(chromium)
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--window-size=390,844", "--dump-dom"])
        .arg(format!("--user-data-dir={}", profile.display()))
        .arg(format!("file://{file}"))
        .output()
        .unwrap();
    let dom = String::from_utf8_lossy(&out.stdout);
    let title = dom.split("<title>").nth(1).and_then(|rest| rest.split("</title>").next()).unwrap_or_default();
    let facts: Vec<&str> = title.split('|').collect();
    // A cell's reasons are shown, the page itself does not scroll sideways on a phone, and every table is there.
    assert!(facts.len() == 4 && facts[0].contains("cuDNN"), "{title}");
    assert!(facts[1].parse::<u32>().is_ok_and(|n| n > 0) && facts[2] == "true" && facts[3] == "4", "{title}");
}

/// Where a refusal for a wrong result is known from is told, and what is known is listed.
#[test]
fn a_refused_wrong_result_names_its_report_and_who_saw_it() {
    let place = Place::new();
    let decode = place.file("decode.txt", "q: bf16 [4,8,1,128]\nk: [4,2,300,128]\nlengths: per-sequence\n");
    let words = format!("probe --text {decode} --target b200 --cudnn 9.19");
    let text = place.run(&words);
    let line = "known from: reported, not run here (https://github.com/pytorch/pytorch/issues/193893)";
    assert!(text.code == 1 && text.out.contains("queries.one-wrong") && text.out.contains(line), "{}", text.out);
    let (code, report) = place.json(&words);
    let known = &report["refused"][0]["known"][0];
    assert_eq!((code, known["code"].as_str()), (1, Some("queries.one-wrong")), "{report:#}");
    assert_eq!(known["seen"]["standing"], "reported");
    let (code, listed) = place.json("probe --known-wrong");
    assert!(code == 0 && listed["wrong"].as_array().unwrap().contains(known), "{listed:#}");
    let text = place.run("probe --known-wrong");
    assert!(text.good().contains("cuDNN: The gradient of a sink is wrong if cuDNN draws the dropout."), "{}", text.out);
    place.run("probe --known-wrong --text decode.txt").failed(2, &["--known-wrong"]);
}

/// An answer was "supported", and neither by which engine nor how long it takes.
#[test]
fn a_probe_for_a_gpu_that_was_measured_tells_the_engine_the_expected_time_and_what_bounds_it() {
    let place = Place::new();
    let file = place.file("long.txt", "q: bf16 [1,32,8192,128]\nk: [1,8,8192,128]\nmask: causal");
    let told = place.run(&format!("probe --text {file} --target h200"));
    assert!(told.out.contains("expected: ") && told.out.contains(" us ") && told.out.contains("bound by products"));
    let (_, report) = place.json(&format!("probe --text {file} --target h200"));
    let expected = &report["supported"][0]["expected"];
    fields(expected, &["us", "measured", "bound", "share"]);
    assert!(expected["us"].as_f64().unwrap() > 100.0 && expected["bound"] == "products", "{report:#}");
    let (_, report) = place.json(&format!("probe --text {file} --target b200"));
    assert!(report["supported"][0]["expected"].is_null(), "nothing was measured there: {report:#}");
    // From standard input.
    let mut command = place.command(place.path(".").as_path(), "probe --text - --target h200");
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(b"q: bf16 [1,8,512,64]\nmask: causal").unwrap();
    let said = String::from_utf8(child.wait_with_output().unwrap().stdout).unwrap();
    assert!(said.contains("1 supported, 0 refused"), "{said}");
}
