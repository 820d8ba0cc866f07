//! Keys, operands and contradictions of appends.

use std::collections::BTreeSet;

use super::*;
use crate::registry::codes;
use crate::{Role, Scaled, Varlen};

fn paged() -> CacheAppend {
    let new = |d| Tensor::bshd(3, 2, 5, d, DType::BF16);
    let pool = |d| Tensor::paged_nhd(3, 2, 100, d, 40, 16, DType::E4M3);
    CacheAppend { new_k: new(128), new_v: new(64), k: pool(128), v: pool(64) }
}

fn varlen() -> CacheAppend {
    let new = |d| Tensor::thd(3, 2, 5, d, 11, DType::F16);
    let cache = |d| Tensor::bhsd(3, 2, 100, d, DType::F16);
    CacheAppend { new_k: new(128), new_v: new(64), k: cache(128), v: cache(64) }
}

#[test]
fn it_binds_what_it_reads_and_writes() {
    let bound = |append: CacheAppend| {
        let valid = append.validate().expect("sound");
        valid.bindings().iter().map(|b| (b.role, b.output, b.bytes)).collect::<Vec<_>>()
    };
    let pool = 40 * 16 * 2;
    assert_eq!(
        bound(paged()),
        [
            (Role::K, true, pool * 128),
            (Role::V, true, pool * 64),
            (Role::SeqLenQ, false, 12),
            (Role::SeqLenKv, false, 12),
            (Role::PageTableK, false, 3 * 7 * 4),
            (Role::PageTableV, false, 3 * 7 * 4),
            (Role::NewK, false, 3 * 5 * 2 * 128 * 2),
            (Role::NewV, false, 3 * 5 * 2 * 64 * 2),
            (Role::Descale(Scaled::K), false, 4),
            (Role::Descale(Scaled::V), false, 4),
        ]
    );
    let cache = 3 * 2 * 100 * 2;
    assert_eq!(
        bound(varlen()),
        [
            (Role::K, true, cache * 128),
            (Role::V, true, cache * 64),
            (Role::SeqLenQ, false, 12),
            (Role::SeqLenKv, false, 12),
            (Role::NewK, false, 11 * 2 * 128 * 2),
            (Role::NewV, false, 11 * 2 * 64 * 2),
            (Role::Offsets(Varlen::NewK), false, 32),
            (Role::Offsets(Varlen::NewV), false, 32),
        ]
    );
}

/// One step's lengths, tables, caches and scales serve both launches.
#[test]
fn its_operands_are_those_of_the_attention_that_reads_the_caches() {
    let mut a = Attention::bshd(4, (8, 2), (3, 512), 64, DType::E4M3).with_lengths();
    a.k = Tensor::paged_hnd(4, 2, 512, 64, 99, 32, DType::E4M3);
    (a.v, a.fp8) = (a.k, Some(crate::Fp8::Current));
    a.o.dtype = DType::BF16;
    let append = CacheAppend::before(&a, DType::BF16).validate().expect("sound");
    let attention = crate::validate(a).expect("sound");
    let facts = attention.operand_facts();
    for binding in append.bindings().iter().filter(|b| ![Role::NewK, Role::NewV].contains(&b.role)) {
        let fact = facts.iter().find(|fact| fact.role == binding.role).expect("the attention reads it");
        assert_eq!((fact.dtype, fact.bytes), (binding.dtype, binding.bytes), "{}", binding.role);
    }
    let mut packed = attention.into_inner();
    packed.q = Tensor::thd(4, 8, 3, 64, 9, DType::E4M3);
    let append = CacheAppend::before(&packed, DType::F16).validate().expect("sound");
    assert_eq!(append.new_v, Tensor::thd(4, 2, 3, 64, 9, DType::F16));
}

#[test]
fn every_field_is_in_the_key() {
    let mut list = vec![paged(), varlen()];
    let mut with = |change: &dyn Fn(&mut CacheAppend)| {
        let mut append = paged();
        change(&mut append);
        list.push(append);
    };
    with(&|a| (a.new_k.dtype, a.new_v.dtype) = (DType::F16, DType::F16));
    with(&|a| (a.k.dtype, a.v.dtype) = (DType::E5M2, DType::E5M2));
    with(&|a| (a.k.dtype, a.v.dtype) = (DType::BF16, DType::BF16));
    with(&|a| (a.new_k.dims[2], a.new_v.dims[2]) = (4, 4));
    with(&|a| (a.k.dims[2], a.v.dims[2]) = (99, 99));
    with(&|a| (a.new_k.dims[1], a.k.dims[1]) = (1, 1));
    with(&|a| (a.new_v.dims[1], a.v.dims[1]) = (1, 1));
    with(&|a| a.new_k.strides = [4096, 128, 512, 1]);
    with(&|a| a.new_v.strides = [4096, 128, 512, 1]);
    with(&|a| a.k.strides[0] *= 2);
    with(&|a| a.v.strides[0] *= 2);
    with(&|a| a.k.storage = Storage::Paged { pages: 41, page_size: 16 });
    with(&|a| a.v.storage = Storage::Paged { pages: 40, page_size: 8 });
    with(&|a| a.new_k.storage = Storage::Varlen { tokens: 9 });
    with(&|a| a.new_k.storage = Storage::Varlen { tokens: 8 });
    with(&|a| a.new_v.storage = Storage::Varlen { tokens: 9 });
    let keys: BTreeSet<_> = list.iter().map(|of| *of.validate().expect("sound").key().bytes()).collect();
    assert_eq!(keys.len(), list.len());
}

#[test]
fn strides_that_are_never_used_change_no_key() {
    let mut other = varlen();
    other.new_k.strides[0] = 7;
    assert_eq!(other.validate().expect("sound").key(), varlen().validate().expect("sound").key());
}

#[test]
fn every_contradiction_is_told_with_its_place() {
    let refused = |change: fn(&mut CacheAppend)| {
        let mut append = paged();
        change(&mut append);
        let refusal = append.validate().expect_err("refused");
        refusal.reasons().iter().map(|r| (r.code.to_string(), r.field.to_string())).collect::<Vec<_>>()
    };
    let code = |code: &crate::Code, field: &str| (code.to_string(), field.to_owned());
    let (types, storage, dims) = (&codes::APPEND_TYPE, &codes::APPEND_STORAGE, &codes::APPEND_DIMS);
    assert_eq!(refused(|a| a.new_k.dtype = DType::F32), [code(types, "new_k.dtype"), code(types, "new_v.dtype")]);
    assert_eq!(refused(|a| a.new_v.dtype = DType::F16), [code(types, "new_v.dtype")]);
    assert_eq!(refused(|a| (a.k.dtype, a.v.dtype) = (DType::F16, DType::F16)), [code(types, "k.dtype")]);
    assert_eq!(refused(|a| a.v.dtype = DType::E5M2), [code(types, "v.dtype")]);
    assert_eq!(
        refused(|a| a.new_k.storage = Storage::Paged { pages: 4, page_size: 4 }),
        [code(storage, "new_k.storage")]
    );
    assert_eq!(refused(|a| a.v.storage = Storage::Varlen { tokens: 4 }), [code(storage, "v.storage")]);
    assert_eq!(refused(|a| a.k.dims[0] = 2), [code(dims, "k.dims")]);
    assert_eq!(refused(|a| a.k.dims[3] = 64), [code(dims, "k.dims")]);
    assert_eq!(refused(|a| a.v.dims[1] = 1), [code(dims, "v.dims")]);
    assert_eq!(refused(|a| a.new_v.dims[2] = 4), [code(dims, "new_v.dims")]);
    assert_eq!(refused(|a| a.v.dims[2] = 99), [code(dims, "v.dims")]);
    assert_eq!(refused(|a| a.k.strides[2] = 1), [code(&codes::TENSOR_OVERLAP, "k.strides")]);
    assert_eq!(refused(|a| a.new_v.strides[3] = 2), [code(&codes::TENSOR_HEAD_DIM_STRIDE, "new_v.strides[3]")]);
    // What is read may be one row for all.
    let mut same = paged();
    same.new_k.strides = [1; 4];
    assert!(same.validate().is_ok());
    assert_eq!(
        paged().validate().expect("sound").to_string(),
        "append bf16 [3,2,5,128] to e4m3 pages of 16 for 100 keys, values of 64"
    );
}
