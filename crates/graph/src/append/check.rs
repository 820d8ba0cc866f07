//! What an append must be: new keys and values of 16 bits, and caches that have a place for each of them.

use super::{CacheAppend, ValidCacheAppend};
use crate::registry::codes;
use crate::valid::{Problems, canonical_strides, check_tensor};
use crate::{Refusal, Storage, Tensor};

pub(super) fn validate(append: CacheAppend) -> Result<ValidCacheAppend, Refusal> {
    let CacheAppend { new_k, new_v, k, v } = append;
    let mut problems = Problems::default();
    for (name, tensor, written) in
        [("new_k", &new_k, false), ("new_v", &new_v, false), ("k", &k, true), ("v", &v, true)]
    {
        check_tensor(name, tensor, written, &mut problems);
        let stored = match tensor.storage {
            Storage::Dense => true,
            Storage::Varlen { .. } => !written,
            Storage::Paged { .. } => written,
        };
        if !stored {
            problems.add(codes::APPEND_STORAGE.reason(format!("{:?}", tensor.storage)).at(format!("{name}.storage")));
        }
    }
    let mut types = |right: bool, name: &str, given: String| {
        if !right {
            problems.add(codes::APPEND_TYPE.reason(given).at(format!("{name}.dtype")));
        }
    };
    types(new_k.dtype.is_half(), "new_k", new_k.dtype.to_string());
    types(new_v.dtype == new_k.dtype, "new_v", format!("{}, and {} of K", new_v.dtype, new_k.dtype));
    let kept = k.dtype.is_fp8() || k.dtype == new_k.dtype;
    types(kept, "k", format!("{} for new ones in {}", k.dtype, new_k.dtype));
    types(v.dtype == k.dtype, "v", format!("{}, and {} of K", v.dtype, k.dtype));
    let mut same = |name: &str, of: &Tensor, other: &str, like: &Tensor, dims: &[usize]| {
        if dims.iter().any(|&dim| of.dims[dim] != like.dims[dim]) {
            let given = format!("{:?}, and {:?} of {other}", of.dims, like.dims);
            problems.add(codes::APPEND_DIMS.reason(given).at(format!("{name}.dims")));
        }
    };
    same("k", &k, "new_k", &new_k, &[0, 1, 3]);
    same("v", &v, "new_v", &new_v, &[0, 1, 3]);
    same("new_v", &new_v, "new_k", &new_k, &[0, 2]);
    same("v", &v, "k", &k, &[2]);
    match Refusal::from_reasons(problems.into_reasons()) {
        Some(refusal) => Err(refusal),
        None => {
            let [new_k, new_v, k, v] = [new_k, new_v, k, v].map(|t| Tensor { strides: canonical_strides(&t), ..t });
            Ok(ValidCacheAppend(CacheAppend { new_k, new_v, k, v }))
        }
    }
}
