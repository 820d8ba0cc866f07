//! What stands in rows that belong to no sequence, where a description asks for zeros there, and Stats of dense
//! queries, for attention kernels that write rows of sequences alone and have the Stats of a row's heads together.

use std::fmt::Write as _;

use qkvault_graph::{PaddedRows, Role, Tensor, Valid};

use super::{ScratchRoom, SequenceRows, is_varlen, name, sequence_rows};
use crate::params::Params;
use crate::recipe::LaunchValue;

const ROWS: &str = include_str!("../cuda/rows.cu");
const STATS: &str = include_str!("../cuda/stats.cu");

/// Blocks of a kernel that walks over rows: two for each multiprocessor of the largest GPU of the architecture.
const BLOCKS: u32 = 264;

/// A kernel by name, and how many blocks it has.
type Named = (&'static str, u32);

/// The kernels that an attention needs beside the lists; mostly none.
#[derive(Default)]
pub(super) struct More {
    /// Their source.
    pub(super) source: String,
    /// Before everything else: rows of no sequence.
    pub(super) fills: Option<Named>,
    /// Behind the lists: Stats that a backward reads.
    pub(super) gather: Option<Named>,
    /// At the end: Stats that a forward wrote.
    pub(super) spread: Option<Named>,
    /// Where Stats lie in the scratch memory.
    pub(super) stats: Option<u64>,
}

impl More {
    /// Those of an attention; what they read and write goes into `params`.
    pub(super) fn for_attention(
        a: &Valid,
        queries: &[SequenceRows],
        keys: &[SequenceRows],
        params: &mut Params,
        room: &mut ScratchRoom,
    ) -> More {
        let mut more = More::default();
        let stats = a.row_tensor();
        let reads = a.outputs.stats || a.is_backward();
        if reads && !is_varlen(&stats) {
            let count = [a.batch(), a.seq().0, a.q.heads()].map(i64::unsigned_abs).into_iter().product();
            let at = room.take(count);
            params.pointer("float", "stats_rows", LaunchValue::Scratch(at));
            params.pointer("float", "dense_stats", LaunchValue::Address(Role::Stats));
            more.stats = Some(at);
            let [batch_step, head_step, row_step, _] = stats.strides;
            for (name, value) in [
                ("STATS_HEADS", a.q.heads()),
                ("STATS_BATCH_STEP", batch_step),
                ("STATS_HEAD_STEP", head_step),
                ("STATS_ROW_STEP", row_step),
            ] {
                let _ = writeln!(more.source, "#define {name} {value}ll");
            }
            more.source.push_str(STATS);
            if a.is_backward() {
                more.gather = Some(("gather_stats", BLOCKS));
            } else {
                more.spread = Some(("spread_stats", BLOCKS));
            }
        }
        if a.padded_rows == PaddedRows::Zero {
            let written = |side: &[SequenceRows]| side.iter().filter(|rows| rows.written).copied().collect::<Vec<_>>();
            let lists = [("p.len_q", written(queries)), ("p.len_k", written(keys))];
            let of_rows = a.outputs.stats && !a.is_backward() && is_varlen(&stats);
            if of_rows {
                params.pointer("float", "stats_of_rows", LaunchValue::Address(Role::Stats));
            }
            more.source.push_str(ROWS);
            more.source.push_str("\nextern \"C\" __global__ void __launch_bounds__(THREADS) fill_rows(");
            more.source.push_str("const __grid_constant__ Params p) {\n");
            for (lengths, rows) in lists.iter().flat_map(|(lengths, side)| side.iter().map(move |rows| (lengths, rows)))
            {
                let _ = writeln!(more.source, "  {}", fill(rows.role, &rows.tensor, lengths));
            }
            if of_rows {
                let (rows, step) = (sequence_rows(&stats).unwrap_or(0), stats.strides[2]);
                let _ = writeln!(more.source, "  fill_stats(p.stats_of_rows, {rows}, {step}, {});", stats.heads());
            }
            more.source.push_str("}\n");
            more.fills = Some(("fill_rows", BLOCKS));
        }
        more
    }
}

/// The call that fills an operand: its padded rows, or if rows between sequences may be anywhere, all of them.
fn fill(role: Role, tensor: &Tensor, lengths: &str) -> String {
    /// Elements of a word.
    const WORD: i64 = 4;
    let ([batch, heads, rows, columns], [batch_step, head_step, row_step, _]) = (tensor.dims, tensor.strides);
    let (lengths, batch, rows) =
        if is_varlen(tensor) { ("nullptr", 1, sequence_rows(tensor).unwrap_or(0)) } else { (lengths, batch, rows) };
    let steps = [batch_step, row_step, head_step].map(|step| step / WORD);
    format!(
        "fill((u64*)p.{}, {lengths}, {batch}, {rows}, {}ll, {}ll, {heads}, {}ll, {});",
        name(role),
        steps[0],
        steps[1],
        steps[2],
        columns / WORD,
    )
}
