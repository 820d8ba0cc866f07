//! Room: queries and keys of any number as a part of buffers of few sizes, so that steps of different lengths share
//! plans, as a generation over keys that grow needs.
//!
//! Keys that a model concatenates end with their memory, and a plan's buffers are read as far as the plan says, so they
//! are copied into room behind which zeros stand: every engine may read those. Lengths are numbers of the launch.

use std::sync::Arc;

use candle_core::{Result, Tensor};

use crate::{Options, Sequences};

/// Room for keys is a power of two from here on: kernels stop at the lengths, so more costs memory alone.
const LEAST_KEYS: usize = 256;

/// Room for several queries, likewise.
const LEAST_QUERIES: usize = 16;

/// A call over buffers with room.
pub(crate) struct Padded {
    pub(crate) tensors: [Tensor; 3],
    pub(crate) sequences: Arc<Sequences>,
    /// Queries that there are: rows of the output beyond them are undefined.
    pub(crate) rows: usize,
}

/// The tensors of a call, (batch, sequence, head, head dim), with room. `None` if the options do not ask for it, if the
/// call needs a gradient or has no use for room, and if the tensors are wrong, which the call itself finds.
pub(crate) fn padded(tensors: &[Tensor; 3], options: &Options) -> Result<Option<Padded>> {
    let [q, k, v] = tensors;
    let (Ok((batch, rows, ..)), Ok((of_k, keys, ..)), Ok((of_v, values, ..))) = (q.dims4(), k.dims4(), v.dims4())
    else {
        return Ok(None);
    };
    let tracked = q.track_op() || k.track_op() || v.track_op() || options.is_tracked();
    let counted = batch > 0 && rows > 0 && keys > 0 && values == keys && of_k == batch && of_v == batch;
    // Other tensors have the extents of queries and keys.
    let shaped = options.tensors.iter().any(|(name, _)| name != "alibi_slopes");
    let numbered = options.origins.is_some() || options.dropout.is_some();
    if !options.shares_plans.unwrap_or(false) || tracked || !counted || shaped || numbered {
        return Ok(None);
    }
    let plain = options.score.is_none() && options.mask.is_none() && options.sink.is_none();
    // Engines for one query have no expressions and no sink.
    let queries = if rows == 1 && plain { 1 } else { rows.next_power_of_two().max(LEAST_QUERIES) };
    let room = keys.next_power_of_two().max(LEAST_KEYS);
    if rows > 1 && (rows, keys) == (queries, room) {
        return Ok(None);
    }
    let q = if queries == rows { q.clone() } else { within(&[q], queries)?.remove(0) };
    let [k, v] = match k.dims() == v.dims() {
        // One buffer is made quicker than two.
        true => <[Tensor; 2]>::try_from(within(&[k, v], room)?).unwrap_or_else(|_| [k.clone(), v.clone()]),
        false => [within(&[k], room)?.remove(0), within(&[v], room)?.remove(0)],
    };
    let sequences = options.known.within(batch, rows, keys)?;
    Ok(Some(Padded { tensors: [q, k, v], sequences, rows }))
}

/// Tensors of the same dims as parts of one buffer of zeros, each with this many rows.
fn within(tensors: &[&Tensor], room: usize) -> Result<Vec<Tensor>> {
    // Models keep heads outside rows, or rows outside heads; either is copied as it lies.
    let by_head = tensors[0].transpose(1, 2)?.is_contiguous();
    let turn = |t: &Tensor| if by_head { t.transpose(1, 2) } else { Ok(t.clone()) };
    let axis = if by_head { 2 } else { 1 };
    let mut dims = turn(tensors[0])?.dims().to_vec();
    dims[axis] = room * tensors.len();
    let all = Tensor::zeros(dims, tensors[0].dtype(), tensors[0].device())?;
    for (at, tensor) in tensors.iter().enumerate() {
        all.slice_set(&turn(tensor)?.contiguous()?, axis, at * room)?;
    }
    (0..tensors.len()).map(|at| turn(&all.narrow(axis, at * room, room)?)).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use candle_core::{CpuStorage, DType, Device, Storage};

    use super::*;
    use crate::{Order, attention, descriptions};

    fn random(dims: &[usize]) -> Tensor {
        Tensor::randn(0f32, 1.0, dims, &Device::Cpu).and_then(|t| t.to_dtype(DType::BF16)).expect("random numbers")
    }

    fn sharing() -> Options {
        Options::new().cpu_oracle(true).order(Order::Bhsd).share_plans(true)
    }

    /// candle-transformers' Llama concatenates keys and calls: each token was a plan of its own.
    #[test]
    fn a_generation_of_64_tokens_has_one_plan_for_its_prompt_and_one_for_its_tokens() {
        let (decode, prompt) = (sharing(), sharing().causal(true));
        let (mut k, mut v) = (random(&[1, 2, 23, 16]), random(&[1, 2, 23, 16]));
        attention(&random(&[1, 4, 23, 16]), &k, &v, &prompt).expect("a prompt");
        for _ in 0..64 {
            let grow = |t: &Tensor| Tensor::cat(&[t, &random(&[1, 2, 1, 16])], 2).expect("grows");
            (k, v) = (grow(&k), grow(&v));
            let q = random(&[1, 4, 1, 16]);
            let ours = attention(&q, &k, &v, &decode).expect("a token");
            let exact = attention(&q, &k, &v, &sharing().share_plans(false)).expect("a token");
            assert_eq!(ours.dims(), exact.dims());
            let off = (ours - exact).and_then(|t| t.abs()?.max_all()?.to_dtype(DType::F32)?.to_scalar::<f32>());
            assert_eq!(off.expect("a number"), 0.0, "the same numbers over {} keys", k.dims()[2]);
        }
        assert_eq!((prompt.known.len(), decode.known.len()), (1, 1));
    }

    #[test]
    fn lengths_up_to_8192_need_six_plans_and_their_buffers_end_where_their_descriptions_say() {
        let (options, mut plans) = (sharing(), HashSet::new());
        for keys in [1, 255, 256, 257, 700, 1024, 1025, 3000, 5000, 8192] {
            let (q, k) = (random(&[1, 2, 1, 16]), random(&[1, 1, keys, 16]));
            let valid = descriptions(&q, &k, &k, None, &options, false).expect("described").remove(0);
            let room = valid.get().k.dims[2];
            assert!(room >= keys as i64 && room < 2 * keys.max(256) as i64, "room of {room} for {keys}");
            let turned = [&q, &k, &k].map(|t| t.transpose(1, 2).expect("turns"));
            let own = padded(&turned, &options).expect("room").expect("there is some");
            for tensor in &own.tensors[1..] {
                let (storage, _) = tensor.storage_and_layout();
                let Storage::Cpu(CpuStorage::BF16(all)) = &*storage else { panic!("numbers of 16 bits") };
                let last: usize = tensor.dims().iter().zip(tensor.stride()).map(|(n, step)| (n - 1) * step).sum();
                assert!(tensor.layout().start_offset() + last < all.len(), "{:?}", tensor.layout());
            }
            plans.insert(valid);
        }
        assert_eq!(plans.len(), 6);
    }

    #[test]
    fn chunks_of_a_prompt_stand_at_the_end_of_their_keys() {
        let options = sharing().causal(true).window_size_left(9);
        for (rows, keys) in [(5, 5), (7, 20), (16, 16), (3, 300)] {
            let (q, k, v) = (random(&[2, 4, rows, 16]), random(&[2, 2, keys, 16]), random(&[2, 2, keys, 16]));
            let ours = attention(&q, &k, &v, &options).expect("a chunk");
            let exact = attention(&q, &k, &v, &options.clone().share_plans(false)).expect("a chunk");
            let off = (ours - exact).and_then(|t| t.abs()?.max_all()?.to_dtype(DType::F32)?.to_scalar::<f32>());
            assert_eq!(off.expect("a number"), 0.0, "{rows} rows over {keys} keys");
        }
        assert_eq!(options.known.len(), 2);
    }
}
