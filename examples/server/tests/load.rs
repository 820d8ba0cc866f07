//! The programs: the load client beside servers on this CPU.

use std::path::Path;
use std::process::Command;

use serde_json::Value;

/// Runs the client, and returns its record.
fn load(words: &[&str]) -> Value {
    let folder = tempfile::tempdir().expect("a folder");
    let out = folder.path().join("record.json");
    let mut command = Command::new(env!("CARGO_BIN_EXE_load"));
    command.args(words).args(["--model", "tiny", "--cpu", "--server", env!("CARGO_BIN_EXE_server")]);
    let ran = command.arg("--out").arg(&out).output().expect("it runs");
    assert!(ran.status.success(), "{}{}", String::from_utf8_lossy(&ran.stdout), String::from_utf8_lossy(&ran.stderr));
    serde_json::from_slice(&std::fs::read(Path::new(&out)).expect("a record")).expect("JSON")
}

#[test]
fn a_soak_with_vanishing_clients_long_prompts_and_a_full_pool_leaves_nothing_behind() {
    let record = load(&["soak", "--minutes", "0.08", "--users", "12"]);
    assert_eq!((&record["pages_left"], &record["checked"]["wrong"]), (&0.into(), &0.into()));
    // On the CPU an answer has the same bits in any batch.
    assert_eq!(record["checked"]["likeliest"], record["checked"]["tokens"]);
    assert!(record["outcomes"]["whole"].as_u64().is_some_and(|whole| whole > 0), "{record:#}");
}

#[test]
fn a_measurement_has_a_row_for_each_number_of_users() {
    let record = load(&["bench", "--users", "1,4", "--seconds", "1"]);
    let rows = record["rows"].as_array().expect("rows");
    assert_eq!(rows.iter().map(|row| row["users"].as_u64()).collect::<Vec<_>>(), [Some(1), Some(4)]);
    for row in rows {
        assert!(row["tokens_per_s"].as_f64().is_some_and(|rate| rate > 0.0), "{row:#}");
        assert!(row["first_token_ms"]["median"].as_f64() <= row["first_token_ms"]["p99"].as_f64(), "{row:#}");
    }
}

#[test]
fn a_smoke_test_scores_the_answers_of_a_crowd() {
    let record = load(&["smoke"]);
    assert_eq!(record["servers"][0]["own"]["likeliest"], record["servers"][0]["own"]["tokens"]);
}

#[test]
fn a_server_that_cannot_start_says_why() {
    let ran = Command::new(env!("CARGO_BIN_EXE_server")).args(["--cpu", "--tokens", "4"]).output().expect("it runs");
    let said = String::from_utf8_lossy(&ran.stderr);
    assert!(!ran.status.success() && said.contains("a step of 4 tokens"), "{said}");
}
