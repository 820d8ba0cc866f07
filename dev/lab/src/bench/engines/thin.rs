//! Which rows of a table tell something. Models have hundreds of attentions that those beside them foretell: a row
//! stays where the choice without it would cost time, so the table is small and the fit quick.

use qkvault_compile::EngineId;
use qkvault_compile::times::{Prior, Row, Table};

use super::ENGINES;

/// A choice by prediction may cost this share of the best time before a row stays.
const COSTS: f64 = 1.02;

/// The table without those rows that may go and that the others foretell.
pub(super) fn thinned(mut table: Table, may_go: impl Fn(&Row) -> bool) -> Table {
    let (rest, mut stay): (Vec<Row>, Vec<Row>) = std::mem::take(&mut table.rows).into_iter().partition(may_go);
    let mut rest: Vec<Option<Row>> = rest.into_iter().map(Some).collect();
    // Each row that stays moves the predictions of its neighbours, so all are looked at until none is missing.
    loop {
        let before = stay.len();
        for place in &mut rest {
            if place.as_ref().is_some_and(|row| !is_foretold(row, &stay)) {
                stay.extend(place.take().map(|row| Row { unforetold: true, ..row }));
            }
        }
        if stay.len() == before {
            break;
        }
    }
    table.rows = stay;
    table
}

/// Whether what is chosen without a row's own times is nearly as fast as the best.
fn is_foretold(row: &Row, by: &[Row]) -> bool {
    let predicted = Prior::over_rows(by).times(&row.case);
    let taken: Vec<EngineId> = ENGINES.into_iter().filter(|engine| row.times.us(*engine).is_some()).collect();
    let first = predicted.order(&taken, 1.0).first().and_then(|engine| row.times.us(*engine));
    let best = taken.iter().filter_map(|engine| row.times.us(*engine)).fold(f64::MAX, f64::min);
    first.is_some_and(|us| us <= COSTS * best)
}

#[cfg(test)]
mod tests {
    use qkvault_compile::times::{Case, Direction};

    use super::*;

    /// Every second backward of the built-in table may go: those that do are foretold by what is left, and some are.
    #[test]
    fn what_is_left_out_of_the_table_is_foretold_by_the_rest() {
        let mut all = Table::built_in().clone();
        all.rows.retain(|row| row.case.direction == Direction::Backward);
        let may_go: Vec<&Case> = all.rows.iter().step_by(2).map(|row| &row.case).collect();
        let thin = thinned(all.clone(), |row| may_go.contains(&&row.case));
        let gone: Vec<&Row> =
            all.rows.iter().filter(|row| thin.rows.iter().all(|kept| kept.case != row.case)).collect();
        assert!(gone.len() > all.rows.len() / 10, "{} of {}", gone.len(), all.rows.len());
        for row in gone {
            assert!(may_go.contains(&&row.case) && is_foretold(row, &thin.rows), "{row:?}");
        }
    }
}
