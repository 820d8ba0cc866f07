//! Counters of the server, as the text that Prometheus reads.

use std::fmt::Write as _;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use crate::COMMIT;

/// Upper bounds of the times to a first token, in milliseconds.
const BOUNDS: [u64; 10] = [5, 10, 25, 50, 100, 250, 500, 1000, 2500, 10_000];

macro_rules! metrics {
    ($($name:ident: $kind:literal, $help:literal;)+) => {
        /// Counters and gauges. The engine writes them, the metrics page reads them.
        #[derive(Debug, Default)]
        pub struct Metrics {
            $(#[doc = $help] pub $name: AtomicU64,)+
            /// What computes, as labels: `device="NVIDIA H100",cudnn="9.19.0"`.
            pub labels: OnceLock<String>,
            first: [AtomicU64; BOUNDS.len() + 1],
            first_us: AtomicU64,
        }

        impl Metrics {
            fn simple(&self, text: &mut String) {
                $({
                    let (name, value) = (stringify!($name), self.$name.load(Relaxed));
                    // Writing to a string does not fail.
                    let _ = write!(text, "# HELP server_{name} {}\n# TYPE server_{name} {}\nserver_{name} {value}\n",
                        $help.trim_end_matches('.'), $kind);
                })+
            }
        }
    };
}

metrics! {
    requests_done_total: "counter", "Requests whose answer is complete.";
    requests_vanished_total: "counter", "Requests whose client went away.";
    requests_busy_total: "counter", "Requests that found no room.";
    requests_wrong_total: "counter", "Requests that were refused because of what they ask for.";
    requests_failed_total: "counter", "Requests that ended because the server failed.";
    prompt_tokens_total: "counter", "Rows of prompts that were computed, again after a preemption.";
    tokens_total: "counter", "Tokens of answers.";
    steps_total: "counter", "Steps.";
    decode_steps_total: "counter", "Steps without chunks of prompts.";
    step_us_total: "counter", "Microseconds of all steps, with the time of the scheduler.";
    model_us_total: "counter", "Microseconds of all steps in the model.";
    preemptions_total: "counter", "Sequences that lost their pages to an older one.";
    running: "gauge", "Sequences that run.";
    waiting: "gauge", "Requests that wait for room.";
    pages: "gauge", "Pages of the pool.";
    pages_used: "gauge", "Pages that sequences have.";
    pages_most: "gauge", "The most pages that were in use at once.";
    plans: "gauge", "Attention plans that are loaded.";
    plan_builds_total: "counter", "Plans that were built since the server was ready; always 0.";
    graphs: "gauge", "Captured steps.";
    graph_replays_total: "counter", "Steps that were replays of a captured one.";
    device_bytes: "gauge", "Bytes of the GPU that are in use, by all processes.";
    resident_bytes: "gauge", "Bytes of memory that the process has.";
    ready: "gauge", "1 while the server takes requests.";
}

impl Metrics {
    /// Adds to a counter.
    pub fn add(counter: &AtomicU64, more: u64) {
        counter.fetch_add(more, Relaxed);
    }

    /// Sets a gauge, or a counter that is kept elsewhere.
    pub fn set(gauge: &AtomicU64, value: u64) {
        gauge.store(value, Relaxed);
    }

    /// Counts a time to a first token.
    pub fn first_token(&self, after: Duration) {
        let ms = after.as_millis() as u64;
        let at = BOUNDS.iter().position(|&bound| ms <= bound).unwrap_or(BOUNDS.len());
        self.first[at].fetch_add(1, Relaxed);
        self.first_us.fetch_add(after.as_micros() as u64, Relaxed);
    }

    /// The page.
    #[must_use]
    pub fn text(&self) -> String {
        Metrics::set(&self.resident_bytes, resident());
        let labels = self.labels.get().map_or(String::new(), |labels| format!(",{labels}"));
        let mut text = "# HELP server_info What computes\n# TYPE server_info gauge\n".to_owned();
        // Writing to a string does not fail.
        let _ = writeln!(text, "server_info{{commit=\"{COMMIT}\"{labels}}} 1");
        self.simple(&mut text);
        text.push_str("# HELP server_first_token_seconds Time from a request to its first token\n");
        text.push_str("# TYPE server_first_token_seconds histogram\n");
        let mut sum = 0;
        for (at, count) in self.first.iter().enumerate() {
            sum += count.load(Relaxed);
            let bound = BOUNDS.get(at).map_or("+Inf".to_owned(), |ms| (*ms as f64 / 1e3).to_string());
            let _ = writeln!(text, "server_first_token_seconds_bucket{{le=\"{bound}\"}} {sum}");
        }
        let seconds = self.first_us.load(Relaxed) as f64 / 1e6;
        let _ = write!(text, "server_first_token_seconds_sum {seconds}\nserver_first_token_seconds_count {sum}\n");
        text
    }
}

/// Bytes of memory that this process has; 0 where the system does not say.
#[must_use]
pub fn resident() -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|line| line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok()).map_or(0, |kb| kb << 10)
}

/// A label of the page's `server_info`.
#[must_use]
pub fn label<'a>(page: &'a str, name: &str) -> Option<&'a str> {
    let labels = page.lines().find_map(|line| line.strip_prefix("server_info{")?.strip_suffix("} 1"))?;
    labels.split("\",").find_map(|label| label.strip_prefix(name)?.strip_prefix("=\"")).map(|v| v.trim_end_matches('"'))
}

/// The value of a metric on a page, by its name without the prefix.
#[must_use]
pub fn value(page: &str, name: &str) -> Option<u64> {
    page.lines().find_map(|line| line.strip_prefix("server_")?.strip_prefix(name)?.strip_prefix(' ')?.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_of_the_page_is_one_that_prometheus_reads() {
        let metrics = Metrics::default();
        Metrics::add(&metrics.tokens_total, 7);
        for ms in [3, 30, 60_000] {
            metrics.first_token(Duration::from_millis(ms));
        }
        let page = metrics.text();
        for line in page.lines().filter(|line| !line.starts_with("# ")) {
            let (name, number) = line.rsplit_once(' ').expect("a name and a number");
            assert!(name.starts_with("server_") && number.parse::<f64>().is_ok(), "{line}");
        }
        assert_eq!((value(&page, "tokens_total"), value(&page, "tokens")), (Some(7), None));
        assert!(page.contains("{le=\"0.005\"} 1\n") && page.contains("{le=\"+Inf\"} 3\n"), "{page}");
        metrics.labels.set("device=\"A GPU, 2\",cudnn=\"9.19.0\"".to_owned()).expect("once");
        let page = metrics.text();
        let labels = ["device", "cudnn", "commit", "dev"].map(|name| label(&page, name));
        assert_eq!(labels, [Some("A GPU, 2"), Some("9.19.0"), Some(COMMIT), None]);
        assert!(value(&page, "resident_bytes").is_some_and(|bytes| bytes > 1 << 20));
    }
}
