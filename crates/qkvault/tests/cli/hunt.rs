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
