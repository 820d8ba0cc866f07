//! Sequences of different lengths, one after another and over pages, beside each sequence on its own.

mod plain;

use std::sync::Arc;

use candle_core::{DType, Device, Result, Tensor, Var};
use candle_qkvault::qkvault::Runtime;
use candle_qkvault::qkvault::cache::{Mode, VaultOptions};
use candle_qkvault::{
    Options, Sequences, attention, attention_paged, attention_varlen, descriptions, flash_attn_varlen,
    flash_attn_varlen_alibi, flash_attn_varlen_alibi_windowed, flash_attn_varlen_paged_windowed, set_defaults,
};
use plain::{Plain, near, plain, var};

const QUERIES: [u32; 4] = [0, 3, 4, 9];
const KEYS: [u32; 4] = [0, 5, 7, 12];

fn oracle() -> Options {
    Options::new().cpu_oracle(true).causal(true)
}

/// Every sequence on its own, joined again.
fn one_by_one(q: &Tensor, k: &Tensor, v: &Tensor) -> Result<Tensor> {
    let of = Plain { right: Some(0), ..Plain::default() };
    let part = |t: &Tensor, at: [u32; 2]| t.narrow(0, at[0] as usize, (at[1] - at[0]) as usize)?.unsqueeze(0);
    let each = QUERIES.windows(2).zip(KEYS.windows(2)).map(|(rows, keys)| {
        let (rows, keys) = ([rows[0], rows[1]], [keys[0], keys[1]]);
        plain(&part(q, rows)?, &part(k, keys)?, &part(v, keys)?, &of)?.squeeze(0)
    });
    Tensor::cat(&each.collect::<Result<Vec<_>>>()?, 0)
}

#[test]
fn sequences_one_after_another_have_the_outputs_and_gradients_of_each() -> Result<()> {
    let (q, k, v) = (var(&[9, 4, 16], DType::BF16), var(&[12, 2, 16], DType::BF16), var(&[12, 2, 16], DType::BF16));
    let half = |own: &Var| own.to_dtype(DType::BF16);
    let lengths = Arc::new(Sequences::varlen(&QUERIES, &KEYS)?.max_seqlens(8, 8));
    let ours = attention_varlen(&half(&q)?, &half(&k)?, &half(&v)?, &lengths, &oracle())?;
    let theirs = one_by_one(&q, &k, &v)?;
    near("the output", &ours, &theirs);
    let (ours, theirs) = (ours.to_dtype(DType::F32)?.sqr()?.backward()?, theirs.sqr()?.backward()?);
    for own in [&q, &k, &v] {
        near("a gradient", ours.get(own).expect("there"), theirs.get(own).expect("there"));
    }
    Ok(())
}

/// flash-attention #1537: most sequences of a step may be empty.
#[test]
fn fewer_tokens_than_sequences_have_the_outputs_and_gradients_of_those_with_tokens() -> Result<()> {
    let (q, k, v) = (var(&[3, 4, 16], DType::BF16), var(&[5, 2, 16], DType::BF16), var(&[5, 2, 16], DType::BF16));
    let of = |queries: &[u32], keys: &[u32]| {
        let half = |own: &Var| own.to_dtype(DType::BF16);
        let lengths = Arc::new(Sequences::varlen(queries, keys)?);
        let o = attention_varlen(&half(&q)?, &half(&k)?, &half(&v)?, &lengths, &oracle())?;
        let gradients = o.to_dtype(DType::F32)?.sqr()?.backward()?;
        let [d_q, d_k, d_v] = [&q, &k, &v].map(|own| gradients.get(own).expect("there").clone());
        Ok::<_, candle_core::Error>([o, d_q, d_k, d_v])
    };
    let many = of(&[0, 0, 2, 2, 2, 3, 3], &[0, 0, 3, 3, 3, 5, 5])?;
    for (mine, wanted) in many.iter().zip(&of(&[0, 2, 3], &[0, 3, 5])?) {
        near("an output or a gradient", mine, wanted);
    }
    Ok(())
}

#[test]
fn the_varlen_function_of_candle_flash_attn_reads_cumulative_lengths() -> Result<()> {
    set_defaults(Options::new().cpu_oracle(true));
    let (q, k, v) = (var(&[9, 4, 16], DType::F16), var(&[12, 2, 16], DType::F16), var(&[12, 2, 16], DType::F16));
    let half = |own: &Var| own.to_dtype(DType::F16);
    let (rows, keys) = (Tensor::new(&QUERIES, &Device::Cpu)?, Tensor::new(&KEYS, &Device::Cpu)?);
    let ours = flash_attn_varlen(&half(&q)?, &half(&k)?, &half(&v)?, &rows, &keys, 5, 5, 0.25, true)?;
    near("the output", &ours, &one_by_one(&q, &k, &v)?);
    // Slopes of zero change nothing, and a window as wide as the keys hides nothing.
    let none = Tensor::zeros(4, DType::F32, &Device::Cpu)?;
    let (q, k, v) = (half(&q)?, half(&k)?, half(&v)?);
    let same = flash_attn_varlen_alibi(&q, &k, &v, &none, &rows, &keys, 5, 5, 0.25, true)?;
    assert_eq!(plain::apart(&same, &ours), 0.0);
    let wide = (Some(12), Some(0));
    let same = flash_attn_varlen_alibi_windowed(&q, &k, &v, &none, &rows, &keys, 5, 5, 0.25, wide.0, wide.1)?;
    assert_eq!(plain::apart(&same, &ours), 0.0);
    Ok(())
}

#[test]
fn one_new_token_with_alibi_over_pages_is_not_put_to_the_engine_that_is_wrong() -> Result<()> {
    let random = |dims: &[usize]| Tensor::randn(0f32, 1.0, dims, &Device::Cpu)?.to_dtype(DType::BF16);
    let (pool, q) = (random(&[8, 8, 2, 64])?, random(&[3, 1, 4, 64])?);
    let slopes = Tensor::new(&[0.5f32, 0.25, 0.125, 0.0625], &Device::Cpu)?;
    let (lengths, pages) = ([9u32, 8, 1], [vec![5, 0], vec![2], vec![6]]);
    let step = Arc::new(Sequences::paged(1, &lengths, &pages)?.max_seqlens(1, 64));
    let options = oracle().alibi_slopes(&slopes);
    let ours = attention_paged(&q, &pool, &pool, &step, &options)?;
    assert_eq!(ours.dims(), [3, 1, 4, 64]);
    for (at, (keys, pages)) in lengths.iter().zip(&pages).enumerate() {
        let own: Vec<Tensor> = pages.iter().map(|page| pool.get(*page as usize)).collect::<Result<_>>()?;
        let own = Tensor::cat(&own, 0)?.narrow(0, 0, *keys as usize)?.unsqueeze(0)?;
        let of = Plain { slopes: Some(slopes.clone()), right: Some(0), ..Plain::default() };
        near("a sequence", &ours.narrow(0, at, 1)?, &plain(&q.narrow(0, at, 1)?, &own, &own, &of)?);
    }
    // The rules have nothing against it, and have something against one query that is not packed.
    let vault = VaultOptions::new().mode(Mode::Off);
    let runtime = Runtime::options().vault(vault).open_raw().expect("no vault is needed");
    let target = runtime.rules_target("h200", Some("9.19".parse().expect("a version"))).expect("known");
    for attention in descriptions(&q, &pool, &pool, Some(&step), &options, false)? {
        let answer = runtime.explain(&attention, &target);
        assert!(answer.supported, "{answer:?}");
        let text = attention.to_string();
        assert!(text.contains("varlen"), "{text}");
    }
    Ok(())
}

#[test]
fn new_tokens_over_pages_have_the_outputs_of_contiguous_keys() -> Result<()> {
    let random = |dims: &[usize]| Tensor::randn(0f32, 1.0, dims, &Device::Cpu)?.to_dtype(DType::BF16);
    let (k, v) = (random(&[8, 4, 2, 16])?, random(&[8, 4, 2, 16])?);
    let lengths = [9u32, 4, 1];
    let pages = [vec![5, 0, 7], vec![2], vec![6]];
    for rows in [1, 2] {
        let q = random(&[3, rows, 4, 16])?;
        let lengths = lengths.map(|keys| keys.max(rows as u32));
        let step = Arc::new(Sequences::paged(rows, &lengths, &pages)?.max_seqlens(rows, 16));
        let ours = attention_paged(&q, &k, &v, &step, &oracle())?;
        for (at, (keys, pages)) in lengths.iter().zip(&pages).enumerate() {
            let whole = |pool: &Tensor| {
                let own: Vec<Tensor> = pages.iter().map(|page| pool.get(*page as usize)).collect::<Result<_>>()?;
                Tensor::cat(&own, 0)?.narrow(0, 0, *keys as usize)?.unsqueeze(0)
            };
            let alone = attention(&q.narrow(0, at, 1)?, &whole(&k)?, &whole(&v)?, &oracle())?;
            assert_eq!(plain::apart(&ours.narrow(0, at, 1)?, &alone), 0.0, "sequence {at}");
        }
    }
    Ok(())
}

/// The stand-in for candle-flash-attn lacked this function of it.
#[test]
fn chunks_of_prompts_and_single_tokens_over_pages_have_the_outputs_of_each() -> Result<()> {
    set_defaults(Options::new().cpu_oracle(true));
    let random = |dims: &[usize]| Tensor::randn(0f32, 1.0, dims, &Device::Cpu)?.to_dtype(DType::BF16);
    let (k, v, q) = (random(&[8, 4, 2, 16])?, random(&[8, 4, 2, 16])?, random(&[7, 4, 16])?);
    let (queries, keys, pages) = ([1u32, 5, 1], [9u32, 6, 1], [vec![5u32, 0, 7], vec![2, 3], vec![6]]);
    let step = Arc::new(Sequences::mixed(&queries, &keys, &pages)?.max_seqlens(8, 16));
    let ours = attention_paged(&q, &k, &v, &step, &oracle())?;
    let cpu = |list: &[u32]| Tensor::new(list, &Device::Cpu);
    let table = Tensor::new(&[[5u32, 0, 7], [2, 3, 0], [6, 0, 0]], &Device::Cpu)?;
    let (rows, sums) = (cpu(&[0, 1, 6, 7])?, cpu(&[0, 9, 15, 16])?);
    let call = |table: &Tensor, ranges: Option<&Tensor>, page| {
        let (left, right) = (None, Some(0));
        flash_attn_varlen_paged_windowed(&q, &k, &v, &rows, &sums, table, ranges, 8, 16, 0.25, left, right, page, None)
    };
    assert_eq!(plain::apart(&call(&table, None, 4)?, &ours), 0.0);
    assert_eq!(plain::apart(&call(&table.to_dtype(DType::I32)?, None, 4)?, &ours), 0.0);
    assert!(call(&table, Some(&table), 4).is_err_and(|error| error.to_string().contains("mm_prefix_ranges")));
    assert!(call(&table, None, 8).is_err_and(|error| error.to_string().contains("page_block_size is 8")));
    let mut first = 0;
    for (at, (rows, keys)) in queries.iter().zip(&keys).enumerate() {
        let whole = |pool: &Tensor| {
            let own: Vec<Tensor> = pages[at].iter().map(|page| pool.get(*page as usize)).collect::<Result<_>>()?;
            Tensor::cat(&own, 0)?.narrow(0, 0, *keys as usize)?.unsqueeze(0)
        };
        let own = q.narrow(0, first, *rows as usize)?.unsqueeze(0)?;
        let alone = attention(&own, &whole(&k)?, &whole(&v)?, &oracle())?.squeeze(0)?;
        assert_eq!(plain::apart(&ours.narrow(0, first, *rows as usize)?, &alone), 0.0, "sequence {at}");
        first += *rows as usize;
    }
    Ok(())
}
