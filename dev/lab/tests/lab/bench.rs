//! `bench` without a GPU: the file of cases, and compiling them.

use crate::kit::{Place, fields};

const PASS: [&str; 14] = [
    "status",
    "why",
    "flops",
    "checks",
    "ms",
    "best_ms",
    "rounds",
    "tflops",
    "key",
    "engine",
    "resident",
    "workspace",
    "workspace_of_cudnn",
    "workspace_buffers",
];

const CASES: &str = "# two\ncase: softcap\nscalar: cap 50\nnote: goal flex 1 2 3\nq: bf16 [1,4,256,64]\nmask: causal\nscore_mod: scalar $cap: float; tanh(score / $cap) * $cap\n\ncase: same-bits\nq: bf16 [1,4,256,64]\nmask: causal\npass: backward\ndeterministic: yes\n";

#[test]
fn cases_compile_forward_and_backward_without_a_gpu_and_report_their_scratch_memory() {
    let Some(place) = Place::with_cudnn("9.27.0") else { return };
    let file = place.file("cases.txt", CASES);
    let (code, report) = place.json(&format!("bench attentions --plan --cases {file}"));
    assert_eq!(code, 0, "{report:#}");
    let [softcap, same] = &report["entries"].as_array().unwrap()[..] else { panic!("{report:#}") };
    assert_eq!((&softcap["entry"], &softcap["share"]), (&"softcap".into(), &0.5.into()));
    assert_eq!(softcap["notes"]["goal"], "flex 1 2 3");
    for pass in [&softcap["forward"], &softcap["backward"], &same["backward"]] {
        fields(pass, &PASS);
        assert_eq!((&pass["status"], &pass["ms"]), (&"compiled".into(), &serde_json::Value::Null));
    }
    // The workspace has row sums, and dQ in f32 unless a kernel computes it directly.
    let backward = &softcap["backward"];
    let buffers: Vec<u64> =
        backward["workspace_buffers"].as_array().unwrap().iter().map(|b| b["bytes"].as_u64().unwrap()).collect();
    assert_eq!(buffers, [4 * 256 * 4, 4 * 256 * 64 * 4]);
    assert!(backward["workspace"].as_u64() >= Some(buffers.iter().sum()));
    assert_eq!(same["backward"]["workspace_buffers"].as_array().unwrap().len(), 1);
    assert!(same["backward"]["workspace_of_cudnn"].as_u64() > Some(4 * 256 * 256 * 2), "{same:#}");

    let (code, report) =
        place.json(&format!("bench attentions --plan --cases {file} --only softcap --without masks-last"));
    let [usual, other] = &report["entries"].as_array().unwrap()[..] else { panic!("{report:#}") };
    assert_eq!((code, &other["entry"]), (0, &"softcap/auto-without-masks-last".into()));
    assert_ne!(usual["forward"]["key"], other["forward"]["key"]);
}

#[test]
fn errors_of_a_file_have_the_line_or_the_case() {
    let place = Place::new();
    for (text, expected) in [
        ("case: a\nscalar: cap\nq: bf16 [1,4,256,64]", "line 2"),
        ("case: a\nq: bf16 [1,3,256,64]\nk: bf16 [1,2,256,64]", "'a'"),
        ("q: bf16 [1,4,256,64]", "case: NAME"),
    ] {
        let file = place.file("cases.txt", text);
        let (code, report) = place.json(&format!("bench attentions --plan --cases {file}"));
        assert_eq!(code, 1);
        assert!(report["error"].as_str().unwrap().contains(expected), "{report:#}");
    }
    let file = place.file("cases.txt", CASES);
    let (_, report) = place.json(&format!("bench attentions --plan --cases {file} --only other"));
    assert!(report["error"].as_str().unwrap().contains("softcap, same-bits"), "{report:#}");
    assert_eq!(place.run(&format!("bench attentions --cases {file} --form odd")).code, 2);
    assert_eq!(place.run(&format!("bench attentions --cases {file} --without odd")).code, 2);
}

#[test]
fn rows_in_8_bits_compile_beside_bf16_without_a_gpu() {
    let Some(place) = Place::with_cudnn("9.19.0") else { return };
    let (code, report) = place.json("bench fp8 --plan --target h200 --only s2048");
    let rows = report["rows"].as_array().unwrap();
    assert_eq!((code, rows.len()), (0, 8), "{report:#}");
    let compiled = |pass: &str| rows.iter().filter(|row| row[pass] == "compiled").count();
    // Head dims of 64 have no 8-bit backward there.
    assert_eq!((compiled("forward"), compiled("backward")), (8, 4), "{report:#}");
    let done = place.run("bench fp8 --plan --target h200 --only s7");
    assert!(done.code == 1 && done.err.contains("causal s2048 d128"), "{}", done.err);
}
