//! What callers give as texts and numbers may be anything: it is an error or a value, never a crash.

use std::ffi::c_void;
use std::ptr::{null, null_mut};

use proptest::prelude::*;
use qkvault_c::describe::{
    qkv_attention, qkv_attention_free, qkv_attention_from_json, qkv_attention_json, qkv_attention_parse,
    qkv_attention_text,
};
use qkvault_c::oracle::{qkv_oracle, qkv_oracle_free, qkv_oracle_new, qkv_oracle_run, qkv_oracle_set};
use qkvault_c::serving::{qkv_serving, qkv_serving_free, qkv_serving_new, qkv_serving_pick};
use qkvault_c::status::{
    QKV_ERROR_ARGUMENT, QKV_ERROR_PARSE, QKV_ERROR_REFUSED, QKV_OK, qkv_debug_panic, qkv_error, qkv_last_error,
};
use qkvault_c::text::qkv_string_free;

type Parse = unsafe extern "C" fn(*const std::ffi::c_char, usize, *mut *mut qkv_attention) -> i32;

const PARSERS: [Parse; 2] = [qkv_attention_parse, qkv_attention_from_json];

/// Parses bytes and frees the result.
fn parsed(parse: Parse, bytes: &[u8]) -> i32 {
    let mut attention = null_mut();
    // SAFETY: bytes with their length, and a place.
    let status = unsafe { parse(bytes.as_ptr().cast(), bytes.len(), &raw mut attention) };
    assert_eq!(status == QKV_OK, !attention.is_null());
    // SAFETY: null, or made above.
    assert_eq!(unsafe { qkv_attention_free(attention) }, QKV_OK);
    status
}

fn is_answer(status: i32) -> bool {
    [QKV_OK, QKV_ERROR_ARGUMENT, QKV_ERROR_PARSE, QKV_ERROR_REFUSED].contains(&status)
}

/// A text form with something in it changed.
fn changed() -> impl Strategy<Value = Vec<u8>> {
    let text = "q: bf16 [1,4,64,64]\nk: [1,2,64,64] varlen tokens 90 thd\nmask: causal window 9 bottom-right\n\
                score_mod: scalar $cap: float; tanh(score / $cap) * $cap\noutputs: stats\nlengths: per-sequence\n";
    let edit = (0..text.len(), prop::collection::vec(any::<u8>(), 0..6), 0..9_usize);
    prop::collection::vec(edit, 1..4).prop_map(move |edits| {
        let mut bytes = text.as_bytes().to_vec();
        for (at, new, cut) in edits {
            let at = at.min(bytes.len());
            bytes.splice(at..(at + cut).min(bytes.len()), new);
        }
        bytes
    })
}

proptest! {
    #[test]
    fn any_bytes_are_a_description_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        prop_assert!(PARSERS.iter().all(|parse| is_answer(parsed(*parse, &bytes))));
    }

    #[test]
    fn nearly_right_texts_are_a_description_or_an_error(bytes in changed()) {
        prop_assert!(PARSERS.iter().all(|parse| is_answer(parsed(*parse, &bytes))));
    }

    #[test]
    fn lengths_that_no_text_has_are_refused_unread(length in (16_usize << 20) + 1..=usize::MAX) {
        for parse in PARSERS {
            let mut attention = null_mut();
            // SAFETY: the length is refused before anything is read.
            let status = unsafe { parse(c"q".as_ptr(), length, &raw mut attention) };
            prop_assert_eq!((status, attention.is_null()), (QKV_ERROR_ARGUMENT, true));
        }
    }

    #[test]
    fn a_serving_set_of_any_bytes_and_any_step_is_answered(
        layer in prop::collection::vec(any::<u8>(), 0..99), step in any::<(i64, i64, i64)>(), mixed in any::<i32>(),
    ) {
        let mut serving: *mut qkv_serving = null_mut();
        // SAFETY: bytes with their length, no policy, and a place.
        let status = unsafe { qkv_serving_new(layer.as_ptr().cast(), layer.len(), null(), 0, &raw mut serving) };
        prop_assert!(is_answer(status));
        let json = br#"{"heads":8,"kv_heads":2,"d_qk":64,"d_v":64,"dtype":"bf16","pages":64,"page_size":16,
            "layout":"nhd","values_in_keys":false,"window":null,"score_mod":null,"sink":false,"stats":false}"#;
        let mut place = 0;
        // SAFETY: as above; the set is freed once.
        unsafe {
            prop_assert_eq!(qkv_serving_free(serving), QKV_OK);
            prop_assert_eq!(qkv_serving_new(json.as_ptr().cast(), json.len(), null(), 0, &raw mut serving), QKV_OK);
            let (sequences, queries, keys) = step;
            prop_assert!(is_answer(qkv_serving_pick(serving, sequences, queries, keys, mixed, &raw mut place)));
            prop_assert_eq!(qkv_serving_free(serving), QKV_OK);
        }
    }

    /// Whatever an oracle is given as an input, it computes or says what is wrong.
    #[test]
    fn inputs_of_any_type_and_size_are_taken_or_refused(
        name in "[qkvos]|scale|scalar.0|stats|seq_len_q|.{0,3}", dtype in -1..70_i32,
        data in prop::collection::vec(any::<u8>(), 0..64),
    ) {
        let text = c"q: bf16 [1,1,2,8]\nlengths: per-sequence";
        let (mut attention, mut oracle): (_, *mut qkv_oracle) = (null_mut(), null_mut());
        let Ok(name) = std::ffi::CString::new(name) else { return Ok(()) };
        // SAFETY: texts and bytes with their lengths, and places.
        unsafe {
            prop_assert_eq!(qkv_attention_parse(text.as_ptr(), text.count_bytes(), &raw mut attention), QKV_OK);
            prop_assert_eq!(qkv_oracle_new(attention, &raw mut oracle), QKV_OK);
            let set = qkv_oracle_set(oracle, name.as_ptr(), dtype, data.as_ptr().cast::<c_void>(), data.len());
            prop_assert!(is_answer(set));
            prop_assert!(is_answer(qkv_oracle_run(oracle)));
            prop_assert_eq!((qkv_oracle_free(oracle), qkv_attention_free(attention)), (QKV_OK, QKV_OK));
        }
    }
}

/// What is printed parses to the same key again, also in JSON.
#[test]
fn texts_and_json_come_back() {
    let text = c"q: bf16 [2,4,64,64] sbhd\nmask: causal\ndropout: philox 0.25\nscore_mod: tanh(score)";
    for (print, parse) in
        [(qkv_attention_text as unsafe extern "C" fn(_, _) -> i32, PARSERS[0]), (qkv_attention_json, PARSERS[1])]
    {
        let (mut first, mut printed) = (null_mut(), null_mut());
        // SAFETY: a text with its length, and places; everything is freed once.
        unsafe {
            assert_eq!(qkv_attention_parse(text.as_ptr(), text.count_bytes(), &raw mut first), QKV_OK);
            assert_eq!(print(first.cast_const(), &raw mut printed), QKV_OK);
            assert_eq!(parsed(parse, std::ffi::CStr::from_ptr(printed).to_bytes()), QKV_OK);
            assert_eq!((qkv_string_free(printed), qkv_attention_free(first)), (QKV_OK, QKV_OK));
        }
    }
}

/// Errors belong to their thread, and a panic is one.
#[test]
fn each_thread_has_its_last_error() {
    let last = || {
        let mut error = qkv_error {
            struct_size: size_of::<qkv_error>(),
            status: 0,
            reason_count: 0,
            message: null(),
            kind: null(),
            codes: null(),
            reasons: null(),
        };
        // SAFETY: a struct with its size; the strings are valid until the next failing call.
        unsafe {
            assert_eq!(qkv_last_error(&raw mut error), QKV_OK);
            (error.status, std::ffi::CStr::from_ptr(error.message).to_str().expect("text").to_owned())
        }
    };
    assert_eq!(parsed(PARSERS[0], b"q: bf99"), QKV_ERROR_PARSE);
    let other = std::thread::spawn(move || {
        let before = last();
        qkv_debug_panic();
        (before, last())
    });
    let ((none, _), (internal, said)) = other.join().expect("no panic leaves the library");
    assert_eq!((none, internal), (QKV_OK, qkvault_c::status::QKV_ERROR_INTERNAL));
    assert!(said.contains("fault"), "{said}");
    assert_eq!(last().0, QKV_ERROR_PARSE);
}
