//! What a GPU has judged of the kernels, as data: `data/judged.json` has the digest of the sources that a self-test ran
//! and how many of its cases were right on each path through them. Kernels whose sources changed since, and a path that
//! no case has taken, are taken by name and never by themselves.
//!
//! `qkvault-lab selftest --engine kernels --judged FILE` writes it, `--engine fa4` the part of lists of tiles.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use qkvault_graph::{DType, Lengths, PaddedRows, Valid};
use serde::{Deserialize, Serialize};

use crate::blocks::{self, KnownLists, ListsLayout, ScoreTiles};
use crate::takes::{is_narrow, is_varlen, page_size};
use crate::{bounds, expression, generate, score, spans};

/// So many right cases judge a path.
const ENOUGH: u64 = 20;

/// Rows of the smallest page that one copy brings.
const WHOLE_PAGE: i64 = 16;

/// What a GPU has judged.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Judged {
    /// The kernels that compute attention, by path.
    pub attention: JudgedSources,
    /// The same of invariant attentions.
    #[serde(default)]
    pub invariant: JudgedSources,
    /// The same of attentions whose queries are a tree of drafts.
    #[serde(default)]
    pub drafts: JudgedSources,
    /// The same of attentions whose pages have few rows, which are copied row by row.
    #[serde(default)]
    pub gather: JudgedSources,
    /// The same of attentions over a cache in 8 bits, whatever else they do.
    #[serde(default)]
    pub narrow: JudgedSources,
    /// The kernel that lists tiles for FlashAttention-4.
    pub lists: JudgedSources,
}

/// What a GPU has judged of some sources.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JudgedSources {
    /// The digest of the sources, without comments.
    pub sources: String,
    /// The GPU.
    pub gpu: String,
    /// Right cases of each path.
    pub right: BTreeMap<String, u64>,
}

impl JudgedSources {
    fn why_not(&self, sources: &str, path: &str) -> bool {
        self.sources != sources || self.right.get(path).is_none_or(|right| *right < ENOUGH)
    }
}

impl Judged {
    /// What this version of the project was judged by.
    #[must_use]
    pub fn built_in() -> &'static Judged {
        static JUDGED: OnceLock<Judged> = OnceLock::new();
        // A test reads the file, so there is no other case; nothing would be judged.
        JUDGED.get_or_init(|| serde_json::from_str(include_str!("../data/judged.json")).unwrap_or_default())
    }

    /// Adds the right cases of a run of today's sources on a GPU; those of other sources are left behind.
    pub fn add<'a>(&mut self, gpu: &str, right: impl Iterator<Item = &'a Valid>, engine_of_lists: bool) {
        for attention in right {
            let (part, sources, all) = if engine_of_lists {
                (&mut self.lists, digest(&LISTS, &[]), list_path(attention).into_iter().collect())
            } else {
                let own = Own::of_attention(attention);
                (self.sources_mut(own), own.digest(), own.paths(attention))
            };
            if part.sources != sources {
                *part = JudgedSources { sources, ..JudgedSources::default() };
            }
            gpu.clone_into(&mut part.gpu);
            all.into_iter().for_each(|path: &str| *part.right.entry(path.to_owned()).or_default() += 1);
        }
    }

    /// What is judged of attentions of a kind.
    const fn sources_of(&self, own: Own) -> &JudgedSources {
        match own {
            Own::Usual => &self.attention,
            Own::Invariant => &self.invariant,
            Own::Drafts => &self.drafts,
            Own::Gather => &self.gather,
            Own::Narrow => &self.narrow,
        }
    }

    const fn sources_mut(&mut self, own: Own) -> &mut JudgedSources {
        match own {
            Own::Usual => &mut self.attention,
            Own::Invariant => &mut self.invariant,
            Own::Drafts => &mut self.drafts,
            Own::Gather => &mut self.gather,
            Own::Narrow => &mut self.narrow,
        }
    }
}

/// The sources of the kernels that compute attention.
const ATTENTION: [&str; 9] = [
    generate::MACHINE,
    generate::WORK,
    generate::BRING,
    generate::SOFTMAX,
    generate::ATTEND,
    generate::LATENT,
    generate::MERGE,
    expression::FUNCTIONS,
    score::CAPPED,
];

/// Those of invariant attentions.
const INVARIANT: [&str; 8] = [
    generate::MACHINE,
    generate::WORK,
    generate::BRING,
    generate::SOFTMAX,
    generate::ATTEND,
    generate::MERGE_IN_ORDER,
    expression::FUNCTIONS,
    score::CAPPED,
];

/// Those of the kernel that lists tiles.
const LISTS: [&str; 5] = [bounds::BOUNDS, blocks::EXTREMES, blocks::LOOK, blocks::BLOCKS, expression::FUNCTIONS];

/// Attentions that are judged for themselves, because they have code of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Own {
    Usual,
    Invariant,
    Drafts,
    /// Invariant ones, drafts and others.
    Gather,
    /// The same.
    Narrow,
}

impl Own {
    // As the numbers of the kinds count.
    const ALL: [Own; 5] = [Own::Usual, Own::Invariant, Own::Drafts, Own::Gather, Own::Narrow];

    /// Rules refuse an invariant attention of drafts.
    fn of_attention(a: &Valid) -> Own {
        if is_narrow(a) {
            return Own::Narrow;
        }
        match (generate::gathers(a), a.invariant, a.draft_tree) {
            (true, ..) => Own::Gather,
            (false, true, _) => Own::Invariant,
            (false, false, true) => Own::Drafts,
            (false, false, false) => Own::Usual,
        }
    }

    /// The ways that an attention of this kind takes. Kinds that have all others within have one record.
    fn paths(self, a: &Valid) -> Vec<&'static str> {
        let mut all = paths(a);
        let within = matches!(self, Own::Gather | Own::Narrow);
        let e5m2 = a.k.dtype == DType::E5M2;
        let more = [("invariant", within && a.invariant), ("drafts", within && a.draft_tree), ("e5m2", e5m2)];
        all.extend(more.into_iter().filter(|of| of.1).map(|of| of.0));
        all
    }

    fn digest(self) -> String {
        match self {
            Own::Usual => digest(&ATTENTION, &[]),
            // With the spans that are written into each.
            Own::Invariant => digest(&[&INVARIANT[..], &[&spans::functions()]].concat(), &[SPANS]),
            Own::Drafts => digest(&ATTENTION, &[DRAFTS]),
            Own::Gather => with_all(generate::GATHER, GATHER),
            Own::Narrow => with_all(generate::NARROW, NARROW),
        }
    }
}

/// Conditions of the code that some attentions alone have.
const SPANS: &str = "#if INVARIANT";
const DRAFTS: &str = "#if DRAFT_TREE";
const GATHER: &str = "#if GATHER";
const NARROW: &str = "#if NARROW";

/// The digest of a kind that has usual attentions, drafts and invariant ones within.
fn with_all(own: &str, condition: &str) -> String {
    // Groups of warps have rows of 8 bits brought as rows are copied one by one.
    let usual = digest(&[&ATTENTION[..], &[own]].concat(), &[GATHER, condition, DRAFTS]);
    let spans = spans::functions();
    let sources = [&INVARIANT[..], &[&spans, own]].concat();
    digest(&[&usual, &digest(&sources, &[GATHER, condition, SPANS])], &[])
}

/// A digest of code as a compiler sees it, with the code of these conditions and without that of the others: a comment
/// or an empty line changes nothing that a GPU could judge.
fn digest(sources: &[&str], conditions: &[&str]) -> String {
    let mut hasher = blake3::Hasher::new();
    // For each condition that is open, whether its lines are compiled, if it asks for that.
    let mut open: Vec<Option<bool>> = Vec::new();
    for line in sources.iter().flat_map(|source| source.lines()) {
        let code = line.split_once("//").map_or(line, |(code, _)| code).trim();
        let conditional = match code.split_whitespace().next() {
            Some("#if" | "#ifdef" | "#ifndef") => {
                open.push([SPANS, DRAFTS, GATHER, NARROW].contains(&code).then(|| conditions.contains(&code)));
                open.last().copied().flatten()
            }
            Some("#else") => {
                let last = open.last_mut().and_then(Option::as_mut);
                last.map(|compiled| {
                    *compiled = !*compiled;
                    *compiled
                })
            }
            Some("#endif") => open.pop().flatten(),
            _ => None,
        };
        if !code.is_empty() && conditional.is_none() && open.iter().all(|compiled| *compiled != Some(false)) {
            hasher.update(code.as_bytes()).update(b"\n");
        }
    }
    hasher.finalize().to_hex()[..16].to_owned()
}

/// The ways through the kernels that an attention takes.
fn paths(a: &Valid) -> Vec<&'static str> {
    let window = a.mask.band.is_some_and(|band| band.left.is_some());
    let tensors = a.score_tensors().next().is_some();
    let all = [
        ("dense", !a.k.is_paged() && !is_varlen(&a.q)),
        ("pages", a.k.is_paged()),
        ("small pages", page_size(&a.k).is_some_and(|rows| rows < WHOLE_PAGE)),
        ("packed queries", is_varlen(&a.q)),
        ("packed keys", is_varlen(&a.k)),
        ("latent", a.v.head_dim() != a.q.head_dim()),
        ("wide heads", a.q.head_dim() > 256),
        ("many queries", a.seq().0 > 64),
        ("band", a.mask.band.is_some()),
        ("window", window),
        ("lengths", a.mask.lengths == Lengths::PerSequence),
        ("origins", a.origins.is_some()),
        ("padded rows as zeros", a.padded_rows == PaddedRows::Zero),
        ("score modification", a.score_mod.is_some()),
        ("predicate", a.mask.mask_mod.is_some()),
        ("tensors of expressions", tensors),
        ("sink", a.sink),
        ("stats", a.outputs.stats),
        ("f16", a.q.dtype == DType::F16),
    ];
    all.into_iter().filter(|(_, taken)| *taken).map(|(name, _)| name).collect()
}

/// The way to lists of an attention that FlashAttention-4's kernels compute.
fn list_path(a: &Valid) -> Option<&'static str> {
    let tiles = ScoreTiles { queries: 128, keys: 128, by_keys: a.is_backward() };
    if KnownLists::for_attention(a, tiles).is_some() {
        return Some(if a.is_backward() { "in the plan, backward" } else { "in the plan, forward" });
    }
    ListsLayout::for_attention(a, tiles, 0)?;
    Some(match (a.block_mask, blocks::reads_dense(a), a.is_backward()) {
        (true, _, false) => "block mask, forward",
        (true, _, true) => "block mask, backward",
        (false, true, false) => "elements, forward",
        (false, true, true) => "elements, backward",
        (false, false, false) => "predicate, forward",
        (false, false, true) => "predicate, backward",
    })
}

/// Why the kernels are chosen for an attention that they take only by name: no GPU has judged them.
#[must_use]
pub fn unproven(attention: &Valid) -> Option<&'static str> {
    static SOURCES: OnceLock<[String; 5]> = OnceLock::new();
    let own = Own::of_attention(attention);
    let sources = &SOURCES.get_or_init(|| Own::ALL.map(Own::digest))[own as usize];
    let not = own.paths(attention).into_iter().any(|path| Judged::built_in().sources_of(own).why_not(sources, path));
    not.then_some("no GPU has judged these kernels on one of their paths, or since their sources changed")
}

/// Why another engine's kernels are chosen over lists of tiles only by name.
#[must_use]
pub fn unproven_lists(attention: &Valid) -> Option<&'static str> {
    static SOURCES: OnceLock<String> = OnceLock::new();
    let (sources, judged) = (SOURCES.get_or_init(|| digest(&LISTS, &[])), &Judged::built_in().lists);
    let not = list_path(attention).is_some_and(|path| judged.why_not(sources, path));
    not.then_some("no GPU has judged its lists of tiles for this mask, or since their sources changed")
}

#[cfg(test)]
mod tests;
