//! What all schemes share: the caller's buffers, and a launch with everything that it binds.

use qkvault_graph::ALIGNMENT;
use qkvault_graph::{
    Attention, Dropout, DropoutSource, Pass, Refusal, Role, Storage, Tensor, Valid, Varlen, operand, operands,
};

use crate::maker::{Maker, all, flat, in_order, like};
use crate::part::{self, AttentionPart, names};
use crate::step::{Bind, BufferBox, PerSequence, RankStep, Stream};
use crate::tile::Tile;
use crate::{Scheme, Sharding, Slice};

/// A schedule under construction.
pub(crate) struct ScheduleWork<'a> {
    pub(crate) valid: &'a Valid,
    pub(crate) sharding: Sharding,
    pub(crate) plans: Vec<Valid>,
}

/// Where a part begins in the rank's own tensors of the scores.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Local {
    pub(crate) head: i64,
    pub(crate) row: i64,
    pub(crate) key: i64,
}

impl ScheduleWork<'_> {
    pub(crate) fn whole(&self) -> &Attention {
        self.valid.get()
    }

    /// The tokens of queries and of keys, in one sequence or in the buffer of all packed ones.
    pub(crate) fn tokens(&self) -> (i64, i64) {
        (flat(&self.whole().q).dims[2], flat(&self.whole().k).dims[2])
    }

    /// The tokens of a rank as pairs: the first, and one past the last.
    pub(crate) fn runs(&self, rank: u32, length: i64) -> Vec<(i64, i64)> {
        self.sharding.tokens(rank, length).into_iter().map(|run| (run.start, run.end)).collect()
    }

    pub(crate) fn is_packed(&self) -> bool {
        matches!(self.whole().q.storage, Storage::Varlen { .. })
    }

    /// The operand of a role as it lies in memory.
    pub(crate) fn tensor(&self, role: Role) -> Option<Tensor> {
        operand(self.whole(), role).map(|o| flat(&o.tensor))
    }

    /// The number of a plan, which is added if it is new.
    fn plan(&mut self, valid: Valid) -> u32 {
        let found = self.plans.iter().position(|p| *p == valid);
        found.unwrap_or_else(|| {
            self.plans.push(valid);
            self.plans.len() - 1
        }) as u32
    }

    /// Queues a launch of a part, with copies to and from dense memory where a plan takes nothing else: Stats, tensors
    /// of the scores and dropout masks.
    pub(crate) fn launch(
        &mut self,
        m: &mut Maker,
        part: &AttentionPart,
        pieces: &[(Role, BufferBox)],
        local: Local,
    ) -> Result<(), Refusal> {
        let given = |role: Role| pieces.iter().find(|(of, _)| *of == role).map(|(_, piece)| *piece);
        let strides = |role: Role| given(role).map_or([1; 4], |piece| m.tensor(piece).strides);
        let valid = part::attention(self.whole(), part, &strides)?;
        let mut binds = Vec::new();
        let mut after = Vec::new();
        for operand in operands(&valid) {
            let (role, tensor) = (operand.role, operand.tensor);
            let bind = match role {
                Role::Scale => Bind::Given(role),
                Role::Scalar(_) => self.number(&valid, part, m.rank, role),
                Role::SeqLenQ => Bind::Sequences(PerSequence::Queries),
                Role::SeqLenKv => Bind::Sequences(PerSequence::Keys),
                Role::Offsets(of) => Bind::Sequences(offsets(&valid, of)),
                Role::Sink => match m.piece(role) {
                    Some(sink) => {
                        let heads = sink.heads(part.heads.0, part.heads.1);
                        Bind::Piece(dense(m, heads, &tensor, role, operand.output, &mut after))
                    }
                    None => continue,
                },
                _ => match self.by_sequence(&valid, role) {
                    Some(number) => Bind::Sequences(number),
                    None if role == Role::DropoutMask && m.piece(role).is_none() => {
                        Bind::Piece(self.keep(m, &tensor, part))
                    }
                    None => {
                        let Some(piece) = given(role).or_else(|| self.of_scores(m, &valid, part, role, local)) else {
                            continue;
                        };
                        Bind::Piece(dense(m, piece, &tensor, role, operand.output, &mut after))
                    }
                },
            };
            binds.push((role, bind));
        }
        let plan = self.plan(valid);
        m.launch(plan, binds, part.slice);
        for (from, to) in after {
            m.copy(m.launches, from, to);
        }
        Ok(())
    }

    /// Draws the part's own part of the dropout mask, into memory that launches share.
    fn keep(&self, m: &mut Maker, mask: &Tensor, part: &AttentionPart) -> BufferBox {
        let name = "dropout mask of a launch";
        let known = m.made.buffers.iter().position(|b| b.name == name && b.tensor == *mask);
        let into = match known {
            Some(at) => all(at as u32, mask),
            None => m.scratch(name, *mask),
        };
        let whole = self.whole();
        let dropout = whole.dropout.unwrap_or(Dropout::new(DropoutSource::Places, 0.0));
        let (Some(seed), Some(offset)) = (m.piece(Role::DropoutSeed), m.piece(Role::DropoutOffset)) else {
            return into;
        };
        let block = part.tile.block;
        let first = [part.heads.0, block.rows.0, block.keys.0];
        let (heads, below) = (whole.q.dims[1] as u32, dropout.threshold());
        m.push(RankStep::Keep { into, seed, offset, first, heads, below });
        into
    }

    /// What a scalar of a part is bound to.
    fn number(&self, valid: &Valid, part: &AttentionPart, rank: u32, role: Role) -> Bind {
        let Some(scalar) = valid.scalars().find(|s| s.role == role) else { return Bind::Given(role) };
        let block = part.tile.block;
        match scalar.name {
            names::FIRST_HEAD => Bind::Int(part.heads.0 as i32),
            names::FIRST_QUERY => Bind::Int(block.rows.0 as i32),
            names::FIRST_KEY => Bind::Int(block.keys.0 as i32),
            names::RANK => Bind::Int(rank as i32),
            name => {
                let of_whole = self.valid.scalars().find(|s| s.name == name && s.read_by == scalar.read_by);
                Bind::Given(of_whole.map_or(role, |s| s.role))
            }
        }
    }

    /// The number for each sequence that a tensor of a part holds.
    fn by_sequence(&self, valid: &Valid, role: Role) -> Option<PerSequence> {
        match valid.score_tensors().find(|t| t.role == role)?.name {
            names::FIRST_QUERIES => Some(PerSequence::FirstQuery),
            names::FIRST_KEYS => Some(PerSequence::FirstKey),
            names::ALL_QUERIES => Some(PerSequence::AllQueries),
            names::ALL_KEYS => Some(PerSequence::AllKeys),
            _ => None,
        }
    }

    /// The piece of the rank's own tensor of the scores, or of its gradient or dropout mask.
    fn of_scores(&self, m: &Maker, valid: &Valid, part: &AttentionPart, role: Role, local: Local) -> Option<BufferBox> {
        let of_whole = match role {
            Role::ScoreTensor(_) | Role::DScoreTensor(_) => {
                let tensor = valid.score_tensors().find(|t| t.role == role || t.gradient == Some(role))?;
                let whole = self.valid.score_tensors();
                let whole = whole.into_iter().find(|t| t.name == tensor.name && t.read_by == tensor.read_by)?;
                if role == tensor.role { whole.role } else { whole.gradient? }
            }
            _ => role,
        };
        let buffer = m.piece(of_whole)?;
        if !matches!(role, Role::ScoreTensor(_) | Role::DScoreTensor(_) | Role::DropoutMask) {
            return Some(buffer);
        }
        let [_, heads, rows, keys] = part::scores(self.whole(), part);
        let dims = self.tensor(of_whole)?.dims;
        let mut piece = buffer;
        let cuts = [(1, local.head, heads), (2, local.row, rows), (3, local.key, keys)];
        for (dim, start, size) in cuts {
            if dims[dim] != 1 {
                piece.start[dim] = start;
                piece.dims[dim] = size;
            }
        }
        Some(piece)
    }

    /// The caller's buffers that every rank has whole: numbers by head, and tensors of the scores that do not depend on
    /// the position of a query or a key. `rows` and `heads` are the parts of the others that this rank has; keys are
    /// whole.
    pub(crate) fn score_buffers(&self, m: &mut Maker, rows: &[(i64, i64)], heads: (i64, i64)) {
        for o in operands(self.whole()) {
            match o.role {
                Role::Sink | Role::DSink | Role::DropoutSeed | Role::DropoutOffset => {
                    m.operand(o.role, o.tensor, &[([0; 4], [0; 4], o.tensor.dims)]);
                }
                Role::ScoreTensor(_) | Role::DScoreTensor(_) | Role::DropoutMask => {
                    let [b, h, q, k] = o.tensor.dims;
                    let rows: Vec<_> = if q == 1 { vec![(0, 1)] } else { rows.to_vec() };
                    let heads = if h == 1 { (0, 1) } else { heads };
                    let count = rows.iter().map(|(first, end)| end - first).sum();
                    let mut parts = Vec::new();
                    let mut at = 0;
                    for (first, end) in rows {
                        parts.push(([0, heads.0, first, 0], [0, 0, at, 0], [b, heads.1, end - first, k]));
                        at += end - first;
                    }
                    m.operand(o.role, in_order([b, heads.1, count, k], o.tensor.dtype), &parts);
                }
                _ => {}
            }
        }
    }

    /// The caller's buffer of an operand by tokens, of which a rank has some runs.
    pub(crate) fn token_buffer(&self, m: &mut Maker, role: Role) -> Option<BufferBox> {
        let t = self.tensor(role)?;
        let [b, h, length, d] = t.dims;
        let mut parts = Vec::new();
        let mut at = 0;
        for (first, end) in self.runs(m.rank, length) {
            parts.push(([0, 0, first, 0], [0, 0, at, 0], [b, h, end - first, d]));
            at += end - first;
        }
        Some(m.operand(role, like(&t, [b, h, at, d]), &parts))
    }

    /// Whether this is a backward.
    pub(crate) fn is_backward(&self) -> bool {
        matches!(self.whole().pass, Pass::Backward(_))
    }

    /// How the lengths of a part follow from those of the whole.
    pub(crate) fn slice(&self, tile: &Tile) -> Option<Slice> {
        let block = tile.block;
        let to_diagonal = tile.band.is_some_and(|b| b.corner == qkvault_graph::Corner::BottomRight);
        match self.whole().mask.lengths {
            qkvault_graph::Lengths::Full => None,
            qkvault_graph::Lengths::PerSequence if self.is_packed() && self.sharding.scheme == Scheme::Ring => {
                let square = self.whole().mask.band.is_some();
                Some(Slice::Pair { queries: block.rows, keys: block.keys, square })
            }
            qkvault_graph::Lengths::PerSequence if self.is_packed() => {
                Some(Slice::Packed { tokens: block.rows, to_diagonal })
            }
            qkvault_graph::Lengths::PerSequence => {
                Some(Slice::Rows { queries: block.rows, keys: block.keys, to_diagonal })
            }
        }
    }
}

/// Memory with the strides and the alignment that a plan takes: the piece itself, or a copy of it.
fn dense(
    m: &mut Maker,
    piece: BufferBox,
    tensor: &Tensor,
    role: Role,
    output: bool,
    after: &mut Vec<(BufferBox, BufferBox)>,
) -> BufferBox {
    let (wanted, has) = (flat(tensor), m.tensor(piece));
    let same = (0..4).all(|d| piece.dims[d] <= 1 || wanted.strides[d] == has.strides[d]);
    let begin = piece.offset(&has) * has.dtype.size() as i64;
    let aligned = begin % ALIGNMENT as i64 == 0;
    if same && aligned || matches!(tensor.storage, Storage::Paged { .. }) {
        return piece;
    }
    let wanted = Tensor { dims: piece.dims, ..wanted };
    let name = format!("{role} of a launch{}", if m.launches == Stream::Beside { " beside" } else { "" });
    let known = m.made.buffers.iter().position(|b| b.name == name && b.tensor == wanted);
    let copy = match known {
        Some(at) => all(at as u32, &wanted),
        None => m.scratch(name, wanted),
    };
    if output {
        after.push((copy, piece));
    } else {
        m.copy(m.launches, piece, copy);
    }
    copy
}

/// The offsets of an operand, in its elements.
fn offsets(valid: &Valid, of: Varlen) -> PerSequence {
    let a = valid.get();
    let of_keys = matches!(of, Varlen::K | Varlen::V | Varlen::DK | Varlen::DV);
    let tensor = operands(a).into_iter().find(|o| o.offsets() == Some(of)).map_or(a.q, |o| o.tensor);
    let row = tensor.strides[2];
    if of_keys { PerSequence::KeyOffsets(row) } else { PerSequence::QueryOffsets(row) }
}
