//! Random batches of a serving step for the self-test: lengths around pages and tiles, empty sequences, tables in random order
//! that share pages, unused pages poisoned; and a look at each sequence by itself, so that a short one does not hide behind
//! long ones.

use qkvault_graph::{Attention, DType, Role, Storage, Tensor, Valid};
use qkvault_reference::{Buffer, Choice, Inputs, LengthChoice, Output, ReferenceError, Tolerance, Unused, View};
use serde_json::{Value, json};

use super::cases::Draw;

/// Keys beyond a length whose pages may be looked up.
const TILE: i64 = 256;

/// Lengths just over and under the tiles of kernels, and pages.
const EDGES: [i64; 13] = [1, 2, 15, 16, 17, 63, 64, 65, 127, 128, 129, 255, 257];

/// Random operands of one step of an attention.
pub(super) fn inputs(a: &Valid, seed: u64, case: u64, tails: bool) -> Result<Inputs, ReferenceError> {
    let mut draw = Draw::new(seed ^ 0x0062_6174_6368, case);
    let (q, kv) = draw_lengths(a, &mut draw);
    let exact = LengthChoice::Exact { q: widths(&q), kv: widths(&kv) };
    let choice = Choice { lengths: exact, unused: Unused::Finite, spread: false };
    let mut inputs = Inputs::random_with(a, seed ^ case, &choice)?;
    if draw.chance(30) {
        spread(a, [&q, &kv], &mut draw, &mut inputs)?;
    }
    let shared = if draw.chance(40) { draw.within(1, 4) } else { 0 };
    let tables = Draw::new(seed ^ 0x7461_626c_6573, case);
    for (i, (role, t)) in [(Role::PageTableK, &a.k), (Role::PageTableV, &a.v)].into_iter().enumerate() {
        // K and V often have one table, as engines do, and sometimes two.
        let mut own = if i == 1 && draw.chance(40) { Draw::new(seed, !case) } else { Draw::clone(&tables) };
        if let Some(table) = table(t, &kv, shared, &mut own) {
            inputs.insert(role, table);
        }
    }
    inputs.poison_unused(a, if tails { Unused::Poison } else { Unused::Pages })?;
    Ok(inputs)
}

fn widths(lengths: &[i64]) -> Vec<usize> {
    lengths.iter().map(|n| n.unsigned_abs() as usize).collect()
}

/// Query and KV lengths: no query is without a key, as in an engine, which writes a token's key before it asks.
fn draw_lengths(a: &Attention, draw: &mut Draw) -> (Vec<i64>, Vec<i64>) {
    let (s_q, s_kv) = a.seq();
    let page = match a.k.storage {
        Storage::Paged { page_size, .. } => page_size,
        Storage::Dense | Storage::Packed { .. } => 64,
    };
    let length = |draw: &mut Draw, most: i64| match draw.within(0, 9) {
        0..=4 => draw.one_of(&EDGES).min(most),
        5 => most,
        6 => (most - 1).max(1),
        // Shorter than a page.
        7 => draw.within(1, (page - 1).clamp(1, most)),
        _ => draw.within(1, most),
    };
    let (mut q, mut kv): (Vec<i64>, Vec<i64>) = (0..a.batch())
        .map(|_| {
            let rows = match draw.within(0, 99) {
                0..=7 => 0,
                8..=39 => 1,
                _ => length(draw, s_q),
            };
            let keys = match rows {
                0 if draw.chance(50) => 0,
                0 => length(draw, s_kv),
                // A prompt from its beginning.
                _ if draw.chance(20) => rows,
                _ => (length(draw, s_kv)).max(rows),
            };
            (rows.min(s_kv), keys.min(s_kv))
        })
        .unzip();
    if q.iter().all(|&n| n == 0) {
        (q[0], kv[0]) = (1, kv[0].max(1));
    }
    fit(&mut q, &a.q);
    fit(&mut kv, &a.k);
    q.iter_mut().zip(&kv).for_each(|(q, kv)| *q = (*q).min(*kv));
    afford(a, &mut q, &kv);
    (q, kv)
}

/// Floating-point operations of a case that the oracle does in a few tenths of a second of one core.
const WORK: f64 = 3e8;

/// Takes queries off the costliest sequences until the oracle affords them; the edges stay where they are cheap.
fn afford(a: &Attention, q: &mut [i64], kv: &[i64]) {
    let (d_qk, d_v) = a.hidden();
    let passes = if a.is_backward() { 3 } else { 1 };
    let each = (2 * a.q.heads() * (d_qk + d_v) * passes) as f64;
    loop {
        let work = |(q, kv): (&i64, &i64)| *q as f64 * *kv as f64 * each;
        let costs: Vec<f64> = q.iter().zip(kv).map(work).collect();
        let largest = costs.iter().enumerate().filter(|(i, _)| q[*i] > 1).max_by(|x, y| x.1.total_cmp(y.1));
        match largest {
            Some((i, _)) if costs.iter().sum::<f64>() > WORK => q[i] = (q[i] / 2).max(1),
            _ => return,
        }
    }
}

/// Takes rows off the longest sequences until all fit a packed buffer.
fn fit(lengths: &mut [i64], t: &Tensor) {
    let Storage::Packed { tokens } = t.storage else { return };
    let mut over = lengths.iter().sum::<i64>() - tokens;
    while over > 0 {
        let Some(longest) = lengths.iter_mut().max() else { return };
        let less = (*longest / 2).clamp(1, over.max(1));
        *longest -= less;
        over -= less;
    }
}

/// A table with pages in random order, of which sequences share the first `shared` where they fill them.
fn table(t: &Tensor, kv: &[i64], shared: i64, draw: &mut Draw) -> Option<Buffer> {
    let (Storage::Paged { pages, page_size }, Some(width)) = (t.storage, t.pages_per_sequence()) else { return None };
    let mut pool: Vec<i64> = (0..pages).collect();
    for i in (1..pool.len()).rev() {
        pool.swap(i, draw.within(0, i as i64) as usize);
    }
    let mut free = pool.into_iter();
    let prefix: Vec<i64> = free.by_ref().take(shared.min(width) as usize).collect();
    let mut entries: Vec<i64> = Vec::with_capacity(kv.len() * width as usize);
    for &length in kv {
        let used = (length + page_size - 1) / page_size;
        let first = entries.len();
        for entry in 0..width {
            let common = prefix.get(entry as usize).filter(|_| (entry + 1) * page_size <= length);
            entries.push(match common {
                Some(&page) => page,
                None if entry < used => free.next().unwrap_or(0),
                // Kernels look up the pages of a whole tile, which `Batch` sees to.
                None if used > 0 && entry * page_size < length + TILE => entries[first],
                // Farther beyond the length any page of the pool may stand, poisoned or another's.
                None => draw.within(0, pages - 1),
            });
        }
    }
    Some(Buffer::of(DType::I32, entries.into_iter().map(|page| page as f64)))
}

/// Room between the sequences of packed operands, the same in all operands of queries, and in all of keys: where dQ has other
/// room than Q, cuDNN 9.19 was wrong on an H200.
fn spread(a: &Valid, lengths: [&[i64]; 2], draw: &mut Draw, inputs: &mut Inputs) -> Result<(), ReferenceError> {
    let starts = [(&a.q, lengths[0]), (&a.k, lengths[1])].map(|(t, lengths)| {
        let Storage::Packed { tokens } = t.storage else { return Vec::new() };
        let mut room = tokens - lengths.iter().sum::<i64>();
        let mut starts = vec![0_i64];
        for length in lengths {
            let gap = draw.within(0, room.max(0));
            room -= gap;
            starts.push(starts[starts.len() - 1] + length + gap);
        }
        starts
    });
    let operands = [Role::Q, Role::O, Role::Stats, Role::DO, Role::DQ, Role::K, Role::V, Role::DK, Role::DV];
    for (i, role) in operands.into_iter().enumerate() {
        let (Some(t), Some(packed)) = (a.stored(role), role.offsets()) else { continue };
        if inputs.get(Role::Offsets(packed)).is_some() {
            let elements = starts[usize::from(i >= 5)].iter().map(|&token| (token * t.strides[2]) as f64);
            inputs.insert(Role::Offsets(packed), Buffer::of(DType::I64, elements));
        }
    }
    if a.is_backward() { inputs.add_forward(a) } else { Ok(()) }
}

/// The lengths of a case, for its row.
pub(super) fn lengths(inputs: &Inputs) -> Value {
    let of = |role| inputs.get(role).map(|b| (0..b.len()).map(|at| b.int(at)).collect::<Vec<_>>());
    json!({ "q": of(Role::SeqLenQ), "kv": of(Role::SeqLenKv) })
}

/// What is wrong with the sequence that is furthest off, of a packed or paged attention.
pub(super) fn worst_sequence(a: &Attention, inputs: &Inputs, expected: &Output, actual: &Buffer) -> Option<String> {
    let stored = [a.q, a.k].iter().any(|t| t.storage != Storage::Dense);
    let by_rows = matches!(expected.role(), Role::O | Role::DQ | Role::DK | Role::DV);
    if !(stored && by_rows) {
        return None;
    }
    let view = View::new(a, expected.role(), inputs).ok()?;
    let keys = matches!(expected.role(), Role::DK | Role::DV);
    let lengths = inputs.get(if keys { Role::SeqLenKv } else { Role::SeqLenQ })?;
    let [batch, heads, _, hidden] = expected.operand().tensor.dims.map(|n| n as usize);
    let mut sums = vec![[0.0_f64; 2]; batch];
    for (b, [error, all]) in sums.iter_mut().enumerate() {
        for (h, s) in (0..heads).flat_map(|h| (0..lengths.int(b) as usize).map(move |s| (h, s))) {
            let start = view.at(b, h, s, 0);
            for (at, x) in (start..).zip(&expected.values()[start..start + hidden]) {
                *error += (actual.get(at) - x).powi(2);
                *all += x * x;
            }
        }
    }
    // Gradients of few rows are sums that cancel: they are judged together, by the whole.
    let factor = if expected.role() == Role::O { 3.0 } else { 20.0 };
    let most = factor * Tolerance::of(expected.role(), actual.dtype()).relative;
    let relative = |[error, all]: [f64; 2]| if all > 1e-3 { (error / all).sqrt() } else { 0.0 };
    let (b, worst) = sums.iter().map(|s| relative(*s)).enumerate().max_by(|x, y| x.1.total_cmp(&y.1))?;
    (worst > most).then(|| {
        let length = |role| inputs.get(role).map_or(-1, |lengths: &Buffer| lengths.int(b));
        let (q, kv) = (length(Role::SeqLenQ), length(Role::SeqLenKv));
        format!("{}: sequence {b} ({q} queries, {kv} keys): relative error {worst:.2e}", expected.role())
    })
}

#[cfg(test)]
mod tests {
    use super::super::serving::attention;
    use super::*;
    use qkvault_graph::validate;
    use qkvault_reference::{backward, forward};

    #[test]
    fn batches_fit_their_attention_and_hold_every_edge() {
        let (mut seen, mut empty) = (std::collections::BTreeSet::new(), 0);
        for case in (0..160).step_by(3) {
            let a = validate(attention(1, case)).unwrap_or_else(|e| panic!("{case}: {e}"));
            let (q, kv) = draw_lengths(&a, &mut Draw::new(1, case));
            assert!(q.iter().zip(&kv).all(|(q, kv)| q <= kv), "{case}");
            seen.extend(kv);
            empty += q.iter().filter(|&&n| n == 0).count();
        }
        assert!(EDGES[..11].iter().all(|edge| seen.contains(edge)) && empty > 10);
    }

    #[test]
    fn the_oracle_takes_random_batches() {
        // The smallest of the cases: larger ones are for a machine with more cores.
        let small = (0..400).filter(|&case| {
            let a = attention(2, case);
            a.q.bytes().unwrap_or(i64::MAX) + a.k.bytes().unwrap_or(i64::MAX) < 400_000
        });
        let mut count = 0;
        for case in small.take(8) {
            let a = validate(attention(2, case)).unwrap_or_else(|e| panic!("{case}: {e}"));
            let inputs = inputs(&a, 2, case, true).unwrap_or_else(|e| panic!("{case}: {e}"));
            let outputs = if a.is_backward() { backward(&a, &inputs) } else { forward(&a, &inputs) };
            let outputs = outputs.unwrap_or_else(|e| panic!("{case}: {e}"));
            for output in outputs.iter() {
                let exact = output.buffer();
                assert_eq!(worst_sequence(&a, &inputs, output, &exact), None, "{case}");
            }
            count += 1;
        }
        assert!(count > 4);
    }
}
