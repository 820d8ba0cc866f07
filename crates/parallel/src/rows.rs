//! Sets of tokens as runs, and where each token lies in a buffer that has only these.

/// Runs of tokens in order, none touching the next.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct RowRuns(Vec<(i64, i64)>);

impl RowRuns {
    pub(crate) fn from_runs(runs: impl IntoIterator<Item = (i64, i64)>) -> RowRuns {
        let mut list: Vec<(i64, i64)> = runs.into_iter().filter(|(first, end)| first < end).collect();
        list.sort_unstable();
        let mut joined: Vec<(i64, i64)> = Vec::with_capacity(list.len());
        for (first, end) in list {
            match joined.last_mut() {
                Some(last) if first <= last.1 => last.1 = last.1.max(end),
                _ => joined.push((first, end)),
            }
        }
        RowRuns(joined)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (i64, i64)> + '_ {
        self.0.iter().copied()
    }

    pub(crate) fn len(&self) -> i64 {
        self.iter().map(|(first, end)| end - first).sum()
    }

    /// The runs inside another run.
    pub(crate) fn within(&self, (first, end): (i64, i64)) -> impl Iterator<Item = (i64, i64)> + '_ {
        self.iter().map(move |(a, b)| (a.max(first), b.min(end))).filter(|(a, b)| a < b)
    }

    /// The tokens of both sets.
    pub(crate) fn with(&self, other: &RowRuns) -> RowRuns {
        RowRuns::from_runs(self.iter().chain(other.iter()))
    }

    /// The tokens that another set does not have.
    pub(crate) fn without(&self, other: &RowRuns) -> RowRuns {
        let mut left = Vec::new();
        for (first, end) in self.iter() {
            let mut at = first;
            for (a, b) in other.within((first, end)) {
                left.push((at, a));
                at = b;
            }
            left.push((at, end));
        }
        RowRuns::from_runs(left)
    }

    /// The place of a token among those of the set.
    pub(crate) fn at(&self, token: i64) -> i64 {
        self.iter().map(|(first, end)| (token.min(end) - first).max(0)).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_joined_and_tokens_found() {
        let rows = RowRuns::from_runs([(8, 10), (2, 4), (3, 6), (6, 7), (5, 5)]);
        assert_eq!(rows.iter().collect::<Vec<_>>(), [(2, 7), (8, 10)]);
        assert_eq!((rows.len(), rows.at(2), rows.at(6), rows.at(8), rows.at(9)), (7, 0, 4, 5, 6));
        let others = RowRuns::from_runs([(0, 3), (5, 9)]);
        assert_eq!(rows.without(&others).iter().collect::<Vec<_>>(), [(3, 5), (9, 10)]);
        assert_eq!(rows.without(&RowRuns::default()), rows);
        assert_eq!(rows.with(&others).iter().collect::<Vec<_>>(), [(0, 10)]);
        assert_eq!(rows.within((5, 9)).collect::<Vec<_>>(), [(5, 7), (8, 9)]);
    }
}
