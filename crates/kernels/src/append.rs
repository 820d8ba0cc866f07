//! From an append of new keys and values to CUDA source and a launch recipe. Sequences, tokens, pages and the strides
//! between them are the recipe's, so one source serves every step of a layer.

#[cfg(test)]
mod tests;

use std::fmt::Write as _;

use qkvault_graph::{CacheAppend, DType, Reason, Refusal, Role, Scaled, Tensor, ValidCacheAppend};

use crate::codes;
use crate::convert::{ARITHMETIC, CHUNKS, INSTRUCTIONS, MOST_BLOCKS, has_8_bits};
use crate::generate::{Generated, own_recipe};
use crate::params::Params;
use crate::recipe::{Launch, LaunchValue, RecipeStep, TensorMap};
use crate::takes::{is_varlen, page_size};

const APPEND: &str = include_str!("cuda/append.cu");

/// The line of the source that constants of keys and values take the place of.
const SIDES: &str = "// SIDES\n";

/// Threads of a block: a power of two, by which a token's sequence is found.
const THREADS: u64 = 256;

/// Elements that a lane has in flight at once.
const CHUNK: i64 = 8;

/// Most sequences, and elements of a token: sums with a block's threads and lanes have 31 bits.
const COUNT: i64 = 1 << 30;

/// Elements of a page, and bytes from one to the next, that an open map has at most.
const PAGE: (i64, i64) = (1 << 32, 1 << 40);

/// The source and the recipe of an append for GPUs of a compute capability.
///
/// # Errors
///
/// The reasons why the kernel does not run it: `conversion.gpu` for caches in 8 bits, `append.size`.
pub fn generate_append(append: &ValidCacheAppend, sm: u32) -> Result<Generated, Refusal> {
    if append.narrows() {
        has_8_bits(sm)?;
    }
    limits(append)?;
    Ok(Generated {
        source: source(append),
        options: vec!["--std=c++17".to_owned()],
        recipe: own_recipe(sm, 0, vec![RecipeStep::Launch(launch(append))]),
    })
}

fn limits(append: &ValidCacheAppend) -> Result<(), Refusal> {
    let CacheAppend { new_k, new_v, k, v } = **append;
    let mut reasons: Vec<Reason> = Vec::new();
    let mut when = |is: bool, given: String, at: &'static str| {
        if is {
            reasons.push(codes::APPEND_SIZE.reason(given).at(at));
        }
    };
    when(k.batch() > COUNT, format!("{} sequences", k.batch()), "k.dims[0]");
    let elements = [new_k, new_v].map(|new| chunks(&new).saturating_mul(CHUNK)).iter().sum::<i64>();
    when(elements > COUNT, format!("{elements} elements of a token"), "k.dims");
    for (at, cache) in [("k.strides", &k), ("v.strides", &v)] {
        let (size, step) = (cache.dtype.size() as i64, cache.strides[0]);
        let step = step.saturating_mul(size);
        let far = page_elements(cache) > PAGE.0 || step % 16 != 0 || step >= PAGE.1;
        when(cache.is_paged() && far, format!("pages {step} bytes apart"), at);
    }
    Refusal::from_reasons(reasons).map_or(Ok(()), Err)
}

/// Chunks of all heads of a token.
fn chunks(new: &Tensor) -> i64 {
    new.heads().saturating_mul(row_chunks(new))
}

fn row_chunks(new: &Tensor) -> i64 {
    (new.head_dim() - 1) / CHUNK + 1
}

/// Elements from the first to one past the last of a page.
fn page_elements(pool: &Tensor) -> i64 {
    let [_, heads, rows, columns] = pool.extents();
    let [_, head, row, _] = pool.strides;
    let last = (heads - 1).saturating_mul(head).saturating_add((rows - 1).saturating_mul(row));
    last.saturating_add(columns)
}

/// What is read of a pool by its address: pages, as many as the pool of a launch has.
fn pages(role: Role, pool: &Tensor) -> TensorMap {
    let size = pool.dtype.size();
    TensorMap {
        role,
        dtype: pool.dtype,
        dims: vec![page_elements(pool).unsigned_abs(), 0],
        strides: vec![pool.strides[0].unsigned_abs() * size as u64],
        tile: vec![16 / size as u32, 1],
        swizzle: 0,
    }
}

/// Whether every row begins where eight elements are read and written at once.
fn vector(append: &ValidCacheAppend) -> bool {
    let CacheAppend { new_k, new_v, k, v } = **append;
    [new_k, new_v, k, v].iter().all(|t| {
        let [outer, heads, rows, _] = t.extents();
        // How many pages a pool has decides nothing.
        let extents = [if t.is_paged() { i64::MAX } else { outer }, heads, rows];
        t.strides[..3].iter().zip(extents).all(|(step, n)| n == 1 || step % CHUNK == 0)
    })
}

/// Chunks that a lane has in flight, and parts of a token: a warp's lanes take one part.
fn parts(append: &ValidCacheAppend) -> (i64, i64) {
    let all = chunks(&append.new_k) + chunks(&append.new_v);
    let read = ((all - 1) / 32 + 1).min(4);
    (read, (all - 1) / (32 * read) + 1)
}

fn source(append: &ValidCacheAppend) -> String {
    let CacheAppend { new_k, new_v, k, v } = **append;
    let (read, parts) = parts(append);
    let narrows = append.narrows();
    let mut text = String::new();
    for (name, value) in [
        ("NARROWS", narrows.into()),
        ("NARROW_E5M2", (k.dtype == DType::E5M2).into()),
        ("WIDE_F32", 0),
        ("WIDE_F16", (new_k.dtype == DType::F16).into()),
        ("VECTOR", vector(append).into()),
        ("THREADS", THREADS as i64),
        ("READ", read),
        ("PARTS", parts),
    ] {
        let _ = writeln!(text, "#define {name} {value}");
    }
    text.push_str(ARITHMETIC);
    let _ = writeln!(text, "\ntypedef u16 Wide;\ntypedef {} Cache;\n", if narrows { "u8" } else { "u16" });
    if narrows {
        text.push_str(INSTRUCTIONS);
        text.push_str(CHUNKS);
    }
    text.push_str(&params(append).text());
    let sides = [side("Keys", "keys_of", "k", &new_k, &k), side("Values", "values_of", "v", &new_v, &v)].concat();
    text.push_str(&APPEND.replacen(SIDES, &sides, 1));
    text
}

/// The constants of keys or of values, and how a launch's numbers of them are found.
fn side(name: &str, function: &str, of: &str, new: &Tensor, cache: &Tensor) -> String {
    let [_, from_head, from_row, _] = new.strides;
    let [_, to_head, to_row, _] = cache.strides;
    let given = |there: bool, name: &str, none: &str| if there { format!("p.{name}_{of}") } else { none.to_owned() };
    let (varlen, paged) = (is_varlen(new), cache.is_paged());
    format!(
        "struct {name} {{\n  static constexpr bool VARLEN = {varlen}, PAGED = {paged};\n  \
         static constexpr int COLUMNS = {}, CHUNKS = {}, ALL = {}, PAGE = {};\n  \
         static constexpr i64 FROM_HEAD = {from_head}ll, FROM_ROW = {from_row}ll, TO_HEAD = {to_head}ll, \
         TO_ROW = {to_row}ll;\n}};\n\n\
         __device__ __forceinline__ Side {function}(const Params& p) {{\n  \
         return {{p.new_{of}, {}, p.from_{of}, p.tokens_{of}, p.{of}, {}, p.table_row_{of}, {}, p.to_{of}}};\n}}\n\n",
        new.head_dim(),
        row_chunks(new),
        chunks(new),
        page_size(cache).unwrap_or(1),
        given(varlen, "offsets", "nullptr"),
        given(paged, "table", "nullptr"),
        given(paged, "pages", "0"),
    )
}

fn params(append: &ValidCacheAppend) -> Params {
    let CacheAppend { new_k, new_v, k, v } = **append;
    let mut p = Params::default();
    let sides = [
        ("k", new_k, k, [Role::NewK, Role::K, Role::PageTableK], Scaled::K),
        ("v", new_v, v, [Role::NewV, Role::V, Role::PageTableV], Scaled::V),
    ];
    p.pointer("const int", "len_q", LaunchValue::Address(Role::SeqLenQ));
    p.pointer("const int", "len_kv", LaunchValue::Address(Role::SeqLenKv));
    for (of, new, cache, [from, to, table], scaled) in sides {
        p.pointer("const u16", &format!("new_{of}"), LaunchValue::Address(from));
        p.pointer("Cache", of, LaunchValue::Address(to));
        if let Some(offsets) = from.offsets().filter(|_| is_varlen(&new)) {
            p.pointer("const i64", &format!("offsets_{of}"), LaunchValue::Address(Role::Offsets(offsets)));
        }
        if cache.is_paged() {
            p.pointer("const int", &format!("table_{of}"), LaunchValue::Address(table));
            p.number("int", &format!("pages_{of}"), LaunchValue::Fitting(pages(to, &cache)));
        }
        if append.narrows() {
            p.pointer("const float", &format!("descale_{of}"), LaunchValue::Address(Role::Descale(scaled)));
        }
        p.step(&format!("from_{of}"), new.strides[0]);
        p.step(&format!("tokens_{of}"), new.extents()[2]);
        p.step(&format!("to_{of}"), cache.strides[0]);
        p.count(&format!("table_row_{of}"), cache.pages_per_sequence().unwrap_or(0));
    }
    p.count("batch", k.batch());
    p.count("rows", new_k.seq());
    p.count("keys", k.seq());
    p
}

fn launch(append: &ValidCacheAppend) -> Launch {
    // Varlen tokens are as many as the rows of their buffer, and none has more rows than its sequence may.
    let [outer, _, rows, _] = append.new_k.extents();
    let most = append.k.batch().saturating_mul(append.new_k.seq());
    let tokens = outer.saturating_mul(rows).min(most).unsigned_abs();
    let warps = tokens.saturating_mul(parts(append).1.unsigned_abs());
    let blocks = warps.div_ceil(THREADS / 32).clamp(1, MOST_BLOCKS);
    Launch {
        module: 0,
        function: "append".to_owned(),
        grid: [u32::try_from(blocks).unwrap_or(u32::MAX), 1, 1],
        block: [THREADS as u32, 1, 1],
        shared: 0,
        cluster: None,
        overlap: false,
        params: vec![params(append).param()],
    }
}
