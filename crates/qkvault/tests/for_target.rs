//! A runtime for a GPU that is not here: it checks, compiles, lists, and says why it launches nothing.

use qkvault::cache::VaultOptions;
use qkvault::prelude::*;
use qkvault_skip::{Need, skip};

fn attentions() -> Vec<Valid> {
    let of = |tokens| Attention::bshd(1, (8, 2), (tokens, tokens), 64, DType::BF16).causal();
    [128, 256, 384].map(|tokens| of(tokens).validate().expect("valid")).to_vec()
}

#[test]
fn it_checks_without_a_library_and_launches_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    let runtime = Runtime::options().vault(VaultOptions::in_folder(folder.path())).open_for("h200").expect("a vault");
    let [first, ..] = &attentions()[..] else { unreachable!("three") };
    let answer = runtime.check(first).expect("rules");
    assert!(answer.supported() && answer.to_string() == first.check("h200").to_string(), "{answer}");
    assert!(answer.expected().is_some() && answer.to_string().contains("expected: "), "{answer}");
    let error = runtime.plan(first).expect_err("no GPU");
    assert_eq!(error.kind(), ErrorKind::Device);
    assert!(error.to_string().contains("h200, which is not here"), "{error}");
    assert_eq!((runtime.loaded_plans(), runtime.vault().ls().count()), (0, 0));
    assert!(format!("{runtime:?}").contains("h200"), "{runtime:?}");
    let unknown = Runtime::for_target("h2000").expect_err("no such GPU").to_string();
    assert!(unknown.contains("h2000") && unknown.contains("h200"), "{unknown}");
    let unknown = first.check("h2000");
    assert!(!unknown.supported() && unknown.to_string().contains("h2000"), "{unknown}");
}

#[test]
fn it_warms_with_progress_and_finds_what_it_compiled() {
    let folder = tempfile::tempdir().expect("a folder");
    let runtime = Runtime::options().vault(VaultOptions::in_folder(folder.path())).open_for("h200").expect("a vault");
    if let Err(error) = runtime.target() {
        return skip(Need::Cudnn, &error.to_string());
    }
    let list = attentions();
    assert!(runtime.look(&list[0]).expect_err("nothing is compiled").is_missing());
    let mut heard = Vec::new();
    let plans = runtime.warm(&list, |one, done| heard.push((one.at, done))).expect("a target");
    assert!(plans.iter().all(Result::is_ok), "{plans:?}");
    assert_eq!(heard.iter().map(|(_, done)| *done).collect::<Vec<_>>(), [1, 2, 3]);
    heard.sort_unstable();
    assert_eq!(heard.iter().map(|(at, _)| *at).collect::<Vec<_>>(), [0, 1, 2]);
    for (attention, plan) in list.iter().zip(plans) {
        let found = runtime.look(attention).expect("in the vault");
        assert_eq!(found.graph_key, plan.expect("compiled").graph_key);
    }
    assert_eq!(runtime.vault().ls().count(), 3);
}
