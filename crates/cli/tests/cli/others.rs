//! `run` on the CPU, `doctor`, `profile`.

use crate::kit::{Place, fields};

#[test]
fn run_on_the_cpu_is_right_on_small_shapes_of_every_model() {
    let place = Place::new();
    for (model, seq, attentions) in
        [("llama-3.1-8b", 40, 2), ("gemma-2-27b", 40, 2), ("gpt-oss-20b", 140, 4), ("bert-base", 40, 1)]
    {
        let words = format!("run --cpu --seq {seq} --batch 2 --model ../../models/{model}.json --stats");
        let (code, report) = place.json(&words);
        fields(&report, &["machine", "runs", "seed", "notes", "right", "wrong", "refused", "failed"]);
        assert_eq!((code, &report["right"]), (0, &attentions.into()), "{model}: {report:#}");
        assert_eq!(report["machine"]["where"], "cpu");
        assert!(report["runs"].as_array().unwrap().iter().all(|r| r["worst"].as_f64() < Some(1e-9)));
    }
    let text = place.run("run --cpu --seq 40 --batch 1 --model ../../models/bert-base.json");
    assert!(text.good().contains("1 right, 0 wrong, 0 refused, 0 failed"), "{}", text.out);
}

#[test]
fn a_size_that_is_too_large_for_the_cpu_is_refused_with_one_that_is_not() {
    let (code, report) =
        Place::new().json("run --cpu --seq 8192 --batch 4 --model ../../models/llama-3.1-8b.json --phase prefill");
    assert_eq!((code, &report["failed"]), (1, &1.into()), "{report:#}");
    let why = report["runs"][0]["why"].as_str().unwrap();
    assert!(why.contains("--seq 512 --batch 1"), "{why}");
}

#[test]
fn doctor_reports_what_this_machine_has() {
    let Some(place) = Place::with_cudnn("9.27.0") else { return };
    let (code, report) = place.json("doctor");
    fields(&report, &["version", "good", "findings"]);
    fields(&report["findings"], &["gpu", "cudnn", "kernels", "fa4", "vault"]);
    assert_eq!((code, &report["good"]), (0, &true.into()));
    assert_eq!(report["findings"]["cudnn"]["version"], "9.27.0");
    assert!(report["findings"]["cudnn"]["files"].as_array().unwrap().len() >= 3, "{report:#}");
    let text = place.run("doctor");
    for word in ["ok  gpu", "ok  cudnn", "ok  vault", "9.27.0 slim"] {
        assert!(text.good().contains(word), "{word}: {}", text.out);
    }
}

#[test]
fn doctor_without_a_cudnn_fails_with_a_fix() {
    let place = Place::new().set("QKVAULT_CUDNN_PATH", "/nonexistent");
    let (code, report) = place.json("doctor");
    assert_eq!((code, &report["good"], &report["findings"]["vault"]["good"]), (1, &false.into(), &true.into()));
    let why = report["findings"]["cudnn"]["why"].as_str().unwrap();
    assert!(why.contains("cargo xtask fetch") && why.contains("/nonexistent"), "{why}");
    assert!(place.run("doctor").out.contains("NO  cudnn"));
}

#[test]
fn profiles_are_listed_and_shown() {
    let place = Place::new();
    let (code, report) = place.json("profile ls");
    let profiles = report["profiles"].as_array().unwrap();
    assert!(code == 0 && profiles.len() >= 7);
    let text = place.run("profile ls");
    for profile in profiles {
        let name = profile["name"].as_str().unwrap();
        assert!(text.good().contains(name), "{name}");
        let (code, shown) = place.json(&format!("profile show {name}"));
        assert_eq!((code, &shown), (0, profile));
    }
    // The output is a profile file.
    let shown = place.run("profile show b200").good().to_owned();
    let file = place.file("mine.json", &shown);
    assert_eq!(place.run(&format!("profile show {file}")).good(), shown);
    place.run("profile show b2000").failed(2, &["b2000", "b200", "profile capture"]);
    let broken = place.file("broken.json", "{\"name\": 3}");
    place.run(&format!("profile show {broken}")).failed(1, &["broken.json", "profile"]);
}

#[test]
fn capture_without_a_gpu_is_an_error() {
    let Some(place) = Place::with_cudnn("9.27.0") else { return };
    let done = place.run("profile capture");
    if done.code != 0 {
        done.failed(1, &["nvidia-smi"]);
    }
}

/// A cuDNN and an NVRTC in folders that anyone can write to, which were loaded without a word.
#[cfg(unix)]
#[test]
fn audit_13_doctor_names_folders_of_libraries_that_others_can_change() {
    use std::os::unix::fs::PermissionsExt as _;
    let place = Place::new();
    for (folder, name) in [("cudnn", "libcudnn.so.9"), ("nvrtc", "libnvrtc.so.13")] {
        let folder = place.path(folder);
        std::fs::create_dir(&folder).unwrap();
        for name in [name, "libcudnn_graph.so.9", "libcudnn_engines_runtime_compiled.so.9"] {
            std::fs::write(folder.join(name), "no library").unwrap();
        }
        std::fs::set_permissions(&folder, std::fs::Permissions::from_mode(0o777)).unwrap();
    }
    let [cudnn, nvrtc] = ["cudnn", "nvrtc"].map(|name| place.path(name).display().to_string());
    let place = place.set("QKVAULT_CUDNN_PATH", cudnn.clone()).set("QKVAULT_NVRTC_PATH", nvrtc.clone());
    let text = place.run("doctor").out;
    for folder in [cudnn, nvrtc] {
        let told = text.lines().any(|line| line.contains(&folder) && line.contains("is not trusted"));
        assert!(told, "{folder} is not named in: {text}");
    }
    assert!(text.contains("chmod -R go-w") && text.contains("QKVAULT_LIBRARIES_ALLOW_SHARED=1"), "{text}");
    let allowed = place.set("QKVAULT_LIBRARIES_ALLOW_SHARED", "1").run("doctor").out;
    assert!(!allowed.contains("is not trusted"), "{allowed}");
}
