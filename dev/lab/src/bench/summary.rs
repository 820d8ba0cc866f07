//! Repeated measurements as a record has them: median, fastest, and the spread of the middle half.

use qkvault_cli::clock::median;
use serde::Serialize;

/// Figures of one measurement in one unit.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(super) struct FigureSummary {
    pub(super) median: f64,
    /// The fastest.
    pub(super) best: f64,
    /// A quarter of the values are below.
    pub(super) low: f64,
    /// A quarter of the values are above.
    pub(super) high: f64,
    /// The number of values.
    pub(super) count: usize,
}

impl FigureSummary {
    /// Sums up values; `None` without any.
    pub(super) fn from_values(mut values: Vec<f64>) -> Option<FigureSummary> {
        let median = median(&mut values)?;
        let at = |share: f64| values[((values.len() - 1) as f64 * share).round() as usize];
        Some(FigureSummary { median, best: values[0], low: at(0.25), high: at(0.75), count: values.len() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_summary_has_the_middle_half() {
        let summary = FigureSummary::from_values((1..=9).rev().map(f64::from).collect()).expect("nine values");
        assert_eq!(summary, FigureSummary { median: 5.0, best: 1.0, low: 3.0, high: 7.0, count: 9 });
        assert_eq!(FigureSummary::from_values(Vec::new()), None);
    }
}
