//! The sequences of a run: keys and values in pools of pages, queries of their last positions.

use std::sync::Arc;

use cudarc::driver::{CudaSlice, CudaStream};
use half::bf16;
use qkvault_base::random::Rng;
use qkvault_exec::cudarc;

/// Query heads, heads of keys, and the head dim.
pub(super) const HEADS: (usize, usize) = (32, 8);
pub(super) const HEAD_DIM: usize = 128;
/// Most keys of a sequence, and the positions at the end that have queries.
pub(super) const MOST: usize = 6000;
pub(super) const TAIL: usize = 600;
/// Rows of a page, of each pool.
pub(super) const PAGES: [usize; 2] = [16, 64];
/// Sequences.
const SEQUENCES: usize = 24;
/// Elements of a row of keys, and of a row of queries.
const ROW: usize = HEADS.1 * HEAD_DIM;
pub(super) const QUERY: usize = HEADS.0 * HEAD_DIM;

/// The same keys and values in pages of some size.
pub(super) struct Pool {
    pub(super) page: usize,
    pub(super) pages: usize,
    pub(super) keys: CudaSlice<u8>,
    pub(super) values: CudaSlice<u8>,
    /// Pages of each sequence, in order.
    pub(super) tables: Vec<Vec<i32>>,
}

pub(super) struct PooledWorld {
    pub(super) lengths: Vec<usize>,
    pub(super) pools: Vec<Pool>,
    /// Queries of the last positions of each sequence.
    queries: Vec<Vec<u16>>,
}

/// Numbers as activations have them.
fn normals(rng: &mut Rng, count: usize) -> Vec<u16> {
    let mut all: Vec<u16> = Vec::with_capacity(count + 1);
    while all.len() < count {
        all.extend(rng.normals().map(|x| bf16::from_f64(x).to_bits()));
    }
    all.truncate(count);
    all
}

impl PooledWorld {
    pub(super) fn new(rng: &mut Rng, stream: &Arc<CudaStream>) -> anyhow::Result<PooledWorld> {
        let lengths: Vec<usize> = (0..SEQUENCES)
            .map(|n| match n % 4 {
                0 => rng.within(1, 300),
                1 => rng.within(300, 2100),
                _ => rng.within(2100, MOST),
            })
            .collect();
        let rows: Vec<[Vec<u16>; 2]> = lengths.iter().map(|n| [normals(rng, n * ROW), normals(rng, n * ROW)]).collect();
        let queries = lengths.iter().map(|n| normals(rng, (*n).min(TAIL) * QUERY)).collect();
        let pools = PAGES.map(|page| Pool::new(rng, page, &lengths, &rows, stream));
        Ok(PooledWorld { lengths, pools: pools.into_iter().collect::<anyhow::Result<_>>()?, queries })
    }

    /// The queries of positions before `end`, so many.
    pub(super) fn queries(&self, sequence: usize, end: usize, count: usize) -> &[u16] {
        let first = self.lengths[sequence].saturating_sub(TAIL);
        &self.queries[sequence][(end - count - first) * QUERY..(end - first) * QUERY]
    }
}

impl Pool {
    fn new(
        rng: &mut Rng,
        page: usize,
        lengths: &[usize],
        rows: &[[Vec<u16>; 2]],
        stream: &Arc<CudaStream>,
    ) -> anyhow::Result<Pool> {
        let pages: usize = lengths.iter().map(|n| n.div_ceil(page)).sum();
        let mut free: Vec<i32> = (0..i32::try_from(pages)?).collect();
        rng.shuffle(&mut free);
        let mut tables = Vec::new();
        for n in lengths {
            tables.push(free.split_off(free.len() - n.div_ceil(page)));
        }
        let place = |which: usize| -> anyhow::Result<CudaSlice<u8>> {
            // Rows that no sequence has: large, so that who reads one notices.
            let mut all = vec![bf16::from_f32(3.0e4).to_bits(); pages * page * ROW];
            for (table, of) in tables.iter().zip(rows) {
                for (at, part) in of[which].chunks(page * ROW).enumerate() {
                    let from = usize::try_from(table[at])? * page * ROW;
                    all[from..from + part.len()].copy_from_slice(part);
                }
            }
            Ok(stream.clone_htod(&all.iter().flat_map(|x| x.to_ne_bytes()).collect::<Vec<u8>>())?)
        };
        Ok(Pool { page, pages, keys: place(0)?, values: place(1)?, tables })
    }
}
