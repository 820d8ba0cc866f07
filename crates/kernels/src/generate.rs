//! From a description to CUDA source and a launch recipe.

use qkvault_graph::SCRATCH_ALIGNMENT;
use qkvault_graph::{DType, Lengths, Refusal, Role, Scaled, Tensor, Valid, Varlen};

use crate::expression::{FUNCTIONS, element_type};
use crate::params::Params;
use crate::products::products;
use crate::recipe::{Launch, LaunchRecipe, LaunchValue, RECIPE_FORMAT, RecipeStep, TensorMap};
use crate::score::CAPPED;
use crate::spans;
use crate::takes::{is_narrow, is_varlen, page_size, takes};
use crate::tiling::{Sizes, Tiling};

pub(crate) const MACHINE: &str = include_str!("cuda/machine.cu");
pub(crate) const WORK: &str = include_str!("cuda/work.cu");
pub(crate) const BRING: &str = include_str!("cuda/bring.cu");
pub(crate) const SOFTMAX: &str = include_str!("cuda/softmax.cu");
pub(crate) const GATHER: &str = include_str!("cuda/gather.cu");
pub(crate) const NARROW: &str = include_str!("cuda/narrow.cu");
pub(crate) const ATTEND: &str = include_str!("cuda/attend.cu");
pub(crate) const LATENT: &str = include_str!("cuda/latent.cu");
pub(crate) const MERGE: &str = include_str!("cuda/merge.cu");
pub(crate) const MERGE_IN_ORDER: &str = include_str!("cuda/merge_in_order.cu");

/// Threads of a block of `merge`: warps are halved until each has a part of a row, and sums have room for 16.
pub(crate) const MERGE_THREADS: u32 = 256;
const _: () = assert!(MERGE_THREADS.is_power_of_two() && MERGE_THREADS >= 32 && MERGE_THREADS <= 512);

/// Blocks of `merge` behind the end of each share, at most: as many as a multiprocessor runs at a time, so that none
/// waits for others that find nothing to do.
const MERGE_BLOCKS: u32 = 3;

/// Rows of a page, or of what a tile has of one, from which on copies of boxes are as fast as from large pages. Pages
/// of fewer are copied row by row.
const BOX_ROWS: i64 = 16;

/// Warps that copy rows.
const GATHER_WARPS: u32 = 4;

/// The oldest CUDA version of drivers that load what NVRTC 13.0 compiles.
pub(crate) const DRIVER: u32 = 13_000;

/// The recipe of kernels of one source, whose cubin the compiler adds.
pub(crate) const fn own_recipe(sm: u32, scratch: u64, steps: Vec<RecipeStep>) -> LaunchRecipe {
    LaunchRecipe { format: RECIPE_FORMAT, sm, driver: DRIVER, scratch, modules: Vec::new(), constants: 0, steps }
}

/// What is compiled for an attention, and how it is launched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Generated {
    /// CUDA C++ without includes.
    pub source: String,
    /// Options of NVRTC, without the architecture.
    pub options: Vec<String>,
    /// The launch, without the lengths of cubins: there is one.
    pub recipe: LaunchRecipe,
}

/// The source and the recipe of an attention for GPUs of a compute capability.
///
/// # Errors
///
/// The reasons why the kernels do not take it ([`takes`]).
pub fn generate(attention: &Valid, sm: u32) -> Result<Generated, Refusal> {
    generate_with(attention, sm, Tiling::for_sizes)
}

/// [`generate`] with a tiling of the caller's, to measure others.
///
/// # Errors
///
/// As [`generate`].
pub fn generate_with(attention: &Valid, sm: u32, tiling: impl FnOnce(Sizes) -> Tiling) -> Result<Generated, Refusal> {
    takes(attention, sm)?;
    let shape = Shape::for_attention(attention);
    let tiling = tiling(shape.sizes);
    Ok(SourceWriter { attention, shape, tiling }.write(sm))
}

/// The extents of an attention.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) batch: i64,
    pub(crate) queries: i64,
    pub(crate) keys: i64,
    pub(crate) key_heads: i64,
    pub(crate) group: i64,
    pub(crate) sizes: Sizes,
}

impl Shape {
    fn for_attention(a: &Valid) -> Shape {
        let [batch, heads, queries, head_dim] = a.q.dims;
        let (key_heads, keys) = (a.k.heads(), a.k.seq());
        let group = heads / key_heads;
        let count = |n: i64| u32::try_from(n).unwrap_or(u32::MAX);
        let sizes = Sizes {
            head_dim: count(head_dim),
            value_dim: count(a.v.head_dim()),
            rows: count(queries.saturating_mul(group)),
            invariant: a.invariant,
            group: count(group),
            diagonal: a.mask.band.is_some_and(|band| band.left.is_some() || band.right.is_some()),
            narrow: is_narrow(a),
            short: is_narrow(a)
                && head_dim.max(a.v.head_dim()) <= 64
                && page_size(&a.k).is_none_or(|page| page % 2 == 0),
        };
        Shape { batch, queries, keys, key_heads, group, sizes }
    }
}

pub(crate) struct SourceWriter<'a> {
    pub(crate) attention: &'a Valid,
    pub(crate) shape: Shape,
    pub(crate) tiling: Tiling,
}

impl SourceWriter<'_> {
    /// The type of elements, as instructions name it.
    pub(crate) fn half(&self) -> &'static str {
        if self.attention.q.dtype == DType::F16 { "f16" } else { "bf16" }
    }

    /// Rows of a page of keys; without pages those of a tile.
    pub(crate) fn page(&self) -> i64 {
        page_size(&self.attention.k).unwrap_or_else(|| self.tiling.tile.into())
    }

    /// Rows of a tile that lie one after the other in memory, whatever the page table says.
    pub(crate) fn part_rows(&self) -> i64 {
        common(self.page(), self.tiling.tile.into())
    }

    /// Whether warps copy tiles row by row ([`gathers`]), or turn rows of 8 bits into 16 as they bring them.
    pub(crate) fn gathers(&self) -> bool {
        match self.shape.sizes.narrow {
            true => !self.tiling.reads_narrow(self.shape.sizes),
            false => are_gathered(&self.attention.k, self.tiling.tile),
        }
    }

    /// Threads of a block of `attend`.
    fn threads(&self) -> u32 {
        if self.gathers() { 32 * (self.tiling.warps() + GATHER_WARPS) } else { self.tiling.threads() }
    }

    /// Pieces of items that a block has room for: of one that it continues and of one that it begins; of an invariant
    /// attention what it begins, and the spans behind.
    pub(crate) fn pieces(&self) -> i64 {
        if !self.shape.sizes.invariant {
            return 2;
        }
        let tile = i64::from(self.tiling.tile);
        1 + spans::count((self.shape.keys + tile - 1) / tile * tile)
    }

    /// Whether values may be the first columns of keys in the same memory, as in a latent cache.
    pub(crate) fn may_share(&self) -> bool {
        let (k, v) = (&self.attention.k, &self.attention.v);
        // The step of a dim with one element is never taken, and follows from the columns, of which values have fewer.
        let [outer, heads, rows, _] = k.extents();
        let taken = [k.is_paged() || outer > 1, heads > 1, rows > 1];
        let same = (0..3).all(|dim| !taken[dim] || k.strides[dim] == v.strides[dim]);
        k.head_dim() > 256 && v.head_dim() <= k.head_dim() && k.storage == v.storage && same
    }

    fn write(&self, sm: u32) -> Generated {
        let (tiling, sizes) = (self.tiling, self.shape.sizes);
        let rows = tiling.piece_rows(sizes);
        let pieces = u64::from(tiling.blocks()) * self.pieces().unsigned_abs() * u64::from(rows);
        let sums = (pieces * u64::from(sizes.value_dim) * 4).next_multiple_of(SCRATCH_ALIGNMENT);
        let params = self.params(sums);
        let mut source = self.defines();
        source.push_str(MACHINE);
        if tiling.warpgroups {
            source.push_str(&products(tiling.tile / tiling.warps_keys, tiling.columns(sizes), self.half()));
        }
        source.push_str(&params.text());
        source.push_str(FUNCTIONS);
        if self.attention.score_mod.is_some() {
            source.push_str(CAPPED);
        }
        source.push_str(&self.functions());
        if sizes.invariant {
            source.push_str(&spans::functions());
        }
        source.push_str(WORK);
        source.push_str(BRING);
        if sizes.narrow {
            source.push_str(NARROW);
        } else if self.gathers() {
            source.push_str(GATHER);
        }
        source.push_str(SOFTMAX);
        source.push_str(if tiling.warps_columns > 1 { LATENT } else { ATTEND });
        source.push_str(if sizes.invariant { MERGE_IN_ORDER } else { MERGE });
        let param = params.param();
        // `merge` takes the same struct and reads no tile, so a launch makes no tensor maps for it.
        let mut without_maps = param.clone();
        without_maps.patches.retain(|patch| !matches!(patch.value, LaunchValue::Map(_)));
        let launch = |function: &str, grid, threads, shared, param| {
            RecipeStep::Launch(Launch {
                module: 0,
                function: function.to_owned(),
                grid,
                block: [threads, 1, 1],
                shared,
                cluster: None,
                overlap: true,
                params: vec![param],
            })
        };
        let attend = launch("attend", [tiling.blocks(), 1, 1], self.threads(), tiling.shared(sizes), param);
        let columns = sizes.value_dim.div_ceil(tiling.merge_columns.clamp(1, sizes.value_dim));
        let for_rows = (rows * columns).div_ceil(MERGE_THREADS / 32).min(MERGE_BLOCKS);
        let merge = launch("merge", [tiling.blocks() - 1, for_rows, 1], MERGE_THREADS, 0, without_maps);
        let options = ["--std=c++17", "--prec-div=false", "--prec-sqrt=false"].map(String::from).to_vec();
        let scratch = sums + pieces * 8;
        Generated { source, options, recipe: own_recipe(sm, scratch, vec![attend, merge]) }
    }

    fn params(&self, sums: u64) -> Params {
        let a = self.attention;
        let mut p = Params::default();
        let [map_k, map_v] = [self.map(Role::K, &a.k), self.map(Role::V, &a.v)];
        let narrow = self.shape.sizes.narrow;
        let gathers = self.gathers() && !narrow;
        if gathers {
            p.number("int", "key_pages", LaunchValue::Fitting(map_k));
            p.number("int", "value_pages", LaunchValue::Fitting(map_v));
        } else {
            p.map("map_k", LaunchValue::Map(map_k));
            p.map("map_v", LaunchValue::Map(map_v));
        }
        if gathers || self.may_share() {
            p.pointer("const u16", "keys", LaunchValue::Address(Role::K));
            p.pointer("const u16", "values", LaunchValue::Address(Role::V));
        }
        if narrow {
            p.pointer("const float", "descale_k", LaunchValue::Address(Role::Descale(Scaled::K)));
            p.pointer("const float", "descale_v", LaunchValue::Address(Role::Descale(Scaled::V)));
        }
        p.pointer("const u16", "q", LaunchValue::Address(Role::Q));
        p.pointer("u16", "o", LaunchValue::Address(Role::O));
        let mut pointer = |there: bool, ty: &str, name: &str, role: Role| {
            if there {
                p.pointer(ty, name, LaunchValue::Address(role));
            }
        };
        pointer(a.outputs.stats, "float", "stats", Role::Stats);
        let lengths = a.mask.lengths == Lengths::PerSequence;
        pointer(lengths, "const int", "len_q", Role::SeqLenQ);
        pointer(lengths, "const int", "len_k", Role::SeqLenKv);
        pointer(a.k.is_paged(), "const int", "table_k", Role::PageTableK);
        pointer(a.v.is_paged(), "const int", "table_v", Role::PageTableV);
        pointer(is_varlen(&a.q), "const i64", "offsets_q", Role::Offsets(Varlen::Q));
        pointer(is_varlen(&a.k), "const i64", "offsets_k", Role::Offsets(Varlen::K));
        pointer(is_varlen(&a.v), "const i64", "offsets_v", Role::Offsets(Varlen::V));
        pointer(is_varlen(&a.o), "const i64", "offsets_o", Role::Offsets(Varlen::O));
        pointer(
            a.outputs.stats && is_varlen(&a.row_tensor()),
            "const i64",
            "offsets_stats",
            Role::Offsets(Varlen::Stats),
        );
        pointer(a.sink, "const float", "sink", Role::Sink);
        pointer(a.draft_tree, "const u64", "drafts", Role::DraftTree);
        for (n, tensor) in a.score_tensors().enumerate() {
            p.pointer(element_type(tensor.dtype), &format!("tensor{n}"), LaunchValue::Address(tensor.role));
        }
        p.pointer("float", "sums", LaunchValue::Scratch(0));
        p.pointer("float", "ends", LaunchValue::Scratch(sums));
        self.numbers(&mut p);
        p.number("float", "scale", LaunchValue::Number(Role::Scale));
        if a.origins.is_some() {
            p.number("int", "query_origin", LaunchValue::Number(Role::QueryOrigin));
            p.number("int", "key_origin", LaunchValue::Number(Role::KeyOrigin));
        }
        for (n, scalar) in a.scalars().enumerate() {
            let ty = if scalar.dtype == DType::I32 { "int" } else { "float" };
            p.number(ty, &format!("scalar{n}"), LaunchValue::Number(scalar.role));
        }
        p
    }

    /// The map over keys or values, or what of its operand is read by address: columns, heads, rows, and sequences or
    /// pages.
    fn map(&self, role: Role, tensor: &Tensor) -> TensorMap {
        let [outer, heads, rows, columns] = tensor.extents();
        let [outer_step, head_step, row_step, _] = tensor.strides;
        let size = tensor.dtype.size() as i64;
        // The step of a dim with one element is never taken; the driver still wants it to be a multiple of 16 bytes.
        let step = |n: i64, step: i64| if n == 1 { 16 } else { (step * size).unsigned_abs() };
        // One plan serves pools of all sizes.
        let (outer, outer_step) = match tensor.is_paged() {
            true => (0, (outer_step * size).unsigned_abs()),
            false => (outer, step(outer, outer_step)),
        };
        let sizes = self.shape.sizes;
        // Tiles that are turned into 16 bits come in boxes of 8 as well.
        let columns_of_box = if sizes.narrow { self.tiling.box_row(sizes).0 } else { 64 };
        TensorMap {
            role,
            dtype: tensor.dtype,
            dims: [columns, heads, rows, outer].map(i64::unsigned_abs).to_vec(),
            strides: vec![step(heads, head_step), step(rows, row_step), outer_step],
            tile: vec![columns_of_box, 1, u32::try_from(self.part_rows()).unwrap_or(1), 1],
            swizzle: if self.tiling.has_short_rows(sizes) { 64 } else { 128 },
        }
    }
}

/// Whether kernels copy the tiles of an attention row by row (`gather.cu`), and not by boxes of a tensor map.
pub(crate) fn gathers(attention: &Valid) -> bool {
    !is_narrow(attention) && are_gathered(&attention.k, Shape::for_attention(attention).sizes.tile())
}

fn are_gathered(keys: &Tensor, tile: u32) -> bool {
    page_size(keys).is_some_and(|page| common(page, tile.into()) < BOX_ROWS)
}

/// The numbers and the parameters of an attention's source, and the keys of a tile.
#[cfg(test)]
pub(crate) fn written_for(attention: &Valid) -> (String, i64) {
    let shape = Shape::for_attention(attention);
    let writer = SourceWriter { attention, shape, tiling: Tiling::for_sizes(shape.sizes) };
    (writer.defines() + &writer.params(0).text(), writer.tiling.tile.into())
}

/// The greatest common divisor.
fn common(a: i64, b: i64) -> i64 {
    if b == 0 { a } else { common(b, a % b) }
}
