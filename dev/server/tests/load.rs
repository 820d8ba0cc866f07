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
fn a_measurement_has_a_row_for_each_number_of_users_and_scores_as_many_answers_as_are_asked_for() {
    let record = load(&["bench", "--users", "1,4", "--seconds", "0.5", "--scored", "30"]);
    let rows = record["rows"].as_array().expect("rows");
    assert_eq!(rows.iter().map(|row| row["users"].as_u64()).collect::<Vec<_>>(), [Some(1), Some(4)]);
    for row in rows {
        assert!(row["tokens_per_s"].as_f64().is_some_and(|rate| rate > 0.0), "{row:#}");
        assert!(row["first_token_ms"]["median"].as_f64() <= row["first_token_ms"]["p99"].as_f64(), "{row:#}");
    }
    // On the CPU an answer has the same bits in any batch.
    let scored = &record["scored"];
    assert_eq!((&scored["answers"], &scored["likeliest"]), (&30.into(), &scored["tokens"]), "{scored:#}");
}

#[test]
fn answers_of_sequences_that_lost_their_pages_are_those_of_their_prompts() {
    let record = load(&["preempt", "--users", "12", "--seconds", "2", "--least", "5", "--scored", "20"]);
    assert!(record["preempted"].as_u64().is_some_and(|preempted| preempted >= 5), "{record:#}");
    assert!(record["answers"]["of_preempted_sequences"].as_u64().is_some_and(|count| count > 0), "{record:#}");
    assert_eq!((&record["pages_left"], &record["scored"]["wrong"]), (&0.into(), &0.into()));
}
