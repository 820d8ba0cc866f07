//! A time of each engine for every attention, so that no class of attentions falls to one engine unseen.
//!
//! Bytes or products bound an attention from below. How far above that an engine stays is a Gaussian process over the
//! measured rows of the engine and kind of work: a line over sizes and features, and what the rows around an attention
//! have beyond it. The fit follows from the table alone, so a table that is measured anew needs nothing else.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::OnceLock;

use qkvault_graph::EngineName;
use qkvault_kernels::tiling::MULTIPROCESSORS;

use super::case::{Case, Direction, Feature, Place};
use super::{Row, Times};

/// Bytes and products of a microsecond of the GPU that the table is of, and a launch, in microseconds.
const BYTES: f64 = 4.0e6;
const PRODUCTS: f64 = 700.0e6;
const LAUNCH: f64 = 3.0;

/// Numbers of a case that decide beside its bound.
const SIZES: usize = 18;
const TERMS: usize = SIZES + Feature::ALL.len();

/// How much of the variance of logarithms of times a term of the line has, what the surroundings of a row have, and
/// what no other measurement repeats; the doublings over which a row speaks for its surroundings. Chosen so that rows
/// which are left out are predicted best: of grids over each, other sets leave up to three more of a hundred behind.
const LINE: f64 = 0.65;
const NEAR: f64 = 4.0;
const NOISE: f64 = 0.008;
const REACH: f64 = 18.0;

/// The fewest rows of an engine that are fitted.
const FEWEST: usize = 4;

/// The kinds of work, of which each is fitted by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Few,
    Prompt,
    Backward,
}

impl Kind {
    fn of_case(case: &Case) -> Kind {
        match case.direction {
            Direction::Backward => Kind::Backward,
            Direction::Forward if case.is_dense() => Kind::Prompt,
            Direction::Forward => Kind::Few,
        }
    }
}

/// The measured rows of one engine for one kind of work, each with its weight.
#[derive(Clone, Debug)]
struct Surface(Vec<(Point, f64)>);

/// A case as a process sees it.
#[derive(Clone, Debug)]
struct Point {
    terms: [f64; TERMS],
    place: Place,
}

/// What bounds an attention from below.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// What is read and written.
    Bytes,
    /// What is multiplied.
    Products,
    /// A launch.
    Launch,
}

impl Limit {
    /// Its name in data.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Limit::Bytes => "memory",
            Limit::Products => "products",
            Limit::Launch => "launch",
        }
    }
}

/// What a launch of an attention is expected to take.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Expected {
    /// Microseconds.
    pub us: f64,
    /// Whether that was measured; else it is predicted from what was.
    pub measured: bool,
    /// What bounds it.
    pub limit: Limit,
    /// The share of the time that the bound alone takes.
    pub share: f64,
}

impl Expected {
    pub(crate) fn new(case: &Case, us: f64, measured: bool) -> Expected {
        let (bytes, products) = bounds_us(case);
        let limit = match bytes.max(products) {
            most if most < LAUNCH => Limit::Launch,
            most if most > products => Limit::Bytes,
            _ => Limit::Products,
        };
        Expected { us, measured, limit, share: (bytes.max(products).max(LAUNCH) / us).min(1.0) }
    }
}

impl fmt::Display for Expected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Expected { us, measured, limit, share } = self;
        let (how, share) = (if *measured { "measured" } else { "predicted" }, share * 100.0);
        match limit {
            Limit::Bytes => write!(f, "{us:.1} us {how}, bound by memory at {share:.0} % of its rate"),
            Limit::Products => write!(f, "{us:.1} us {how}, bound by products at {share:.0} % of the peak"),
            Limit::Launch => write!(f, "{us:.1} us {how}, bound by the launch"),
        }
    }
}

/// What rows say of other cases. Each kind of work is fitted when a case of it is asked for.
#[derive(Clone, Debug)]
pub struct Prior<'r> {
    rows: Vec<&'r Row>,
    kinds: [OnceLock<BTreeMap<EngineName, Surface>>; 3],
}

impl<'r> Prior<'r> {
    /// The processes over rows.
    #[must_use]
    pub fn over_rows(rows: impl IntoIterator<Item = &'r Row>) -> Prior<'r> {
        Prior { rows: rows.into_iter().collect(), kinds: [const { OnceLock::new() }; 3] }
    }

    /// The engines' processes over those rows that are of a case's kind of work; the others say nothing of it.
    fn surfaces(&self, case: &Case) -> &BTreeMap<EngineName, Surface> {
        let kind = Kind::of_case(case);
        self.kinds[kind as usize].get_or_init(|| {
            let mut measured: BTreeMap<EngineName, Vec<(&Case, f64)>> = BTreeMap::new();
            for row in self.rows.iter().filter(|row| Kind::of_case(&row.case) == kind) {
                for (engine, us) in row.times.iter() {
                    measured.entry(engine).or_default().push((&row.case, us));
                }
            }
            let enough = measured.into_iter().filter(|(_, list)| list.len() >= FEWEST);
            enough.map(|(engine, list)| (engine, Surface::fit(&list))).collect()
        })
    }

    /// The time that an engine takes for a case, in microseconds; `None` if too few rows have the engine.
    #[must_use]
    pub fn us(&self, engine: EngineName, case: &Case) -> Option<f64> {
        Some(self.surfaces(case).get(&engine)?.us(case))
    }

    /// The times of all engines that have rows.
    #[must_use]
    pub fn times(&self, case: &Case) -> Times {
        self.surfaces(case).iter().map(|(engine, surface)| (*engine, surface.us(case))).collect()
    }
}

impl Surface {
    fn fit(list: &[(&Case, f64)]) -> Surface {
        let points: Vec<Point> = list.iter().map(|(case, _)| Point::of_case(case)).collect();
        let covariance = |i: usize, j: usize| points[i].like(&points[j]) + if i == j { NOISE } else { 0.0 };
        let rows = (0..points.len()).map(|i| (0..=i).map(|j| covariance(i, j)).collect()).collect();
        let weights = solved(rows, list.iter().map(|(case, us)| (us / bound_us(case)).ln()).collect());
        Surface(points.into_iter().zip(weights).collect())
    }

    fn us(&self, case: &Case) -> f64 {
        let at = Point::of_case(case);
        bound_us(case) * self.0.iter().map(|(point, weight)| weight * at.like(point)).sum::<f64>().exp()
    }
}

impl Point {
    fn of_case(case: &Case) -> Point {
        Point { terms: terms(case), place: case.place() }
    }

    /// How much of what one is above its bound is so for the other too.
    fn like(&self, other: &Point) -> f64 {
        let line: f64 = self.terms.iter().zip(&other.terms).map(|(a, b)| a * b).sum();
        LINE * line + NEAR * (-self.place.distance(&other.place) / REACH).exp()
    }
}

/// The least time of a case with its launch, in microseconds.
fn bound_us(case: &Case) -> f64 {
    let (bytes, products) = bounds_us(case);
    bytes.max(products) + LAUNCH
}

/// The least times of what is read and written, and of what is multiplied, in microseconds.
fn bounds_us(case: &Case) -> (f64, f64) {
    let [batch, heads, kv_heads, queries, keys, head_dim] =
        [case.batch, case.heads, case.kv_heads, case.queries, case.keys, case.head_dim].map(f64::from);
    let width = case.window.map_or(keys, f64::from).min(keys);
    let pairs = match (case.has(Feature::Window), case.has(Feature::Causal)) {
        (true, _) => width,
        (false, true) => keys - queries.min(keys) / 2.0,
        (false, false) => keys,
    };
    let all_queries = case.all_queries();
    let read = if case.has(Feature::Window) { (width + queries).min(keys) } else { keys };
    let (passes, products) = match case.direction {
        Direction::Forward => (1.0, 4.0),
        Direction::Backward => (3.0, 10.0),
    };
    let bytes = passes * 4.0 * head_dim * (heads * all_queries + batch * kv_heads * read);
    let multiplied = products * pairs * head_dim * all_queries * heads;
    (bytes / BYTES, multiplied / PRODUCTS)
}

/// What of a case decides how near an engine comes to the bound.
fn terms(case: &Case) -> [f64; TERMS] {
    let number = f64::from;
    let group = case.group();
    let few = !case.is_dense();
    let (row_tiles, rows) = match few {
        true => ((number(case.queries) * group / 64.0).ceil(), number(case.queries) * group / 32.0),
        false => ((number(case.queries) / 128.0).ceil(), number(case.queries) / 2048.0),
    };
    let share = case.all_queries() / (number(case.batch) * number(case.queries)).max(1.0);
    let tiles = (number(case.batch) * row_tiles.max(1.0) * share).max(number(case.batch));
    let items = tiles * number(if few { case.kv_heads } else { case.heads });
    let waves = items / f64::from(MULTIPROCESSORS);
    let bound = bound_us(case).ln() - 4.0;
    let width = (number(case.head_dim).max(1.0) / 128.0).log2();
    let with = |feature| f64::from(u8::from(case.has(feature)));
    let sizes: [f64; SIZES] = [
        // The mean, which nothing pulls towards 0.
        10.0,
        bound,
        bound * bound / 4.0,
        width,
        width.abs(),
        group.max(1.0).log2() - 2.0,
        // Work that does not fill the multiprocessors, and work of very few items, whose parts are merged.
        (1.0 + f64::from(MULTIPROCESSORS) / items).ln(),
        (1.0 + 4.0 / items).ln(),
        rows.max(1.0 / 32.0).log2(),
        (number(case.keys).max(1.0) / 4096.0).log2(),
        case.page_halvings(),
        case.padding(),
        width * with(Feature::Transcendental),
        width * with(Feature::Causal),
        width * with(Feature::Window),
        // The last wave of items, which fills the multiprocessors in part.
        (waves.ceil() / waves.max(1e-3)).ln().min(2.0),
        // Tiles of so few rows are multiplied by other instructions.
        if few && number(case.queries) * group <= 16.0 { 1.0 } else { 0.0 },
        bound * with(Feature::Paged),
    ];
    let mut all = [0.0; TERMS];
    all[..SIZES].copy_from_slice(&sizes);
    for (at, feature) in Feature::ALL.into_iter().enumerate() {
        all[SIZES + at] = with(feature);
    }
    all
}

/// The solution of linear equations with a symmetric, positive matrix, given by its lower half, by Cholesky's factors.
fn solved(mut a: Vec<Vec<f64>>, mut b: Vec<f64>) -> Vec<f64> {
    for i in 0..b.len() {
        let (before, rest) = a.split_at_mut(i);
        let row = &mut rest[0];
        for j in 0..=i {
            let factor = before.get(j);
            let sum: f64 = factor.map_or_else(
                || row[..j].iter().map(|x| x * x).sum(),
                |factor| row[..j].iter().zip(factor).map(|(x, y)| x * y).sum(),
            );
            let left = row[j] - sum;
            row[j] = factor.map_or_else(|| left.max(1e-12).sqrt(), |factor| left / factor[j]);
        }
        let sum: f64 = row[..i].iter().zip(&b).map(|(x, y)| x * y).sum();
        b[i] = (b[i] - sum) / row[i];
    }
    for i in (0..b.len()).rev() {
        b[i] /= a[i][i];
        let (known, found) = b.split_at_mut(i);
        known.iter_mut().zip(&a[i]).for_each(|(x, factor)| *x -= factor * found[0]);
    }
    b
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equations_are_solved() {
        let x = solved(vec![vec![4.0], vec![2.0, 3.0], vec![0.5, 1.0, 2.0]], vec![9.5, 11.0, 8.5]);
        assert!(x.iter().zip([1.0, 2.0, 3.0]).all(|(found, exact)| (found - exact).abs() < 1e-12), "{x:?}");
    }
}
