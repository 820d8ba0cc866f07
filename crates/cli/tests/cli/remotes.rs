//! A remote store shares plans between machines. A dead one delays a command for a bounded time.

use std::net::TcpListener;
use std::time::Instant;

use crate::kit::{Place, numbers};

const WARM: &str = "warm --model ../../models/bert-base.json --seq 128 --batch 1";

#[test]
fn a_plan_warmed_on_one_machine_is_found_on_another() {
    let Some(from) = Place::with_cudnn("9.27.0") else { return };
    let store = from.path("store");
    std::fs::create_dir(&store).unwrap();
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        std::fs::set_permissions(&store, std::fs::Permissions::from_mode(0o700)).unwrap();
    }
    let warm = format!("--remote {} {WARM}", store.display());
    let (code, report) = from.json(&warm);
    assert_eq!((code, numbers(&report, ["built", "remote_hits", "uploads"])), (0, [1, 0, 1]), "{report:#}");
    let to = Place::with_cudnn("9.27.0").unwrap();
    let (code, report) = to.json(&warm);
    assert_eq!((code, numbers(&report, ["built", "hits", "remote_hits", "uploads"])), (0, [0, 1, 1, 0]), "{report:#}");
    // This remote is empty; the vault has kept the plan.
    let to = to.set("QKVAULT_REMOTE", from.path("nothing here").display().to_string());
    assert_eq!(numbers(&to.json(WARM).1, ["built", "hits", "remote_hits"]), [0, 1, 0]);
}

/// The remote accepts connections and never answers.
#[test]
fn a_remote_that_never_answers_costs_no_more_than_the_stated_time() {
    let Some(place) = Place::with_cudnn("9.27.0") else { return };
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", silent.local_addr().unwrap());
    let place = place.set("QKVAULT_REMOTE_TOKEN", "a-token");
    let started = Instant::now();
    let (code, report) = place.json(&format!("--remote {address} --remote-deadline-ms 200 {WARM}"));
    let seconds = started.elapsed().as_secs_f64();
    assert_eq!((code, numbers(&report, ["built", "uploads"])), (0, [1, 0]), "{report:#}");
    for words in ["0 succeeded, 1 failed", "no answer within"] {
        assert!(report["notes"].to_string().contains(words), "{report:#}");
    }
    assert!(seconds < 60.0, "{seconds} s");
    place.run("--remote ftp://x cache dir").failed(1, &["ftp", "http, https and file"]);
    place.run("--remote http:// cache dir").failed(1, &["http://"]);
    place.run("--remote-deadline-ms 0 cache dir").failed(2, &["remote-deadline-ms"]);
}

/// `http://user:secret@host/` and `?token=` were printed whole.
#[test]
fn audit_9_an_address_is_never_printed_with_its_secrets() {
    let addresses = [
        "http://user:hush@127.0.0.1:1/plans",
        "http://127.0.0.1:1/plans?token=hush",
        "http://user:hush@127.0.0.1:1/plans?token=hush#hush",
        "ftp://user:hush@127.0.0.1:1/plans",
        "https:/user:hush@127.0.0.1:1/plans",
    ];
    for address in addresses {
        let place = Place::new().set("QKVAULT_LOG", "trace");
        let named = Place::new().set("QKVAULT_LOG", "trace").set("QKVAULT_REMOTE", address);
        for command in ["cache stats", "cache ls", "doctor", "--json cache verify", "--json doctor", WARM] {
            for done in [place.run(&format!("--remote {address} {command}")), named.run(command)] {
                for text in [&done.out, &done.err] {
                    assert!(!text.contains("hush"), "{address} {command}: {text}");
                }
            }
        }
        let told = place.run(&format!("--remote {address} cache stats"));
        assert!(told.err.contains("127.0.0.1:1/plans") || address.starts_with("https:/u"), "{address}: {}", told.err);
    }
}

/// Nothing said that a remote could not be reached while plans were looked up.
#[test]
fn a_dead_remote_is_named_with_the_cause() {
    let Some(place) = Place::with_cudnn("9.27.0") else { return };
    let (_, report) = place.json(&format!("--remote http://127.0.0.1:1 {WARM}"));
    let notes = report["notes"].to_string();
    for words in ["http://127.0.0.1:1", "cannot be reached", "no answer"] {
        assert!(notes.contains(words), "{words} is not in {notes}");
    }
}
