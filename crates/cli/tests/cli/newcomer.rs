//! What a person who tries the command for the first time does, and what it answers.

use crate::kit::Place;

const SOFTCAP: &str =
    "q: bf16 [1,16,512,128]\nmask: causal\nscore_mod: scalar $cap: float; tanh(score / $cap) * $cap\n";

#[test]
fn help_text_is_the_page_on_the_text_form() {
    let page = Place::new();
    let done = std::process::Command::new(crate::PROGRAM).args(["help", "text"]).output().unwrap();
    let text = String::from_utf8(done.stdout).unwrap();
    assert!(done.status.success() && text.contains("scalar $cap: float;") && text.contains("truths"), "{text}");
    assert!(!text.contains("\\|"), "signs of Markdown");
    let help = page.run("help warm").good().to_owned();
    for heading in ["Attentions:", "Sizes of --phase serve:", "Target:", "Compiling:", "Vault and output:"] {
        assert!(help.contains(heading), "{heading}: {help}");
    }
    let [target, serve] = ["--target <", "--max-batch <"].map(|option| help.find(option).unwrap());
    assert!(target > help.find("\nTarget:").unwrap() && serve < help.find("\nTarget:").unwrap(), "{help}");
}

#[test]
fn explain_tells_the_engine_the_time_and_the_derivative() {
    let place = Place::new();
    let file = place.file("a.txt", SOFTCAP);
    let text = place.run(&format!("explain --text {file} --target h200")).good().to_owned();
    assert!(text.contains("expected: ") && text.contains(", by "), "{text}");
    assert!(text.contains("derivative by the score: ") && text.contains("tanh(score / $cap)"), "{text}");
    let wrong = place.file("b.txt", "q: bf16 [1,16,512,128]\nscore_mod: tanh(score / $cap)\n");
    place.run(&format!("explain --text {wrong}")).failed(1, &["line 2, column 25", "`scalar $cap: float;`"]);
}

#[test]
fn a_vault_that_is_not_there_is_told_and_not_made() {
    let place = Place::new();
    let none = place.path("typo");
    for words in ["cache ls", "cache stats", "cache verify", "cache gc", "cache clear", "pack x.qkvpack"] {
        place.run_in(&none, words).failed(1, &["there is no vault at", "typo", "`qkvault warm` makes one"]);
        assert!(!none.exists(), "{words}");
    }
}

#[test]
fn gc_says_what_stays_and_show_is_text() {
    let Some(place) = Place::with_cudnn("9.27.0") else { return };
    let file = place.file("a.txt", SOFTCAP);
    place.run(&format!("warm --text {file} --engine cudnn")).good();
    let said = place.run("cache gc --max-bytes 1").good().to_owned();
    assert!(said.contains("0 of 1 entry deleted") && said.contains("1 entry used within"), "{said}");
    let key = place.entries()[0].file_stem().unwrap().to_string_lossy()[..12].to_owned();
    let shown = place.run(&format!("cache show {key}")).good().to_owned();
    assert!(shown.lines().count() < 20 && shown.contains("\nengine ") && shown.contains("score_mod"), "{shown}");
    assert!(place.json(&format!("cache show {key}")).1["facts"].is_object());
}

#[test]
fn a_pack_of_a_gpu_s_name_has_its_plans_and_one_of_nothing_fails() {
    let Some(place) = Place::with_cudnn("9.27.0") else { return };
    let file = place.file("a.txt", SOFTCAP);
    place.run(&format!("warm --text {file} --engine cudnn --target h200,b200")).good();
    let pack = place.path("some.qkvpack");
    for (name, entries) in [("h200", 1), ("b200", 1), ("sm_", 2)] {
        let (code, report) = place.json(&format!("pack {} --only-target {name}", pack.display()));
        assert_eq!((code, &report["entries"]), (0, &entries.into()), "{name}: {report:#}");
    }
    std::fs::remove_file(&pack).unwrap();
    let none = place.run(&format!("pack {} --only-target a100", pack.display()));
    none.failed(1, &["nothing is packed", "`cache ls` lists them"]);
    assert!(!pack.exists(), "an empty pack would pass for a pack");
}

#[test]
fn doctor_names_why_a_remote_does_not_answer_and_what_compiles_kernels() {
    let Some(place) = Place::with_cudnn("9.27.0") else { return };
    let (code, report) = place.json("doctor --remote http://127.0.0.1:9/plans");
    let remote = &report["findings"]["remote"];
    assert_eq!((code, &remote["good"]), (1, &false.into()), "{report:#}");
    let why = remote["why"].as_str().unwrap();
    assert!(why.contains("127.0.0.1:9") && why.len() > 40, "{why}");
    assert!(report["findings"]["kernels"]["text"].is_string() && report["findings"]["fa4"]["text"].is_string());
    let folder = place.path("remote");
    std::fs::create_dir(&folder).unwrap();
    let (_, report) = place.json(&format!("doctor --remote {}", folder.display()));
    assert_eq!(report["findings"]["remote"]["good"], true, "{report:#}");
}

#[test]
fn warm_s_report_has_one_form_for_one_target_and_for_many() {
    let Some(place) = Place::with_cudnn("9.27.0") else { return };
    let file = place.file("a.txt", SOFTCAP);
    let names = |words: &str| {
        let report = place.json(&format!("warm --text {file} --engine cudnn {words}")).1;
        let keys: Vec<String> = report.as_object().unwrap().keys().cloned().collect();
        let run: Vec<String> = report["runs"][0].as_object().unwrap().keys().cloned().collect();
        let plan: Vec<String> = report["plans"][0].as_object().unwrap().keys().cloned().collect();
        (keys, run, plan)
    };
    names("--target h200,b200");
    assert_eq!(names("--target h200"), names("--target h200,b200"));
}

/// gpt-oss on Blackwell: cuDNN takes no sink of one query over pages there, and its mixed plans serve those steps.
#[test]
fn a_serving_set_that_works_exits_0_and_says_which_steps_go_another_way() {
    let Some(place) = Place::with_cudnn("9.27.0") else { return };
    let model = "--model ../../models/gpt-oss-20b.json --phase serve --max-batch 8 --max-new 256 --max-keys 1024 \
                 --pages 64 --growth 0,0,0 --target b200";
    let done = place.run(&format!("warm {model} --engine cudnn"));
    let text = done.good();
    assert!(text.contains("2 decodes that are refused go another way"), "{text}");
    assert!(place.run(&format!("probe {model}")).good().contains("go another way"));
}

#[test]
fn the_matrix_is_of_the_gpu_and_the_version_that_are_named() {
    let place = Place::new();
    let file = place.path("matrix");
    place.run(&format!("probe --matrix {} --target b200 --cudnn 9.19", file.display())).good();
    let text = std::fs::read_to_string(file.with_extension("json")).unwrap();
    let matrix: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!((&matrix["gpus"], &matrix["versions"]), (&serde_json::json!(["b200"]), &serde_json::json!(["9.19.0"])));
}

#[test]
fn a_version_that_is_missing_is_in_the_command_that_gets_it() {
    let place = Place::new();
    let nowhere = place.path("").display().to_string();
    let place = place.set("QKVAULT_CACHE_DIR", &nowhere);
    let file = place.file("a.txt", SOFTCAP);
    place
        .run(&format!("warm --text {file} --cudnn 9.14"))
        .failed(1, &["no usable cuDNN 9.14.0", "`cargo xtask fetch --cudnn 9.14.0`"]);
}

#[test]
fn progress_names_the_target_where_there_are_two() {
    let Some(place) = Place::with_cudnn("9.27.0") else { return };
    let file = place.file("a.txt", SOFTCAP);
    let done = place.run(&format!("warm --text {file} --engine cudnn --target h200,b200"));
    done.good();
    let built: Vec<&str> = done.err.lines().filter(|line| line.starts_with("built ")).collect();
    for sm in ["for sm_90 132sm", "for sm_100 148sm"] {
        assert_eq!(built.iter().filter(|line| line.contains(sm)).count(), 1, "{built:?}");
    }
}

/// By SIGTERM, which Ctrl-C's SIGINT is treated like: shells start what runs behind them with SIGINT ignored.
#[test]
#[cfg(unix)]
fn ctrl_c_tells_how_far_it_was_and_that_it_goes_on_from_there() {
    use std::io::{BufRead as _, BufReader, Read as _};
    use std::os::unix::process::ExitStatusExt as _;

    let Some(place) = Place::with_cudnn("9.27.0") else { return };
    let words = "warm --model ../../models/llama-3.1-8b.json --engine cudnn -j 1";
    let mut command = place.command(&place.path("vault-of-ctrl-c"), words);
    let mut child = command.stderr(std::process::Stdio::piped()).stdout(std::process::Stdio::null()).spawn().unwrap();
    let mut err = BufReader::new(child.stderr.take().unwrap());
    let mut line = String::new();
    while !line.starts_with("built ") {
        line.clear();
        assert!(err.read_line(&mut line).unwrap() > 0, "it ended before");
    }
    let killed = std::process::Command::new("kill").args(["-TERM", &child.id().to_string()]).status().unwrap();
    assert!(killed.success());
    let mut rest = String::new();
    err.read_to_string(&mut rest).unwrap();
    let last = rest.lines().last().unwrap_or_default();
    assert!(last.starts_with("stopped: ") && last.ends_with("the same command goes on from there"), "{rest}");
    assert_eq!(child.wait().unwrap().signal(), Some(15), "as if nobody had listened");
}

/// The reasons of cuDNN's refusal stood below each of sixteen plans.
#[test]
fn probe_tells_the_reasons_of_a_serving_set_once() {
    let place = Place::new();
    let model = "--model ../../models/gpt-oss-20b.json --phase serve --max-batch 8 --max-new 256 --max-keys 1024 \
                 --pages 64 --growth 0,0,0";
    for gpu in ["h200", "b200"] {
        let done = place.run(&format!("probe {model} --target {gpu}"));
        let text = done.good();
        assert_eq!(text.matches("[quirk / storage.paged-one-query-sink]").count(), 1, "{gpu}: {text}");
        assert!(text.matches("serve decode").count() == 2, "{text}");
    }
}

/// cuDNN's sentence alone says neither what is needed nor how to fix it.
#[test]
fn a_refusal_of_cudnn_comes_with_the_rule_that_knows_it() {
    let Some(place) = Place::with_cudnn("9.27.0") else { return };
    let file = place.file("a.txt", "q: bf16 [1,4,256,60]\n");
    let done = place.run(&format!("warm --text {file} --engine cudnn"));
    for word in ["[library / ", "[rule / head-dim.multiple-of-8]", "fix: "] {
        assert_eq!(done.out.matches(word).count().min(1), 1, "{word}: {}", done.out);
    }
    assert!(!done.out.contains("leave it to cuDNN"), "{}", done.out);
}

/// A text that was given to `--model` was once told to remove its comments.
#[test]
fn a_text_is_named_by_its_option_and_goes_to_text() {
    let place = Place::new();
    let file = place.file("a.txt", &format!("# a comment\n{SOFTCAP}"));
    place.run(&format!("warm --model {file}")).failed(1, &["a.txt", "a description in the text form", "`--text`"]);
    place.run("probe --text -").failed(1, &["standard input is not a description", "the field q"]);
}

/// The first line of what NVRTC lacks once ended in a backslash and an n.
#[test]
fn doctor_says_on_one_line_why_no_kernels_are_compiled() {
    let text = Place::new().set("QKVAULT_NVRTC_PATH", "/nonexistent").run("doctor").out;
    let line = text.lines().find(|line| line.contains("kernels")).unwrap();
    assert!(line.contains("/nonexistent") && line.contains("; ") && !line.contains("\\n"), "{line}");
}

#[test]
fn a_run_on_the_cpu_tells_how_far_it_is() {
    let place = Place::new();
    let [a, b] = [32, 64].map(|n| place.file(&format!("{n}.txt"), &format!("q: bf16 [1,2,{n},16]\n")));
    let done = place.run(&format!("run --cpu --text {a} --text {b}"));
    assert!(done.code == 0 && done.err.contains("(2 of 2)"), "{}{}", done.out, done.err);
}

#[test]
fn a_command_without_anything_to_do_names_all_that_it_takes() {
    for (command, more) in [("warm", ""), ("run", ""), ("probe", "|--matrix <FILE>|--known-wrong")] {
        let wanted = format!("--text <FILE>{more}");
        Place::new().run(command).failed(2, &["--model <FILE|DIR|NAME>", &wanted]);
    }
}

#[test]
fn limits_of_a_serving_engine_without_its_phase_are_an_error() {
    let probe = "probe --model qwen3-8b.json --max-batch 64";
    Place::new().run(probe).failed(1, &["--max-batch is a limit", "add --phase serve"]);
}
