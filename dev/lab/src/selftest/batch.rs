//! Random batches of a serving step for the self-test: lengths around pages and tiles, empty sequences, page tables in
//! random order that share pages, and poisoned unused pages. Each sequence is also judged separately, so that long
//! sequences do not hide an error in a short one.

use qkvault_graph::{Attention, DType, Role, Storage, Tensor, Valid};
use qkvault_reference::{Buffer, Family, Inputs, LengthChoice, RandomChoice, ReferenceError, Unused};
use serde_json::{Value, json};

use super::cases::Draw;

/// Keys beyond a length whose pages a kernel may look up.
const TILE: i64 = 256;

/// Lengths around the sizes of tiles and pages.
const EDGES: [i64; 13] = [1, 2, 15, 16, 17, 63, 64, 65, 127, 128, 129, 255, 257];

/// The random parts of one case.
struct Drawn {
    q: Vec<i64>,
    kv: Vec<i64>,
    /// Whether there are gaps between varlen sequences.
    apart: bool,
    tables: [Option<Buffer>; 2],
}

impl Drawn {
    fn new(a: &Attention, seed: u64, case: u64) -> (Drawn, Draw) {
        let mut draw = Draw::new(seed ^ 0x0062_6174_6368, case);
        let (q, kv) = draw_lengths(a, &mut draw);
        let apart = draw.chance(30);
        let shared = if draw.chance(40) { draw.within(1, 4) } else { 0 };
        let own = Draw::new(seed ^ 0x7461_626c_6573, case);
        let tables = [(&a.k, false), (&a.v, true)].map(|(t, values)| {
            // K and V often share one table, as in engines, and sometimes have two.
            let other = values && draw.chance(40);
            table(t, &kv, shared, &mut if other { Draw::new(seed, !case) } else { Draw::clone(&own) })
        });
        (Drawn { q, kv, apart, tables }, draw)
    }
}

/// Random operands of one step of an attention.
pub(super) fn inputs(a: &Valid, seed: u64, case: u64, tails: bool, family: Family) -> Result<Inputs, ReferenceError> {
    let (Drawn { q, kv, apart, tables }, mut draw) = Drawn::new(a, seed, case);
    let exact = LengthChoice::Exact { q: widths(&q), kv: widths(&kv) };
    // Without `tails` rows behind lengths must be numbers.
    let family = if family == Family::Behind { Family::Normal } else { family };
    let choice = RandomChoice { lengths: exact, family, ..RandomChoice::default() };
    let mut inputs = Inputs::random_with(a, seed ^ case, &choice)?;
    if apart {
        spread(a, [&q, &kv], &mut draw, &mut inputs)?;
    }
    for (role, table) in [Role::PageTableK, Role::PageTableV].into_iter().zip(tables) {
        if let Some(table) = table {
            inputs.insert(role, table);
        }
    }
    inputs.poison_unused(a, if tails { Unused::Poison } else { Unused::Pages })?;
    Ok(inputs)
}

fn widths(lengths: &[i64]) -> Vec<usize> {
    lengths.iter().map(|n| n.unsigned_abs() as usize).collect()
}

/// Query and KV lengths. Every query has a key: an engine writes a token's key before its query runs.
fn draw_lengths(a: &Attention, draw: &mut Draw) -> (Vec<i64>, Vec<i64>) {
    let (s_q, s_kv) = a.seq();
    let page = match a.k.storage {
        Storage::Paged { page_size, .. } => page_size,
        Storage::Dense | Storage::Varlen { .. } => 64,
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
                // A prompt without a context.
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

/// Floating-point operations that the oracle computes in a few tenths of a second on one core.
const WORK: f64 = 3e8;

/// Removes queries from the most expensive sequences until the case stays within `WORK`. Cheap sequences keep their
/// edge lengths.
fn afford(a: &Attention, q: &mut [i64], kv: &[i64]) {
    let (d_qk, d_v) = a.head_dims();
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

/// Removes rows from the longest sequences until all fit a varlen buffer.
fn fit(lengths: &mut [i64], t: &Tensor) {
    let Storage::Varlen { tokens } = t.storage else { return };
    let mut over = lengths.iter().sum::<i64>() - tokens;
    while over > 0 {
        let Some(longest) = lengths.iter_mut().max() else { return };
        let less = (*longest / 2).clamp(1, over.max(1));
        *longest -= less;
        over -= less;
    }
}

/// A page table in random order. Sequences share the first `shared` pages if they fill them.
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
                // Kernels look up the pages of a whole tile; `BatchMetadata` fills these entries in the same way.
                None if used > 0 && entry * page_size < length + TILE => entries[first],
                // Farther beyond the length an entry may name any page of the pool, even a poisoned one.
                None => draw.within(0, pages - 1),
            });
        }
    }
    Some(Buffer::from_values(DType::I32, entries.into_iter().map(|page| page as f64)))
}

/// Adds gaps between the sequences of varlen operands. All operands of queries have the same gaps, and so have all
/// operands of keys: cuDNN 9.19 computes wrongly on an H200 if the gaps of dQ and Q differ.
fn spread(a: &Valid, lengths: [&[i64]; 2], draw: &mut Draw, inputs: &mut Inputs) -> Result<(), ReferenceError> {
    let starts = [(&a.q, lengths[0]), (&a.k, lengths[1])].map(|(t, lengths)| {
        let Storage::Varlen { tokens } = t.storage else { return Vec::new() };
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
        let (Some(t), Some(varlen)) = (a.stored(role), role.offsets()) else { continue };
        if inputs.get(Role::Offsets(varlen)).is_some() {
            let elements = starts[usize::from(i >= 5)].iter().map(|&token| (token * t.strides[2]) as f64);
            inputs.insert(Role::Offsets(varlen), Buffer::from_values(DType::I64, elements));
        }
    }
    if a.is_backward() { inputs.add_forward(a) } else { Ok(()) }
}

/// The lengths of a case as JSON.
pub(super) fn lengths(inputs: &Inputs) -> Value {
    let of = |role| inputs.get(role).map(|b| (0..b.len()).map(|at| b.int(at)).collect::<Vec<_>>());
    json!({ "q": of(Role::SeqLenQ), "kv": of(Role::SeqLenKv) })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::super::serving::attention;
    use super::*;
    use qkvault_graph::validate;
    use qkvault_reference::{LaunchJudge, View, backward, forward};

    /// The pages of each sequence, and how many sequences use each page.
    type UsedPages = (Vec<Vec<i64>>, BTreeMap<i64, usize>);

    fn used_pages(a: &Attention, drawn: &Drawn) -> Option<UsedPages> {
        let Storage::Paged { page_size, .. } = a.k.storage else { return None };
        let (table, width) = (drawn.tables[0].as_ref()?, a.k.pages_per_sequence()? as usize);
        let row = |(b, &n): (usize, &i64)| {
            (0..((n + page_size - 1) / page_size) as usize).map(|entry| table.int(b * width + entry)).collect()
        };
        let rows: Vec<Vec<i64>> = drawn.kv.iter().enumerate().map(row).collect();
        let mut times = BTreeMap::new();
        rows.iter().flatten().for_each(|&page| *times.entry(page).or_insert(0) += 1);
        Some((rows, times))
    }

    #[test]
    fn twelve_hundred_cases_have_every_kind_of_batch_many_times() {
        const KINDS: [&str; 13] = [
            "many more tokens than sequences",
            "one sequence",
            "empty sequences",
            "no keys",
            "shorter than a page",
            "shuffled tables",
            "shared pages",
            "unused pages",
            "two tables",
            "apart",
            "backward",
            "one query each",
            "queries and one query mixed",
        ];
        let mut counts = [0; KINDS.len()];
        let mut lengths = BTreeMap::new();
        for case in 0..1200 {
            let a = validate(attention(11, case)).unwrap_or_else(|e| panic!("{case}: {e}"));
            let (drawn, _) = Drawn::new(&a, 11, case);
            let (q, kv) = (&drawn.q, &drawn.kv);
            assert!(q.iter().zip(kv).all(|(q, kv)| q <= kv), "{case}: a query without a key");
            let page = match a.k.storage {
                Storage::Paged { page_size, .. } => page_size,
                Storage::Dense | Storage::Varlen { .. } => 0,
            };
            let pages = used_pages(&a, &drawn);
            let shuffled =
                |(rows, _): &UsedPages| rows.iter().any(|row| row.windows(2).any(|pair| pair[1] != pair[0] + 1));
            let pool = |pages: usize| matches!(a.k.storage, Storage::Paged { pages: n, .. } if n > pages as i64);
            let several = a.batch() > 1;
            let is = [
                q.iter().sum::<i64>() >= 30 * a.batch(),
                !several,
                several && q.contains(&0),
                kv.contains(&0),
                kv.iter().any(|&n| n > 0 && n < page),
                pages.as_ref().is_some_and(shuffled),
                pages.as_ref().is_some_and(|(_, times)| times.values().any(|&n| n > 1)),
                pages.as_ref().is_some_and(|(_, times)| pool(times.len())),
                drawn.tables[0].as_ref().map(Buffer::bytes) != drawn.tables[1].as_ref().map(Buffer::bytes),
                drawn.apart && matches!(a.q.storage, Storage::Varlen { .. }),
                a.is_backward(),
                a.seq().0 == 1,
                a.seq().0 > 1 && q.contains(&1) && q.iter().any(|&n| n > 1),
            ];
            counts.iter_mut().zip(is).for_each(|(count, is)| *count += usize::from(is));
            q.iter().for_each(|&n| lengths.entry(n).or_insert([0; 2])[0] += 1);
            kv.iter().for_each(|&n| lengths.entry(n).or_insert([0; 2])[1] += 1);
        }
        for (kind, count) in KINDS.into_iter().zip(counts) {
            assert!(count >= 20, "{kind}: {count} of 1,200");
        }
        for edge in [1, 63, 64, 65, 127, 128, 129] {
            let [q, kv] = lengths.get(&edge).copied().unwrap_or_default();
            assert!(q >= 10 && kv >= 10, "{edge}: {q} times as queries, {kv} as keys");
        }
    }

    #[test]
    fn unused_pages_are_poisoned() {
        let mut poisoned = 0;
        let cases = (0..400).filter(|&case| attention(11, case).k.bytes().is_some_and(|n| n < 200_000));
        for case in cases.step_by(7) {
            let a = validate(attention(11, case)).unwrap_or_else(|e| panic!("{case}: {e}"));
            let Some((_, times)) = used_pages(&a, &Drawn::new(&a, 11, case).0) else { continue };
            let given = inputs(&a, 11, case, false, Family::Normal).unwrap_or_else(|e| panic!("{case}: {e}"));
            let k = given.get(Role::K).expect("it is read");
            let Storage::Paged { pages, .. } = a.k.storage else { continue };
            for page in 0..pages {
                let first = k.get((page * a.k.strides[0]) as usize);
                assert_eq!(first.is_nan(), !times.contains_key(&page), "{case}: page {page}");
                poisoned += usize::from(first.is_nan());
            }
        }
        assert!(poisoned > 10, "{poisoned}");
    }

    /// Tables replace the drawn ones, by which rows behind lengths were poisoned at first: pages in use then were no
    /// numbers, and an oracle without numbers is like any kernel without them.
    #[test]
    fn rows_within_lengths_are_numbers_in_every_family() {
        let small = (0..).filter(|&case| {
            let a = attention(3625, case);
            a.k.is_paged() && !a.is_backward() && a.k.bytes().is_some_and(|n| n < 400_000)
        });
        for case in small.take(4) {
            let a = validate(attention(3625, case)).unwrap_or_else(|e| panic!("{case}: {e}"));
            for family in Family::ALL {
                let given = inputs(&a, 3625, case, family == Family::Behind, family).expect("random");
                for (role, lengths) in [(Role::Q, Role::SeqLenQ), (Role::K, Role::SeqLenKv), (Role::V, Role::SeqLenKv)]
                {
                    let view = View::new(&a, role, &given).expect("is bound");
                    let (buffer, lengths) = (given.get(role).expect("is read"), given.get(lengths).expect("are read"));
                    let [_, heads, _, columns] = a.stored(role).expect("an operand").dims;
                    for sequence in 0..lengths.len() {
                        for (row, head) in (0..lengths.int(sequence)).flat_map(|row| (0..heads).map(move |h| (row, h)))
                        {
                            let start = view.at(sequence, head as usize, row as usize, 0);
                            let none = (start..start + columns as usize).any(|at| buffer.get(at).is_nan());
                            assert!(!none, "{case}, {}: {role} of sequence {sequence}, row {row}", family.name());
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn the_oracle_computes_random_batches() {
        // Only small cases, to keep the test fast.
        let small = (0..400).filter(|&case| {
            let a = attention(2, case);
            a.q.bytes().unwrap_or(i64::MAX) + a.k.bytes().unwrap_or(i64::MAX) < 400_000
        });
        let mut count = 0;
        for case in small.take(8) {
            let a = validate(attention(2, case)).unwrap_or_else(|e| panic!("{case}: {e}"));
            let inputs = inputs(&a, 2, case, true, Family::Normal).unwrap_or_else(|e| panic!("{case}: {e}"));
            let outputs = if a.is_backward() { backward(&a, &inputs) } else { forward(&a, &inputs) };
            let outputs = outputs.unwrap_or_else(|e| panic!("{case}: {e}"));
            let judge = LaunchJudge::new(&a, &inputs);
            for output in outputs.iter() {
                let exact = output.buffer();
                assert_eq!(judge.judge(output, &exact).fault, None, "{case}");
            }
            count += 1;
        }
        assert!(count > 4);
    }
}
