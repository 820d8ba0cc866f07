//! A cache of keys and values over pages, for generation loops of one's own.

use std::sync::Arc;

use candle_core::{DType, Device, Result, Tensor};
use qkvault::graph::Valid;

use crate::{Error, Options, Sequences, attention_paged, descriptions};

/// Room for keys of a sequence is a power of two from here on.
const LEAST_KEYS: usize = 256;

/// Likewise for the new tokens of a mixed step.
const LEAST_TOKENS: usize = 16;

/// Keys and values of all layers over pages, and the pages of each sequence.
///
/// A step names its sequences with their new tokens: chunks of prompts and single tokens may be mixed. Its lengths and
/// tables are uploaded once, for all layers, to where those of the step before lie; no layer waits for the GPU.
///
/// ```
/// use candle_core::{DType, Device, Tensor};
/// use candle_qkvault::{KvCache, Options};
///
/// // One layer of 2 key heads; 16 pages of 8 rows.
/// let mut cache = KvCache::new(1, (16, 8), 2, 16, DType::BF16, &Device::Cpu)?;
/// let (a, b) = (cache.add(), cache.add());
/// let options = Options::new().causal(true).cpu_oracle(true);
/// for new in [vec![(a, 11)], vec![(a, 1), (b, 5)], vec![(a, 1), (b, 1)]] {
///     let tokens = cache.step(&new)?;
///     let q = Tensor::zeros((tokens, 4, 16), DType::BF16, &Device::Cpu)?;
///     let kv = Tensor::zeros((tokens, 2, 16), DType::BF16, &Device::Cpu)?;
///     cache.append(0, &kv, &kv)?;
///     assert_eq!(cache.attention(0, &q, &options)?.dims(), [tokens, 4, 16]);
/// }
/// assert_eq!((cache.len(a), cache.len(b)), (13, 6));
/// cache.remove(a);
/// # Ok::<(), candle_core::Error>(())
/// ```
#[derive(Debug)]
pub struct KvCache {
    /// (page, row, head, head dim) of each layer.
    pools: Vec<[Tensor; 2]>,
    rows: usize,
    /// Free pages, the next one last.
    free: Vec<u32>,
    all: Vec<Option<Sequence>>,
    step: Option<Step>,
}

#[derive(Clone, Debug, Default)]
struct Sequence {
    pages: Vec<u32>,
    keys: usize,
}

/// What all layers of a step have in common.
#[derive(Debug)]
struct Step {
    sequences: Arc<Sequences>,
    /// Whether each sequence has one new token, for which engines have quicker plans.
    single: bool,
    tokens: usize,
    /// Runs of new tokens that lie one after another: first token, row of the pool, tokens.
    runs: Vec<(usize, usize, usize)>,
}

impl KvCache {
    /// A cache of so many layers with pools of (pages, rows of a page), zeroed, for key heads of one head dim.
    ///
    /// # Errors
    ///
    /// candle has no memory.
    pub fn new(
        layers: usize,
        (pages, rows): (usize, usize),
        kv_heads: usize,
        head_dim: usize,
        dtype: DType,
        device: &Device,
    ) -> Result<KvCache> {
        let pool = || Tensor::zeros((pages, rows, kv_heads, head_dim), dtype, device);
        let pools = (0..layers).map(|_| Ok([pool()?, pool()?])).collect::<Result<_>>()?;
        let free = (0..u32::try_from(pages).unwrap_or(u32::MAX)).rev().collect();
        Ok(KvCache { pools, rows: rows.max(1), free, all: Vec::new(), step: None })
    }

    /// A new sequence without keys: its number.
    pub fn add(&mut self) -> usize {
        let free = self.all.iter().position(Option::is_none);
        let at = free.unwrap_or(self.all.len());
        if free.is_none() {
            self.all.push(None);
        }
        self.all[at] = Some(Sequence::default());
        at
    }

    /// Gives the pages of a sequence back.
    pub fn remove(&mut self, sequence: usize) {
        if let Some(own) = self.all.get_mut(sequence).and_then(Option::take) {
            self.free.extend(own.pages.into_iter().rev());
        }
    }

    /// Keys of a sequence, 0 if there is none.
    #[must_use]
    pub fn len(&self, sequence: usize) -> usize {
        self.all.get(sequence).and_then(Option::as_ref).map_or(0, |own| own.keys)
    }

    /// Whether there is no sequence.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.all.iter().all(Option::is_none)
    }

    /// Begins a step: takes pages for the new tokens of these sequences, whose queries, keys and values come one
    /// sequence after another. Gives the number of tokens of the step.
    ///
    /// # Errors
    ///
    /// A sequence that is not there, is named twice or has no new token; too few free pages, and nothing is taken then.
    pub fn step(&mut self, new: &[(usize, usize)]) -> Result<usize> {
        let fault = |text: String| candle_core::Error::from(Error::Tensor(text));
        let mut wanted = 0;
        for (at, (sequence, tokens)) in new.iter().enumerate() {
            let Some(Some(own)) = self.all.get(*sequence) else {
                return Err(fault(format!("there is no sequence {sequence}; add() gives one")));
            };
            if *tokens == 0 || new[..at].iter().any(|(other, _)| other == sequence) {
                return Err(fault(format!("sequence {sequence} has no new token, or is named twice")));
            }
            wanted += (own.keys + tokens).div_ceil(self.rows) - own.pages.len();
        }
        if new.is_empty() || wanted > self.free.len() {
            return Err(fault(format!("{wanted} pages are needed, and {} are free", self.free.len())));
        }
        let (mut queries, mut keys, mut pages) = (Vec::new(), Vec::new(), Vec::new());
        let (mut runs, mut first): (Vec<(usize, usize, usize)>, usize) = (Vec::new(), 0);
        for (sequence, tokens) in new {
            let Some(Some(own)) = self.all.get_mut(*sequence) else { continue };
            let more = (own.keys + tokens).div_ceil(self.rows) - own.pages.len();
            own.pages.extend(self.free.split_off(self.free.len() - more).into_iter().rev());
            for place in own.keys..own.keys + tokens {
                let row = own.pages[place / self.rows] as usize * self.rows + place % self.rows;
                match runs.last_mut() {
                    Some((_, from, count)) if *from + *count == row => *count += 1,
                    _ => runs.push((first, row, 1)),
                }
                first += 1;
            }
            own.keys += tokens;
            queries.push(u32::try_from(*tokens).map_err(candle_core::Error::wrap)?);
            keys.push(u32::try_from(own.keys).map_err(candle_core::Error::wrap)?);
            pages.push(own.pages.clone());
        }
        let single = first == new.len();
        let made = match single {
            true => Sequences::paged(1, &keys, &pages)?,
            false => Sequences::mixed(&queries, &keys, &pages)?,
        };
        let room =
            |list: &[u32], least: usize| list.iter().max().map_or(0, |n| *n as usize).next_power_of_two().max(least);
        let made = made.max_seqlens(room(&queries, if single { 1 } else { LEAST_TOKENS }), room(&keys, LEAST_KEYS));
        // The tensors of the step before are written anew where they lie, if nobody else holds them.
        let mut before = self.step.take().map(|step| step.sequences);
        let sequences = match before.as_mut().and_then(Arc::get_mut).filter(|own| own.is_like(&made)) {
            Some(own) => {
                own.become_step(made)?;
                before
            }
            None => Some(Arc::new(made)),
        };
        let sequences = sequences.ok_or_else(|| fault("the step has no sequences".to_owned()))?;
        self.step = Some(Step { sequences, single, tokens: first, runs });
        Ok(first)
    }

    /// Writes the keys and values of the step's tokens, (token, head, head dim), into a layer's pages.
    ///
    /// # Errors
    ///
    /// No step, or tensors that are not its; candle's own.
    pub fn append(&self, layer: usize, k: &Tensor, v: &Tensor) -> Result<()> {
        let (step, pools) = self.now(layer, k.dims().first())?;
        if v.dims().first() != k.dims().first() {
            self.now(layer, v.dims().first())?;
        }
        for (pool, new) in pools.iter().zip([k, v]) {
            let (pages, rows, heads, d) = pool.dims4()?;
            // The same memory as rows of tokens.
            let pool = pool.reshape((pages * rows, heads, d))?;
            let new = new.contiguous()?;
            for (first, row, tokens) in &step.runs {
                pool.slice_set(&new.narrow(0, *first, *tokens)?, 0, *row)?;
            }
        }
        Ok(())
    }

    /// The attention of the step's queries, (token, head, head dim), over a layer's keys: with [`Options::causal`], the
    /// last new token of a sequence stands at its last key.
    ///
    /// # Errors
    ///
    /// As [`attention_paged`]; no step, or queries that are not its.
    pub fn attention(&self, layer: usize, q: &Tensor, options: &Options) -> Result<Tensor> {
        let (step, [k, v]) = self.now(layer, q.dims().first())?;
        let (tokens, heads, d) = q.dims3()?;
        if step.single {
            let q = q.reshape((tokens, 1, heads, d))?;
            return attention_paged(&q, k, v, &step.sequences, options)?.squeeze(1);
        }
        // Room for tokens too, so that chunks of different lengths share what is prepared.
        let room = tokens.next_power_of_two().max(LEAST_TOKENS);
        if room == tokens {
            return attention_paged(q, k, v, &step.sequences, options);
        }
        let within = Tensor::zeros((room, heads, d), q.dtype(), q.device())?;
        within.slice_set(&q.contiguous()?, 0, 0)?;
        attention_paged(&within, k, v, &step.sequences, options)?.narrow(0, 0, tokens)
    }

    /// What [`KvCache::attention`] of the step computes, to be compiled ahead (`RawRuntime::warm`).
    ///
    /// # Errors
    ///
    /// As [`KvCache::attention`], of the description.
    pub fn descriptions(&self, q: &Tensor, options: &Options) -> Result<Vec<Valid>> {
        let (step, [k, v]) = self.now(0, q.dims().first())?;
        let (tokens, heads, d) = q.dims3()?;
        let rows = if step.single { tokens } else { tokens.next_power_of_two().max(LEAST_TOKENS) };
        let q = Tensor::zeros((rows, heads, d), q.dtype(), q.device())?;
        let q = if step.single { q.unsqueeze(1)? } else { q };
        descriptions(&q, k, v, Some(&step.sequences), options, false)
    }

    fn now(&self, layer: usize, tokens: Option<&usize>) -> Result<(&Step, &[Tensor; 2])> {
        let found = self.step.as_ref().zip(self.pools.get(layer)).filter(|(step, _)| Some(&step.tokens) == tokens);
        found.ok_or_else(|| {
            let own = self.step.as_ref().map(|step| step.tokens);
            let text =
                format!("layer {layer} of {}, tokens {tokens:?} of {own:?}: begin a step first", self.pools.len());
            Error::Tensor(text).into()
        })
    }
}
