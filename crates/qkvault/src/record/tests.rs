//! Records without a GPU: what is in the file, who else writes it, and what goes wrong.

use std::collections::HashSet;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use qkvault_graph::expr::{library, scalar, score};
use qkvault_graph::{Attention, BackwardOptions, DType, Valid, validate};
use qkvault_models::{Manifest, Phase};

use super::{MOST, Recorder};

fn prefill(seq: i64) -> Valid {
    validate(Attention::bshd(1, (32, 8), (seq, seq), 128, DType::BF16).causal()).expect("valid")
}

/// The attentions of a file.
fn recorded(path: &Path) -> Vec<Valid> {
    let manifest = Manifest::parse(&fs::read_to_string(path).expect("a file")).expect("a manifest");
    let listed = manifest.attentions().expect("attentions");
    listed.into_iter().map(|listed| validate(listed.attention).expect("valid")).collect()
}

/// Dropout's probability is under no graph key, and a manifest without it would be of another plan.
#[test]
fn every_distinct_attention_is_read_back_as_it_was_asked_for() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("asked.toml");
    let plain = || Attention::bshd(2, (8, 2), (64, 64), 64, DType::F16);
    let softcap = library::softcap(score(), scalar("softcap")).build_score_mod().expect("it builds");
    let forward = validate(plain().causal().with_score_mod(softcap).with_stats()).expect("valid");
    let asked = [
        prefill(512),
        validate(Attention::bshd(8, (32, 8), (1, 4096), 128, DType::BF16).with_lengths()).expect("valid"),
        forward.clone(),
        validate(forward.backward(BackwardOptions::default())).expect("valid"),
        validate(plain().with_dropout(0.1)).expect("valid"),
        validate(plain().with_dropout(0.2)).expect("valid"),
        validate(plain().with_sink().causal().window(16)).expect("valid"),
    ];
    let recorder = Recorder::new(&path);
    for one in asked.iter().chain(&asked) {
        recorder.record(one);
    }
    recorder.flush();
    assert_eq!(recorded(&path), asked);
    let manifest = Manifest::parse(&fs::read_to_string(&path).expect("a file")).expect("a manifest");
    let phases: Vec<Phase> = manifest.attention.iter().map(|entry| entry.phase).collect();
    assert_eq!(phases[..4], [Phase::Prefill, Phase::Decode, Phase::Prefill, Phase::Train]);
}

#[test]
fn what_the_file_has_stays_and_a_run_without_news_does_not_touch_it() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("asked.toml");
    let known = "# by hand\nqkvault-manifest = 1\n[[attention]]\nmodel = \"mine\"\nseq = [512, 1024]\ntext = '''\n\
                 q: bf16 [1,32,$seq,128]\nk: bf16 [1,8,$seq,128]\nmask: causal\n'''\n";
    fs::write(&path, known).expect("it can be written");
    let recorder = Recorder::new(&path);
    recorder.record(&prefill(512));
    recorder.record(&prefill(1024));
    recorder.flush();
    assert_eq!(fs::read_to_string(&path).expect("a file"), known);
    recorder.record(&prefill(2048));
    drop(recorder);
    assert_eq!(recorded(&path), [prefill(512), prefill(1024), prefill(2048)]);
    assert!(fs::read_to_string(&path).expect("a file").contains("model = \"mine\""));
}

/// Two services of one host, each with threads.
#[test]
fn recorders_of_one_file_lose_nothing_of_each_other() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("asked.toml");
    std::thread::scope(|scope| {
        for at in 0..4_i64 {
            let path = &path;
            scope.spawn(move || {
                let recorder = Recorder::new(path);
                for seq in 0..12 {
                    recorder.record(&prefill(64 * (1 + at * 8 + seq)));
                    recorder.flush();
                }
            });
        }
    });
    let found = recorded(&path);
    let wanted: HashSet<Valid> = (1..=36).map(|times| prefill(64 * times)).collect();
    assert_eq!((found.len(), found.into_iter().collect::<HashSet<_>>()), (36, wanted));
}

/// A service that is killed drops nothing.
#[test]
fn the_file_is_written_without_a_flush() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("asked.toml");
    let recorder = Recorder::new(&path);
    let started = Instant::now();
    for seq in [128, 256] {
        recorder.record(&prefill(seq));
        while !path.exists() || !recorded(&path).contains(&prefill(seq)) {
            assert!(started.elapsed() < Duration::from_secs(60), "the thread has not written");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

#[test]
fn a_file_that_is_something_else_stays_as_it_is() {
    let folder = tempfile::tempdir().expect("a folder");
    for text in ["my notes", "qkvault-manifest = 99\n", "qkvault-manifest = 1\n[[attention]]\ntext = 'no attention'\n"]
    {
        let path = folder.path().join("other.toml");
        fs::write(&path, text).expect("it can be written");
        let recorder = Recorder::new(&path);
        recorder.record(&prefill(512));
        recorder.flush();
        drop(recorder);
        assert_eq!(fs::read_to_string(&path).expect("a file"), text);
    }
}

#[test]
fn a_folder_that_is_missing_fails_nobody_and_what_was_not_written_is_written_later() {
    let folder = tempfile::tempdir().expect("a folder");
    let missing = folder.path().join("missing");
    let path = missing.join("asked.toml");
    let recorder = Recorder::new(&path);
    recorder.record(&prefill(512));
    recorder.flush();
    assert!(!path.exists());
    fs::create_dir(&missing).expect("it can be made");
    recorder.record(&prefill(1024));
    recorder.flush();
    assert_eq!(recorded(&path), [prefill(512), prefill(1024)]);
    // A reader sees whole files: nothing half-written is left beside it.
    let mut names: Vec<_> =
        fs::read_dir(&missing).expect("a folder").map(|file| file.expect("a file").file_name()).collect();
    names.sort();
    assert_eq!(names, [".asked.toml.lock", "asked.toml"]);
}

#[test]
fn a_service_whose_sizes_never_repeat_does_not_fill_the_disk() {
    let folder = tempfile::tempdir().expect("a folder");
    let recorder = Recorder::new(folder.path().join("missing").join("asked.toml"));
    for seq in 1..=MOST as i64 + 50 {
        recorder.record(&validate(Attention::bshd(1, (1, 1), (seq, seq), 8, DType::F16)).expect("valid"));
    }
    assert_eq!(recorder.shared.state().seen.len(), MOST);
}

#[cfg(feature = "launch")]
#[test]
fn the_variable_is_on_the_page_of_the_environment() {
    let page = include_str!("../../../../docs/environment.md");
    let row = format!("| `{}` |", crate::runtime::RECORD_VARIABLE);
    assert!(
        page.lines().any(|line| line.starts_with(&row)),
        "docs/environment.md has no row of {}",
        crate::runtime::RECORD_VARIABLE
    );
}
