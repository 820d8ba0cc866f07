//! The page and the data of what is known to be computed wrongly are up to date, and say where each row is known from.

use std::path::Path;

use qkvault_cudnn::registry::codes;
use qkvault_probe::{known_from, known_wrong, known_wrong_page};

fn up_to_date(name: &str, text: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs").join(name);
    if std::env::var_os("UPDATE_GOLDENS").is_some_and(|v| v == "1") {
        std::fs::write(&path, text).expect("docs can be written");
    }
    let found = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(found == text, "docs/{name} is stale: UPDATE_GOLDENS=1 cargo test -p qkvault-probe --test known");
}

#[test]
fn the_page_of_wrong_results_is_up_to_date() {
    up_to_date("known-wrong.md", &known_wrong_page());
}

/// A line for each row, so that a change shows as one.
fn rows<T: serde::Serialize>(rows: &[T]) -> String {
    let row = |row| serde_json::to_string(row).expect("it is plain data");
    rows.iter().map(row).collect::<Vec<_>>().join(",\n")
}

#[test]
fn the_data_of_wrong_results_are_up_to_date() {
    let known = known_wrong();
    let text = format!(
        "{{\"format\": {}, \"wrong\": [\n{}\n], \"guards\": [\n{}\n]}}\n",
        known.format,
        rows(&known.wrong),
        rows(&known.guards)
    );
    let read: serde_json::Value = serde_json::from_str(&text).expect("it is JSON");
    assert_eq!(read, serde_json::to_value(&known).expect("it is plain data"));
    up_to_date("known-wrong.json", &text);
}

#[test]
fn every_quirk_is_in_the_table_with_who_saw_it() {
    let known = known_wrong();
    for quirk in qkvault_cudnn::QUIRKS {
        let row = known.wrong.iter().find(|row| row.code == Some(quirk.code)).expect("a row");
        assert!(row.seen.standing != "not-confirmed" && !row.to_do.is_empty(), "{}", quirk.code);
        assert_eq!(row.seen.standing == "seen", row.seen.command.is_some(), "{}", quirk.code);
    }
    let page = known_wrong_page();
    for project in ["PyTorch", "Transformer Engine", "cudnn-frontend", "JAX"] {
        assert!(page.contains(&format!("## Guards and reports of {project}\n")), "{project}");
    }
    for guard in &known.guards {
        assert!(page.contains(guard.attention), "{}", guard.attention);
    }
}

/// A guard that names a code names one that is about its attention: no code is named that the page of reasons lacks.
#[test]
fn the_sources_of_a_refusal_are_told() {
    let decode = known_from(&codes::QUERIES_ONE_WRONG).expect("a quirk");
    assert_eq!(decode, "reported, not run here (https://github.com/pytorch/pytorch/issues/193893)");
    let sink = known_from(&codes::BACKWARD_SINK_PHILOX).expect("a quirk");
    assert!(sink.starts_with("seen on an H200, cuDNN 9.19, `qkvault-lab selftest "), "{sink}");
    assert_eq!(known_from(&codes::HEAD_DIM_MULTIPLE_OF_8), None);
}
