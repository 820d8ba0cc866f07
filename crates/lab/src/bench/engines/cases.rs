//! The attentions that `bench engines` measures: decodes, drafts and short chunks over pages, windows, other head dims,
//! expressions, sinks, and prompts.

use qkvault_graph::expr::{self, library};
use qkvault_graph::{Attention, Band, Corner, DType, Lengths, Tensor, Valid, validate};

/// An attention with a name.
pub(super) struct Named {
    pub(super) name: String,
    pub(super) attention: Valid,
}

const PAGE: i64 = 64;

/// Keys of one head beyond which a case does not fit a GPU beside another.
const MOST: i64 = 8 * 65_536;

fn paged(batch: i64, (heads, kv_heads): (i64, i64), queries: i64, keys: i64, d: i64) -> Attention {
    let mut a = Attention::bshd(batch, (heads, kv_heads), (queries, keys), d, DType::BF16).with_lengths();
    a.k = Tensor::paged_nhd(batch, kv_heads, keys, d, batch * keys / PAGE, PAGE, DType::BF16);
    a.v = a.k;
    a.with_band(Band::CAUSAL_BOTTOM_RIGHT)
}

/// Every case, each with a name of its own.
pub(super) fn list() -> anyhow::Result<Vec<Named>> {
    let mut all: Vec<(String, Attention)> = Vec::new();
    let llama = (32, 8);
    let mut add = |name: String, attention: Attention| all.push((name, attention));
    for batch in [1, 8, 64, 256] {
        for keys in [1024, 8192, 32_768] {
            if batch * keys <= MOST {
                add(format!("decode b{batch} s{keys} d128"), paged(batch, llama, 1, keys, 128));
            }
        }
    }
    for queries in [2, 4, 8, 16, 32, 64, 128] {
        for (batch, keys) in [(1, 1024), (1, 32_768), (8, 8192), (64, 8192)] {
            add(format!("draft q{queries} b{batch} s{keys} d128"), paged(batch, llama, queries, keys, 128));
        }
    }
    for (batch, keys) in [(1, 32_768), (8, 32_768), (64, 8192)] {
        let window = Band::window(Corner::BottomRight, 1024);
        add(format!("window 1024 b{batch} s{keys}"), paged(batch, llama, 1, keys, 128).with_band(window));
    }
    for d in [64, 256] {
        for (batch, keys) in [(1, 8192), (8, 8192), (64, 8192)] {
            add(format!("decode b{batch} s{keys} d{d}"), paged(batch, llama, 1, keys, d));
        }
    }
    for (batch, keys) in [(1, 8192), (8, 8192), (64, 8192)] {
        let plain = || paged(batch, llama, 1, keys, 128);
        let softcap = library::softcap(expr::score(), expr::scalar("cap")).build_score_mod()?;
        add(format!("softcap b{batch} s{keys}"), plain().with_score_mod(softcap));
        let alibi = library::alibi(expr::score(), llama.0).build_score_mod()?;
        add(format!("alibi b{batch} s{keys}"), plain().with_score_mod(alibi));
        add(format!("gpt-oss sinks b{batch} s{keys}"), paged(batch, (64, 8), 1, keys, 64).with_sink());
        add(format!("mqa b{batch} s{keys}"), paged(batch, (32, 1), 1, keys, 128));
        add(format!("mha b{batch} s{keys}"), paged(batch, (32, 32), 1, keys, 128));
        let dense = Attention::bshd(batch, llama, (1, keys), 128, DType::BF16);
        add(format!("dense b{batch} s{keys}"), dense);
    }
    for (batch, seq) in [(1, 1024), (4, 1024), (1, 4096), (4, 4096)] {
        let prompt = Attention::bshd(batch, llama, (seq, seq), 128, DType::BF16).causal();
        add(format!("prompt b{batch} s{seq}"), prompt);
    }
    let named = |(name, attention)| Ok(Named { name, attention: validate(attention)? });
    all.into_iter().map(named).collect()
}

/// Queries, keys and pages of each sequence of a batch.
pub(super) struct Full {
    pub(super) queries: Vec<i32>,
    pub(super) keys: Vec<i32>,
    pub(super) tables: Vec<Vec<i32>>,
}

/// Queries, keys and pages of a batch whose sequences are as long as can be; `None` where lengths are not given.
pub(super) fn full(a: &Valid) -> Option<Full> {
    if a.mask.lengths != Lengths::PerSequence {
        return None;
    }
    let (queries, keys) = a.seq();
    let batch = usize::try_from(a.batch()).ok()?;
    let each = |n: i64| Some(vec![i32::try_from(n).ok()?; batch]);
    // Pages of a sequence lie apart, as in a server: the page after a sequence's is another one's.
    let pages = a.k.pages_per_sequence().unwrap_or(0);
    let table = |b: usize| (0..pages).map(|n| i32::try_from(n * a.batch()).unwrap_or(0) + b as i32).collect();
    let tables = if pages > 0 { (0..batch).map(table).collect() } else { Vec::new() };
    Some(Full { queries: each(queries)?, keys: each(keys)?, tables })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn cases_are_valid_have_names_of_their_own_and_tables_that_name_every_page_once() {
        let all = list().expect("valid");
        let names: BTreeSet<&str> = all.iter().map(|case| &case.name[..]).collect();
        assert!(names.len() == all.len() && all.len() > 60, "{} cases", all.len());
        for Named { name, attention } in &all {
            let Some(Full { queries, keys, tables }) = full(attention) else { continue };
            assert!(queries.len() == keys.len() && keys.len() == tables.len(), "{name}");
            let pages: BTreeSet<i32> = tables.iter().flatten().copied().collect();
            let room = attention.batch() * attention.seq().1 / PAGE;
            assert_eq!((pages.len() as i64, pages.last()), (room, Some(&(room as i32 - 1))), "{name}");
        }
    }

    /// A case that neither engine takes measures nothing.
    #[test]
    fn the_kernels_take_every_case() {
        for Named { name, attention } in list().expect("valid") {
            assert_eq!(qkvault_kernels::takes(&attention, qkvault_kernels::SM), Ok(()), "{name}");
        }
    }
}
