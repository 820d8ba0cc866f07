//! Random attentions in both directions, beside candle's plain attention in float32.

use std::sync::Arc;

use candle_core::{DType, Device, Result, Tensor, Var};
use candle_qkvault::qkvault::RawRuntime;
use candle_qkvault::qkvault::graph::Valid;
use candle_qkvault::{Options, Order, Sequences, attention, attention_paged, attention_varlen, descriptions};
use candle_qkvault_examples::plain::{Plain, plain};

use crate::families::{Family, Operand};

/// Random numbers of a case.
#[derive(Clone, Debug)]
pub(crate) struct Dice(u64);

impl Dice {
    pub(crate) fn new(seed: u64) -> Dice {
        Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x5bd1_e995)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    fn of<T: Copy>(&mut self, list: &[T]) -> T {
        list[self.below(list.len())]
    }

    fn yes(&mut self, one_in: usize) -> bool {
        self.below(one_in) == 0
    }

    /// A tensor of numbers that the type has exactly.
    fn tensor(&mut self, dims: &[usize], dtype: DType, device: &Device) -> Result<Tensor> {
        let count: usize = dims.iter().product();
        let number = |_| ((self.next() >> 40) as f32 / (1u64 << 24) as f32 - 0.5) * 3.4;
        let numbers: Vec<f32> = (0..count).map(number).collect();
        Tensor::from_vec(numbers, dims, device)?.to_dtype(dtype)?.to_dtype(DType::F32)
    }
}

/// How the sequences of a case lie.
#[derive(Clone, Debug)]
enum Kind {
    Dense,
    /// Queries and keys of each sequence.
    Varlen(Vec<(u32, u32)>),
    /// Rows of a page, and keys of each sequence.
    Paged(usize, Vec<u32>),
}

/// One random attention.
#[derive(Clone, Debug)]
pub(crate) struct Case {
    seed: u64,
    pub(crate) family: Family,
    dtype: DType,
    batch: usize,
    heads: (usize, usize),
    rows: usize,
    keys: usize,
    d: usize,
    left: Option<usize>,
    right: Option<usize>,
    softcap: Option<f32>,
    bias: Option<[usize; 4]>,
    slopes: bool,
    sink: bool,
    order: Order,
    kind: Kind,
    deterministic: bool,
    /// Where the positions of the keys begin, of a dense attention whose last query stands at its last key by numbers.
    origin: Option<usize>,
}

impl Case {
    /// The case of a seed.
    pub(crate) fn new(seed: u64) -> Case {
        let mut dice = Dice::new(seed);
        let (group, kv) = (dice.of(&[1, 1, 2, 4]), dice.of(&[1, 2, 4]));
        let heads = (group * kv, kv);
        let batch = 1 + dice.below(3);
        let rows = if dice.yes(2) { 8 * (1 + dice.below(40)) } else { 1 + dice.below(300) };
        let keys = if dice.yes(2) { rows } else { rows + 8 * dice.below(30) };
        let kind = match dice.below(8) {
            0 => Kind::Varlen(
                (0..batch + 1)
                    .map(|_| {
                        let rows = 1 + dice.below(200) as u32;
                        (rows, rows + dice.below(60) as u32)
                    })
                    .collect(),
            ),
            1 => {
                let rows = dice.of(&[16, 32, 64]);
                Kind::Paged(rows, (0..batch + 1).map(|_| 1 + dice.below(500) as u32).collect())
            }
            _ => Kind::Dense,
        };
        let dense = matches!(kind, Kind::Dense);
        let bias = (dense && dice.yes(4)).then(|| {
            let (b, h) = (dice.of(&[1, batch]), dice.of(&[1, heads.0]));
            [b, h, rows, keys]
        });
        let mut case = Case {
            seed,
            family: Family::ALL[(seed % Family::ALL.len() as u64) as usize],
            dtype: dice.of(&[DType::BF16, DType::F16]),
            batch,
            heads,
            rows,
            keys,
            d: dice.of(&[64, 64, 128, 128, 80, 32]),
            right: dice.yes(2).then_some(0),
            left: dice.yes(4).then(|| 1 + dice.below(100)),
            softcap: dice.yes(4).then_some(2.0),
            slopes: dice.yes(5),
            sink: dense && bias.is_none() && dice.yes(5),
            bias,
            order: dice.of(&[Order::Bshd, Order::Bhsd]),
            kind,
            deterministic: dice.yes(5),
            origin: None,
        };
        let counts = case.left.is_some() || case.right.is_some() || case.slopes;
        case.origin = (dense && counts && dice.yes(3)).then(|| dice.below(5000));
        case
    }

    /// Options, and the same for the plain attention; with the tensors that have gradients.
    fn options(&self, base: &Options, device: &Device) -> Result<(Options, Plain, Vec<Var>)> {
        let mut dice = Dice::new(self.seed ^ 0xabcd);
        let mut options = base.clone().window_size_left(self.left).window_size_right(self.right);
        options = options.deterministic(self.deterministic).poison_outputs(true);
        if let Some(first) = self.origin {
            options = options.query_origin(first + self.keys - self.rows).key_origin(first);
        }
        let mut of = Plain { left: self.left, right: self.right, ..Plain::default() };
        let mut variables = Vec::new();
        if let Some(cap) = self.softcap {
            (options, of.softcap) = (options.softcap(cap), Some(f64::from(cap)));
        }
        if let Some(dims) = self.bias {
            let bias = dice.tensor(&dims, self.dtype, device)?;
            // A gradient for every other bias.
            let (own, tracked) = (Var::from_tensor(&bias)?, self.seed.is_multiple_of(2));
            let used = if tracked { own.as_tensor().clone() } else { own.as_tensor().detach() };
            (options, of.bias) = (options.bias(&used.to_dtype(self.dtype)?), Some(used));
            variables.extend(tracked.then_some(own));
        }
        if self.slopes {
            let slopes = dice.tensor(&[self.heads.0], DType::F32, device)?.abs()?.affine(0.1, 0.0)?;
            (options, of.slopes) = (options.alibi_slopes(&slopes), Some(slopes));
        }
        if self.sink {
            let sink = Var::from_tensor(&dice.tensor(&[self.heads.0], DType::F32, device)?)?;
            let used = if self.seed.is_multiple_of(2) { sink.as_tensor().clone() } else { sink.as_tensor().detach() };
            (options, of.sink) = (options.sink(&used), Some(used));
            variables.extend(self.seed.is_multiple_of(2).then_some(sink));
        }
        Ok((options, of, variables))
    }

    /// Q, K and V as variables of numbers that the type has exactly; (batch, sequence, head, head dim), or tokens.
    fn tensors(&self, device: &Device) -> Result<[Var; 3]> {
        let mut dice = Dice::new(self.seed ^ 0x1234);
        let (heads, kv) = self.heads;
        let dims = |rows: usize, heads: usize| match &self.kind {
            Kind::Varlen(_) => vec![rows, heads, self.d],
            Kind::Dense | Kind::Paged(..) => vec![self.batch, rows, heads, self.d],
        };
        let (rows, keys) = match &self.kind {
            Kind::Varlen(all) => {
                (all.iter().map(|one| one.0 as usize).sum(), all.iter().map(|one| one.1 as usize).sum())
            }
            Kind::Dense | Kind::Paged(..) => (self.rows, self.keys),
        };
        let mut make = |operand, rows, heads| {
            let random = dice.tensor(&dims(rows, heads), self.dtype, device)?;
            Var::from_tensor(&self.family.shaped(operand, &random, self.dtype)?)
        };
        Ok([make(Operand::Q, rows, heads)?, make(Operand::K, keys, kv)?, make(Operand::V, keys, kv)?])
    }

    fn sequences(&self) -> Result<Option<Arc<Sequences>>> {
        let Kind::Varlen(all) = &self.kind else { return Ok(None) };
        let sums = |of: fn(&(u32, u32)) -> u32| {
            all.iter().fold(vec![0], |mut list, one| {
                list.push(list[list.len() - 1] + of(one));
                list
            })
        };
        Ok(Some(Arc::new(Sequences::varlen(&sums(|one| one.0), &sums(|one| one.1))?)))
    }

    /// What the case launches, to be prepared ahead. Tensors on the CPU do.
    pub(crate) fn ahead(&self, runtime: &RawRuntime) -> Result<Vec<Valid>> {
        if matches!(self.kind, Kind::Paged(..)) {
            return Ok(Vec::new());
        }
        let (options, ..) = self.options(&Options::new().runtime(runtime), &Device::Cpu)?;
        let [q, k, v] = self.tensors(&Device::Cpu)?;
        let seen = |own: &Var| self.seen(&own.to_dtype(self.dtype)?);
        let options = if self.kind.is_dense() { options.order(self.order) } else { options };
        descriptions(&seen(&q)?, &seen(&k)?, &seen(&v)?, self.sequences()?.as_ref(), &options, true)
    }

    /// A tensor as the case gives it: in its order of dims, for every third case as a view of the other order's memory.
    fn seen(&self, tensor: &Tensor) -> Result<Tensor> {
        if !self.kind.is_dense() {
            return Ok(tensor.clone());
        }
        let other = |t: &Tensor| t.transpose(1, 2)?.contiguous()?.transpose(1, 2);
        let lying = if self.seed.is_multiple_of(3) { other(tensor)? } else { tensor.clone() };
        if self.order == Order::Bhsd { lying.transpose(1, 2) } else { Ok(lying) }
    }

    /// Computes it in both directions. The largest of all differences over its bound, by name.
    pub(crate) fn run(&self, base: &Options, device: &Device) -> Result<(String, f32)> {
        if let Kind::Paged(rows, lengths) = &self.kind {
            return self.paged(*rows, lengths, base, device);
        }
        let (options, of, extra) = self.options(base, device)?;
        let variables = self.tensors(device)?;
        let [q, k, v] = &variables;
        let seen = |own: &Var| self.seen(&own.to_dtype(self.dtype)?);
        let sequences = self.sequences()?;
        let ours = match &sequences {
            None => {
                let o = attention(&seen(q)?, &seen(k)?, &seen(v)?, &options.order(self.order))?;
                if self.order == Order::Bhsd { o.transpose(1, 2)? } else { o }
            }
            Some(sequences) => attention_varlen(&seen(q)?, &seen(k)?, &seen(v)?, sequences, &options)?,
        };
        let theirs = match &self.kind {
            Kind::Varlen(all) => {
                let (mut rows, mut keys, mut parts) = (0, 0, Vec::new());
                for one in all {
                    let (s, t) = (one.0 as usize, one.1 as usize);
                    let part = |own: &Var, at, n| own.narrow(0, at, n)?.unsqueeze(0);
                    parts.push(plain(&part(q, rows, s)?, &part(k, keys, t)?, &part(v, keys, t)?, &of)?.squeeze(0)?);
                    (rows, keys) = (rows + s, keys + t);
                }
                Tensor::cat(&parts, 0)?
            }
            _ => plain(q, k, v, &of)?,
        };
        let half = if self.dtype == DType::BF16 { 0.02 } else { 0.005 };
        let mut worst = (String::from("o"), relative(&ours, &theirs, 0.0)? / half);
        let weights = Dice::new(self.seed ^ 0x77).tensor(theirs.dims(), self.dtype, device)?;
        // A query that sees one key, or equal ones, has gradients of zero: differences of equal numbers, as rounded.
        let least = 1e-3 * weights.sqr()?.sum_all()?.sqrt()?.to_scalar::<f32>()?;
        let largest = |own: &Var| own.abs()?.flatten_all()?.max(0)?.to_scalar::<f32>();
        let reach = |own| Ok::<f32, candle_core::Error>(largest(own)? * largest(v)? / (self.d as f32).sqrt());
        let reaches = [("dq", reach(k)?), ("dk", reach(q)?), (OTHER, largest(v)?)];
        let ours = (ours.to_dtype(DType::F32)? * &weights)?.sum_all()?.backward()?;
        let theirs = (theirs * &weights)?.sum_all()?.backward()?;
        let names = ["dq", "dk", "dv"].into_iter().chain(extra.iter().map(|_| OTHER));
        for (name, own) in names.zip(variables.iter().chain(&extra)) {
            let lacking = || candle_core::Error::Msg(format!("{name} is missing"));
            let (a, b) = (ours.get(own).ok_or_else(lacking)?, theirs.get(own).ok_or_else(lacking)?);
            // The oracle judged each launch by its own numbers. Where a row's gradients of scores cancel, what is
            // left is the rounding of O between the two.
            let reach = reaches.iter().find(|(own, _)| *own == name && self.family.cancels()).map_or(0.0, |own| own.1);
            let least = least.max(1e3 * least * reach);
            let off = relative(a, b, least)? / (2.0 * half);
            if off.is_nan() || off > worst.1 {
                worst = (name.to_owned(), off);
            }
        }
        Ok(worst)
    }

    /// A decode over pages, each sequence beside its own keys.
    fn paged(&self, rows: usize, lengths: &[u32], base: &Options, device: &Device) -> Result<(String, f32)> {
        let mut dice = Dice::new(self.seed ^ 0x99);
        let (heads, kv) = self.heads;
        // One new token, or a few.
        let new = dice.of(&[1, 1, 4]);
        let lengths: Vec<u32> = lengths.iter().map(|keys| (*keys).max(new as u32)).collect();
        let pages: usize = lengths.iter().map(|keys| (*keys as usize).div_ceil(rows)).sum();
        // Pages in another order than the sequences'.
        let mut free: Vec<u32> = (0..pages as u32).collect();
        let tables: Vec<Vec<u32>> = lengths
            .iter()
            .map(|keys| (0..(*keys as usize).div_ceil(rows)).map(|_| free.remove(dice.below(free.len()))).collect())
            .collect();
        let (options, of, _) = self.options(base, device)?;
        let mut make = |operand, dims: [usize; 4]| {
            let random = dice.tensor(&dims, self.dtype, device)?;
            self.family.shaped(operand, &random, self.dtype)?.to_dtype(self.dtype)
        };
        let k = make(Operand::K, [pages, rows, kv, self.d])?;
        let v = make(Operand::V, [pages, rows, kv, self.d])?;
        let q = make(Operand::Q, [lengths.len(), new, heads, self.d])?;
        let step = Arc::new(Sequences::paged(new, &lengths, &tables)?.max_seqlens(new, 512));
        let ours = attention_paged(&q, &k, &v, &step, &options)?;
        let mut worst = 0f32;
        for (at, (keys, table)) in lengths.iter().zip(&tables).enumerate() {
            let whole = |pool: &Tensor| {
                let own = table.iter().map(|page| pool.get(*page as usize)).collect::<Result<Vec<Tensor>>>()?;
                Tensor::cat(&own, 0)?.narrow(0, 0, *keys as usize)?.unsqueeze(0)
            };
            let alone = plain(&q.narrow(0, at, 1)?, &whole(&k)?, &whole(&v)?, &of)?;
            let off = relative(&ours.narrow(0, at, 1)?, &alone, 0.0)?;
            worst = if off.is_nan() { off } else { worst.max(off) };
        }
        Ok((String::from("o over pages"), worst / if self.dtype == DType::BF16 { 0.02 } else { 0.005 }))
    }
}

/// The name of a gradient that is none of Q, K and V.
const OTHER: &str = "d of a bias or sink";

impl Kind {
    const fn is_dense(&self) -> bool {
        matches!(self, Kind::Dense)
    }
}

/// The norm of the difference over the norm of the exact numbers, which counts as `least` at least; NaN if a number is
/// none.
pub(crate) fn relative(a: &Tensor, b: &Tensor, least: f32) -> Result<f32> {
    let (a, b) = (a.to_dtype(DType::F32)?.detach(), b.to_dtype(DType::F32)?.detach());
    let norm = |t: &Tensor| t.sqr()?.sum_all()?.to_scalar::<f32>();
    Ok((norm(&(a - &b)?)? / norm(&b)?.max(1e-12).max(least * least)).sqrt())
}
