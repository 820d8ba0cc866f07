//! The backward's launches: sums over rows, the products, and gradients from their sums in f32.

use qkvault_graph::{Gradients, Pass, Role, Tensor};
use qkvault_kernels::recipe::LaunchValue;

use crate::args::{Arg, Float, LOG2_E};
use crate::expression::arguments;
use crate::packed::{Lists, PackedTiles, capacity, padded};
use crate::program::{ProgramWriter, dtype, tiles};
use crate::request::{Backward, BackwardTiling, Kernel, Postprocess, Preprocess};
use crate::schedule::Tiles;
use crate::tiles::{BACKWARD_GROUPS, GROUP_THREADS};
use crate::views::{self, extents, tensor, view};

/// Threads of a block of the kernel before the backward.
const PREPROCESS_THREADS: i64 = 256;

impl ProgramWriter<'_> {
    /// Three kernels, and two more if key heads have several query heads.
    pub(crate) fn backward(&mut self) {
        let (a, common) = (self.attention, self.common());
        let Pass::Backward(Gradients { d_o, d_q, d_k, d_v, d_sink, deterministic, .. }) = a.pass else { return };
        let (head_dim, head_dim_v) = a.head_dims();
        let ((s_q, s_kv), (heads, key_heads, _), batch) = (a.seq(), a.heads(), a.batch());
        let local = self.window.local();
        let tiling = BackwardTiling::for_dims(head_dim, head_dim_v, common.causal, local, common.mask_mod.is_some());
        let BackwardTiling { tile_m, tile_n, .. } = tiling;
        // First of all: each kernel behind it waits for the one before, so the last one sees them.
        let lists = self.lists(tile_m, tile_n, true);
        let (round, grouped) = (tiling.round(), common.group > 1);
        let (columns, columns_v) = (up(head_dim, round), up(head_dim_v, round));
        let sequences = self.sequences();
        let packed = sequences.as_ref();
        let (rows_q, rows_k) = match packed {
            Some(_) => (padded(capacity(&a.q), batch, tile_m), padded(capacity(&a.k), batch, tile_n)),
            None => (up(s_q, tile_m), up(s_kv, tile_n)),
        };

        let gradients = if grouped {
            let sums = [columns, columns_v].map(|columns| self.zeros_of(packed, key_heads, rows_k * columns));
            Some(sums)
        } else {
            None
        };
        let mut counters = Vec::new();
        if deterministic {
            counters.push(self.counters(batch, heads, rows_q / tile_m, 1));
        }
        if deterministic && grouped {
            counters.extend((0..2).map(|_| self.counters(batch, key_heads, rows_k / tile_n, 2)));
        }
        let d_q_sums = self.rows_of(packed, heads, rows_q * columns);
        let row_sums = self.rows_of(packed, heads, rows_q);
        let lse = self.rows_of(packed, heads, rows_q);

        let scheduled = match packed {
            Some(Lists { rows_q, used_q, .. }) => {
                let (list, used, rows) = (rows_q.clone(), used_q.clone(), capacity(&a.o));
                let shared_bytes = head_dim_v * a.q.dtype.size() as i64;
                PackedTiles { rows, tile: tile_m, heads, batch, shared_bytes, list, used }.scheduled()
            }
            None => Tiles { blocks: tiles(s_q, tile_m), heads, batch }.single(),
        };
        let stats = views::stats(&a.row_tensor(), packed, 1);
        let mut args = vec![tensor(Role::O, &a.o, packed), tensor(Role::DO, &d_o, packed), row_sums.clone()];
        args.extend([stats.clone(), lse.clone(), d_q_sums.clone()]);
        args.extend(packed.iter().flat_map(|lists| [lists.rows_q.clone(), lists.used_q.clone()]));
        args.push(Arg::Float(Float::Constant(LOG2_E)));
        args.extend(scheduled.args);
        let preprocess = Preprocess { common: common.unmodified(), tile_m, round };
        self.launch(Kernel::Preprocess(preprocess), args, scheduled.grid, PREPROCESS_THREADS);

        let view = |role, tensor| view(role, tensor, packed);
        let mut views = vec![view(Role::Q, &a.q), view(Role::K, &a.k), view(Role::V, &a.v), view(Role::DO, &d_o)];
        if !grouped {
            views.extend([view(Role::DK, &d_k), view(Role::DV, &d_v)]);
        }
        let mut args: Vec<Arg> = views.iter().map(extents).collect();
        args.extend(gradients.iter().flatten().cloned());
        args.extend(views.into_iter().map(Arg::Map));
        args.extend([lse, row_sums.clone(), d_q_sums.clone()]);
        args.extend(packed.iter().flat_map(|lists| lists.all()));
        args.extend([Arg::Off, Arg::Off, Arg::Off, Arg::Off]);
        args.extend(self.scales().map(Arg::Float));
        let blocks = Tiles { blocks: tiles(s_kv, tile_n), heads, batch };
        let row = (head_dim + head_dim_v) * a.q.dtype.size() as i64;
        let scheduled = if let Some(Lists { rows_k, used_k, .. }) = packed {
            let (list, used, rows) = (rows_k.clone(), used_k.clone(), capacity(&a.k));
            PackedTiles { rows, tile: tile_n, heads, batch, shared_bytes: row * tile_m, list, used }.scheduled()
        } else if deterministic {
            blocks.ordered(s_q.saturating_mul(row + head_dim * 4))
        } else {
            blocks.single()
        };
        args.extend(scheduled.args);
        args.extend(arguments(a));
        args.extend(lists);
        if grouped {
            args.push(Arg::Divisor(common.group));
        }
        args.extend(counters);
        args.extend(self.bounds());
        let threads = tiling.threads();
        let backward = Backward { common, deterministic, tiling, threads };
        self.launch(Kernel::Backward(backward), args, scheduled.grid, threads);

        let groups = if tiling.dq_one_group { 1 } else { BACKWARD_GROUPS };
        let of_queries =
            Sums { tile: tile_m, threads: groups * GROUP_THREADS, atoms: tiling.atoms_dq, swap: tiling.swap_dq, round };
        let per_head = |role| Arg::Tensor { at: LaunchValue::Address(role), extents: vec![heads], strides: Vec::new() };
        let sink = [outermost_first(row_sums), outermost_first(stats), per_head(Role::Sink), per_head(Role::DSink)];
        let sink = if d_sink { sink.to_vec() } else { Vec::new() };
        let of =
            |keys: bool| packed.map(|all| if keys { (&all.rows_k, &all.used_k) } else { (&all.rows_q, &all.used_q) });
        self.postprocess((Role::DQ, &d_q), d_q_sums, of(false), sink, of_queries, Float::Scale(1.0));
        if let Some([d_k_sums, d_v_sums]) = gradients {
            let threads = BACKWARD_GROUPS * GROUP_THREADS;
            let of_keys = Sums { tile: tile_n, threads, atoms: tiling.atoms_dkv, swap: tiling.swap_dkv, round };
            self.postprocess((Role::DK, &d_k), d_k_sums, of(true), Vec::new(), of_keys, Float::Scale(1.0));
            self.postprocess((Role::DV, &d_v), d_v_sums, of(true), Vec::new(), of_keys, Float::Constant(1.0));
        }
        self.finish(sequences);
    }

    /// A gradient from its sums, times a number; and with what they need, those of the sinks.
    fn postprocess(
        &mut self,
        (role, gradient): (Role, &Tensor),
        sums: Arg,
        packed: Option<(&Arg, &Arg)>,
        sink: Vec<Arg>,
        of: Sums,
        by: Float,
    ) {
        let Sums { tile, threads, atoms, swap, round } = of;
        let [batch, heads, rows, head_dim] = gradient.dims;
        // This kernel takes its tensors as the front end has them: batch, heads, sequence, head dim.
        let ([b, h, s, _], at) = (gradient.strides, LaunchValue::Address(role));
        let (whole, scheduled) = match packed {
            None => (
                Arg::Tensor { at, extents: vec![batch, rows, heads, head_dim], strides: vec![b, s, h] },
                Tiles { blocks: tiles(rows, tile), heads, batch }.single(),
            ),
            Some((list, used)) => {
                let (list, used, rows) = (list.clone(), used.clone(), capacity(gradient));
                let shared_bytes = head_dim * gradient.dtype.size() as i64;
                (
                    Arg::Tensor { at, extents: vec![rows, heads, head_dim], strides: vec![s, h] },
                    PackedTiles { rows, tile, heads, batch, shared_bytes, list, used }.scheduled(),
                )
            }
        };
        let with_sink = !sink.is_empty();
        let mut args = vec![outermost_first(sums), whole];
        args.extend(packed.iter().flat_map(|(list, used)| [Arg::clone(list), Arg::clone(used)]));
        args.extend(sink);
        args.extend([Arg::Float(by), Arg::Off]);
        args.extend(scheduled.args);
        let dtype = dtype(gradient.dtype);
        let (packed, used, sink) = (packed.is_some(), packed.is_some(), with_sink);
        let kernel = Postprocess { dtype, head_dim, tile_m: tile, threads, atoms, swap, round, packed, used, sink };
        self.launch(Kernel::Postprocess(kernel), args, scheduled.grid, threads);
    }
}

/// How sums of a gradient lie in the scratch memory.
#[derive(Clone, Copy, Debug)]
struct Sums {
    tile: i64,
    threads: i64,
    atoms: i64,
    swap: bool,
    round: i64,
}

/// The same tensor with its axes from the outermost to the fastest.
fn outermost_first(arg: Arg) -> Arg {
    match arg {
        Arg::Tensor { at, mut extents, mut strides } => {
            extents.reverse();
            strides.reverse();
            Arg::Tensor { at, extents, strides }
        }
        other => other,
    }
}

/// The next multiple.
fn up(n: i64, of: i64) -> i64 {
    tiles(n, of) * of
}
