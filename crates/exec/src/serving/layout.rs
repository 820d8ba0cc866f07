//! The layout of a step's metadata in one block of memory, from a plan and its attention.

use qkvault_compile::PlanFacts;
use qkvault_cudnn::OpGraph;
use qkvault_cudnn::op::TensorKind;
use qkvault_graph::{Attention, Binding, CacheAppend, Corner, DType, Role, Storage, Valid, ValidCacheAppend, Varlen};

use super::error::{BatchInputError, BatchInputErrors};

/// Sections begin at multiples of this many 32-bit words, 256 bytes: more than the alignment of any operand.
const GRAIN: usize = 64;

/// The place of each operand of a plan's steps in one block: lengths and offsets first, then page tables.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StepLayout {
    pub(super) batch: usize,
    /// Largest lengths of queries and keys.
    pub(super) longest: [i64; 2],
    /// Whether a sequence needs as many keys as queries: with a band aligned bottom right that ends at its diagonal.
    pub(super) aligned: bool,
    /// Keys that an idle sequence has, too.
    pub(super) least_keys: i64,
    pub(super) sections: Vec<StepSection>,
    /// The section of each operand; operands with equal offsets share one.
    roles: Vec<(Role, usize)>,
    words: usize,
}

/// A part of the block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct StepSection {
    /// The operand that errors name.
    pub(super) role: Role,
    pub(super) kind: SectionKind,
    /// First word.
    pub(super) at: usize,
    pub(super) words: usize,
}

/// The rows that are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StepSide {
    Queries,
    Keys,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SectionKind {
    Lengths(StepSide),
    /// Elements before each sequence: `row` elements per row, as 64 or 32 bits, in a buffer of `room` rows.
    Offsets {
        side: StepSide,
        row: i64,
        wide: bool,
        room: i64,
    },
    /// `width` entries per sequence, each a page of `rows` rows in a pool of `pages` pages.
    Table {
        values: bool,
        width: usize,
        pages: i64,
        rows: i64,
    },
}

impl StepLayout {
    /// The layout of the steps of a plan that computes this attention.
    ///
    /// # Errors
    ///
    /// [`BatchInputError::NoStep`] for a plan without lengths.
    pub fn for_plan(attention: &Valid, facts: &PlanFacts) -> Result<StepLayout, BatchInputErrors> {
        StepLayout::new(attention, None, facts.bindings.iter().map(|binding| (binding.role, binding.dtype)))
    }

    /// The same with what an append to the attention's caches reads besides: offsets of varlen keys and values of the
    /// step, whose rows are those of the queries.
    ///
    /// # Errors
    ///
    /// As [`StepLayout::for_plan`]; [`BatchInputError::NoStep`] for an append to other caches than those of the
    /// attention, or with room for fewer new tokens: tables and lengths of one would be wrong for the other.
    pub fn with_append(
        attention: &Valid,
        facts: &PlanFacts,
        append: &ValidCacheAppend,
    ) -> Result<StepLayout, BatchInputErrors> {
        let other =
            [("K", append.k, attention.k), ("V", append.v, attention.v)].into_iter().find(|(_, to, from)| to != from);
        if let Some((name, to, from)) = other {
            let what = format!("the append writes {name} {:?} and the attention reads {:?}", to, from);
            return Err(BatchInputError::NoStep { what }.into());
        }
        let (rows, queries) = (append.new_k.dims[2], attention.q.dims[2]);
        if rows < queries {
            let what =
                format!("the append has room for {rows} new tokens of a sequence and the attention for {queries}");
            return Err(BatchInputError::NoStep { what }.into());
        }
        let offsets = append.bindings().into_iter().filter(|binding| matches!(binding.role, Role::Offsets(_)));
        let all: Vec<Binding> = facts.bindings.iter().copied().chain(offsets).collect();
        StepLayout::new(attention, Some(append), all.iter().map(|binding| (binding.role, binding.dtype)))
    }

    /// The layout of the steps of an op graph, for callers without a plan: an interpreter, or a measurement without
    /// cuDNN.
    ///
    /// # Errors
    ///
    /// [`BatchInputError::NoStep`] for an op graph without lengths.
    pub fn of_graph(attention: &Valid, graph: &OpGraph) -> Result<StepLayout, BatchInputErrors> {
        let mut operands: Vec<(Role, DType)> = graph
            .tensors
            .iter()
            .filter_map(|t| match t.kind {
                TensorKind::Operand(role) => Some((role, t.dtype)),
                TensorKind::Scalar(_) | TensorKind::Virtual | TensorKind::Constant(_) => None,
            })
            .collect();
        operands.sort_unstable_by_key(|(role, _)| role.uid());
        StepLayout::new(attention, None, operands.into_iter())
    }

    fn new(
        attention: &Valid,
        append: Option<&CacheAppend>,
        operands: impl Iterator<Item = (Role, DType)> + Clone,
    ) -> Result<StepLayout, BatchInputErrors> {
        let a = attention.get();
        // The 8-bit kernel of compute capability 9.0 never ends if a sequence has no keys (`fp8.hopper-empty-tile`). An
        // idle one then reads the first row of the page that its table names.
        let eight_bits = a.has_narrow_products() && a.k.is_paged();
        let mut layout = StepLayout {
            batch: a.batch().unsigned_abs() as usize,
            longest: [a.seq().0, a.seq().1],
            aligned: a.mask.band.is_some_and(|band| band.corner == Corner::BottomRight && band.right.is_some())
                || a.seq().0 == 1
                || eight_bits,
            least_keys: i64::from(eight_bits),
            sections: Vec::new(),
            roles: Vec::new(),
            words: 0,
        };
        // Tables are last, because they are large and change rarely.
        for tables in [false, true] {
            for (role, dtype) in operands.clone() {
                if matches!(role, Role::PageTableK | Role::PageTableV) == tables
                    && let Some(kind) = kind(a, append, role, dtype)?
                {
                    layout.add(role, kind);
                }
            }
        }
        let has = |role| layout.roles.iter().any(|(r, _)| *r == role);
        if !(has(Role::SeqLenQ) && has(Role::SeqLenKv)) {
            return Err(BatchInputError::NoStep { what: "its sequences have no lengths".to_owned() }.into());
        }
        Ok(layout)
    }

    fn add(&mut self, role: Role, kind: SectionKind) {
        // Offsets that are equal in every step share a section.
        let same = self.sections.iter().position(|s| s.kind == kind && matches!(kind, SectionKind::Offsets { .. }));
        let section = same.unwrap_or_else(|| {
            let words = match kind {
                SectionKind::Lengths(_) => self.batch,
                SectionKind::Offsets { wide, .. } => (self.batch + 1) * if wide { 2 } else { 1 },
                SectionKind::Table { width, .. } => self.batch * width,
            };
            self.sections.push(StepSection { role, kind, at: self.words, words });
            self.words = (self.words + words).next_multiple_of(GRAIN);
            self.sections.len() - 1
        });
        self.roles.push((role, section));
    }

    /// The number of 32-bit words of the block.
    #[must_use]
    pub const fn words(&self) -> usize {
        self.words
    }

    /// Bytes of memory on the host that a [`StepBuffer`](super::StepBuffer) takes: its words, and what it notes of
    /// changes. The plan's batch and lengths decide it.
    #[must_use]
    pub const fn host_bytes(&self) -> u64 {
        let words = (self.words as u64).saturating_mul(4);
        let changes = (self.sections.len() as u64).saturating_mul((self.batch as u64).saturating_add(1));
        words.saturating_add(changes.saturating_mul(2 * size_of::<std::ops::Range<usize>>() as u64))
    }

    /// The most sequences of a step.
    #[must_use]
    pub const fn batch(&self) -> usize {
        self.batch
    }

    /// The operands with their sections.
    pub(super) fn roles(&self) -> impl Iterator<Item = (Role, &StepSection)> {
        self.roles.iter().map(|(role, section)| (*role, &self.sections[*section]))
    }

    /// The operands of the block, each with the index of its first word and its number of words.
    pub fn operands(&self) -> impl Iterator<Item = (Role, usize, usize)> {
        self.roles.iter().map(|(role, section)| {
            let StepSection { role: _, kind: _, at, words } = self.sections[*section];
            (*role, at, words)
        })
    }
}

/// The kind of an operand's numbers; `None` for operands that are not part of a step.
fn kind(
    a: &Attention,
    append: Option<&CacheAppend>,
    role: Role,
    dtype: DType,
) -> Result<Option<SectionKind>, BatchInputErrors> {
    Ok(Some(match role {
        Role::SeqLenQ => SectionKind::Lengths(StepSide::Queries),
        Role::SeqLenKv => SectionKind::Lengths(StepSide::Keys),
        Role::PageTableK | Role::PageTableV => {
            let values = role == Role::PageTableV;
            let t = if values { &a.v } else { &a.k };
            let (Storage::Paged { pages, page_size }, Some(width)) = (t.storage, t.pages_per_sequence()) else {
                return Err(BatchInputError::NoStep { what: format!("{role} without pages") }.into());
            };
            SectionKind::Table { values, width: width.unsigned_abs() as usize, pages, rows: page_size }
        }
        Role::Offsets(varlen) => {
            let of = [Role::Q, Role::K, Role::V, Role::O, Role::Stats, Role::DO, Role::DQ, Role::DK, Role::DV];
            let operand = of.into_iter().find(|r| r.offsets() == Some(varlen));
            let tensor = match varlen {
                Varlen::NewK => append.map(|append| append.new_k),
                Varlen::NewV => append.map(|append| append.new_v),
                _ => operand.and_then(|operand| a.stored(operand)),
            };
            let Some(t) = tensor else {
                return Err(BatchInputError::NoStep { what: format!("{role} without its operand") }.into());
            };
            let Storage::Varlen { tokens } = t.storage else {
                return Err(BatchInputError::NoStep { what: format!("{role} of an operand that is not varlen") }.into());
            };
            let keys = matches!(operand, Some(Role::K | Role::V | Role::DK | Role::DV));
            let side = if keys { StepSide::Keys } else { StepSide::Queries };
            SectionKind::Offsets { side, row: t.strides[2], wide: dtype == DType::I64, room: tokens }
        }
        _ => return Ok(None),
    }))
}
