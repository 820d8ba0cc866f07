//! The attentions that `bench engines` measures: decodes, drafts and short chunks over pages, windows, other head dims,
//! expressions, sinks; prompts over pages; prompts and training steps (`dense`), packed ones too (`varlen`).

use qkvault_compile::times::Direction;
use qkvault_graph::expr::{self, library};
use qkvault_graph::{Attention, Band, Corner, DType, Tensor, Valid, validate};

use super::{dense, features, models, varlen};

/// An attention with a name.
pub(super) struct EngineCase {
    pub(super) name: String,
    pub(super) attention: Valid,
}

impl EngineCase {
    /// Whether peers have a turn: attentions of models are many, and there for the table.
    pub(super) fn has_peers(&self) -> bool {
        !self.name.starts_with(models::PREFIX)
    }

    pub(super) fn direction(&self) -> Direction {
        if self.attention.is_backward() { Direction::Backward } else { Direction::Forward }
    }
}

const PAGE: i64 = 64;

/// Query heads and heads of keys of Llama 3's smallest model.
pub(in crate::bench) const LLAMA: (i64, i64) = (32, 8);

/// Keys of one head beyond which a case does not fit a GPU beside another.
const MOST: i64 = 8 * 65_536;

pub(in crate::bench) fn paged(batch: i64, heads: (i64, i64), queries: i64, keys: i64, d: i64) -> Attention {
    paged_by(PAGE, batch, heads, queries, keys, d)
}

/// The same over pages of so many rows.
pub(super) fn paged_by(
    page: i64,
    batch: i64,
    (heads, kv_heads): (i64, i64),
    queries: i64,
    keys: i64,
    d: i64,
) -> Attention {
    let mut a = Attention::bshd(batch, (heads, kv_heads), (queries, keys), d, DType::BF16).with_lengths();
    a.k = Tensor::paged_nhd(batch, kv_heads, keys, d, batch * keys / page, page, DType::BF16);
    a.v = a.k;
    a.with_band(Band::CAUSAL_BOTTOM_RIGHT)
}

/// A decode over a latent cache, as DeepSeek's models have it: values are the first 512 columns of keys.
pub(super) fn latent(batch: i64, heads: i64, queries: i64, keys: i64) -> Attention {
    let mut a = paged(batch, (heads, 1), queries, keys, 576);
    a.v = Tensor { dims: [a.k.dims[0], 1, a.k.dims[2], 512], ..a.k };
    a.o = Tensor::bshd(batch, heads, queries, 512, DType::BF16);
    a
}

/// Every case; a name has at most one of each direction.
pub(super) fn list() -> anyhow::Result<Vec<EngineCase>> {
    let mut all: Vec<(String, Attention)> = Vec::new();
    let llama = LLAMA;
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
    for (queries, batch, keys) in
        [(32, 8, 32_768), (64, 8, 32_768), (128, 8, 32_768), (256, 8, 32_768), (256, 64, 8192)]
    {
        add(format!("draft q{queries} b{batch} s{keys} d128"), paged(batch, llama, queries, keys, 128));
    }
    for queries in [8, 64] {
        for (batch, keys) in [(1, 8192), (8, 8192), (64, 8192)] {
            let mut tree = paged(batch, llama, queries, keys, 128);
            tree.draft_tree = true;
            add(format!("tree q{queries} b{batch} s{keys}"), tree);
            // The causal drafts beside it, where no row above has them.
            if batch == 1 {
                add(format!("draft q{queries} b1 s{keys} d128"), paged(batch, llama, queries, keys, 128));
            }
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
        let mpt = library::alibi(expr::score(), 32).build_score_mod()?;
        add(format!("mpt-7b alibi b{batch} s{keys}"), paged(batch, (32, 32), 1, keys, 128).with_score_mod(mpt));
        for heads in [16, 128] {
            add(format!("latent h{heads} b{batch} s{keys}"), latent(batch, heads, 1, keys));
        }
        add(format!("gpt-oss sinks b{batch} s{keys}"), paged(batch, (64, 8), 1, keys, 64).with_sink());
        add(format!("mqa b{batch} s{keys}"), paged(batch, (32, 1), 1, keys, 128));
        add(format!("mha b{batch} s{keys}"), paged(batch, (32, 32), 1, keys, 128));
        let dense = Attention::bshd(batch, llama, (1, keys), 128, DType::BF16);
        add(format!("dense b{batch} s{keys}"), dense);
    }
    for (queries, batch, keys, d) in [
        (512, 8, 4096, 128),
        (512, 1, 32_768, 128),
        (2048, 1, 8192, 128),
        (2048, 8, 2048, 128),
        (8192, 1, 8192, 128),
        (2048, 8, 2048, 64),
    ] {
        add(format!("prefill q{queries} b{batch} s{keys} d{d}"), paged(batch, llama, queries, keys, d));
    }
    for dense in dense::list() {
        all.extend(dense.attentions()?.map(|attention| (dense.name(), attention)));
    }
    all.extend(features::list()?);
    for packed in varlen::list() {
        all.extend(packed.attentions().map(|attention| (packed.name(), attention)));
    }
    let named = |(name, attention)| anyhow::Ok(EngineCase { name, attention: validate(attention)? });
    all.into_iter().map(named).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use qkvault_cli::turns::{Full, full};
    use qkvault_graph::Storage;

    use super::*;

    #[test]
    fn cases_are_valid_have_names_of_their_own_and_tables_that_name_every_page_once() {
        let all = list().expect("valid");
        let names: BTreeSet<(&str, bool)> =
            all.iter().map(|case| (&case.name[..], case.attention.is_backward())).collect();
        assert!(names.len() == all.len() && all.len() > 150, "{} cases", all.len());
        for EngineCase { name, attention, .. } in &all {
            let Some(Full { queries, keys, tables }) = full(attention) else { continue };
            let paged = attention.k.is_paged();
            assert!(queries.len() == keys.len() && tables.len() == if paged { keys.len() } else { 0 }, "{name}");
            if !paged {
                continue;
            }
            let pages: BTreeSet<i32> = tables.iter().flatten().copied().collect();
            let Storage::Paged { page_size, .. } = attention.k.storage else { panic!("pages") };
            let room = attention.batch() * attention.seq().1 / page_size;
            assert_eq!((pages.len() as i64, pages.last()), (room, Some(&(room as i32 - 1))), "{name}");
        }
    }

    /// Forwards and backwards of packed documents are measured with FlashAttention-4, and so are prompts over pages;
    /// the table keeps them apart from prompts that are not packed.
    #[test]
    fn packed_documents_and_prompts_over_pages_have_rows_with_flash_attention_4() {
        use qkvault_compile::times::{Case, Feature};
        let all = list().expect("valid");
        let of = |words: &str, feature: Feature| {
            let named: Vec<&EngineCase> = all.iter().filter(|case| case.name.starts_with(words)).collect();
            for case in &named {
                assert_eq!(qkvault_fa4::takes(&case.attention, qkvault_kernels::SM), Ok(()), "{}", case.name);
                assert!(Case::for_attention(&case.attention).features.contains(&feature), "{}", case.name);
            }
            let backward = named.iter().filter(|case| case.attention.is_backward()).count();
            (named.len() - backward, backward)
        };
        assert_eq!(of("varlen ", Feature::Varlen), (6, 6));
        assert_eq!(of("prefill ", Feature::Paged), (6, 0));
    }

    /// A case that no two engines take compares nothing.
    #[test]
    fn the_kernels_take_every_case_of_serving_and_most_others_have_two_engines() {
        let all = list().expect("valid");
        let of = |engine: fn(&Valid, u32) -> Result<(), qkvault_graph::Refusal>| {
            move |case: &&EngineCase| engine(&case.attention, qkvault_kernels::SM).is_ok()
        };
        let begins = |case: &&EngineCase, words: &[&str]| words.iter().any(|word| case.name.starts_with(word));
        let dense =
            || all.iter().filter(|case| begins(case, &["nvidia ", "plain ", "prompt ", "expression ", "varlen "]));
        let of_dense: Vec<&str> = dense().map(|case| &case.name[..]).collect();
        let serving =
            all.iter().filter(|case| !of_dense.contains(&&case.name[..]) && !case.name.starts_with("feature"));
        assert!(serving.clone().all(|case| of(qkvault_kernels::takes)(&case)), "{}", serving.count());
        let (all, taken) = (dense().count(), dense().filter(of(qkvault_fa4::takes)).count());
        assert!(all > 70 && taken * 4 > all * 3, "FlashAttention-4 takes {taken} of {all}");
    }
}
