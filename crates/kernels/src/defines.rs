//! The part of a source that is written for one attention: its numbers, and its expressions as functions.

use std::fmt::Write as _;

use qkvault_graph::{Band, Corner, Lengths, PaddedRows};

use crate::expression::statements;
use crate::generate::{MERGE_THREADS, Shape, SourceWriter};
use crate::params::Params;
use crate::score;
use crate::takes::is_varlen;
use crate::tiling::{RAW_SLOTS, Tiling};

impl SourceWriter<'_> {
    /// The numbers that the source is written for. All others are parameters ([`SourceWriter::numbers`]).
    pub(crate) fn defines(&self) -> String {
        let (a, Shape { group, sizes, .. }) = (self.attention, self.shape);
        let Tiling {
            tile,
            warps_rows,
            warps_keys,
            warps_columns,
            stages,
            warpgroups,
            blocks_per_sm,
            merge_columns,
            row_blocks,
            least_tiles,
        } = self.tiling;
        let flag = i64::from;
        let lengths = flag(a.mask.lengths == Lengths::PerSequence);
        let mut list: Vec<(&str, i64)> = vec![
            ("HEAD_DIM", sizes.head_dim.into()),
            ("VALUE_DIM", sizes.value_dim.into()),
            ("GROUP", group),
            ("LENGTHS", lengths),
            ("ORIGINS", flag(a.origins.is_some())),
            ("INVARIANT", flag(sizes.invariant)),
            ("SPANS_SHARED", flag(self.tiling.span_bytes(sizes) > 0)),
            ("ZERO_PADDING", flag(a.padded_rows == PaddedRows::Zero)),
            ("PAGED", flag(a.k.is_paged())),
            ("PAGE", self.page()),
            ("PAGE_ROWS", self.part_rows()),
            ("GATHER", flag(self.gathers())),
            ("NARROW", flag(sizes.narrow)),
            ("SHORT_ROWS", flag(self.tiling.has_short_rows(sizes))),
            ("BF16", flag(self.half() == "bf16")),
            ("RAW_SLOTS", RAW_SLOTS.into()),
            ("RAW_AT", self.tiling.raw_at(sizes).into()),
            ("VARLEN_Q", flag(is_varlen(&a.q))),
            ("VARLEN_K", flag(is_varlen(&a.k))),
            ("VARLEN_O", flag(is_varlen(&a.o))),
            ("VARLEN_STATS", flag(is_varlen(&a.row_tensor()))),
            ("NATURAL", flag(a.score_mod.is_some())),
            ("PREDICATE", flag(a.mask.mask_mod.is_some())),
            ("DRAFT_TREE", flag(a.draft_tree)),
            ("STATS", flag(a.outputs.stats)),
            ("SINK", flag(a.sink)),
            ("TILE", tile.into()),
            ("ROWS", self.tiling.rows().into()),
            ("WARPS_ROWS", warps_rows.into()),
            ("WARPS_KEYS", warps_keys.into()),
            ("WARPS_COLUMNS", warps_columns.into()),
            ("MAY_SHARE", flag(self.may_share())),
            ("STAGES", stages.into()),
            ("WARPGROUPS", flag(warpgroups)),
            ("BLOCKS_PER_SM", blocks_per_sm.into()),
            ("MERGE_COLUMNS", merge_columns.clamp(1, sizes.value_dim).into()),
            ("MERGE_THREADS", MERGE_THREADS.into()),
            ("BLOCKS", self.tiling.blocks().into()),
            ("ROW_BLOCKS", row_blocks.into()),
            ("LEAST_TILES", least_tiles.into()),
            ("MOVE_REGISTERS", flag(self.tiling.moves_registers())),
            ("QUERIES_IN_REGISTERS", flag(self.tiling.queries_in_registers(sizes))),
            ("QUERY_BYTES", self.tiling.query_bytes(sizes).into()),
        ];
        let Band { corner, left, right } =
            a.mask.band.unwrap_or(Band { corner: Corner::TopLeft, left: None, right: None });
        list.push(("BOTTOM_RIGHT", flag(corner == Corner::BottomRight)));
        list.extend(left.map(|n| ("LEFT", n)));
        list.extend(right.map(|n| ("RIGHT", n)));
        let mut text = format!("#define HALF_TYPE \"{}\"\n", self.half());
        if sizes.narrow {
            let _ = writeln!(text, "#define NARROW_TYPE \"{}\"", a.k.dtype);
        }
        for (name, value) in list {
            let suffix = if i32::try_from(value).is_ok() { "" } else { "ll" };
            let _ = writeln!(text, "#define {name} {value}{suffix}");
        }
        text
    }

    /// Adds the numbers that are not in the source: counts, and steps of operands. One source serves every batch and
    /// every number of queries and keys that its tiles are for.
    pub(crate) fn numbers(&self, p: &mut Params) {
        let (a, Shape { batch, queries, keys, key_heads, sizes, .. }) = (self.attention, self.shape);
        for (name, count) in [
            ("batch", batch),
            ("most_queries", queries),
            ("most_keys", keys),
            ("key_heads", key_heads),
            ("pieces", self.pieces()),
            ("piece_rows", self.tiling.piece_rows(sizes).into()),
        ] {
            p.count(name, count);
        }
        let rows = a.row_tensor();
        for (names, tensor) in [
            (["q_batch", "q_head", "q_row"], &a.q),
            (["o_batch", "o_head", "o_row"], &a.o),
            (["stats_batch", "stats_head", "stats_row"], &rows),
        ] {
            names.into_iter().zip(tensor.strides).for_each(|(name, step)| p.step(name, step));
        }
        for (name, step) in
            [("k_row", a.k.strides[2]), ("v_row", a.v.strides[2]), ("table", a.k.pages_per_sequence().unwrap_or(0))]
        {
            p.step(name, step);
        }
        if self.gathers() && !sizes.narrow {
            for (names, tensor) in [(["k_page", "k_head"], &a.k), (["v_page", "v_head"], &a.v)] {
                names.into_iter().zip(tensor.strides).for_each(|(name, step)| p.step(name, step));
            }
        }
    }

    /// The functions that the expressions become: the score of a point, if there is one, and whether a key is seen.
    pub(crate) fn functions(&self) -> String {
        let a = self.attention;
        let origins = a.origins.is_some();
        let mut text = String::from(
            "\n// A score's place: the sequence, the query head, the query, the key, and the lengths of the sequence.\n\
             struct Point { int batch, head, query, key, queries, keys; };\n\n",
        );
        let (scalars, tensors) = a.score_mod.as_ref().map_or((0, 0), |e| (e.scalars().len(), e.tensors().len()));
        if let Some(e) = &a.score_mod {
            text.push_str(&score::functions(e.program(), origins, self.shape.sizes.invariant));
        }
        text.push_str("__device__ __forceinline__ bool visible(const Params& p, const Point& point) {\n");
        match &a.mask.mask_mod {
            None => text.push_str("  return true;\n"),
            Some(e) => {
                let (body, root) = statements(e.program(), scalars, tensors, "m", origins);
                let _ = writeln!(text, "{body}  return {root};");
            }
        }
        text.push_str("}\n\n");
        text
    }
}

#[cfg(test)]
mod tests;
