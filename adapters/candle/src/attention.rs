//! The functions of this crate: dense, varlen and paged attention over candle's tensors.

use std::sync::Arc;

use candle_core::op::BackpropOp;
use candle_core::{Result, Shape, Tensor};
use qkvault::graph::{DType, Role, Valid};
use smallvec::smallvec;

use crate::grad::{Saved, attach};
use crate::known::{Key, Shape as Sizes};
use crate::options::Order;
use crate::run::{Made, Out, Run};
use crate::tensor::{Lie, half, long, same_device};
use crate::{Error, Options, Sequences, rooms};

const BSHD: &str = "(batch, sequence, head, head dim)";
const THD: &str = "(token, head, head dim)";
const PAGES: &str = "(page, row, head, head dim)";

/// Attention of `q` over `k` and `v`, which may have fewer heads. The output has q's dims with v's head dim, and a
/// backward if a tensor is tracked.
///
/// Tensors may have any strides that cuDNN reads: views are not copied. The output lies as (batch, sequence, head, head
/// dim), also where [`Order::Bhsd`] gives it other dims.
///
/// ```
/// use candle_core::{DType, Device, Tensor, Var};
/// use candle_qkvault::{Options, attention};
///
/// let q = Var::randn(0f32, 1.0, (1, 6, 4, 16), &Device::Cpu)?;
/// let half = q.to_dtype(DType::BF16)?;
/// let o = attention(&half, &half, &half, &Options::new().causal(true).softcap(20.0).cpu_oracle(true))?;
/// let gradient = o.to_dtype(DType::F32)?.sqr()?.sum_all()?.backward()?;
/// assert_eq!(gradient.get(&q).expect("it is tracked").dims(), [1, 6, 4, 16]);
/// # Ok::<(), candle_core::Error>(())
/// ```
///
/// # Errors
///
/// candle's error with an [`Error`] inside: tensors that do not fit, an attention that cannot run here, with the
/// reasons, a plan that is missing, a launch that was refused.
pub fn attention(q: &Tensor, k: &Tensor, v: &Tensor, options: &Options) -> Result<Tensor> {
    Ok(dense(q, k, v, options, false)?.0)
}

/// As [`attention`], and the natural logarithm of each row's sum of exponentials: f32, (batch, head, sequence), without
/// a gradient.
///
/// # Errors
///
/// As [`attention`].
pub fn attention_with_lse(q: &Tensor, k: &Tensor, v: &Tensor, options: &Options) -> Result<(Tensor, Tensor)> {
    let (o, lse) = dense(q, k, v, options, true)?;
    Ok((o, lse.ok_or_else(|| Error::Gradient("the forward put out no statistics".to_owned()))?))
}

fn dense(q: &Tensor, k: &Tensor, v: &Tensor, options: &Options, lse: bool) -> Result<(Tensor, Option<Tensor>)> {
    let tensors = [turned("q", q, options)?, turned("k", k, options)?, turned("v", v, options)?];
    let padded = if lse { None } else { rooms::padded(&tensors, options)? };
    let (o, lse) = match padded {
        None => call(tensors, Sizes::Dense, None, options, lse)?,
        Some(rooms) => {
            let (o, _) = call(rooms.tensors, Sizes::Within, Some(&rooms.sequences), options, false)?;
            (o.narrow(1, 0, rooms.rows)?, None)
        }
    };
    Ok((if options.order == Order::Bhsd { o.transpose(1, 2)? } else { o }, lse))
}

/// Attention of sequences of different lengths, one after another: `q` is (token, head, head dim), and so are `k`, `v`
/// and the output. Tokens that belong to no sequence are undefined in the output.
///
/// A plan is for one number of sequences and of tokens: pad both to few sizes, and give [`Sequences::max_seqlens`].
///
/// # Errors
///
/// As [`attention`]; sequences that are not those of the tensors.
pub fn attention_varlen(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    sequences: &Arc<Sequences>,
    options: &Options,
) -> Result<Tensor> {
    if sequences.is_paged() {
        return Err(Error::Tensor("the sequences lie in pages; call attention_paged".to_owned()).into());
    }
    Ok(call([q.clone(), k.clone(), v.clone()], sequences.shape(), Some(sequences), options, false)?.0)
}

/// Attention over a cache of pages: `q` is (sequence, new token, head, head dim), or (token, head, head dim) with
/// [`Sequences::mixed`], and `k_pages` and `v_pages` are pools of (page, row, head, head dim). With
/// [`Options::causal`], the last new token of a sequence stands at its last key.
///
/// Zero the pools once: rows behind the last key are multiplied by zero, and NaN stays NaN. A cache has no backward.
///
/// ```
/// use std::sync::Arc;
/// use candle_core::{DType, Device, Tensor};
/// use candle_qkvault::{Options, Sequences, attention_paged};
///
/// // Two sequences with 5 and 3 keys in pages of 4 rows, one new token each.
/// let pages = Tensor::zeros((8, 4, 2, 16), DType::BF16, &Device::Cpu)?;
/// let q = Tensor::zeros((2, 1, 4, 16), DType::BF16, &Device::Cpu)?;
/// let step = Arc::new(Sequences::paged(1, &[5, 3], &[vec![0, 6], vec![3]])?.max_seqlens(1, 16));
/// let o = attention_paged(&q, &pages, &pages, &step, &Options::new().causal(true).cpu_oracle(true))?;
/// assert_eq!(o.dims(), [2, 1, 4, 16]);
/// # Ok::<(), candle_core::Error>(())
/// ```
///
/// # Errors
///
/// As [`attention`]; page ids outside the pool, or too few of them.
pub fn attention_paged(
    q: &Tensor,
    k_pages: &Tensor,
    v_pages: &Tensor,
    sequences: &Arc<Sequences>,
    options: &Options,
) -> Result<Tensor> {
    if !sequences.is_paged() {
        return Err(Error::Tensor("the sequences have no pages; make them with Sequences::paged".to_owned()).into());
    }
    let tensors = [q.clone(), k_pages.clone(), v_pages.clone()];
    Ok(call(tensors, sequences.shape(), Some(sequences), options, false)?.0)
}

/// What a call computes, to be compiled ahead (`RawRuntime::warm`), also where there is no GPU: tensors on the CPU do,
/// and only their shapes and types matter. A forward; with `training`, one that keeps statistics, and its backward for
/// a gradient without gaps.
///
/// ```no_run
/// use candle_core::{DType, Device, Tensor};
/// use candle_qkvault::{Options, descriptions, qkvault::Runtime};
///
/// let q = Tensor::zeros((1, 4096, 32, 128), DType::BF16, &Device::Cpu)?;
/// let runtime = Runtime::options().open_raw().map_err(candle_core::Error::wrap)?;
/// let target = runtime.compile_target("h200").map_err(candle_core::Error::wrap)?;
/// for attention in descriptions(&q, &q, &q, None, &Options::new().causal(true), true)? {
///     runtime.warm(&attention, &target).map_err(candle_core::Error::wrap)?;
/// }
/// # Ok::<(), candle_core::Error>(())
/// ```
///
/// # Errors
///
/// As [`attention`], of the description.
pub fn descriptions(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    sequences: Option<&Arc<Sequences>>,
    options: &Options,
    training: bool,
) -> Result<Vec<Valid>> {
    let (mut sizes, mut tensors) = (Sizes::Dense, [q.clone(), k.clone(), v.clone()]);
    let mut padded = None;
    if let Some(sequences) = sequences {
        sizes = sequences.shape();
    } else {
        tensors = [turned("q", q, options)?, turned("k", k, options)?, turned("v", v, options)?];
        padded = if training { None } else { rooms::padded(&tensors, options)? };
    }
    let mut sequences = sequences;
    if let Some(rooms) = &padded {
        (sizes, tensors, sequences) = (Sizes::Within, rooms.tensors.clone(), Some(&rooms.sequences));
    }
    let key = key(&tensors, sizes, sequences, training, options)?;
    let mut all = vec![options.known.entry(&key, options)?.valid.clone()];
    if training {
        let o = output(&tensors);
        let key = Key { d_o: Some(Lie::contiguous(&o)), ..key };
        all.push(options.known.entry(&key, options)?.valid.clone());
    }
    Ok(all)
}

/// The dims of the output.
fn output([q, _, v]: &[Tensor; 3]) -> Vec<usize> {
    let mut dims = q.dims().to_vec();
    if let Some(last) = dims.last_mut() {
        *last = v.dims().last().copied().unwrap_or_default();
    }
    dims
}

/// A tensor in the order (batch, sequence, head, head dim).
fn turned(name: &str, tensor: &Tensor, options: &Options) -> Result<Tensor> {
    match options.order {
        Order::Bshd => Ok(tensor.clone()),
        Order::Bhsd if tensor.rank() == 4 => tensor.transpose(1, 2),
        Order::Bhsd => {
            let dims = tensor.dims();
            let text = format!("{name} has dims {dims:?}; give a tensor of (batch, head, sequence, head dim)");
            Err(Error::Tensor(text).into())
        }
    }
}

fn call(
    tensors: [Tensor; 3],
    sizes: Sizes,
    sequences: Option<&Arc<Sequences>>,
    options: &Options,
    lse: bool,
) -> Result<(Tensor, Option<Tensor>)> {
    let [q, k, v] = &tensors;
    let tracked = q.track_op() || k.track_op() || v.track_op() || options.is_tracked();
    let why = match sizes {
        _ if options.inference => Some(
            "the output was made without the statistics that a backward reads (Options::inference); leave that out where \
             gradients are needed",
        ),
        Sizes::Paged { .. } | Sizes::Mixed { .. } => {
            Some("cuDNN has no backward over pages; compute on contiguous keys where gradients are needed")
        }
        Sizes::Dense | Sizes::Within | Sizes::Varlen { .. } => None,
    };
    let stats = lse || (tracked && why.is_none());
    let key = key(&tensors, sizes, sequences, stats, options)?;
    let entry = options.known.entry(&key, options)?;
    let attention = entry.valid.get();
    let mut outputs = vec![Out { role: Role::O, shape: Shape::from(output(&tensors)), dtype: attention.o.dtype }];
    if stats {
        let rows = match sizes {
            _ if sizes.has_tokens() => Shape::from(&q.dims()[..2]),
            _ => Shape::from((q.dims()[0], q.dims()[2], q.dims()[1])),
        };
        outputs.push(Out { role: Role::Stats, shape: rows, dtype: DType::F32 });
    }
    let inputs = smallvec![(Role::Q, q), (Role::K, k), (Role::V, v)];
    let run = Run::new(&entry, options, inputs, sequences.map(|own| &**own), outputs)?;
    let mut made = run.compute(q.device())?.into_iter();
    let lacking = || Error::Gradient("the computation has no output".to_owned());
    let o = made.next().ok_or_else(lacking)?;
    let row_sums =
        made.next().map(|(storage, shape): Made| Tensor::from_storage(storage, shape, BackpropOp::none(), false));
    if !tracked {
        let (storage, shape) = o;
        return Ok((Tensor::from_storage(storage, shape, BackpropOp::none(), false), row_sums));
    }
    let stats = match why {
        Some(why) => Err(why.to_owned()),
        None => row_sums.clone().ok_or_else(|| "the forward put out no statistics".to_owned()),
    };
    // The backward's description differs from the forward's in the gradient alone.
    let key = Key { stats: true, ..key };
    let saved = Saved { options: options.clone(), key, tensors: tensors.clone(), sequences: sequences.cloned(), stats };
    Ok((attach(o, saved)?, row_sums))
}

fn key(
    tensors: &[Tensor; 3],
    shape: Sizes,
    sequences: Option<&Arc<Sequences>>,
    stats: bool,
    options: &Options,
) -> std::result::Result<Key, Error> {
    options.check_origins()?;
    let [q, k, v] = tensors;
    let dtype = half([("q", q), ("k", k), ("v", v)])?;
    let extras = options.tensors.iter().map(|(name, tensor)| (&**name, tensor));
    for (name, tensor) in extras.chain(options.sink.as_ref().map(|sink| ("sink", sink))) {
        same_device(name, tensor, q)?;
    }
    if let Some(sink) = &options.sink {
        let heads = q.dims().get(q.rank().saturating_sub(2)).copied().unwrap_or_default();
        if sink.dtype() != candle_core::DType::F32 || sink.dims() != [heads] || !sink.is_contiguous() {
            let text = format!("sink is {:?} {:?}; give f32 [{heads}] without gaps", sink.dtype(), sink.dims());
            return Err(Error::Tensor(text));
        }
    }
    let rows = |rank, axes| Ok::<_, Error>((Lie::of("q", q, rank, axes)?, rank, axes));
    let (q, rank, axes) = if shape.has_tokens() { rows(3, THD)? } else { rows(4, BSHD)? };
    let (rank, axes) = if shape.is_paged() { (4, PAGES) } else { (rank, axes) };
    let key =
        Key { dtype, q, k: Lie::of("k", k, rank, axes)?, v: Lie::of("v", v, rank, axes)?, shape, stats, d_o: None };
    match (shape, sequences) {
        (Sizes::Varlen { .. }, Some(sequences)) => sequences.check(long(tensors[0].dims()[0]), long(k.dims()[0]))?,
        // Keys are counted where the table is made.
        (Sizes::Mixed { .. }, Some(sequences)) => sequences.check(long(tensors[0].dims()[0]), i64::MAX)?,
        (Sizes::Paged { .. }, Some(sequences)) => {
            let (batch, queries) = (sequences.batch(), sequences.queries());
            if (key.q.dims[0], key.q.dims[1]) != (batch, queries) {
                let text = format!(
                    "q has dims {:?}, and there are {batch} sequences of {queries} new tokens",
                    tensors[0].dims()
                );
                return Err(Error::Tensor(text));
            }
        }
        _ => {}
    }
    Ok(key)
}
