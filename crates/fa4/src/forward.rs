//! The forward's launch.

use qkvault_graph::{Role, Valid};
use qkvault_kernels::recipe::LaunchValue;

use crate::args::{Arg, TensorView};
use crate::expression::arguments;
use crate::packed::{PackedTiles, capacity};
use crate::pages;
use crate::program::{ProgramWriter, tiles};
use crate::request::{Forward, Kernel};
use crate::schedule::Tiles;
use crate::tiles::{ForwardTiling, TILE_ROWS};
use crate::views::{self, extents, view};

/// The least score that products of operands are taken to have: what may be lower has a constant, a factor or a tensor.
const LOW: f32 = -((1_u32 << 30) as f32);

/// Whether query heads that share keys share tiles of a forward: where tiles of any size hold whole groups, and there
/// are no lists, which are of tiles of one head.
pub(crate) fn shares_tiles(a: &Valid) -> bool {
    let group = a.q.heads() / a.k.heads().max(1);
    let listed = a.mask.mask_mod.is_some() || a.block_mask;
    !a.is_backward() && !listed && group > 1 && TILE_ROWS.iter().all(|rows| rows % group == 0)
}

impl ProgramWriter<'_> {
    /// One kernel.
    pub(crate) fn forward(&mut self) {
        let (a, common) = (self.attention, self.common());
        let (head_dim, head_dim_v) = a.head_dims();
        let (s_q, s_kv) = a.seq();
        let local = self.window.local();
        let paged = a.k.is_paged();
        // Pages need the tiles that block lists need.
        let tiling =
            ForwardTiling::for_dims(head_dim, head_dim_v, common.causal, local, common.mask_mod.is_some() || paged);
        let tiling = if paged { pages::whole_copies(tiling, (head_dim, head_dim_v)) } else { tiling };
        let ForwardTiling { tile_m, tile_n, p_in_registers } = tiling;
        let lists = self.lists(tile_m, tile_n, false);
        let packed = self.sequences();
        let pack_gqa = shares_tiles(a);
        let (rows, heads) = if pack_gqa { (common.group, a.k.heads()) } else { (1, a.q.heads()) };
        let view = |role, tensor| view(role, tensor, packed.as_ref());
        let (q, o) = (view(Role::Q, &a.q), view(Role::O, &a.o));
        let of_keys = [(Role::K, &a.k), (Role::V, &a.v)];
        let (keys, maps): (Vec<Arg>, Vec<TensorView>) = match paged {
            true => (of_keys.map(|(role, pool)| pages::pool(role, pool)).to_vec(), Vec::new()),
            false => {
                let views = of_keys.map(|(role, tensor)| view(role, tensor));
                (views.iter().map(extents).collect(), views.to_vec())
            }
        };
        // Of all heads, or of those of the keys.
        let of_heads = |view: &TensorView| {
            let mut extents = view.extents.clone();
            extents[2] = heads;
            views::extents(&TensorView { extents, ..view.clone() })
        };
        let mut args: Vec<Arg> = [of_heads(&q)].into_iter().chain(keys).chain([of_heads(&o)]).collect();
        if a.outputs.stats {
            args.push(views::stats(&a.row_tensor(), packed.as_ref(), rows));
        }
        if let Some(lists) = &packed {
            args.extend(if paged { pages::lists(a, lists) } else { lists.all().to_vec() });
        }
        let [q, o] = [q, o].map(|view| if pack_gqa { views::heads_first(view) } else { view });
        args.extend([q].into_iter().chain(maps).chain([o]).map(Arg::Map));
        let scales = self.scales();
        args.extend(scales[..if a.score_mod.is_some() { 2 } else { 1 }].iter().copied().map(Arg::Float));
        args.extend(self.bounds());
        if a.sink {
            args.push(Arg::Tensor {
                at: LaunchValue::Address(Role::Sink),
                extents: vec![a.q.heads()],
                strides: Vec::new(),
            });
        }
        args.extend(lists);
        args.extend([Arg::Off, Arg::Off]);
        let blocks = Tiles { blocks: tiles(s_q * rows, tile_m), heads, batch: a.batch() };
        let row = (head_dim + head_dim_v) * a.q.dtype.size() as i64;
        let scheduled = if let Some(lists) = &packed {
            let (batch, shared_bytes) = (a.batch(), row * tile_n);
            let (rows, list, used) = (capacity(&a.q) * rows, lists.rows_q.clone(), lists.used_q.clone());
            PackedTiles { rows, tile: tile_m, heads, batch, shared_bytes, list, used }.scheduled()
        } else if common.causal {
            blocks.longest_first(s_kv.saturating_mul(row))
        } else {
            blocks.single()
        };
        args.extend(scheduled.args);
        args.extend(arguments(a));
        let (stats, sink, page) = (a.outputs.stats, a.sink, paged.then_some(pages::ANY));
        // Products of operands are not, and what a softcap gives is not either.
        let low = a.score_mod.as_ref().is_some_and(|e| e.program().lowest() <= LOW);
        let forward = Forward { common, pack_gqa, page, tile_m, tile_n, p_in_registers, stats, sink, low };
        self.launch(Kernel::Forward(forward), args, scheduled.grid, tiling.threads());
        self.finish(packed);
    }
}
