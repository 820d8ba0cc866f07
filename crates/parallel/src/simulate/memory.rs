//! The memory of one rank in float64, poisoned with NaN, and the steps that only move and add numbers.

use qkvault_graph::{Role, operand, operands};
use qkvault_reference::Places;

use super::Gathered;
use crate::maker::flat;
use crate::{BufferBox, RankBuffer, RankSchedule, Schedule};

/// The buffers of one rank.
pub(super) struct RankMemory {
    buffers: Vec<RankBuffer>,
    numbers: Vec<Vec<f64>>,
}

/// The addresses of a box of elements, in the order of its dims.
fn addresses(start: [i64; 4], dims: [i64; 4], strides: [i64; 4]) -> impl Iterator<Item = usize> {
    let [b, h, s, d] = dims;
    let all =
        (0..b).flat_map(move |b| (0..h).flat_map(move |h| (0..s).flat_map(move |s| (0..d).map(move |d| [b, h, s, d]))));
    all.map(move |at| (0..4).map(|dim| (start[dim] + at[dim]) * strides[dim]).sum::<i64>() as usize)
}

/// Whether a row of a part counts, by the row's number among those of all sequences and heads.
fn counts(rows: &[Vec<i64>], part: usize, row: usize, [_, h, s, _]: [i64; 4]) -> bool {
    let (h, s) = (h as usize, s as usize);
    rows.get(part).is_none_or(|list| list[row / s / h * s + row % s] != 0)
}

impl RankMemory {
    /// Poisoned buffers with the rank's parts of the inputs.
    pub(super) fn new(
        schedule: &Schedule,
        rank: &RankSchedule,
        values: impl Fn(Role) -> Option<Vec<f64>>,
    ) -> RankMemory {
        let size = |b: &RankBuffer| b.tensor.span().unwrap_or(0).max(0) as usize;
        let numbers = rank.buffers.iter().map(|b| vec![f64::NAN; size(b)]).collect();
        let mut memory = RankMemory { buffers: rank.buffers.clone(), numbers };
        for o in operands(schedule.attention.get()).into_iter().filter(|o| !o.output) {
            let Some(whole) = values(o.role) else { continue };
            let strides = flat(&o.tensor).strides;
            for held in rank.held.iter().filter(|h| rank.buffers[h.piece.buffer as usize].operand == Some(o.role)) {
                let from = addresses(held.start, held.piece.dims, strides);
                for (to, from) in memory.places(held.piece).zip(from) {
                    memory.numbers[held.piece.buffer as usize][to] = whole[from];
                }
            }
        }
        memory
    }

    /// Buffers with the rank's own parts of operands, each as it lies in its buffer; all else is poisoned.
    pub(super) fn from_parts(rank: &RankSchedule, mut part: impl FnMut(Role) -> Option<Vec<f64>>) -> RankMemory {
        let size = |b: &RankBuffer| b.tensor.span().unwrap_or(0).max(0) as usize;
        let filled = |b: &RankBuffer| b.operand.and_then(&mut part).unwrap_or_else(|| vec![f64::NAN; size(b)]);
        RankMemory { buffers: rank.buffers.clone(), numbers: rank.buffers.iter().map(filled).collect() }
    }

    fn places(&self, piece: BufferBox) -> impl Iterator<Item = usize> + use<> {
        addresses(piece.start, piece.dims, self.buffers[piece.buffer as usize].tensor.strides)
    }

    fn read(&self, piece: BufferBox) -> Vec<f64> {
        self.places(piece).map(|at| self.numbers[piece.buffer as usize][at]).collect()
    }

    fn write(&mut self, piece: BufferBox, values: impl IntoIterator<Item = f64>) {
        for (at, x) in self.places(piece).zip(values) {
            self.numbers[piece.buffer as usize][at] = x;
        }
    }

    pub(super) fn copy(&mut self, from: BufferBox, to: BufferBox) {
        assert_eq!(from.dims, to.dims, "a copy between pieces of different extents");
        let values = self.read(from);
        self.write(to, values);
    }

    pub(super) fn fill(&mut self, piece: BufferBox, x: f64) {
        self.write(piece, std::iter::repeat(x));
    }

    /// Draws a part of a dropout mask.
    pub(super) fn keep(&mut self, into: BufferBox, first: [i64; 3], drawn: &Places) {
        let [b, h, s, d] = into.dims;
        let places = (0..b).flat_map(|b| (0..h).flat_map(move |h| (0..s).map(move |s| [b, h, s])));
        let all = places.flat_map(|[b, h, s]| (0..d).map(move |d| [b, h + first[0], s + first[1], d + first[2]]));
        let kept: Vec<f64> = all.map(|at| f64::from(u8::from(drawn.keeps(at.map(|n| n as u32))))).collect();
        self.write(into, kept);
    }

    /// Adds up the rows that count: all of them if there are no lists of rows.
    pub(super) fn sum(&mut self, parts: &[BufferBox], rows: &[Vec<i64>], into: BufferBox) {
        let mut sum = vec![0.0; into.len() as usize];
        let d = into.dims[3] as usize;
        for (n, part) in parts.iter().enumerate() {
            assert_eq!(part.dims, into.dims, "a sum of pieces of different extents");
            for (at, (sum, x)) in sum.iter_mut().zip(self.read(*part)).enumerate() {
                if counts(rows, n, at / d, into.dims) {
                    *sum += x;
                }
            }
        }
        self.write(into, sum);
    }

    /// Merges by the definition: the weight of each part is its share of the sum of exponentials.
    pub(super) fn merge(
        &mut self,
        parts: &[(BufferBox, BufferBox)],
        rows_of: &[Vec<i64>],
        sink: Option<BufferBox>,
        o: BufferBox,
        stats: BufferBox,
    ) {
        let d = o.dims[3] as usize;
        let sinks = sink.map(|sink| self.read(sink));
        let logs: Vec<Vec<f64>> = parts.iter().map(|(_, stats)| self.read(*stats)).collect();
        let outputs: Vec<Vec<f64>> = parts.iter().map(|(o, _)| self.read(*o)).collect();
        let rows = stats.len() as usize;
        let (mut merged, mut lse) = (vec![0.0; rows * d], vec![f64::NEG_INFINITY; rows]);
        for row in 0..rows {
            let head = row / stats.dims[2] as usize % stats.dims[1] as usize;
            let of_sink = sinks.as_ref().map_or(f64::NEG_INFINITY, |sinks| sinks[head]);
            // A row that does not count is not read.
            let log_of = |n: usize| if counts(rows_of, n, row, stats.dims) { logs[n][row] } else { f64::NEG_INFINITY };
            let logs: Vec<f64> = (0..parts.len()).map(log_of).collect();
            let largest = logs.iter().copied().fold(of_sink, f64::max);
            if largest == f64::NEG_INFINITY && !logs.iter().any(|log| log.is_nan()) {
                continue;
            }
            let mut sum = (of_sink - largest).exp();
            for (log, output) in logs.iter().zip(&outputs) {
                // A part without keys counts nothing, whatever its O is.
                if *log != f64::NEG_INFINITY {
                    let weight = (log - largest).exp();
                    sum += weight;
                    for (to, x) in merged[row * d..][..d].iter_mut().zip(&output[row * d..]) {
                        *to += weight * x;
                    }
                }
            }
            merged[row * d..][..d].iter_mut().for_each(|x| *x /= sum);
            lse[row] = largest + sum.ln();
        }
        self.write(o, merged);
        self.write(stats, lse);
    }

    /// The numbers from the first element of a piece on.
    pub(super) fn behind(&self, piece: BufferBox) -> &[f64] {
        let tensor = self.buffers[piece.buffer as usize].tensor;
        &self.numbers[piece.buffer as usize][piece.offset(&tensor) as usize..]
    }

    pub(super) fn behind_mut(&mut self, piece: BufferBox) -> &mut [f64] {
        let tensor = self.buffers[piece.buffer as usize].tensor;
        &mut self.numbers[piece.buffer as usize][piece.offset(&tensor) as usize..]
    }

    /// Address and bytes of a piece, if it is contiguous.
    pub(super) fn bytes_of(&self, piece: BufferBox) -> Option<(u64, u64)> {
        let tensor = self.buffers[piece.buffer as usize].tensor;
        let fits = piece.is_contiguous(&tensor) && piece.fits(&tensor);
        fits.then(|| (self.behind(piece).as_ptr() as u64, piece.len() as u64 * 8))
    }

    /// The rank's buffer of an operand.
    pub(super) fn values(&self, rank: &RankSchedule, role: Role) -> Option<&[f64]> {
        let at = rank.buffers.iter().position(|b| b.operand == Some(role))?;
        Some(&self.numbers[at])
    }

    /// Puts the rank's parts of outputs into those of the whole.
    pub(super) fn collect(&self, schedule: &Schedule, rank: &RankSchedule, whole: &mut Gathered) {
        for held in &rank.held {
            let Some(role) = rank.buffers[held.piece.buffer as usize].operand else { continue };
            let Some(o) = operand(schedule.attention.get(), role).filter(|o| o.output) else { continue };
            let out = whole.entry(role).or_insert_with(|| vec![f64::NAN; o.elements().unwrap_or(0)]);
            let to = addresses(held.start, held.piece.dims, flat(&o.tensor).strides);
            for (to, x) in to.zip(self.read(held.piece)) {
                out[to] = x;
            }
        }
    }
}
