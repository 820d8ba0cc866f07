//! Keys and values over pages of few rows, which four warps of a block copy row by row, on a CPU beside the oracle.

use qkvault_emulate::HostProgram;
use qkvault_graph::{Attention, Band, Corner, DType, Role, Tensor, Valid};
use qkvault_kernels::tiling::Tiling;
use qkvault_kernels::{Generated, SM, generate, generate_with};
use qkvault_reference::Inputs;
use qkvault_skip::{Need, skip};

mod over;

use over::{all, check_over, inputs, paged, pool, valid};

/// Values in the memory of keys, with their pages or with other ones.
const LATENT: [(Role, Role); 2] = [(Role::V, Role::K), (Role::PageTableV, Role::PageTableK)];

fn gathers(made: &Generated) -> bool {
    made.source.contains("#define GATHER 1\n")
}

#[test]
fn pages_of_few_rows_compute_what_the_oracle_computes() {
    let lengths = [300, 0, 1, 129, 64];
    let full = |queries: usize| lengths.map(|n| n.min(queries));
    let window = |n| Band::window(Corner::BottomRight, n);
    let mut list: Vec<(Valid, Vec<usize>, Vec<usize>, bool)> = Vec::new();
    let mut add =
        |a: Attention, q: &[usize], kv: &[usize], gathers| list.push((valid(a), q.to_vec(), kv.to_vec(), gathers));
    // One query, by the products of single warps, over pages of every kind; those of 16 and 48 rows come in boxes.
    for (page, d) in [(1, 128), (2, 64), (4, 128), (8, 256), (3, 128), (5, 80), (6, 64), (12, 128), (24, 128)] {
        add(paged((8, 2), 1, d, page, &lengths), &full(1), &lengths, true);
    }
    add(paged((8, 2), 1, 128, 48, &lengths), &full(1), &lengths, false);
    add(paged((8, 2), 1, 128, 16, &lengths), &full(1), &lengths, false);
    // Chunks, by products of four warps and of eight, which take registers.
    for (page, d, queries) in [(1, 128, 9), (2, 64, 40), (4, 128, 33), (1, 128, 40), (8, 256, 20), (12, 64, 10)] {
        add(paged((8, 2), queries, d, page, &lengths), &full(queries as usize), &lengths, true);
    }
    // Windows, which begin within tiles and pages; sinks; heads one after the other in a page; values of other columns.
    add(paged((4, 4), 1, 128, 3, &lengths).with_band(window(70)), &full(1), &lengths, true);
    add(paged((8, 2), 24, 64, 4, &lengths).with_band(window(50)), &full(24), &lengths, true);
    let mut other = paged((4, 2), 1, 128, 4, &lengths);
    other.k = Tensor::paged_hnd(5, 2, 300, 128, pool(&lengths, 4), 4, DType::BF16);
    other.v = Tensor::paged_nhd(5, 2, 300, 48, pool(&lengths, 4), 4, DType::BF16);
    (other.o, other.sink) = (Tensor::bshd(5, 4, 1, 48, DType::BF16), true);
    add(other, &full(1), &lengths, true);
    let mut packed = paged((4, 2), 30, 128, 1, &lengths);
    packed.q = Tensor::thd(5, 4, 30, 128, 40 + 30, DType::BF16);
    packed.o = packed.q;
    add(packed, &[30, 0, 1, 17, 3], &lengths, true);
    all(&list, |(a, q, kv, gather)| {
        let made = generate(a, SM).expect("is taken");
        assert_eq!(gathers(&made), *gather, "{a}");
        check_over(a, &made, &inputs(a, 5, q, kv, &[]), &[], &[]).map_err(|error| format!("{a}: {error}"))
    });
}

/// Tilings that a measurement compares: other tiles, of which a warp copies rows in one turn or in several, and more
/// blocks.
#[test]
fn other_tilings_copy_the_same_rows() {
    let kv = [700, 31];
    let narrow = [(1, 128, 2), (16, 64, 1)].map(|(queries, d, page)| valid(paged((8, 2), queries, d, page, &kv)));
    let of = [&narrow[..], &[latent(4, 1, (576, 512), &kv), latent(2, 1, (288, 272), &kv)]].concat();
    let mut list = Vec::new();
    for a in &of {
        generate_with(a, SM, |sizes| {
            list.extend(Tiling::others(sizes).into_iter().map(|(name, tiling)| (a, name, tiling)));
            Tiling::for_sizes(sizes)
        })
        .expect("is taken");
    }
    let tiles: Vec<(u32, i64)> = list.iter().map(|(a, _, tiling)| (tiling.tile, a.q.head_dim())).collect();
    assert!([(32, 64), (64, 128), (64, 288)].iter().all(|tile| tiles.contains(tile)), "{tiles:?}");
    all(&list, |(a, name, tiling)| {
        let made = generate_with(a, SM, |_| *tiling).expect("is taken");
        let q = kv.map(|n| n.min(a.q.seq() as usize));
        check_over(a, &made, &inputs(a, 3, &q, &kv, &[]), &[], &[]).map_err(|error| format!("{a}, {name}: {error}"))
    });
}

fn latent(page: i64, queries: i64, (d, d_v): (i64, i64), kv: &[usize]) -> Valid {
    let mut a = paged((16, 1), queries, d, page, kv);
    a.v = Tensor { dims: [a.k.dims[0], 1, a.k.dims[2], d_v], ..a.k };
    a.o = Tensor::bshd(kv.len() as i64, 16, queries, d_v, DType::BF16);
    valid(a)
}

#[test]
fn values_of_a_latent_cache_over_small_pages_are_brought_once_or_twice() {
    let kv = [150, 33, 1];
    let list = [
        (latent(1, 1, (576, 512), &kv), &LATENT[..]),
        (latent(4, 1, (576, 512), &kv), &LATENT[..1]), // tables of their own
        (latent(3, 1, (576, 512), &kv), &[]),
        (latent(2, 3, (288, 272), &kv), &LATENT[..]),
        // Tiles with room for keys and values, which one group of warps sums.
        (latent(2, 1, (320, 256), &kv), &LATENT[..]),
        (latent(2, 1, (320, 256), &kv), &[]),
    ];
    all(&list, |(a, shared)| {
        let made = generate(a, SM).expect("is taken");
        assert!(gathers(&made) && made.source.contains("#define MAY_SHARE 1\n"), "{a}");
        let q = kv.map(|n| n.min(a.q.seq() as usize));
        check_over(a, &made, &inputs(a, 9, &q, &kv, shared), shared, &[]).map_err(|error| format!("{a}: {error}"))
    });
    // Values that are there once are not brought again: whoever asks for them finds nothing.
    if !HostProgram::can_run() {
        return;
    }
    for (at, to) in [(0, "stages + slot * STAGE"), (4, "values")] {
        let (a, made) = (&list[at].0, generate(&list[at].0, SM).expect("is taken"));
        let again = format!("copy_rows<VALUE_DIM / 8>({to}, values_at[turn],");
        assert!(made.source.contains(&again));
        let source = made.source.replace(&again, "copy_rows<VALUE_DIM / 8>(0xffffff00u, values_at[turn],");
        let nowhere = Generated { source, ..made };
        let over = |shared| check_over(a, &nowhere, &inputs(a, 9, &[1, 1, 1], &kv, shared), shared, &[]);
        assert_eq!(over(&LATENT), Ok(()), "{a}");
        assert!(over(&[]).is_err(), "{a}: values of their own are brought to nowhere");
    }
}

/// Numbers that no page of a pool has: a copy of boxes brings zeros for them, and so do copies of rows.
const NO_PAGES: [i32; 5] = [i32::MAX, i32::MIN, -1, 1 << 20, 0];

/// A case whose tables name pages that the pool does not have. In the oracle's they are one of zeros. The last of
/// `NO_PAGES` stands for the first one behind the pool.
fn beyond_the_pool(a: &Valid, kv: &[usize], page: i64) -> (Inputs, Vec<(Role, Vec<u8>)>) {
    let q: Vec<usize> = kv.iter().map(|&n| n.min(a.q.seq() as usize)).collect();
    let mut inputs = inputs(a, 4, &q, kv, &[]);
    let mut tables = Vec::new();
    for (table, of, tensor) in [(Role::PageTableK, Role::K, &a.k), (Role::PageTableV, Role::V, &a.v)] {
        let pages = tensor.extents()[0];
        let numbers = inputs.get_mut(table).expect("a table");
        let (columns, at) = (numbers.len() / kv.len(), |n: usize| n as f64);
        // A page that no sequence uses, before the first.
        let used: Vec<f64> = (0..kv.len())
            .flat_map(|b| (0..kv[b].div_ceil(page as usize)).map(move |i| b * columns + i))
            .map(|i| numbers.get(i))
            .collect();
        let free = (0..pages as usize).find(|&n| !used.contains(&at(n))).expect("a free page");
        let mut wrong: Vec<i32> = (0..numbers.len()).map(|i| numbers.get(i) as i32).collect();
        for (i, number) in NO_PAGES.iter().enumerate() {
            let place = i * 3 % kv[0].div_ceil(page as usize);
            numbers.set(place, at(free));
            wrong[place] = if *number == 0 { pages as i32 } else { *number };
        }
        tables.push((table, wrong.iter().flat_map(|n| n.to_ne_bytes()).collect()));
        let rows = inputs.get_mut(of).expect("a pool");
        let each = tensor.strides[0] as usize;
        (free * each..(free + 1) * each).for_each(|i| rows.set(i, 0.0));
    }
    (inputs, tables)
}

#[test]
fn pages_that_a_pool_does_not_have_are_zeros_and_nothing_is_read_for_them() {
    let list: Vec<(Valid, Vec<usize>, i64)> = [(1, 1, 128, 200), (4, 1, 64, 200), (4, 30, 128, 150), (16, 1, 128, 300)]
        .map(|(page, queries, d, keys)| {
            let kv = vec![keys, 40];
            (valid(paged((8, 2), queries, d, page, &kv)), kv, page)
        })
        .into();
    all(&list, |(a, kv, page)| {
        let made = generate(a, SM).expect("is taken");
        let (inputs, tables) = beyond_the_pool(a, kv, *page);
        check_over(a, &made, &inputs, &[], &tables).map_err(|error| format!("{a}: {error}"))
    });
    if !HostProgram::can_run() {
        return;
    }
    let ((a, kv, page), check) = (&list[1], "(u32)page < (u32)pages ?");
    let made = generate(a, SM).expect("is taken");
    assert!(made.source.contains(check));
    let trusting = Generated { source: made.source.replace(check, "true ?"), ..made };
    let (inputs, tables) = beyond_the_pool(a, kv, *page);
    let found = check_over(a, &trusting, &inputs, &[], &tables).expect_err("memory of others is read");
    assert!(found.contains("a copy reads beside every operand"), "{found}");
}

/// Faults of kernels that copy rows, each of which must be noticed: what is replaced, by what, and words of what is
/// then said; first of single warps' products, then of four warps'.
const FAULTS: [[(&str, &str, &str); 7]; 2] = [
    [
        ("barrier_wait(full + 8 * slot, parity);", "", "wrong"),
        ("barrier_arrive_copied(full + 8 * slot);", "barrier_arrive(full + 8 * slot);", "wrong"),
        ("barrier_arrive_copied(full + 8 * slot);", "", "no thread of the block can go on"),
        ("barrier_wait(empty + 8 * slot, parity);", "", "no thread of the block can go on"),
        ("copies_wait();\n}", "}", "ends before its copies"),
        (
            "pages.of_values[turn] = page_of(p, item, tile, part, false)",
            "pages.of_values[turn] = pages.of_keys[turn]",
            "wrong",
        ),
        ("? 0 : K_BOXES * BOX", "? 0 : 0", "wrong"),
    ],
    [
        (
            "      fence_async();\n#endif\n#endif\n      const u32 keys",
            "#endif\n#endif\n      const u32 keys",
            "no fence",
        ),
        ("      barrier_wait(full + 8 * slot, parity);", "", "no fence"),
        ("barrier_arrive_copied(full + 8 * slot);", "barrier_arrive(full + 8 * slot);", "no fence"),
        ("barrier_arrive_copied(full + 8 * slot);", "", "no thread of the block can go on"),
        ("barrier_wait(empty + 8 * slot, parity);", "", "no fence"),
        ("% PAGE;", "% PAGE * 0;", "wrong"),
        ("from[n] == 0,", "true,", "wrong"),
    ],
];

#[test]
fn faults_of_copies_are_noticed() {
    if !HostProgram::can_run() {
        return skip(Need::Cxx, "no C++ compiler of x86-64");
    }
    for (queries, faults) in [1, 40].into_iter().zip(&FAULTS) {
        // More tiles for a block than it has room for, and sequences that two blocks share.
        let kv = [1100; 8];
        let a = valid(paged((8, 8), queries, 64, 4, &kv));
        let inputs = inputs(&a, 6, &[queries as usize; 8], &kv, &[]);
        let made = generate(&a, SM).expect("is taken");
        assert_eq!(check_over(&a, &made, &inputs, &[], &[]), Ok(()));
        let unnoticed = faults.iter().filter_map(|(right, fault, said)| {
            assert!(made.source.contains(right), "{right}");
            let wrong = Generated { source: made.source.replace(right, fault), ..made.clone() };
            let found = check_over(&a, &wrong, &inputs, &[], &[]).err().unwrap_or_else(|| "nothing".to_owned());
            (!found.contains(said)).then(|| format!("{right} -> {fault}: {found} instead of {said}"))
        });
        let unnoticed: Vec<String> = unnoticed.collect();
        assert!(unnoticed.is_empty(), "{queries} queries: {unnoticed:#?}");
    }
}
