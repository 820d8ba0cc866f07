//! Invariant attentions: a row of O has the same bits alone, in any batch, in any chunk, over any pages, and is right.

use std::collections::BTreeMap;

use qkvault_emulate::HostProgram;
use qkvault_graph::{Attention, Band, Corner, DType, Role, Storage, Tensor, Valid, buffer_len, operands, validate};
use qkvault_kernels::tiling::Tiling;
use qkvault_kernels::{SM, generate_with};
use qkvault_reference::{Buffer, Inputs, LaunchJudge, LengthChoice, POISON, RandomChoice, Unused, forward};
use qkvault_skip::{Need, skip};

const HEADS: (i64, i64) = (4, 2);

/// What stands in an operand at a position of a sequence.
fn content(role: Role, sequence: i64, position: i64, head: i64, column: i64) -> f64 {
    let which = if role == Role::Q { 1 } else { 2 + i64::from(role == Role::V) };
    let mut x = [which, sequence, position, head, column].iter().fold(0x9e37_79b9_7f4a_7c15_u64, |x, n| {
        (x ^ n.unsigned_abs()).wrapping_mul(0xbf58_476d_1ce4_e5b9).rotate_left(29)
    });
    x ^= x >> 31;
    (x >> 11) as f64 / (1_u64 << 52) as f64 * 4.0 - 4.0
}

/// A launch: for each sequence its name, the queries, and the keys, of which the queries are the last.
struct Composition {
    sequences: Vec<(i64, i64, i64)>,
    /// Rows of a page; dense keys if there are none.
    page: Option<i64>,
    /// Queries one behind the other, without padding.
    varlen: bool,
    /// Room for keys beyond the longest.
    room: i64,
    /// Tiles of rows side by side, if not the usual number.
    row_blocks: Option<u32>,
}

impl Composition {
    fn attention(&self, of: &Shape) -> Valid {
        let batch = self.sequences.len() as i64;
        let most = |f: fn(&(i64, i64, i64)) -> i64| self.sequences.iter().map(f).max().unwrap_or(1).max(1);
        let (queries, keys) = (most(|s| s.1), most(|s| s.2) + self.room);
        let tokens = self.sequences.iter().map(|s| s.1).sum();
        let mut a = Attention::bshd(batch, HEADS, (queries, keys), of.d, of.dtype).with_lengths().with_stats();
        if self.varlen {
            a.q = Tensor::thd(batch, HEADS.0, queries, of.d, tokens, of.dtype);
            a.o = a.q;
        }
        if let Some(page) = self.page {
            let pages = batch * (keys / page + 1);
            a.k = Tensor::paged_nhd(batch, HEADS.1, keys, of.d, pages, page, of.dtype);
            a.v = a.k;
        }
        a.sink = of.sink;
        validate(a.with_band(of.band).invariant()).expect("valid")
    }
}

/// What all compositions of a test have.
struct Shape {
    d: i64,
    dtype: DType,
    band: Band,
    sink: bool,
}

/// The place of an element, by sequence, head, position and column.
fn place(t: &Tensor, pages: &[i64], starts: &[i64], [b, h, s, c]: [i64; 4]) -> usize {
    let [outer, head, row, column] = t.strides;
    let (outer, s) = match t.storage {
        Storage::Dense => (b * outer, s),
        Storage::Varlen { .. } => (0, starts[b as usize] + s),
        Storage::Paged { page_size, .. } => {
            let per = pages.len() as i64 / t.dims[0];
            (pages[(b * per + s / page_size) as usize] * outer, s % page_size)
        }
    };
    (outer + h * head + s * row + c * column) as usize
}

/// The bits of O and of Stats of every row, by sequence, position and head; the launch is right by the oracle.
fn rows(of: &Shape, composition: &Composition, seed: u64) -> BTreeMap<(i64, i64, i64), (Vec<u64>, u64)> {
    let a = composition.attention(of);
    let count = |n: &i64| usize::try_from(*n).expect("few");
    let lengths = LengthChoice::Exact {
        q: composition.sequences.iter().map(|s| count(&s.1)).collect(),
        kv: composition.sequences.iter().map(|s| count(&s.2)).collect(),
    };
    let choice = RandomChoice { lengths, unused: Unused::Poison, ..RandomChoice::default() };
    let mut inputs = Inputs::random_with(&a, seed, &choice).expect("operands");
    let table = |role| inputs.buffer(role).map(|b| (0..b.len()).map(|at| b.get(at) as i64).collect::<Vec<_>>());
    let tables = [table(Role::PageTableK).unwrap_or_default(), table(Role::PageTableV).unwrap_or_default()];
    let starts: Vec<i64> = composition
        .sequences
        .iter()
        .scan(0, |sum, s| {
            *sum += s.1;
            Some(*sum - s.1)
        })
        .collect();
    for (role, t, pages) in [(Role::Q, a.q, &tables[0]), (Role::K, a.k, &tables[0]), (Role::V, a.v, &tables[1])] {
        let buffer = inputs.get_mut(role).expect("an input");
        for (b, (name, queries, keys)) in (0..).zip(&composition.sequences) {
            let (from, n) = if role == Role::Q { (keys - queries, *queries) } else { (0, *keys) };
            for (s, h) in (0..n).flat_map(|s| (0..t.dims[1]).map(move |h| (s, h))) {
                for c in 0..of.d {
                    buffer.set(place(&t, pages, &starts, [b, h, s, c]), content(role, *name, from + s, h, c));
                }
            }
        }
    }
    if let Some(sink) = inputs.get_mut(Role::Sink) {
        (0..HEADS.0).for_each(|h| sink.set(h as usize, 0.5 * h as f64));
    }
    if let Some(scale) = inputs.get_mut(Role::Scale) {
        scale.set(0, 0.125);
    }
    let (mut buffers, mut numbers) = (BTreeMap::new(), BTreeMap::new());
    for operand in operands(&a) {
        let role = operand.role;
        if operand.output {
            let len = buffer_len(&a, role).expect("a size");
            buffers.insert(role, Buffer::poisoned(operand.tensor.dtype, len).into_bytes());
        } else {
            let bytes = inputs.buffer(role).expect("an input").bytes().to_vec();
            if role.is_scalar() { &mut numbers } else { &mut buffers }.insert(role, bytes);
        }
    }
    let tiling = |sizes| {
        let usual = Tiling::for_sizes(sizes);
        Tiling { row_blocks: composition.row_blocks.unwrap_or(usual.row_blocks), ..usual }
    };
    let made = generate_with(&a, SM, tiling).expect("is taken");
    let program = HostProgram::compile(&made.source, &made.recipe, true).unwrap_or_else(|error| panic!("{error}"));
    program.launch(&made.recipe, &mut buffers, &numbers, &[], seed, POISON).unwrap_or_else(|error| panic!("{error}"));
    let found = |role, dtype| Buffer::new(dtype, buffers[&role].clone()).expect("whole elements");
    let (o, stats) = (found(Role::O, of.dtype), found(Role::Stats, DType::F32));
    for output in forward(&a, &inputs).expect("the oracle computes it").iter() {
        let written = if output.role() == Role::O { &o } else { &stats };
        let fault = LaunchJudge::new(&a, &inputs).judge(output, written).fault;
        assert!(fault.is_none(), "{a}: {fault:?}");
    }
    let of_rows = a.row_tensor();
    let mut all = BTreeMap::new();
    for (b, (name, queries, keys)) in (0..).zip(&composition.sequences) {
        for (s, h) in (0..*queries).flat_map(|s| (0..HEADS.0).map(move |h| (s, h))) {
            let bits = |c| o.get(place(&a.o, &[], &starts, [b, h, s, c])).to_bits();
            let end = stats.get(place(&of_rows, &[], &starts, [b, h, s, 0])).to_bits();
            all.insert((*name, keys - queries + s, h), ((0..of.d).map(bits).collect(), end));
        }
    }
    all
}

/// All rows of all compositions agree where they are the same.
fn agree(of: &Shape, compositions: &[Composition]) {
    if !HostProgram::can_run() {
        return skip(Need::Cxx, "no C++ compiler of x86-64");
    }
    let (mut known, mut compared) = (BTreeMap::new(), 0);
    for (at, composition) in compositions.iter().enumerate() {
        for (place, bits) in rows(of, composition, at as u64) {
            if let Some((first, before)) = known.get(&place) {
                compared += 1;
                assert_eq!(&bits, before, "{place:?} in compositions {first} and {at}");
            } else {
                known.insert(place, (at, bits));
            }
        }
    }
    assert!(compared > 20, "{compared} rows are in several compositions");
}

fn one(sequences: &[(i64, i64, i64)], page: Option<i64>, varlen: bool, room: i64) -> Composition {
    Composition { sequences: sequences.to_vec(), page, varlen, room, row_blocks: None }
}

/// Spans end at 256, 512 and so on; 132 blocks cut everywhere.
#[test]
fn a_token_has_the_same_bits_alone_in_a_crowd_in_chunks_and_in_a_prompt() {
    let of = Shape { d: 64, dtype: DType::BF16, band: Band::CAUSAL_BOTTOM_RIGHT, sink: false };
    let crowd = [(5, 1, 300), (1, 1, 700), (6, 1, 1), (2, 1, 513), (7, 1, 0)];
    agree(
        &of,
        &[
            one(&[(1, 1, 700)], Some(64), false, 0),
            one(&crowd, Some(16), false, 333),
            one(&[(1, 40, 700), (2, 3, 513), (5, 1, 300)], Some(64), true, 0),
            one(&[(3, 90, 400), (1, 5, 697), (2, 20, 510), (1, 3, 700)], Some(48), true, 1000),
            one(&[(1, 700, 700)], None, false, 0),
            one(&[(2, 513, 513), (1, 40, 660)], None, true, 0),
        ],
    );
}

/// Pages of few rows are copied row by row, others by boxes; nothing of that is in the bits.
#[test]
fn a_token_has_the_same_bits_over_pages_of_any_size() {
    for (d, dtype) in [(64, DType::BF16), (128, DType::F16)] {
        let of = Shape { d, dtype, band: Band::CAUSAL_BOTTOM_RIGHT, sink: true };
        let batch = [(1, 1, 600), (2, 3, 513), (5, 0, 10), (6, 1, 1)];
        let mut all: Vec<Composition> =
            [1, 2, 3, 4, 8, 12, 16, 64].map(|page| one(&batch, Some(page), false, page)).into();
        all.push(one(&[(1, 40, 600), (2, 3, 513)], Some(1), true, 0));
        all.push(one(&[(1, 70, 600), (2, 80, 513)], Some(8), true, 100));
        all.push(one(&batch, None, false, 0));
        agree(&of, &all);
    }
}

#[test]
fn windows_sinks_and_wide_heads_are_invariant_too() {
    let window = Band::window(Corner::BottomRight, 300);
    for (d, dtype, band, sink) in
        [(128, DType::F16, window, true), (256, DType::BF16, Band::CAUSAL_BOTTOM_RIGHT, false)]
    {
        let of = Shape { d, dtype, band, sink };
        agree(
            &of,
            &[
                one(&[(1, 1, 620)], Some(64), false, 0),
                one(&[(4, 2, 100), (1, 30, 620)], Some(16), true, 60),
                one(&[(1, 70, 640)], None, false, 0),
            ],
        );
    }
}

/// More spans than a warp loads at a time, all of them pieces or none.
#[test]
fn many_spans_are_added_in_order() {
    let of = Shape { d: 128, dtype: DType::BF16, band: Band::CAUSAL_BOTTOM_RIGHT, sink: true };
    let crowd: Vec<_> = (0..40).map(|n| (10 + n, 1, 3000)).chain([(1, 2, 4650), (2, 9, 4000)]).collect();
    agree(
        &of,
        &[
            one(&[(1, 9, 4650)], Some(64), true, 0),
            one(&crowd, Some(64), true, 0),
            one(&[(2, 9, 4000)], Some(64), true, 0),
        ],
    );
}

/// One, two and four tiles of rows side by side: shares are cut elsewhere, and bits stay.
#[test]
fn tiles_of_rows_side_by_side_change_no_bits() {
    let window = Band::window(Corner::BottomRight, 300);
    for (d, band, sink) in [(64, Band::CAUSAL_BOTTOM_RIGHT, false), (256, window, true)] {
        let of = Shape { d, dtype: DType::BF16, band, sink };
        let ragged = &[(1, 260, 700), (5, 1, 300), (2, 0, 100), (3, 140, 513)];
        let by = |row_blocks, sequences: &[_]| Composition {
            row_blocks: Some(row_blocks),
            ..one(sequences, Some(64), true, 0)
        };
        agree(&of, &[by(1, ragged), by(2, ragged), by(4, ragged), by(4, &[(1, 260, 700)]), by(1, &[(1, 30, 700)])]);
    }
}
