//! The forward's launch.

use qkvault_graph::Role;
use qkvault_kernels::recipe::Value;

use crate::args::Arg;
use crate::expression::arguments;
use crate::packed::{Lists, PackedTiles, capacity};
use crate::program::{Writer, tiles};
use crate::request::{Forward, Kernel};
use crate::schedule::Tiles;
use crate::tiles::ForwardTiling;
use crate::views::{extents, row_numbers, view};

impl Writer<'_> {
    /// One kernel.
    pub(crate) fn forward(&mut self) {
        let (a, common) = (self.attention, self.common());
        let (head_dim, head_dim_v) = a.head_dims();
        let (s_q, s_kv) = a.seq();
        let local = self.window.local();
        let tiling = ForwardTiling::of(head_dim, head_dim_v, common.causal, local, common.mask_mod.is_some());
        let ForwardTiling { tile_m, tile_n, p_in_registers } = tiling;
        let lists = self.lists(tile_m, tile_n, false);
        let packed = self.sequences();
        let view = |role, tensor| view(role, tensor, packed.as_ref());
        let views = [view(Role::Q, &a.q), view(Role::K, &a.k), view(Role::V, &a.v), view(Role::O, &a.o)];
        let mut args: Vec<Arg> = views.iter().map(extents).collect();
        if a.outputs.stats {
            args.push(row_numbers(Role::Stats, &a.row_tensor(), packed.as_ref()));
        }
        args.extend(packed.iter().flat_map(Lists::all));
        args.extend(views.map(Arg::Map));
        let scales = self.scales();
        args.extend(scales[..if a.score_mod.is_some() { 2 } else { 1 }].iter().copied().map(Arg::Float));
        args.extend(self.bounds());
        if a.sink {
            args.push(Arg::Tensor { at: Value::Address(Role::Sink), extents: vec![a.q.heads()], strides: Vec::new() });
        }
        args.extend(lists);
        args.extend([Arg::Off, Arg::Off]);
        let blocks = Tiles { blocks: tiles(s_q, tile_m), heads: a.q.heads(), batch: a.batch() };
        let row = (head_dim + head_dim_v) * a.q.dtype.size() as i64;
        let scheduled = if let Some(Lists { rows_q, used_q, .. }) = packed {
            let (heads, batch, shared_bytes) = (a.q.heads(), a.batch(), row * tile_n);
            let rows = capacity(&a.q);
            PackedTiles { rows, tile: tile_m, heads, batch, shared_bytes, list: rows_q, used: used_q }.scheduled()
        } else if common.causal {
            blocks.longest_first(s_kv.saturating_mul(row))
        } else {
            blocks.single()
        };
        args.extend(scheduled.args);
        args.extend(arguments(a));
        let (stats, sink, page) = (a.outputs.stats, a.sink, None);
        let forward = Forward { common, pack_gqa: false, page, tile_m, tile_n, p_in_registers, stats, sink };
        self.launch(Kernel::Forward(forward), args, scheduled.grid, tiling.threads());
    }
}
