//! The attention of one part: a block of queries and keys of some heads, as a description of its own.

use crate::codes;
use qkvault_graph::expr::{Axis, Expr, Place, ScoreExpr, Side, TensorSpec, head, int_scalar, key, query, tensor};
use qkvault_graph::{
    Attention, BackwardOptions, DType, DropoutSource, Gradients, Lengths, Outputs, PaddedRows, Pass, Refusal, Role,
    ScoreModBprop, Storage, Tensor, Valid, validate,
};

use crate::tile::Tile;
use crate::{Counted, Slice, bands};

/// Names of the operands that parts add to expressions.
pub(crate) mod names {
    pub(crate) const FIRST_HEAD: &str = "part_first_head";
    pub(crate) const FIRST_QUERY: &str = "part_first_query";
    pub(crate) const FIRST_KEY: &str = "part_first_key";
    pub(crate) const RANK: &str = "part_rank";
    pub(crate) const FIRST_QUERIES: &str = "part_first_queries";
    pub(crate) const FIRST_KEYS: &str = "part_first_keys";
    pub(crate) const ALL_QUERIES: &str = "part_all_queries";
    pub(crate) const ALL_KEYS: &str = "part_all_keys";
}

/// The largest position that float32 counts to.
const EXACT: i64 = 1 << 24;

/// A part of an attention.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AttentionPart {
    /// Queries and keys, and the band among them.
    pub(crate) tile: Tile,
    /// First query head, and how many.
    pub(crate) heads: (i64, i64),
    /// Whether the sink counts in this part.
    pub(crate) sink: bool,
    /// Whether Stats are needed, because outputs are merged.
    pub(crate) stats: bool,
    /// Lengths of the part's sequences.
    pub(crate) slice: Option<Slice>,
    /// Whether all outputs are put together with those of other parts, by steps that are told which rows count: these
    /// write what the description promises of padding.
    pub(crate) joined: bool,
    /// Whether the first key differs between the parts of this schedule.
    pub(crate) keys_move: bool,
}

/// Strides of the memory that a part's operands lie in.
pub(crate) trait Strides {
    fn strides(&self, role: Role) -> [i64; 4];
}

impl<F: Fn(Role) -> [i64; 4]> Strides for F {
    fn strides(&self, role: Role) -> [i64; 4] {
        self(role)
    }
}

/// The description of a part.
pub(crate) fn attention(whole: &Attention, part: &AttentionPart, strides: &dyn Strides) -> Result<Valid, Refusal> {
    let Tile { block, band } = part.tile;
    let (rows, keys) = (block.rows.1 - block.rows.0, block.keys.1 - block.keys.0);
    let side = |role: Role, t: &Tensor, heads: i64, count: i64| match t.storage {
        Storage::Dense => Tensor { dims: [t.dims[0], heads, count, t.dims[3]], strides: strides.strides(role), ..*t },
        Storage::Varlen { .. } => Tensor {
            dims: [t.dims[0], heads, t.dims[2].min(count), t.dims[3]],
            strides: strides.strides(role),
            storage: Storage::Varlen { tokens: count },
            ..*t
        },
        Storage::Paged { .. } => Tensor { dims: [t.dims[0], heads, count, t.dims[3]], ..*t },
    };
    let of_queries = |role, t: &Tensor| side(role, t, part.heads.1, rows);
    let (h_k, h_v) = (kv_share(whole, part, whole.k.dims[1]), kv_share(whole, part, whole.v.dims[1]));
    let mut a = whole.as_forward();
    a.q = of_queries(Role::Q, &whole.q);
    a.o = of_queries(Role::O, &whole.o);
    a.k = side(Role::K, &whole.k, h_k, keys);
    a.v = side(Role::V, &whole.v, h_v, keys);
    a.mask.band = band;
    a.sink = part.sink;
    // A kernel of its own draws the part of the whole mask.
    for dropout in a.dropout.iter_mut().filter(|dropout| dropout.source == DropoutSource::Places) {
        dropout.source = DropoutSource::Mask;
    }
    if part.joined {
        a.padded_rows = PaddedRows::Undefined;
    }
    if !whole.is_backward() {
        let Outputs { stats, max, sum_exp, .. } = whole.outputs;
        a.outputs = Outputs::new(stats || part.stats, max, sum_exp);
    }
    a.mask.mask_mod = whole.mask.mask_mod.as_ref().map(|e| expression(whole, part, e, "mask.mask_mod")).transpose()?;
    if let Some(also) = bands::predicate(whole, part)? {
        a.mask.band = None;
        a.mask.mask_mod = Some(match a.mask.mask_mod.take() {
            None => also,
            Some(before) => bands::both(&before, &also)?,
        });
    }
    if matches!(part.slice, Some(Slice::Dealt { .. })) {
        a.mask.lengths = Lengths::PerSequence;
    }
    a.score_mod = whole.score_mod.as_ref().map(|e| expression(whole, part, e, "score_mod")).transpose()?;
    a.score_mod_bprop = whole
        .score_mod_bprop
        .as_ref()
        .map(|own| {
            Ok::<_, Refusal>(ScoreModBprop::trusted(expression(whole, part, &own.derivative, "score_mod_bprop")?))
        })
        .transpose()?;
    let Pass::Backward(Gradients { d_o, d_o_half: _, d_q, d_k, d_v, d_sink, deterministic }) = &whole.pass else {
        return validate(a);
    };
    validate(a.backward(BackwardOptions {
        d_o: Some(of_queries(Role::DO, d_o)),
        d_o_half: None,
        d_q: Some(of_queries(Role::DQ, d_q)),
        d_k: Some(side(Role::DK, d_k, h_k, keys)),
        d_v: Some(side(Role::DV, d_v, h_v, keys)),
        d_sink: *d_sink && part.sink,
        deterministic: *deterministic,
    }))
}

impl AttentionPart {
    /// The rows of a piece of this part that a merge or a sum is told of: all count without lengths.
    pub(crate) fn counted(&self, keys: bool, first: i64, rows: i64) -> Option<Counted> {
        let slice = self.slice.filter(|slice| *slice != Slice::Whole)?;
        // The band of dealt keys is a predicate over all of them.
        let band = self.tile.band.filter(|_| !matches!(slice, Slice::Dealt { .. }));
        Some(Counted { slice, band, keys, first, rows, sequences: None })
    }
}

/// The part of `heads` key or value heads that the query heads of a part use.
pub(crate) fn kv_range(whole: &Attention, part: &AttentionPart, heads: i64) -> (i64, i64) {
    let group = whole.q.dims[1] / heads;
    let first = part.heads.0 / group;
    let end = (part.heads.0 + part.heads.1 - 1) / group + 1;
    (first, end - first)
}

fn kv_share(whole: &Attention, part: &AttentionPart, heads: i64) -> i64 {
    kv_range(whole, part, heads).1
}

/// An expression of the whole, in the coordinates of a part.
fn expression(
    whole: &Attention,
    part: &AttentionPart,
    e: &ScoreExpr,
    field: &'static str,
) -> Result<ScoreExpr, Refusal> {
    let Tile { block, .. } = part.tile;
    let (s_q, s_kv) = whole.seq();
    if s_q.max(s_kv) > EXACT {
        return Err(codes::SHARD_INDEX.reason(format!("{s_q} queries and {s_kv} keys")).at(field).into());
    }
    let all_heads = part.heads.1 == whole.q.dims[1];
    let cut = part.slice != Some(Slice::Whole);
    let replaced = e.with_places(|place| match place {
        Place::Index(Axis::Batch) => None,
        Place::Index(Axis::Head) => (!all_heads).then(|| head() + int_scalar(names::FIRST_HEAD)),
        Place::Index(Axis::Query) => match part.slice {
            Some(Slice::Whole | Slice::Dealt { .. }) => None,
            Some(Slice::Packed { .. } | Slice::Pair { .. }) => Some(query() + by_sequence(whole, names::FIRST_QUERIES)),
            Some(Slice::Rows { .. }) | None => {
                let moves = block.rows != (0, s_q);
                moves.then(|| query() + int_scalar(names::FIRST_QUERY))
            }
        },
        Place::Index(Axis::Key) => match part.slice {
            Some(Slice::Dealt { ranks, run, .. }) => Some(bands::dealt_key(ranks, run)),
            Some(Slice::Pair { .. }) => part.keys_move.then(|| key() + by_sequence(whole, names::FIRST_KEYS)),
            _ => part.keys_move.then(|| key() + int_scalar(names::FIRST_KEY)),
        },
        Place::Length(side) => cut.then(|| length(whole, side)),
        Place::Tensor(name, spec) => Some(tensor(name, cut_tensor(whole, part, &spec))),
    });
    replaced.map_err(|e| not_written(field, &e.to_string()))
}

pub(crate) fn not_written(field: &'static str, what: &str) -> Refusal {
    codes::SHARD_EXPRESSION.reason(what).at(field).into()
}

/// The specification of a tensor of a part. The slopes of ALiBi become an ordinary tensor: they are those of the heads
/// of the part.
fn cut_tensor(whole: &Attention, part: &AttentionPart, spec: &TensorSpec) -> TensorSpec {
    let [_, heads, rows, keys] = scores(whole, part);
    let [b, h, q, k] = spec.dims;
    let sized = |whole: i64, size: i64| if whole == 1 { 1 } else { size };
    let dims = [b, sized(h, heads), sized(q, rows), sized(k, keys)];
    let mut cut = TensorSpec::new(spec.dtype, dims);
    cut.grad = spec.grad;
    cut
}

/// The extents of the scores of a part. Those of packed sequences stay: they belong to each sequence.
pub(crate) fn scores(whole: &Attention, part: &AttentionPart) -> [i64; 4] {
    let block = part.tile.block;
    let (rows, keys) = match whole.q.storage {
        Storage::Varlen { .. } => whole.seq(),
        Storage::Dense | Storage::Paged { .. } => (block.rows.1 - block.rows.0, block.keys.1 - block.keys.0),
    };
    [whole.batch(), part.heads.1, rows, keys]
}

pub(crate) fn by_sequence(whole: &Attention, name: &str) -> Expr {
    tensor(name, TensorSpec::new(DType::I32, [whole.batch(), 1, 1, 1]))
}

/// The length of a whole sequence.
pub(crate) fn length(whole: &Attention, side: Side) -> Expr {
    let (s_q, s_kv) = whole.seq();
    match (whole.mask.lengths, side) {
        (Lengths::Full, Side::Query) => Expr::from(s_q as i32),
        (Lengths::Full, Side::Key) => Expr::from(s_kv as i32),
        (Lengths::PerSequence, Side::Query) => by_sequence(whole, names::ALL_QUERIES),
        (Lengths::PerSequence, Side::Key) => by_sequence(whole, names::ALL_KEYS),
    }
}
