//! `--from-traffic`: chooses lengths of plans from a histogram of the lengths that a service had.
//!
//! A request runs on the plan with the smallest length that holds it, and the rest is padding. The lengths are those
//! for which the work of all requests is least, padding included: in a prefill, work grows with the square of the
//! length, in a decode with the length.

use std::collections::BTreeMap;
use std::path::PathBuf;

use anyhow::Context as _;
use qkvault_models::Phase;

/// Options that choose lengths.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct TrafficArgs {
    /// Choose lengths from a histogram: lines of `PHASE LENGTH COUNT`, with the phase prefill or decode and the number
    /// of requests (prefill) or of new tokens (decode) with this many keys; `LENGTH COUNT` counts for both
    #[arg(long, value_name = "FILE", conflicts_with = "seq")]
    from_traffic: Option<PathBuf>,
    /// Most lengths for each phase that --from-traffic chooses
    #[arg(long, value_name = "N", default_value_t = 8, requires = "from_traffic", value_parser = clap::value_parser!(u16).range(1..=64))]
    buckets: u16,
}

/// The lengths that were chosen.
#[derive(Debug, Default)]
pub(super) struct TrafficLengths {
    by_phase: BTreeMap<Phase, Vec<i64>>,
    /// What was chosen and how much padding it has.
    pub(super) notes: Vec<String>,
}

impl TrafficLengths {
    /// The lengths of a phase, if traffic says something of it. A training step has those of prompts.
    pub(super) fn for_phase(&self, phase: Phase) -> &[i64] {
        let phase = if phase == Phase::Train { Phase::Prefill } else { phase };
        self.by_phase.get(&phase).map_or(&[], Vec::as_slice)
    }
}

/// Requests by length.
type Histogram = BTreeMap<i64, u64>;

/// The longest sequence that a histogram may have.
const LONGEST: i64 = 1 << 24;
/// Lengths are multiples of this, as tiles of kernels are.
const STEP: i64 = 64;
/// More different lengths than this are looked at in larger steps.
const MOST: usize = 1024;

impl TrafficArgs {
    /// The lengths for the histogram, if there is one.
    pub(super) fn lengths(&self) -> anyhow::Result<TrafficLengths> {
        let Some(path) = &self.from_traffic else { return Ok(TrafficLengths::default()) };
        let text = crate::file::text(path)?;
        let histograms = read(&text).with_context(|| format!("{} is no histogram of lengths", path.display()))?;
        let mut lengths = TrafficLengths::default();
        for (phase, histogram) in histograms {
            let (chosen, padding) = choose(&histogram, usize::from(self.buckets), phase);
            let requests: u64 = histogram.values().sum();
            let list: Vec<String> = chosen.iter().map(ToString::to_string).collect();
            lengths.notes.push(format!(
                "{phase}: lengths {} for {requests} requests up to {} long; {:.1} % of the work is padding",
                list.join(", "),
                histogram.keys().next_back().copied().unwrap_or_default(),
                padding * 100.0
            ));
            lengths.by_phase.insert(phase, chosen);
        }
        Ok(lengths)
    }
}

/// Reads a histogram for each phase.
fn read(text: &str) -> anyhow::Result<BTreeMap<Phase, Histogram>> {
    let mut found: BTreeMap<Phase, Histogram> = BTreeMap::new();
    for (at, line) in text.lines().enumerate() {
        let line = line.split('#').next().unwrap_or_default();
        let words: Vec<&str> = line.split([' ', ',', ';', '\t']).filter(|word| !word.is_empty()).collect();
        let wrong = |what: &str| {
            let needed = "give lines such as `prefill 512 1000`: a phase, a length and how many requests have it";
            anyhow::anyhow!("line {}: {what}; {needed}", at + 1)
        };
        let (phases, length, count) = match words[..] {
            [] => continue,
            [length, count] => (Phase::INFERENCE.to_vec(), length, count),
            [phase, length, count] => {
                let phase: Phase = phase.parse().map_err(|error: String| wrong(&error))?;
                if !Phase::INFERENCE.contains(&phase) {
                    return Err(wrong(&format!("{phase} has no lengths of its own; use prefill or decode")));
                }
                (vec![phase], length, count)
            }
            _ => return Err(wrong(&format!("{} words", words.len()))),
        };
        let length = length.parse().ok().filter(|length| (1..=LONGEST).contains(length));
        let length = length.ok_or_else(|| wrong(&format!("a length is from 1 to {LONGEST}")))?;
        let count: u32 = count.parse().map_err(|_| wrong("a count is a whole number below 2^32"))?;
        for phase in phases.into_iter().filter(|_| count > 0) {
            *found.entry(phase).or_default().entry(length).or_default() += u64::from(count);
        }
    }
    anyhow::ensure!(!found.is_empty(), "it has no requests; give lines such as `prefill 512 1000`");
    Ok(found)
}

/// At most `buckets` lengths with the least work, and the share of it that is padding.
fn choose(histogram: &Histogram, buckets: usize, phase: Phase) -> (Vec<i64>, f64) {
    let work = |length: i64| if phase == Phase::Prefill { (length as f64).powi(2) } else { length as f64 };
    let mut step = STEP;
    let rounded = |step: i64| {
        let mut rounded: BTreeMap<i64, u64> = BTreeMap::new();
        histogram.iter().for_each(|(&l, &n)| *rounded.entry((l + step - 1) / step * step).or_default() += n);
        rounded.into_iter().collect::<Vec<(i64, u64)>>()
    };
    let mut lengths = rounded(step);
    while lengths.len() > MOST {
        step *= 2;
        lengths = rounded(step);
    }
    // best[i] is the least work of the first i lengths with the buckets so far; from[k][i] is where the last begins.
    let n = lengths.len();
    let sums: Vec<f64> = std::iter::once(0.0)
        .chain(lengths.iter().scan(0.0, |sum, (_, count)| {
            *sum += *count as f64;
            Some(*sum)
        }))
        .collect();
    let mut best = vec![f64::INFINITY; n + 1];
    best[0] = 0.0;
    let mut from: Vec<Vec<usize>> = Vec::new();
    for _ in 0..buckets.min(n) {
        let mut next = vec![f64::INFINITY; n + 1];
        let mut begins = vec![0; n + 1];
        next[0] = 0.0;
        for end in 1..=n {
            let most = work(lengths[end - 1].0);
            for begin in 0..end {
                let cost = best[begin] + (sums[end] - sums[begin]) * most;
                if cost < next[end] {
                    (next[end], begins[end]) = (cost, begin);
                }
            }
        }
        best = next;
        from.push(begins);
    }
    let mut chosen = Vec::new();
    let mut end = n;
    for begins in from.iter().rev() {
        if end == 0 {
            break;
        }
        chosen.push(lengths[end - 1].0);
        end = begins[end];
    }
    chosen.reverse();
    let needed: f64 = histogram.iter().map(|(&length, &count)| work(length) * count as f64).sum();
    (chosen, 1.0 - needed / best[n])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn histogram(pairs: &[(i64, u64)]) -> Histogram {
        pairs.iter().copied().collect()
    }

    /// The work of all requests on these lengths; infinite if one does not fit.
    fn work(histogram: &Histogram, lengths: &[i64], phase: Phase) -> f64 {
        let of = |length: i64| if phase == Phase::Prefill { (length * length) as f64 } else { length as f64 };
        let fits = |request: i64| lengths.iter().copied().filter(|&l| l >= request).min();
        histogram.iter().map(|(&l, &n)| fits(l).map_or(f64::INFINITY, of) * n as f64).sum()
    }

    #[test]
    fn no_other_lengths_have_less_work() {
        let traffic = histogram(&[(50, 900), (130, 40), (300, 700), (310, 5), (700, 80), (1500, 3), (2000, 10)]);
        let candidates = [64, 192, 320, 704, 1536, 2048];
        for phase in Phase::INFERENCE {
            for buckets in 1..=6 {
                let (chosen, padding) = choose(&traffic, buckets, phase);
                assert!(chosen.len() <= buckets && chosen.is_sorted() && chosen.last() == Some(&2048), "{chosen:?}");
                let least = work(&traffic, &chosen, phase);
                for set in 0_u32..1 << candidates.len() {
                    let other: Vec<i64> = (0..6).filter(|i| set >> i & 1 == 1).map(|i| candidates[i]).collect();
                    assert!(other.len() > buckets || work(&traffic, &other, phase) >= least, "{other:?} {chosen:?}");
                }
                assert!((0.0..1.0).contains(&padding));
            }
        }
        assert_eq!(choose(&traffic, 64, Phase::Prefill).0, candidates);
    }

    #[test]
    fn thousands_of_lengths_are_looked_at_in_larger_steps() {
        let traffic: Histogram = (1..=20_000).map(|i| (i * 97, 1 + i as u64 % 7)).collect();
        let (chosen, padding) = choose(&traffic, 16, Phase::Decode);
        assert_eq!(chosen.len(), 16);
        assert!(*chosen.last().expect("one") >= 1_940_000 && padding < 0.07, "{chosen:?} {padding}");
    }

    #[test]
    fn lines_that_are_no_lengths_are_errors_with_their_number() {
        let read = |text: &str| read(text).map_err(|error| error.to_string());
        let both = read("# lengths\n512, 10\nprefill 100 5\n\ndecode\t100\t7 # tokens\n").expect("it reads");
        assert_eq!(both[&Phase::Prefill], histogram(&[(100, 5), (512, 10)]));
        assert_eq!(both[&Phase::Decode], histogram(&[(100, 7), (512, 10)]));
        for (text, words) in [
            ("512 x", "line 1: a count"),
            ("512 1\n0 5", "line 2: a length"),
            ("a b c d", "4 words"),
            ("train 5 5", "train"),
            ("walk 5 5", "walk"),
            ("512 0", "no requests"),
        ] {
            let error = read(text).expect_err(text);
            assert!(error.contains(words), "{error}");
        }
    }
}
