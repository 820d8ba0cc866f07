//! Keys and values of 8 bits beside queries of 16, on a CPU beside the oracle.

use qkvault_graph::{Attention, Band, Corner, DType, Fp8, Role, Scaled, Storage, Tensor, Valid};
use qkvault_kernels::{Generated, SM, generate};
use qkvault_reference::{Family, Inputs, LengthChoice, RandomChoice, Unused};

mod over;

use over::{all, check_over, inputs, paged, pool, valid};

/// The attention with a cache of this type.
fn narrow(mut a: Attention, dtype: DType) -> Attention {
    (a.k.dtype, a.v.dtype, a.fp8) = (dtype, dtype, Some(Fp8::Cache));
    a
}

fn of_f16(mut a: Attention) -> Attention {
    (a.q.dtype, a.o.dtype) = (DType::F16, DType::F16);
    a
}

/// Right, and by the products that are expected: of single warps, or of four.
fn check(a: &Valid, single: bool, inputs: &Inputs) -> Result<(), String> {
    let made = generate(a, SM).map_err(|refusal| refusal.to_string())?;
    assert_eq!(made.source.contains("#define WARPGROUPS 0\n"), single, "{a}");
    let odd = matches!(a.k.storage, Storage::Paged { page_size, .. } if page_size % 2 == 1);
    let short = single && a.k.head_dim().max(a.v.head_dim()) <= 64 && !odd;
    assert_eq!(made.source.contains("#define SHORT_ROWS 1\n"), short, "{a}");
    check_over(a, &made, inputs, &[], &[]).map_err(|why| format!("{a}: {why}"))
}

#[test]
fn a_cache_of_8_bits_computes_what_the_oracle_computes() {
    let lengths = [300, 0, 1, 129, 64];
    let full = |queries: usize| lengths.map(|n| n.min(queries));
    let mut list: Vec<(Valid, Vec<usize>, Vec<usize>, bool)> = Vec::new();
    let mut add = |a: Attention, q: &[usize], single| list.push((valid(a), q.to_vec(), lengths.to_vec(), single));
    // One query and a few, by the products of single warps, over pages of every kind.
    for (page, d) in [(64, 128), (16, 64), (2, 48), (3, 64), (48, 128), (4, 80), (1, 16), (128, 112)] {
        add(narrow(paged((8, 2), 1, d, page, &lengths), DType::E4M3), &full(1), true);
    }
    add(narrow(of_f16(paged((8, 2), 2, 128, 16, &lengths)), DType::E4M3), &full(2), true);
    add(narrow(of_f16(paged((4, 4), 1, 64, 64, &lengths)), DType::E5M2), &full(1), true);
    add(narrow(paged((16, 1), 1, 128, 64, &lengths), DType::E5M2), &full(1), true);
    // Wide heads and chunks, by products of four warps and of eight, which take registers.
    for (page, d, queries) in [(64, 256, 1), (16, 128, 9), (3, 64, 40), (64, 128, 40), (16, 192, 33), (1, 80, 70)] {
        add(narrow(paged((8, 2), queries, d, page, &lengths), DType::E4M3), &full(queries as usize), false);
    }
    add(narrow(of_f16(paged((8, 2), 20, 128, 64, &lengths)), DType::E5M2), &full(20), false);
    let mut capped = narrow(paged((8, 2), 1, 128, 64, &lengths), DType::E4M3);
    capped.score_mod = qkvault_graph::expr::library::softcap(qkvault_graph::expr::score(), 20.0).build_score_mod().ok();
    capped.sink = true;
    add(capped.clone(), &full(1), true);
    capped.invariant = true;
    add(capped, &full(1), false);
    let mut window = narrow(paged((8, 2), 40, 128, 16, &lengths), DType::E4M3);
    window.mask.band = Some(Band::window(Corner::BottomRight, 70));
    window.invariant = true;
    add(window, &full(40), false);
    let mut drafts = narrow(paged((8, 2), 4, 128, 64, &lengths), DType::E4M3);
    drafts.draft_tree = true;
    add(drafts, &full(4), true);
    all(&list, |(a, q, kv, single)| check(a, *single, &inputs(a, 7, q, kv, &[])));
}

#[test]
fn dense_and_packed_caches_of_8_bits_are_read_where_they_lie() {
    let bhsd = |queries| {
        let mut a = Attention::bshd(2, (6, 2), (queries, 200), 96, DType::BF16).with_stats();
        a.k = Tensor::bhsd(2, 2, 200, 96, DType::BF16);
        a.v = Tensor::bshd(2, 2, 200, 64, DType::BF16);
        a.o = Tensor::bshd(2, 6, queries, 64, DType::BF16);
        valid(narrow(a, DType::E4M3))
    };
    let packed = |queries| {
        let mut a = Attention::bshd(3, (4, 2), (queries, 150), 64, DType::BF16).with_lengths();
        a.q = Tensor::thd(3, 4, queries, 64, 3 * queries, DType::BF16);
        a.o = a.q;
        a.k = Tensor::thd(3, 2, 150, 64, 400, DType::BF16);
        a.v = a.k;
        valid(narrow(a, DType::E4M3))
    };
    let list: Vec<(Valid, bool)> =
        vec![(bhsd(1), true), (bhsd(5), true), (bhsd(30), false), (packed(2), true), (packed(50), false)];
    all(&list, |(a, single)| check(a, *single, &Inputs::random(a, 3).expect("random operands")));
}

/// Queries and keys of every size: bf16 has a larger range than the f16 that products are of.
#[test]
fn queries_of_every_size_keep_their_scores() {
    let a = valid(narrow(paged((8, 2), 1, 128, 64, &[300, 40]), DType::E4M3));
    let families = [Family::Tiny, Family::Zero, Family::FarAbove, Family::FarBelow, Family::Dominant, Family::Large];
    all(&families, |family| {
        let lengths = LengthChoice::Exact { q: vec![1, 1], kv: vec![300, 40] };
        let choice = RandomChoice { lengths, unused: Unused::Poison, family: *family, ..RandomChoice::default() };
        let inputs = Inputs::random_with(&a, 5, &choice).expect("random operands");
        check(&a, true, &inputs).map_err(|why| format!("{family:?}: {why}"))
    });
    // Rows whose largest magnitudes are far from each other, and one beyond the range of f16.
    all(&[1e-30, 1e5, 3e36], |size| {
        let mut inputs = inputs(&a, 9, &[1, 1], &[300, 40], &[]);
        let q = inputs.get_mut(Role::Q).expect("queries");
        (0..q.len()).for_each(|at| q.set(at, q.get(at) * if at < 256 { *size } else { 1.0 }));
        inputs.set_f32(Role::Scale, (0.1 / size) as f32);
        check(&a, true, &inputs).map_err(|why| format!("{size}: {why}"))
    });
}

/// A cache holds a NaN where a model wrote one: the row that sees it is none, and no other.
#[test]
fn a_nan_of_the_cache_is_a_nan_of_its_rows() {
    for (queries, single) in [(1, true), (9, false)] {
        let a = valid(narrow(paged((8, 2), queries, 64, 16, &[100, 50]), DType::E4M3));
        all(&[Role::K, Role::V], |role| {
            let mut inputs = inputs(&a, 11, &[queries as usize; 2], &[100, 50], &[]);
            let table = inputs.buffer(Role::PageTableK).expect("a table").get(0) as usize;
            // The first row of the first page of the first sequence, of the first head.
            inputs.get_mut(*role).expect("a pool").bytes_mut()[table * 16 * 2 * 64 + 3] = 0x7f;
            check(&a, single, &inputs).map_err(|why| format!("{role}: {why}"))
        });
    }
}

/// Blocks have more tiles than places for them.
fn many_tiles(queries: i64) -> (Valid, Vec<usize>) {
    let lengths = vec![2000; 6];
    (valid(narrow(paged((16, 8), queries, 16, 64, &lengths), DType::E4M3)), lengths)
}

#[test]
fn tiles_take_the_places_of_others() {
    all(&[1, 30], |queries| {
        let (a, lengths) = many_tiles(*queries);
        check(&a, *queries == 1, &inputs(&a, 19, &[*queries as usize; 6], &lengths, &[]))
    });
}

/// What the tests would miss, they would not see.
#[test]
fn faults_of_the_code_for_8_bits_are_noticed() {
    let faults = [
        (1, "key_unit[0] *= *p.descale_k;", ""),
        (3, "key_unit[1] *= *p.descale_k;", ""),
        (1, "*p.descale_v / WEIGHT_UNIT", "1.f / WEIGHT_UNIT"),
        (1, "0x3120", "0x3210"),
        (1, "(n >> 1) * 16 + (lane & 3) * 4 + (n & 1) * 2", "n * 8 + (lane & 3) * 2"),
        (1, "unit[half] = __uint_as_float", "unit[half] = 2.f * __uint_as_float"),
        (1, "+ (lane & 3) * 4;\n#pragma", "+ (lane & 3) * 2;\n#pragma"),
        (40, "place(row, part * 2 + !second, TILE)", "place(row, part * 2 + second, TILE)"),
        (30, "barrier_wait(empty + 8 * slot, parity);\n    const unsigned", "const unsigned"),
        (40, "barrier_wait(raw_full + 8 * raw, raw_parity);", ""),
        (30, "sync_some(WIDENERS, 128);\n    if (asks", "if (asks"),
        (40, "from + RAW_K_BOXES * BOX, thread", "from, thread"),
        (40, "key_unit[0] *= *p.descale_k;", ""),
        (40, "barrier_arrive(full + 8 * slot);\n    // All", "// All"),
    ];
    let lengths = [700, 64];
    let attention = |queries: i64| valid(narrow(paged((8, 2), queries, 64, 16, &lengths), DType::E4M3));
    let scaled = |a: &Valid, queries: usize| {
        let mut inputs = inputs(a, 13, &[queries; 2], &lengths, &[]);
        inputs.set_f32(Role::Descale(Scaled::K), 0.25);
        inputs.set_f32(Role::Descale(Scaled::V), 0.5);
        inputs
    };
    all(&faults, |(queries, from, to)| {
        let (a, inputs) = if *queries == 30 {
            let (a, lengths) = many_tiles(30);
            let inputs = inputs(&a, 19, &[30; 6], &lengths, &[]);
            (a, inputs)
        } else {
            let a = attention(*queries);
            let inputs = scaled(&a, *queries as usize);
            (a, inputs)
        };
        let made = generate(&a, SM).expect("is taken");
        assert!(made.source.contains(from), "{from}");
        let faulty = Generated { source: made.source.replace(from, to), ..made };
        match check_over(&a, &faulty, &inputs, &[], &[]) {
            Err(_) => Ok(()),
            Ok(()) => Err(format!("nobody notices {to:?} in the place of {from:?}")),
        }
    });
}

/// A table may name pages that the pool does not have: their rows are zeros, and nothing outside is read.
#[test]
fn pages_outside_of_the_pool_are_zeros() {
    let (lengths, row) = ([100, 50], 2 * 64);
    let page_of = |table: &[u8]| i32::from_le_bytes([table[4], table[5], table[6], table[7]]) as usize;
    let mut list = Vec::new();
    for queries in [1, 9] {
        for (pool_of, table_of) in [(Role::K, Role::PageTableK), (Role::V, Role::PageTableV)] {
            list.extend([i32::MAX, -1, pool(&lengths, 16) as i32].map(|page| (queries, pool_of, table_of, page)));
        }
    }
    all(&list, |(queries, pool_of, table_of, page)| {
        let a = valid(narrow(paged((8, 2), *queries, 64, 16, &lengths), DType::E4M3));
        let mut inputs = inputs(&a, 17, &[*queries as usize; 2], &lengths, &[]);
        let mut table = inputs.buffer(*table_of).expect("a table").bytes().to_vec();
        // The oracle reads zeros where the table was, in the second page of the first sequence.
        let from = page_of(&table) * 16 * row;
        inputs.get_mut(*pool_of).expect("a pool").bytes_mut()[from..from + 16 * row].fill(0);
        table[4..8].copy_from_slice(&page.to_le_bytes());
        let made = generate(&a, SM).expect("is taken");
        let found = check_over(&a, &made, &inputs, &[], &[(*table_of, table)]);
        found.map_err(|why| format!("{queries} queries, page {page} of {pool_of}: {why}"))
    });
}
