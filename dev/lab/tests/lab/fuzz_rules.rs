//! `fuzz-rules`: compares rules and library for random descriptions, in worker processes.

use qkvault_skip::{Need, skip};

use crate::kit::{Place, fields};

/// Each of five GPUs under each of three versions gets 5 descriptions, the same in every run. A description that goes
/// to the library takes 0.6 s of a core. Run `qkvault-lab fuzz-rules` with another seed for more.
#[test]
fn rules_and_library_agree_on_random_descriptions() {
    const CASES: u64 = 75;
    if ["9.14.0", "9.19.0", "9.27.0"].iter().any(|version| Place::with_cudnn(version).is_none()) {
        return;
    }
    let place = Place::new();
    let (code, report) = place.json(&format!(
        "fuzz-rules --cases {CASES} --seed 2026 --versions 9.14.0,9.19.0,9.27.0 --workers 2 --keep-size"
    ));
    let names = [
        "engine",
        "cases",
        "seed",
        "first",
        "agreed",
        "supported",
        "refused",
        "not_asked",
        "confirmed",
        "differed",
        "disagreed",
        "seconds",
    ];
    fields(&report, &names);
    let count = |name: &str| report[name].as_u64().unwrap();
    let not_asked: u64 = report["not_asked"].as_object().unwrap().values().filter_map(|n| n.as_u64()).sum();
    // A missing rule counts as a difference, and so does a rule that is too strict.
    assert_eq!((code, count("differed")), (0, 0), "{report:#}");
    assert_eq!((count("agreed") + not_asked, count("cases")), (CASES, CASES), "{report:#}");
    // Most descriptions go to the library, and both refuse some of them.
    assert!(count("supported") >= 38 && count("refused") >= 2 && not_asked <= 25, "{report:#}");
}

/// What the rules of own kernels take is compiled by NVRTC, 1 s of a core each.
#[test]
fn what_the_rules_of_kernels_take_becomes_a_plan() {
    if let Err(error) = qkvault_compile::Nvrtc::open(None) {
        return skip(Need::Cudnn, &error.to_string());
    }
    let place = Place::new();
    let (code, report) = place.json("fuzz-rules --engine kernels --cases 12 --seed 2026 --keep-size");
    let count = |name: &str| report[name].as_u64().unwrap();
    assert_eq!((code, count("differed"), count("agreed")), (0, 0, 12), "{report:#}");
    assert!(count("supported") >= 6 && count("refused") >= 2, "{report:#}");
    assert!(report["confirmed"]["kernels.backward"].as_u64() > Some(0), "{report:#}");
    place.run("fuzz-rules --engine auto").failed(2, &["it takes cudnn, kernels, fa4"]);
    place.run("fuzz-rules --engine kernels --versions 9.19").failed(2, &["cannot be used with"]);
}

#[test]
fn descriptions_of_a_file_run_for_every_gpu() {
    if Place::with_cudnn("9.27.0").is_none() {
        return;
    }
    let place = Place::new();
    let file = place.file("two.txt", "q: bf16 [1,2,128,64]\n---\nq: bf16 [1,2,128,68]\n");
    let (code, report) = place.json(&format!("fuzz-rules --file {file} --targets h200,a100 --versions 9.27.0"));
    assert_eq!((code, report["supported"].as_u64(), report["refused"].as_u64()), (0, Some(2), Some(2)), "{report:#}");
    assert_eq!(report["confirmed"]["head-dim.multiple-of-8"], 2);
    place.run("fuzz-rules --versions 9.99 --cases 1").failed(1, &["no fetched cuDNN"]);
}
