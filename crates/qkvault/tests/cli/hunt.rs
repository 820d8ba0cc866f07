//! `hunt`: rules against the library over random descriptions, in worker processes.

use crate::kit::{Place, fields};

#[test]
fn p25_rules_and_library_agree_on_what_is_drawn() {
    // Which libraries were fetched is looked up where they were fetched to.
    if Place::with_cudnn("9.27.0").is_none() {
        return;
    }
    let place = Place::new();
    let (_, report) = place.json("hunt --cases 10 --seed 2 --versions 9.27.0 --workers 2");
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
    assert_eq!(count("agreed") + count("differed") + not_asked, 10, "{report:#}");
    // A rule may be missing, which the library makes up for; one that refuses what the library takes must not be there.
    let disagreed = report["disagreed"].as_array().unwrap();
    assert!(disagreed.iter().all(|d| d["signature"].as_str().unwrap().starts_with("no rule")), "{report:#}");
    assert!(count("supported") >= 2 && count("agreed") >= 5, "{report:#}");
}

#[test]
fn descriptions_of_a_file_are_put_to_every_gpu() {
    if Place::with_cudnn("9.27.0").is_none() {
        return;
    }
    let place = Place::new();
    let file = place.file("two.txt", "q: bf16 [1,2,128,64]\n---\nq: bf16 [1,2,128,68]\n");
    let (code, report) = place.json(&format!("hunt --file {file} --targets h200,a100 --versions 9.27.0"));
    assert_eq!((code, report["supported"].as_u64(), report["refused"].as_u64()), (0, Some(2), Some(2)), "{report:#}");
    assert_eq!(report["confirmed"]["hidden.multiple-of-8"], 2);
    place.run("hunt --versions 9.99 --cases 1").failed(1, &["no fetched cuDNN"]);
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
