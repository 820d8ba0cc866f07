//! Descriptors of the real library: attributes set and read back, and errors with cuDNN's messages.

#[allow(dead_code, reason = "each test program uses its part")]
mod common;

use std::sync::Arc;

use common::{alone, attention, fetched};
use qkvault_sys::{AttributeName as A, DataType, Descriptor, Error, Kind, Library, Search, Status, log};

const PROFILE: &str = include_str!("../../../profiles/h200-sxm.driver-13.0.cudnn-9.27.json");

fn with_library(test: &str, body: impl FnOnce(&Arc<Library>)) {
    alone(test, || {
        let Some(set) = fetched("9.27.0") else { return };
        qkvault_sys::headless::ensure().expect("a driver or the stand-in");
        body(&Library::open(&Search::at(&set)).expect("a fetched set is whole"));
    });
}

fn tensor(library: &Arc<Library>) -> Descriptor {
    let mut tensor = Descriptor::create(library, Kind::TENSOR).expect("a kind that all versions have");
    tensor.set_one(A::TENSOR_DATA_TYPE, DataType::BFLOAT16).expect("a data type");
    tensor.set(A::TENSOR_DIMENSIONS, &[2_i64, 3, 5, 8]).expect("four dims");
    tensor.set(A::TENSOR_STRIDES, &[120_i64, 40, 8, 1]).expect("four strides");
    tensor.set_one(A::TENSOR_UNIQUE_ID, 7_i64).expect("a uid");
    tensor.set_one(A::TENSOR_BYTE_ALIGNMENT, 16_i64).expect("an alignment");
    tensor
}

#[test]
fn what_was_set_is_read_back() {
    with_library("what_was_set_is_read_back", |library| {
        let tensor = tensor(library).finalized().expect("a whole tensor");
        assert_eq!(tensor.kind(), Kind::TENSOR);
        assert_eq!(tensor.get::<i64>(A::TENSOR_DIMENSIONS).expect("set above"), [2, 3, 5, 8]);
        assert_eq!(tensor.get::<i64>(A::TENSOR_STRIDES).expect("set above"), [120, 40, 8, 1]);
        assert_eq!(tensor.get_one::<i64>(A::TENSOR_UNIQUE_ID).expect("set above"), 7);
        assert_eq!(tensor.get_one::<DataType>(A::TENSOR_DATA_TYPE).expect("set above"), DataType::BFLOAT16);
        assert!(!tensor.get_bool(A::TENSOR_IS_VIRTUAL).expect("false by default"));
    });
}

#[test]
fn a_profile_is_read_without_a_gpu() {
    with_library("a_profile_is_read_without_a_gpu", |library| {
        let device = attention::device(library, PROFILE).expect("a profile for this version");
        let json = device.get_bytes(A::DEVICEPROP_JSON_REPRESENTATION).expect("it can be written");
        let text = String::from_utf8(json).expect("JSON is UTF-8");
        assert!(text.contains("\"multiProcessorCount\":132"), "{text}");
        assert!(text.ends_with('}'), "a NUL or more was left at the end: {text:?}");
    });
}

#[test]
fn a_refused_attribute_is_told_in_cudnns_words() {
    with_library("a_refused_attribute_is_told_in_cudnns_words", |library| {
        let mut tensor = tensor(library);
        // A float is the wrong type for this attribute.
        let error = tensor.set_one(A::TENSOR_UNIQUE_ID, 1.0_f32).expect_err("a uid is no float");
        let Error::Call(call) = &error else { panic!("{error:?}") };
        assert_eq!(
            (call.call, call.kind, call.attribute),
            ("cudnnBackendSetAttribute", Some(Kind::TENSOR), Some(A::TENSOR_UNIQUE_ID))
        );
        assert_eq!(call.status.category(), Status::BAD_PARAM.0, "{call}");
        assert!(!call.detail.is_empty(), "cuDNN's own words are missing: {call}");
        let text = error.to_string();
        for part in
            ["CUDNN_ATTR_TENSOR_UNIQUE_ID", "CUDNN_BACKEND_TENSOR_DESCRIPTOR", &call.status.0.to_string(), &call.detail]
        {
            assert!(text.contains(part), "{part} is not in: {text}");
        }
    });
}

#[test]
fn a_refusals_reasons_are_collected() {
    with_library("a_refusals_reasons_are_collected", |library| {
        let mut tensor = tensor(library);
        tensor.set_one(A::TENSOR_BYTE_ALIGNMENT, 3_i64).expect("checked only when finalized");
        let (outer, (result, inner)) = {
            let (result, messages) = log::collect(|| log::collect(|| tensor.finalize()));
            (messages, result)
        };
        result.expect_err("an alignment of 3");
        assert!(!inner.is_empty(), "cuDNN said nothing");
        assert_eq!(outer, inner, "an outer collection has what the inner one has");
        assert!(inner.iter().any(|message| message.text.to_lowercase().contains("align")), "{inner:?}");
        let (_, later) = log::collect(|| tensor.kind());
        assert!(later.is_empty(), "{later:?}");
    });
}

#[test]
fn an_attribute_with_several_values_is_not_one() {
    with_library("an_attribute_with_several_values_is_not_one", |library| {
        let tensor = tensor(library).finalized().expect("a whole tensor");
        let error = tensor.get_one::<i64>(A::TENSOR_DIMENSIONS).expect_err("there are four");
        assert!(matches!(error, Error::Count { found: 4, .. }), "{error:?}");
    });
}

#[test]
fn an_unfinalized_value_is_refused_by_status() {
    with_library("an_unfinalized_value_is_refused_by_status", |library| {
        let loose = tensor(library);
        let mut operation = Descriptor::create(library, Kind::OPERATION_MATMUL).expect("a kind that all versions have");
        let set = operation.set_descriptor(A::OPERATION_MATMUL_ADESC, &loose).and_then(|()| operation.finalize());
        let Err(Error::Call(call)) = set else { panic!("{set:?}") };
        assert_ne!(call.status, Status::SUCCESS);
    });
}

#[test]
fn a_kind_that_nobody_knows_is_refused() {
    with_library("a_kind_that_nobody_knows_is_refused", |library| {
        let error = Descriptor::create(library, Kind(9999)).expect_err("there is no such kind");
        assert!(error.to_string().contains("Kind 9999"), "{error}");
    });
}

/// cuDNN keeps the last error per thread, so the message of a `CallError` belongs to its status.
#[test]
fn details_of_two_threads_do_not_mix() {
    with_library("details_of_two_threads_do_not_mix", |library| {
        let uid = |tensor: &mut Descriptor| tensor.set_one(A::TENSOR_UNIQUE_ID, 1.0_f32);
        let alignment = |tensor: &mut Descriptor| {
            tensor.set_one(A::TENSOR_BYTE_ALIGNMENT, 3_i64)?;
            tensor.finalize()
        };
        let detail = |result: Result<(), Error>| match result {
            Err(Error::Call(call)) => call.detail,
            other => panic!("{other:?}"),
        };
        let expected = [detail(uid(&mut tensor(library))), detail(alignment(&mut tensor(library)))];
        assert_ne!(expected[0], expected[1]);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for _ in 0..500 {
                    assert_eq!(detail(uid(&mut tensor(library))), expected[0]);
                }
            });
            for _ in 0..500 {
                assert_eq!(detail(alignment(&mut tensor(library))), expected[1]);
            }
        });
    });
}
