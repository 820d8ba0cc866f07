//! The forward from its definition: each row by itself, over the keys that it may see.

use std::collections::BTreeMap;

use qkvault_graph::{Attention, Role, Scaled, Valid};
use rayon::prelude::*;

use crate::kernel::{RowStat, softmax};
use crate::outputs::{ExactOutput, ExactOutputs};
use crate::scores::{Scores, TILE_ROWS};
use crate::setup::Setup;
use crate::{Inputs, Real, ReferenceError, memory};

/// Computes a forward in float64: the oracle.
///
/// If a query sees no key, its row of O is zeros, its Max and Stats are minus infinity, and its sum is zero. A sink
/// counts in the probabilities and in Stats (the backward needs probabilities relative to it), but not in Max and
/// Sum_exp. Given a backward, this function computes the backward's forward.
///
/// # Errors
///
/// An error for each missing or invalid operand; [`ReferenceError::NotModelled`] for a feature that the oracle does not
/// compute; [`ReferenceError::Memory`] if there is no room for the outputs.
pub fn forward(attention: &Valid, inputs: &Inputs) -> Result<ExactOutputs, ReferenceError> {
    forward_in::<f64>(attention.get(), inputs)
}

/// Computes a forward in float32, to run attention without a GPU.
///
/// # Errors
///
/// The errors of [`forward`].
pub fn forward_f32(attention: &Valid, inputs: &Inputs) -> Result<ExactOutputs, ReferenceError> {
    forward_in::<f32>(attention.get(), inputs)
}

/// One row of a forward, in float64.
#[derive(Clone, Debug, PartialEq)]
pub struct ForwardRow {
    /// Batch, query head, query.
    pub at: (usize, usize, usize),
    /// The row of O.
    pub o: Vec<f64>,
    /// Its log-sum-exp.
    pub stats: f64,
    /// Its largest score.
    pub max: f64,
    /// Its sum of exponentials, relative to the largest.
    pub sum_exp: f64,
}

/// Computes chosen rows (batch, query head, query) of a forward in float64, to check samples of a large output.
///
/// # Errors
///
/// The errors of [`forward`], and [`ReferenceError::Row`] for a row that the attention does not have.
pub fn forward_rows(
    attention: &Valid,
    inputs: &Inputs,
    rows: &[(usize, usize, usize)],
) -> Result<Vec<ForwardRow>, ReferenceError> {
    let a = attention.get();
    let setup = Setup::new(a, inputs)?;
    let mut by_head: BTreeMap<(usize, usize), Vec<usize>> = BTreeMap::new();
    for (i, &row) in rows.iter().enumerate() {
        let (batch, heads) = (a.batch() as usize, a.q.dims[1] as usize);
        let queries = setup.lens.q.get(row.0).copied().unwrap_or(0);
        if row.0 >= batch || row.1 >= heads || row.2 >= queries {
            return Err(ReferenceError::Row { row, batch, heads, queries });
        }
        by_head.entry((row.0, row.1)).or_default().push(i);
    }
    let by_head: Vec<_> = by_head.into_iter().collect();
    let computed: Vec<Vec<(usize, ForwardRow)>> = by_head
        .into_par_iter()
        .map(|((b, h), list)| {
            let queries: Vec<usize> = list.iter().map(|&i| rows[i].2).collect();
            let head = ForwardHead::compute::<f64>(&setup, b, h, &queries);
            let d = a.o.dims[3] as usize;
            let row = |(n, i): (usize, usize)| {
                let (stat, o) = (head.stats[n], &head.o[n * d..][..d]);
                let o = o.iter().map(|x| x * setup.factors.o).collect();
                (i, ForwardRow { at: rows[i], o, stats: stat.stats, max: stat.max, sum_exp: stat.sum })
            };
            list.into_iter().enumerate().map(row).collect()
        })
        .collect();
    let mut computed: Vec<(usize, ForwardRow)> = computed.into_iter().flatten().collect();
    computed.sort_unstable_by_key(|(i, _)| *i);
    Ok(computed.into_iter().map(|(_, row)| row).collect())
}

fn forward_in<T: Real>(a: &Attention, inputs: &Inputs) -> Result<ExactOutputs, ReferenceError> {
    memory::for_outputs(&a.as_forward())?;
    let setup = Setup::new(a, inputs)?;
    let forward = a.as_forward();
    let output = |role| ExactOutput::new(&forward, role, inputs, &setup.lens);
    let mut o = output(Role::O)?;
    let mut by_row: Vec<ExactOutput> = Vec::new();
    for (wanted, role) in
        [(a.outputs.stats, Role::Stats), (a.outputs.max, Role::Max), (a.outputs.sum_exp, Role::SumExp)]
    {
        if wanted {
            by_row.push(output(role)?);
        }
    }
    let d = a.o.dims[3] as usize;
    let (mut amax_s, mut amax_o) = (0.0_f64, 0.0_f64);
    for b in 0..a.batch() as usize {
        let queries: Vec<usize> = (0..setup.lens.q[b]).collect();
        let heads: Vec<ForwardHead> = (0..a.q.dims[1] as usize)
            .into_par_iter()
            .map(|h| ForwardHead::compute::<T>(&setup, b, h, &queries))
            .collect();
        for (h, head) in heads.iter().enumerate() {
            amax_s = amax_s.max(head.amax);
            for (s, (row, stat)) in head.o.chunks_exact(d).zip(&head.stats).enumerate() {
                amax_o = row.iter().fold(amax_o, |max, x| max.max(x.abs()));
                o.put(b, h, s, row.iter().map(|x| x * setup.factors.o));
                for out in &mut by_row {
                    let x = match out.role() {
                        Role::Max => stat.max,
                        Role::SumExp => stat.sum,
                        _ => stat.stats,
                    };
                    out.put(b, h, s, [x]);
                }
            }
        }
    }
    let mut list = vec![o];
    list.extend(by_row);
    for (which, amax) in [(Scaled::S, amax_s), (Scaled::O, amax_o)] {
        if crate::operand(&forward, Role::Amax(which)).is_some() {
            let mut out = output(Role::Amax(which))?;
            out.put(0, 0, 0, [amax]);
            list.push(out);
        }
    }
    Ok(ExactOutputs(list))
}

/// The rows of one query head.
struct ForwardHead {
    /// The rows of O, before the scale of an 8-bit O.
    o: Vec<f64>,
    stats: Vec<RowStat<f64>>,
    /// Largest probability after dropout.
    amax: f64,
}

impl ForwardHead {
    fn compute<T: Real>(setup: &Setup<'_>, b: usize, h: usize, queries: &[usize]) -> ForwardHead {
        let (h_k, h_v) = setup.shared_heads(h);
        let kv = 0..setup.lens.kv[b];
        let keys: Vec<T> = setup.factors.rows(Scaled::K, &setup.k, (b, h_k), kv.clone());
        let values: Vec<T> = setup.factors.rows(Scaled::V, &setup.v, (b, h_v), kv);
        let tiles: Vec<ForwardHead> =
            queries.par_chunks(TILE_ROWS).map(|tile| ForwardHead::tile(setup, (b, h), tile, &keys, &values)).collect();
        let mut all = ForwardHead { o: Vec::new(), stats: Vec::new(), amax: 0.0 };
        for ForwardHead { o, stats, amax } in tiles {
            all.o.extend(o);
            all.stats.extend(stats);
            all.amax = all.amax.max(amax);
        }
        all
    }

    fn tile<T: Real>(
        setup: &Setup<'_>,
        (b, h): (usize, usize),
        queries: &[usize],
        keys: &[T],
        values: &[T],
    ) -> ForwardHead {
        let d_v = setup.v.view.dims[3];
        let mut rows = Scores::compute(setup, (b, h), queries, keys);
        let mut head = ForwardHead { o: Vec::with_capacity(queries.len() * d_v), stats: Vec::new(), amax: 0.0 };
        let mut out = vec![T::ZERO; queries.len() * d_v];
        let sink = setup.sink(h);
        for row in &mut rows.list {
            let RowStat { max, sum, stats } = softmax(&mut row.scores, sink);
            head.stats.push(RowStat { max: max.f64(), sum: sum.f64(), stats: stats.f64() });
            if let Some(factors) = setup.survivors(row.at, row.first..row.first + row.scores.len()) {
                for (p, factor) in row.scores.iter_mut().zip(factors) {
                    *p = *p * T::from_f64(factor);
                }
            }
            if let Some(rounded) = setup.factors.probabilities() {
                for p in &mut row.scores {
                    head.amax = head.amax.max(p.f64().abs());
                    *p = T::from_f64(rounded.through(p.f64()));
                }
            }
        }
        rows.weigh(values, d_v, &mut out);
        head.o.extend(out.iter().map(|x| x.f64()));
        head
    }
}
