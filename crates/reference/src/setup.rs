//! An attention with its operands, checked and ready for computation row by row; forward and backward share it.

use std::ops::Range;

use qkvault_graph::{Attention, Band, Corner, DType, DropoutSource, MAX_ORIGIN, Operand, Role, TILE, Varlen, operand};

use crate::fp8::Factors;
use crate::score::{BoundScore, LANES, Registers, RowAt};
use crate::view::SeqLens;
use crate::{Buffer, Inputs, Places, Real, ReferenceError, View};

/// The memory of an operand, and the addresses of its rows.
pub(crate) struct SetupSource<'a> {
    pub(crate) buffer: &'a Buffer,
    pub(crate) view: View,
}

impl<'a> SetupSource<'a> {
    pub(crate) fn for_role(
        a: &Attention,
        role: Role,
        inputs: &'a Inputs,
        lens: &SeqLens,
    ) -> Result<Self, ReferenceError> {
        let operand = operand(a, role).ok_or(ReferenceError::Missing { role })?;
        Ok(SetupSource { buffer: inputs.checked(&operand)?, view: View::for_operand(&operand, inputs, lens)? })
    }

    /// These rows of one head, one after another.
    pub(crate) fn rows<T: Real>(&self, b: usize, h: usize, rows: impl ExactSizeIterator<Item = usize>) -> Vec<T> {
        let d = self.view.dims[3];
        let mut out = vec![T::ZERO; rows.len() * d];
        for (s, row) in rows.zip(out.chunks_exact_mut(d)) {
            self.buffer.read(self.view.row(b, h, s), row);
        }
        out
    }
}

/// A dropout mask, and the factor for the elements it keeps.
pub(crate) struct Dropped<'a> {
    kept: KeptBuffer<'a>,
    survivors: f64,
}

/// Which probabilities dropout keeps.
enum KeptBuffer<'a> {
    Mask(&'a Buffer),
    Drawn(Places),
}

/// An attention with its operands.
pub(crate) struct Setup<'a> {
    pub(crate) a: &'a Attention,
    pub(crate) lens: SeqLens,
    pub(crate) q: SetupSource<'a>,
    pub(crate) k: SetupSource<'a>,
    pub(crate) v: SetupSource<'a>,
    /// The softmax scale, without the factors of 8-bit formats.
    pub(crate) scale: f64,
    pub(crate) score: Option<BoundScore<'a>>,
    /// The author's derivative of the score modification, if the attention has one.
    pub(crate) own_derivative: Option<BoundScore<'a>>,
    keep: Option<BoundScore<'a>>,
    blocks: Option<&'a Buffer>,
    /// The bits of a tree of drafts, and the row of each sequence's first query.
    drafts: Option<(&'a Buffer, Vec<usize>)>,
    dropped: Option<Dropped<'a>>,
    sink: Option<&'a Buffer>,
    pub(crate) factors: Factors<'a>,
    /// Positions of the first query and the first key.
    origins: [usize; 2],
}

impl<'a> Setup<'a> {
    pub(crate) fn new(a: &'a Attention, inputs: &'a Inputs) -> Result<Setup<'a>, ReferenceError> {
        let lens = SeqLens::for_attention(a, inputs)?;
        let source = |role| SetupSource::for_role(a, role, inputs, &lens);
        let given = |role| operand(a, role).map(|operand| inputs.checked(&operand)).transpose();
        let (scalars, tensors) =
            a.score_mod.as_ref().map_or((0, 0), |e| (e.scalars().len() as u16, e.tensors().len() as u16));
        let bind = |e: Option<&'a qkvault_graph::ScoreExpr>, scalar, tensor| {
            e.map(|e| BoundScore::new(e.program(), scalar, tensor, inputs)).transpose()
        };
        Ok(Setup {
            scale: inputs
                .checked(&operand(a, Role::Scale).ok_or(ReferenceError::Missing { role: Role::Scale })?)?
                .get(0),
            q: source(Role::Q)?,
            k: source(Role::K)?,
            v: source(Role::V)?,
            score: bind(a.score_mod.as_ref(), 0, 0)?,
            own_derivative: match (&a.score_mod, &a.score_mod_bprop) {
                (Some(of), Some(own)) => Some(BoundScore::by_name(own.derivative.program(), of.program(), inputs)?),
                _ => None,
            },
            keep: bind(a.mask.mask_mod.as_ref(), scalars, tensors)?,
            blocks: given(Role::BlockMask)?,
            drafts: given(Role::DraftTree)?.map(|bits| Ok((bits, first_rows(a, inputs)?))).transpose()?,
            dropped: dropped(a, inputs)?,
            sink: given(Role::Sink)?,
            factors: Factors::new(a, inputs)?,
            origins: origins(a, inputs)?,
            lens,
            a,
        })
    }

    /// The key head and the value head that a query head uses.
    pub(crate) fn shared_heads(&self, h: usize) -> (usize, usize) {
        let (h_q, h_k, h_v) = self.a.heads();
        (h / (h_q / h_k) as usize, h / (h_q / h_v) as usize)
    }

    /// The sink logit of a head.
    pub(crate) fn sink<T: Real>(&self, h: usize) -> Option<T> {
        self.sink.map(|buffer| T::from_f64(buffer.get(h)))
    }

    /// The position of a row among the scores.
    pub(crate) fn at(&self, b: usize, h: usize, query: usize) -> RowAt {
        RowAt { batch: b, head: h, query, lens: [self.lens.q[b], self.lens.kv[b]], origins: self.origins }
    }

    /// The run of keys that a row can see: the lengths and the band mask all others.
    pub(crate) fn reach(&self, at: RowAt) -> Range<usize> {
        let [q_len, kv_len] = at.lens;
        let [query_origin, key_origin] = at.origins.map(|n| n as i64);
        let Some(Band { corner, left, right }) = self.a.mask.band else { return 0..kv_len };
        let ahead = match corner {
            Corner::TopLeft => 0,
            Corner::BottomRight => kv_len as i64 - q_len as i64,
        };
        // The row's place on the diagonal, as an index of keys.
        let diagonal = at.query as i64 + query_origin + ahead - key_origin;
        let first = left.map_or(0, |l| (diagonal - l + 1).clamp(0, kv_len as i64));
        let end = right.map_or(kv_len as i64, |r| (diagonal + r + 1).clamp(first, kv_len as i64));
        first as usize..end as usize
    }

    /// Masks the scores of keys from `first` on with the block mask and the predicate.
    pub(crate) fn hide<T: Real>(&self, at: RowAt, first: usize, scores: &mut [T], registers: &mut Registers) {
        if let Some(blocks) = self.blocks {
            for (key, score) in (first..).zip(&mut *scores) {
                if !self.tile_kept(blocks, at, key) {
                    *score = T::MASKED;
                }
            }
        }
        if let Some((bits, first_rows)) = &self.drafts {
            let row = first_rows[at.batch] + at.query;
            let [queries, keys] = at.lens.map(|n| n as i64);
            for (key, score) in (first as i64..).zip(&mut *scores) {
                let draft = key - (keys - queries);
                if draft >= 0 && !is_draft_seen(bits, row, draft as usize) {
                    *score = T::MASKED;
                }
            }
        }
        let Some(keep) = &self.keep else { return };
        let none = [0.0; LANES];
        for (first, scores) in (first..).step_by(LANES).zip(scores.chunks_mut(LANES)) {
            let kept = keep.run(at, first, &none[..scores.len()], registers);
            for (score, &kept) in scores.iter_mut().zip(kept) {
                if kept == 0.0 {
                    *score = T::MASKED;
                }
            }
        }
    }

    /// Whether tile `(query / 128, key / 128)` is computed: bit `i` of byte `j` in a row of tiles is tile `8 j + i`.
    fn tile_kept(&self, blocks: &Buffer, at: RowAt, key: usize) -> bool {
        let (s_q, s_kv) = self.a.seq();
        let rows = (s_q as usize).div_ceil(TILE);
        let bytes = (s_kv as usize).div_ceil(TILE).div_ceil(8);
        let row = (at.batch * self.a.q.dims[1] as usize + at.head) * rows + at.query / TILE;
        let tile = key / TILE;
        blocks.bytes()[row * bytes + tile / 8] >> (tile % 8) & 1 == 1
    }

    /// The factor of each probability for these keys: 0 if dropped, else `1 / (1 - p)`; `None` without dropout.
    pub(crate) fn survivors(&self, at: RowAt, keys: Range<usize>) -> Option<Vec<f64>> {
        let Dropped { kept, survivors } = self.dropped.as_ref()?;
        let mask = match kept {
            KeptBuffer::Mask(mask) => mask,
            KeptBuffer::Drawn(places) => {
                let [batch, head, query] = [at.batch, at.head, at.query].map(|n| n as u32);
                let factor = |key| if places.keeps([batch, head, query, key as u32]) { *survivors } else { 0.0 };
                return Some(keys.map(factor).collect());
            }
        };
        let (h_q, (s_q, s_kv)) = (self.a.q.dims[1] as usize, self.a.seq());
        let row = (at.batch * h_q + at.head) * s_q as usize + at.query;
        let mut factors = vec![0.0; keys.len()];
        mask.read(row * s_kv as usize + keys.start, &mut factors);
        factors.iter_mut().for_each(|f| *f *= survivors);
        Some(factors)
    }
}

/// Whether a row of a tree of drafts has the bit of a draft: 32 in each of two words, the lowest first.
fn is_draft_seen(bits: &Buffer, row: usize, draft: usize) -> bool {
    bits.int(row * 2 + draft / 32) >> (draft % 32) & 1 == 1
}

/// The row of each sequence's first query among those of a tree of drafts.
fn first_rows(a: &Attention, inputs: &Inputs) -> Result<Vec<usize>, ReferenceError> {
    let [batch, _, queries, _] = a.q.dims.map(|n| n as usize);
    let role = Role::Offsets(Varlen::Q);
    let Some(offsets) = operand(a, role) else { return Ok((0..batch).map(|b| b * queries).collect()) };
    let offsets = inputs.checked(&offsets)?;
    Ok((0..batch).map(|b| (offsets.int(b) / a.q.strides[2]) as usize).collect())
}

/// Positions of the first query and the first key: zero without origins.
fn origins(a: &Attention, inputs: &Inputs) -> Result<[usize; 2], ReferenceError> {
    let side = |role| {
        let Some(operand) = operand(a, role) else { return Ok(0) };
        let given = inputs.checked(&operand)?.int(0);
        let most = MAX_ORIGIN as usize;
        usize::try_from(given).ok().filter(|&n| n <= most).ok_or(ReferenceError::Origin { role, given, most })
    };
    Ok([side(Role::QueryOrigin)?, side(Role::KeyOrigin)?])
}

/// The dropout mask. For dropout by Philox, the caller must bind the mask that the library dumped: f32 zeros and ones.
fn dropped<'a>(a: &Attention, inputs: &'a Inputs) -> Result<Option<Dropped<'a>>, ReferenceError> {
    let Some(dropout) = a.dropout.filter(|d| d.source == DropoutSource::Mask || d.probability > 0.0) else {
        return Ok(None);
    };
    let survivors = 1.0 / (1.0 - f64::from(dropout.probability));
    let role = Role::DropoutMask;
    let mask = match (dropout.source, inputs.get(role)) {
        (DropoutSource::Philox, None) => return Err(ReferenceError::DropoutMask),
        (DropoutSource::Philox, Some(mask)) => {
            let (s_q, s_kv) = a.seq();
            let dtype = if mask.dtype().is_float() { mask.dtype() } else { DType::F32 };
            let tensor = qkvault_graph::Tensor::bhsd(a.batch(), a.q.dims[1], s_q, s_kv, dtype);
            inputs.checked(&Operand { role, tensor, output: false })?
        }
        (DropoutSource::Places, _) => {
            let number = |role| {
                let operand = operand(a, role).ok_or(ReferenceError::DropoutMask)?;
                Ok::<i64, ReferenceError>(inputs.checked(&operand)?.int(0))
            };
            let (seed, offset) = (number(Role::DropoutSeed)?, number(Role::DropoutOffset)?);
            let places = Places { seed, offset, heads: a.q.dims[1] as u32, below: dropout.threshold() };
            return Ok(Some(Dropped { kept: KeptBuffer::Drawn(places), survivors }));
        }
        (DropoutSource::Mask, _) => inputs.checked(&operand(a, role).ok_or(ReferenceError::DropoutMask)?)?,
    };
    Ok(Some(Dropped { kept: KeptBuffer::Mask(mask), survivors }))
}
