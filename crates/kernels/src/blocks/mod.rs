//! Lists of the tiles of scores that a mask leaves whole or cuts, for attention kernels that skip the others.
//!
//! A mask that reads places alone has [`KnownLists`]: a plan has them as data. For every other one this is CUDA source
//! of kernels that make them at each launch, because a mask may read numbers and tensors of the launch. Scores are
//! looked at where bounds over their tile leave it open whether all are seen or none is. Where the mask has an element
//! for each score, a kernel of its own looks at all tiles first, with a block for each.

mod intervals;
mod known;
mod layout;
mod scores;
mod source;
#[cfg(test)]
mod tests;

use std::fmt::Write as _;

use qkvault_graph::{DType, Role, SCRATCH_ALIGNMENT, Valid};

use crate::bounds::BOUNDS;
use crate::expression::{FUNCTIONS, element_type};
use crate::generate::MACHINE;
use crate::params::Params;
use crate::recipe::{Launch, LaunchValue};

pub use known::KnownLists;
pub use layout::{ListsLayout, ScoreTiles};
pub(crate) use source::reads_dense;

pub(crate) const BLOCKS: &str = include_str!("../cuda/blocks.cu");
pub(crate) const LOOK: &str = include_str!("../cuda/look.cu");
pub(crate) const EXTREMES: &str = include_str!("../cuda/extremes.cu");

/// Threads of a block of the kernels.
const THREADS: u32 = 256;

/// The kernels that make the lists of an attention's mask, and where they put them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockLists {
    /// CUDA C++ without includes.
    pub source: String,
    /// Options of NVRTC, without the architecture.
    pub options: Vec<String>,
    /// The launches, of module 0.
    pub launches: Vec<Launch>,
    /// Where the lists lie in the scratch memory.
    pub layout: ListsLayout,
    /// The end of what the launches use of it.
    pub end: u64,
}

impl BlockLists {
    /// The lists of an attention with a predicate or a block mask, dense tensors and one length for all sequences;
    /// `scratch` is where they begin in the scratch memory. `None` for any other attention.
    #[must_use]
    pub fn for_attention(a: &Valid, tiles: ScoreTiles, scratch: u64) -> Option<BlockLists> {
        let layout = ListsLayout::for_attention(a, tiles, scratch)?;
        let ListsLayout { batch, heads, rows, columns, end, .. } = layout;
        let (s_q, s_kv) = a.seq();
        let dense = reads_dense(a);
        let kinds = dense.then(|| end.next_multiple_of(SCRATCH_ALIGNMENT));
        let end = kinds.map_or(end, |at| at + (layout.lines() * columns).unsigned_abs());
        let params = params(a, layout.at, kinds);
        let at_once = source::keys_at_once(a, tiles.keys);
        let mut text = format!("#define HALF_TYPE \"bf16\"\n{MACHINE}{}{FUNCTIONS}{BOUNDS}", params.text());
        for (name, value) in [
            ("QUERIES", s_q),
            ("KEYS", s_kv),
            ("TILE_Q", tiles.queries),
            ("TILE_K", tiles.keys),
            ("BY_KEYS", tiles.by_keys.into()),
            ("HEADS", heads),
            ("ROWS", rows),
            ("COLUMNS", columns),
            ("DENSE", dense.into()),
            ("KEYS_AT_ONCE", at_once),
        ] {
            let _ = writeln!(text, "#define {name} {value}");
        }
        for part in
            [&source::run_of_keys(a, at_once), &source::seen(a), EXTREMES, &source::may_be_seen(a), LOOK, BLOCKS]
        {
            text.push_str(part);
        }
        let param = params.param();
        let count = |n: i64| u32::try_from(n).unwrap_or(u32::MAX);
        let launch = |function: &str, blocks: i64, overlap| Launch {
            module: 0,
            function: function.to_owned(),
            grid: [count(blocks), count(heads), count(batch)],
            block: [THREADS, 1, 1],
            shared: 0,
            cluster: None,
            overlap,
            params: vec![param.clone()],
        };
        let look = dense.then(|| launch("look", rows * columns, false));
        let launches = look.into_iter().chain([launch("blocks", rows, dense)]).collect();
        let options = vec!["--std=c++17".to_owned()];
        Some(BlockLists { source: text, options, launches, layout, end })
    }
}

fn params(a: &Valid, at: [u64; 4], kinds: Option<u64>) -> Params {
    let mut p = Params::default();
    for (name, at) in ["cut_counts", "cut", "whole_counts", "whole"].into_iter().zip(at) {
        p.pointer("int", name, LaunchValue::Scratch(at));
    }
    if let Some(at) = kinds {
        p.pointer("unsigned char", "kinds", LaunchValue::Scratch(at));
    }
    if a.block_mask {
        p.pointer("const unsigned char", "block_mask", LaunchValue::Address(Role::BlockMask));
    }
    for (n, tensor) in a.score_tensors().enumerate() {
        p.pointer(element_type(tensor.dtype), &format!("tensor{n}"), LaunchValue::Address(tensor.role));
    }
    for (n, scalar) in a.scalars().enumerate() {
        let ty = if scalar.dtype == DType::I32 { "int" } else { "float" };
        p.number(ty, &format!("scalar{n}"), LaunchValue::Number(scalar.role));
    }
    p
}
