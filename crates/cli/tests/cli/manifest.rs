//! Manifests: written from a config, edited, and taken wherever a model is.

use serde_json::Value;

use crate::kit::Place;

const LLAMA: &str = "../../models/llama-3.1-8b.json";
const SIZES: &str = "--batch 1,2 --seq 512,1024";

/// The attentions that a probe found, as text.
fn attentions(place: &Place, words: &str) -> Vec<String> {
    let (code, report) = place.json(&format!("probe --target h200 {words}"));
    assert_eq!(code, 0, "{report:#}");
    let rows = report["supported"].as_array().unwrap();
    let mut list: Vec<String> = rows.iter().map(|row| row["attention"].as_str().unwrap().to_owned()).collect();
    list.sort();
    list
}

#[test]
fn a_manifest_means_the_attentions_of_the_config_that_it_is_from() {
    for model in ["llama-3.1-8b", "gemma-2-27b", "deepseek-v3", "mpt-7b", "gpt-oss-20b", "popular/llama-4-scout"] {
        let place = Place::new();
        let config = format!("../../models/{model}.json");
        let expected = attentions(&place, &format!("--model {config} --batch 1,2 --seq 512,16384"));
        for end in ["toml", "json"] {
            let file = place.path(&format!("plans.{end}")).display().to_string();
            place.run(&format!("model {config} --manifest {file} --batch 1,2 --seq 512,16384")).good();
            assert_eq!(attentions(&place, &format!("--model {file}")), expected, "{model}");
            assert_eq!(attentions(&place, &format!("--manifest {file}")), expected, "{model}");
        }
    }
}

#[test]
fn an_edited_manifest_is_what_is_planned() {
    let place = Place::new();
    let file = place.path("plans.toml").display().to_string();
    place.run(&format!("model {LLAMA} --manifest {file} --phase prefill {SIZES}")).good();
    let text = std::fs::read_to_string(&file).unwrap();
    assert!(text.starts_with("qkvault-manifest = 1\n"), "{text}");
    assert_eq!(attentions(&place, &format!("--model {file}")).len(), 4);
    let edited = text.replace("seq = [512, 1024]", "seq = [256]").replace("mask: causal", "mask: causal window 64");
    std::fs::write(&file, edited).unwrap();
    let list = attentions(&place, &format!("--model {file}"));
    assert_eq!(list.len(), 2);
    assert!(list.iter().all(|a| a.contains("q256") && a.contains("window64")), "{list:?}");
    // Options of the command line go before the lists of the file.
    assert_eq!(attentions(&place, &format!("--model {file} --seq 128,512 --batch 1")).len(), 2);
    place.run(&format!("warm --model {file} --phase decode")).failed(2, &["no attention is left"]);
    let done = place.run(&format!("run --cpu --model {file} --seq 64 --batch 1"));
    assert_eq!(done.code, 0, "{}{}", done.out, done.err);
}

#[test]
fn warm_and_run_take_a_manifest_and_share_plans_with_its_config() {
    let Some(place) = Place::with_cudnn("9.27.0") else { return };
    let file = place.path("plans.toml").display().to_string();
    place.run(&format!("model {LLAMA} --manifest {file} --phase prefill,train --batch 1 --seq 128")).good();
    let (code, report) = place.json(&format!("warm --target h200 --model {file}"));
    assert_eq!((code, &report["built"]), (0, &Value::from(3)), "a prefill, and both passes of a step: {report:#}");
    let (_, report) = place.json(&format!("warm --target h200 --model {LLAMA} --phase prefill --batch 1 --seq 128"));
    assert_eq!(report["hits"], 1, "{report:#}");
    place.run(&format!("run --cpu --model {file}")).failed(2, &["train", "prefill"]);
}

#[test]
fn a_manifest_that_is_wrong_is_refused_by_its_field() {
    let place = Place::new();
    let newer = place.file("newer.toml", "qkvault-manifest = 2\nnew_field = 1\n");
    for command in ["probe", "warm", "run --cpu"] {
        place.run(&format!("{command} --model {newer}")).failed(1, &["newer.toml", "version 2", "update"]);
    }
    for (name, text, words) in [
        ("none.toml", "[[attention]]\ntext = \"q: bf16 [1,8,64,64]\"\n", ["no version", "qkvault-manifest"]),
        ("cut.toml", "qkvault-manifest = 1\n[[attention]]\ntext = '''\nq: bf16", ["cut.toml", "line"]),
        ("text.toml", "qkvault-manifest = 1\n[[attention]]\ntext = 'q: bf16 [1,8'\n", ["attention[0].text", "line 1"]),
        (
            "size.toml",
            "qkvault-manifest = 1\n[[attention]]\nbatch = [0]\ntext = 'q: bf16 [$batch,8,64,64]'\n",
            ["attention[0].batch", "1 to"],
        ),
        ("field.json", "{\"qkvault-manifest\": 1, \"attentions\": []}", ["attentions", "unknown field"]),
    ] {
        let path = place.file(name, text);
        place.run(&format!("probe --model {path}")).failed(1, &words);
    }
    // An attention that is read and contradicts itself is refused as one, beside those that are sound.
    let odd = place
        .file("odd.toml", "qkvault-manifest = 1\n[[attention]]\ntext = \"q: bf16 [1,8,64,64]\\nk: [1,3,64,64]\"\n");
    let (code, report) = place.json(&format!("probe --model {odd}"));
    assert_eq!(code, 1);
    assert!(report.to_string().contains("heads.group"), "{report:#}");
    place.run("probe --model nowhere.toml").failed(1, &["nowhere.toml"]);
}

#[test]
fn a_manifest_that_cannot_be_written_leaves_nothing() {
    let place = Place::new();
    let file = place.path("no/such/folder/plans.toml").display().to_string();
    place.run(&format!("model {LLAMA} --manifest {file}")).failed(1, &["could not be written"]);
    let folder = place.path("folder.toml");
    std::fs::create_dir(&folder).unwrap();
    place.run(&format!("model {LLAMA} --manifest {}", folder.display())).failed(1, &["could not be written"]);
    let left: Vec<_> = place.path("").read_dir().unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left.len(), 1, "{left:?}");
    place.run(&format!("model {LLAMA} --manifest --phase serve")).failed(1, &["serve"]);
}

#[test]
fn traffic_chooses_the_lengths_of_a_config_and_of_a_manifest() {
    let place = Place::new();
    let traffic = place
        .file("lengths.txt", "# phase length count\nprefill 100 900\nprefill 700 80\nprefill 3000 5\ndecode 2000 7\n");
    let manifest = place.path("plans.toml").display().to_string();
    place.run(&format!("model {LLAMA} --manifest {manifest} --batch 1")).good();
    for given in [LLAMA, &manifest] {
        let words = format!("--model {given} --batch 1 --from-traffic {traffic} --buckets 2");
        let list = attentions(&place, &words);
        let sizes: Vec<String> =
            list.iter().map(|a| a.split(' ').filter(|w| w.starts_with('q') || w.starts_with("kv")).collect()).collect();
        assert_eq!(sizes.len(), 3, "{list:?}");
        for expected in ["q704", "q3008", "q1kv2048"] {
            assert!(sizes.iter().any(|s| s.starts_with(expected)), "no {expected} in {sizes:?}");
        }
    }
    let done = place.run(&format!("probe --model {LLAMA} --from-traffic {traffic}"));
    assert!(
        format!("{}{}", done.out, done.err).contains("prefill: lengths 128, 704, 3008 for 985 requests"),
        "{}",
        done.out
    );
    let bad = place.file("bad.txt", "prefill many 3\n");
    place.run(&format!("probe --model {LLAMA} --from-traffic {bad}")).failed(1, &["bad.txt", "line 1", "length"]);
    place.run(&format!("probe --model {LLAMA} --from-traffic {traffic} --seq 5")).failed(2, &["--seq"]);
}
