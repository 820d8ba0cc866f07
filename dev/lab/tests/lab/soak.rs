//! `soak` without a GPU: it says what is missing, and refuses options that make no sense.

use qkvault_skip::{Need, skip};

use crate::kit::Place;

#[test]
fn without_a_gpu_it_says_so_and_does_nothing() {
    if std::path::Path::new("/dev/nvidiactl").exists() {
        return skip(Need::Bare, "there is an NVIDIA driver");
    }
    let place = Place::new();
    let (code, report) = place.json("soak --minutes 0.01");
    assert_eq!(code, 1, "{report:#}");
    assert!(report["error"].as_str().is_some_and(|error| error.contains("NVIDIA driver")), "{report:#}");
}

#[test]
fn no_threads_and_no_streams_are_wrong_usage() {
    let place = Place::new();
    for words in ["soak --threads 0", "soak --streams 0", "soak --growth some"] {
        assert_eq!(place.run(words).code, 2, "{words}");
    }
}
