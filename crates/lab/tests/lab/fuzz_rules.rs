//! `fuzz-rules`: rules against the library over random descriptions, in worker processes.

use crate::kit::{Place, fields};

/// 16 draws for each of five GPUs under each of three versions, the same in every run. Each that is put to the library takes 0.6 s of a
/// core. `qkvault-lab fuzz-rules` with another seed looks further.
#[test]
fn rules_and_library_agree_on_all_that_is_drawn() {
    const CASES: u64 = 240;
    // Which libraries were fetched is looked up where they were fetched to.
    if ["9.14.0", "9.19.0", "9.27.0"].iter().any(|version| Place::with_cudnn(version).is_none()) {
        return;
    }
    let place = Place::new();
    let (code, report) = place.json(&format!(
        "fuzz-rules --cases {CASES} --seed 2026 --versions 9.14.0,9.19.0,9.27.0 --workers 2 --keep-size"
    ));
    let names = [
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
    // A rule that is missing is a difference as one that is too strict is: who asked the rules was told something else.
    assert_eq!((code, count("differed")), (0, 0), "{report:#}");
    assert_eq!((count("agreed") + not_asked, count("cases")), (CASES, CASES), "{report:#}");
    // Most of what is drawn is put to the library, and some of it is refused by both.
    assert!(count("supported") >= 120 && count("refused") >= 8 && not_asked <= 80, "{report:#}");
}

#[test]
fn descriptions_of_a_file_are_put_to_every_gpu() {
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

/// What a card would be asked, without one: rules and library, and everything of a case but its launch.
#[test]
fn rules_library_and_card_are_compared_case_by_case_in_processes_of_their_own() {
    let Some(place) = Place::with_cudnn("9.27.0") else { return };
    let run = "selftest --verdicts --dry h200 --seed 5 --cases 8 --isolate 3 --workers 2";
    let (code, report) = place.json(run);
    let verdicts = &report["verdicts"];
    fields(verdicts, &["agreed", "supported_and_right", "refused", "not_asked", "differed", "disagreed"]);
    assert_eq!((code, verdicts["differed"].as_u64()), (0, Some(0)), "{report:#}");
    let not_asked: u64 = verdicts["not_asked"].as_object().unwrap().values().filter_map(|n| n.as_u64()).sum();
    assert_eq!(verdicts["agreed"].as_u64().unwrap() + not_asked, 8, "{report:#}");
    // Both kinds, dense and served, and more than one that is supported.
    assert!(verdicts["supported_and_right"].as_u64() > Some(2), "{report:#}");
    let odd =
        place.file("odd.txt", "q: f16 [1,2,64,60]\n---\nq: f16 [1,2,64,64]\nblock_mask: yes\n---\nq: f16 [1,2,64,64]");
    let (_, report) = place.json(&format!("selftest --verdicts --dry h200 --file {odd}"));
    let verdicts = &report["verdicts"];
    assert_eq!((verdicts["supported_and_right"].as_u64(), verdicts["refused"].as_u64()), (Some(1), Some(1)));
    assert_eq!(verdicts["not_asked"]["not-built.block-mask"], 1, "{report:#}");
}
