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
    assert!(report["notes"].to_string().contains("0 succeeded, 1 failed"), "{report:#}");
    assert!(seconds < 60.0, "{seconds} s");
    place.run("--remote ftp://x cache dir").good();
    place.run("--remote http:// cache dir").failed(1, &["http://"]);
    place.run("--remote-deadline-ms 0 cache dir").failed(2, &["remote-deadline-ms"]);
}
