//! What a launch of an attention does: kernels with their arguments, in order, before any of them is compiled.

use crate::codes;
use qkvault_graph::SCRATCH_ALIGNMENT;
use qkvault_graph::{DType, GraphKey, KEY_FORMAT, PlanKey, Refusal, Valid};
use qkvault_kernels::recipe::{Launch, LaunchValue, Limits, RECIPE_FORMAT};
use qkvault_kernels::{BlockLists, KnownLists, ListsLayout, ScoreTiles};

use crate::args::{Arg, Float, LOG2_E};
use crate::compiler::FILES;
use crate::expression::{WrittenExpressions, written};
use crate::packed::{Lists, is_packed};
use crate::request::{Common, Kernel};
use crate::takes::{Window, takes, window};
use crate::toolchain::{DRIVER, TOOLCHAIN};

/// The tag that separates these keys from those of other plans.
const TAG: &str = "qkvault plan of FlashAttention-4's kernels, key format 2";

/// The kernels of an attention and their launches.
#[derive(Clone, Debug)]
pub struct Fa4Program {
    /// What is compiled; a kernel that is launched twice is in it once.
    pub kernels: Vec<Kernel>,
    /// Kernels of our own beside them, if there are any: they list the tiles that a mask leaves, or sequences.
    pub own: Option<Own>,
    /// Lists of those tiles that no launch changes, which the plan has as data.
    pub known: Option<KnownLists>,
    pub(crate) steps: Vec<ProgramStep>,
    pub(crate) scratch: u64,
}

/// Kernels of our own, for NVRTC.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Own {
    /// CUDA C++ without includes.
    pub source: String,
    /// Options of NVRTC, without the architecture.
    pub options: Vec<String>,
}

/// One thing that a launch does.
#[derive(Clone, Debug)]
pub(crate) enum ProgramStep {
    /// Zeros in the scratch memory.
    Clear { at: u64, bytes: u64 },
    /// A kernel, by its place in the program.
    Launch { kernel: usize, args: Vec<Arg>, grid: [i64; 3], threads: i64 },
    /// A kernel of our own.
    Own(Box<Launch>),
}

impl Fa4Program {
    /// The program of an attention for GPUs of a compute capability.
    ///
    /// # Errors
    ///
    /// The reasons why the kernels do not take it ([`takes`]), and a launch grid that no driver takes.
    pub fn for_attention(attention: &Valid, sm: u32) -> Result<Fa4Program, Refusal> {
        takes(attention, sm)?;
        let mut writer = ProgramWriter::new(attention);
        if attention.is_backward() {
            writer.backward()
        } else {
            writer.forward()
        }
        if let Some(grid) = writer.program.beyond() {
            return Err(codes::FA4_GRID.reason(format!("a grid of {grid:?} blocks")).into());
        }
        match writer.program.wide() {
            None => Ok(writer.program),
            Some(number) => {
                let reason = codes::FA4_SEQUENCE.reason(format!("a launch counts to {number}"));
                Err(reason.with_needed("below 2^31 rows times columns of a head, of all sequences with lengths").into())
            }
        }
    }

    /// The first number of a launch that has more than 31 bits, which kernels take in 32.
    fn wide(&self) -> Option<i64> {
        let args = self.steps.iter().flat_map(|step| match step {
            ProgramStep::Launch { args, .. } => args.as_slice(),
            ProgramStep::Own(_) | ProgramStep::Clear { .. } => &[],
        });
        args.flat_map(|arg| match arg {
            Arg::Extents(numbers) | Arg::Tensor { extents: numbers, .. } => numbers.clone(),
            Arg::Int(number) | Arg::Divisor(number) => vec![*number],
            Arg::Map(_) | Arg::Float(_) | Arg::Off | Arg::Number(..) | Arg::Address(_) | Arg::Long(_) => Vec::new(),
        })
        .find(|number| *number > i64::from(i32::MAX))
    }

    /// The first grid that no driver takes.
    fn beyond(&self) -> Option<[i64; 3]> {
        let most = [Limits::GRID_X, Limits::GRID_YZ, Limits::GRID_YZ].map(i64::from);
        self.steps.iter().find_map(|step| match step {
            ProgramStep::Launch { grid, .. } => grid.iter().zip(most).any(|(n, most)| *n > most).then_some(*grid),
            ProgramStep::Own(launch) => {
                let grid = launch.grid.map(i64::from);
                grid.iter().zip(most).any(|(n, most)| *n > most).then_some(grid)
            }
            ProgramStep::Clear { .. } => None,
        })
    }
}

impl Fa4Program {
    /// The key of a plan: everything that decides the code and what a launch does, which are the attention, kernels,
    /// arguments, the toolchain, the program that asks it, and the version of NVRTC if it compiles [`Fa4Program::own`].
    /// It is the same on every GPU of the architecture.
    #[must_use]
    pub fn key(&self, attention: GraphKey, nvrtc: (u32, u32)) -> PlanKey {
        // Known lists follow from the attention and the tiles.
        let Fa4Program { kernels, own, known, steps, scratch } = self;
        let mut hasher = blake3::Hasher::new_derive_key(TAG);
        hasher.update(&KEY_FORMAT.to_le_bytes());
        hasher.update(&RECIPE_FORMAT.to_le_bytes());
        hasher.update(attention.bytes());
        // Lengths separate the parts.
        let launches =
            format!("{steps:?} {:?} {scratch} {DRIVER} {TOOLCHAIN:?}", known.as_ref().map(KnownLists::tiles));
        let program = format!("{kernels:?} {:?}", own.as_ref().map(|own| (own, nvrtc)));
        for part in [program.as_str(), launches.as_str()].into_iter().chain(FILES.map(|(_, text)| text)) {
            hasher.update(&(part.len() as u64).to_le_bytes());
            hasher.update(part.as_bytes());
        }
        PlanKey::from_bytes(*hasher.finalize().as_bytes())
    }
}

/// Writes the program of one attention.
pub(crate) struct ProgramWriter<'a> {
    pub(crate) attention: &'a Valid,
    pub(crate) window: Window,
    written: WrittenExpressions,
    pub(crate) program: Fa4Program,
}

impl ProgramWriter<'_> {
    fn new(attention: &Valid) -> ProgramWriter<'_> {
        let (s_q, s_kv) = attention.seq();
        // A predicate has the band within.
        let written = written(attention);
        let band = attention.mask.band.filter(|_| written.mask_mod.is_none());
        let window = band.and_then(|band| window(band, s_q, s_kv)).unwrap_or_default();
        let program = Fa4Program { kernels: Vec::new(), own: None, known: None, steps: Vec::new(), scratch: 0 };
        ProgramWriter { attention, window, written, program }
    }

    /// What all kernels of the attention have in common.
    pub(crate) fn common(&self) -> Common {
        let (a, Window { causal, left, right }) = (self.attention, self.window);
        let (head_dim, head_dim_v) = a.head_dims();
        Common {
            dtype: dtype(a.q.dtype),
            head_dim,
            head_dim_v,
            group: a.q.heads() / a.k.heads(),
            causal,
            local: self.window.local(),
            left: left.is_some(),
            right: right.is_some(),
            packed: is_packed(a),
            used_q: is_packed(a),
            used_k: is_packed(a),
            scalars: self.written.scalars.clone(),
            score_mod: self.written.score_mod.clone(),
            score_mod_bwd: self.written.score_mod_bwd.clone(),
            mask_mod: self.written.mask_mod.clone(),
        }
    }

    /// The bounds of a window, as arguments.
    pub(crate) fn bounds(&self) -> impl Iterator<Item = Arg> + use<> {
        [self.window.left, self.window.right].into_iter().flatten().map(Arg::Int)
    }

    /// The softmax scale as kernels multiply by it: in the exponent, and where a modification gets the scaled score.
    pub(crate) fn scales(&self) -> [Float; 2] {
        let modified = self.attention.score_mod.is_some();
        let exponent = if modified { Float::Constant(LOG2_E) } else { Float::Scale(LOG2_E) };
        [exponent, Float::Scale(1.0)]
    }

    /// Lists of the tiles that a predicate leaves: data of the plan, or made first by kernels of our own; nothing
    /// without a predicate.
    pub(crate) fn lists(&mut self, queries: i64, keys: i64, by_keys: bool) -> Vec<Arg> {
        let (a, tiles) = (self.attention, ScoreTiles { queries, keys, by_keys });
        let (place, layout): (fn(u64) -> LaunchValue, ListsLayout) =
            if let Some(known) = KnownLists::for_attention(a, tiles) {
                let layout = known.layout.clone();
                self.program.known = Some(known);
                (LaunchValue::Constant, layout)
            } else if let Some(lists) = BlockLists::for_attention(a, tiles, self.program.scratch) {
                let BlockLists { source, options, launches, layout, end } = lists;
                self.program.scratch = end;
                self.program.own = Some(Own { source, options });
                self.program.steps.extend(launches.into_iter().map(|launch| ProgramStep::Own(Box::new(launch))));
                (LaunchValue::Scratch, layout)
            } else {
                return Vec::new();
            };
        let ListsLayout { batch, heads, rows, columns, at, end: _ } = layout;
        // A step of 0 gives all sequences or heads the same lists.
        let step = |own: i64, size: i64| if own == 1 { 0 } else { size };
        let (all, all_heads) = (a.batch(), a.q.heads());
        let tensors = at.into_iter().zip([true, false, true, false]).map(|(at, counts)| {
            let (extents, row) = if counts { (vec![rows], 1) } else { (vec![rows, columns], columns) };
            let steps = [step(batch, heads * rows * row), step(heads, rows * row)];
            let inner = if counts { None } else { Some(columns) };
            Arg::Tensor {
                at: place(at),
                extents: [all, all_heads].into_iter().chain(extents).collect(),
                strides: steps.into_iter().chain(inner).collect(),
            }
        });
        tensors.collect()
    }

    /// Room in the scratch memory; the offset.
    pub(crate) fn room(&mut self, bytes: u64) -> u64 {
        let at = self.program.scratch.next_multiple_of(SCRATCH_ALIGNMENT);
        self.program.scratch = at + bytes;
        at
    }

    /// Room for numbers of four bytes over rows of heads of sequences, as a tensor of kernels; the fastest axis first.
    pub(crate) fn rows(&mut self, batch: i64, heads: i64, row: i64) -> Arg {
        let count = batch.saturating_mul(heads).saturating_mul(row);
        let at = LaunchValue::Scratch(self.room(count.unsigned_abs().saturating_mul(4)));
        Arg::Tensor { at, extents: vec![row, heads, batch], strides: vec![row, heads * row] }
    }

    /// The same for packed sequences, whose rows of a head lie one after the other: `row` are those of all sequences.
    pub(crate) fn rows_of(&mut self, lists: Option<&Lists>, heads: i64, row: i64) -> Arg {
        match (lists, self.rows(if lists.is_some() { 1 } else { self.attention.batch() }, heads, row)) {
            (Some(_), Arg::Tensor { at, .. }) => Arg::Tensor { at, extents: vec![row, heads], strides: vec![row] },
            (_, dense) => dense,
        }
    }

    /// The same, and zeros are written before the first kernel.
    pub(crate) fn zeros_of(&mut self, lists: Option<&Lists>, heads: i64, row: i64) -> Arg {
        let arg = self.rows_of(lists, heads, row);
        self.clear(&arg);
        arg
    }

    /// Counters for tiles of heads of sequences, which begin at zero; `per` of them for a tile.
    pub(crate) fn counters(&mut self, batch: i64, heads: i64, tiles: i64, per: i64) -> Arg {
        let row = tiles * per;
        let arg = self.rows(batch, heads, row);
        self.clear(&arg);
        let Arg::Tensor { at, extents: _, strides } = arg else {
            unreachable!("rows are a tensor");
        };
        let extents = vec![tiles, per, heads, batch];
        Arg::Tensor { at, extents, strides: std::iter::once(per).chain(strides).collect() }
    }

    fn clear(&mut self, arg: &Arg) {
        let Arg::Tensor { at: LaunchValue::Scratch(at), .. } = arg else { return };
        let bytes = self.program.scratch - at;
        self.program.steps.push(ProgramStep::Clear { at: *at, bytes });
    }

    /// Adds a launch.
    pub(crate) fn launch(&mut self, kernel: Kernel, args: Vec<Arg>, grid: [i64; 3], threads: i64) {
        let kernels = &mut self.program.kernels;
        let at = kernels.iter().position(|known| *known == kernel).unwrap_or_else(|| {
            kernels.push(kernel);
            kernels.len() - 1
        });
        self.program.steps.push(ProgramStep::Launch { kernel: at, args, grid, threads });
    }
}

/// Tiles of so many rows.
pub(crate) fn tiles(rows: i64, tile: i64) -> i64 {
    (rows + tile - 1) / tile
}

/// The name of an element type.
pub(crate) fn dtype(of: DType) -> &'static str {
    if of == DType::F16 { "f16" } else { "bf16" }
}
