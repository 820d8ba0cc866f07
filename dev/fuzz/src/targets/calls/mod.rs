//! Calls of the C interface: the input is a program of them, with texts, numbers, handles of every kind and no handle,
//! structs of any size, and arrays with guards behind them.
//!
//! What a caller promises is kept, for nothing can be said of a program that breaks it: pointers are null or point to
//! memory, a handle is not used after it was freed.

mod call;
mod program;

use qkvault_c::describe::qkv_attention_free;
use qkvault_c::oracle::qkv_oracle_free;
use qkvault_c::serving::qkv_serving_free;
use qkvault_c::status::QKV_OK;

use self::call::call;
use self::program::{CallProgram, LiveHandle, last};
use super::{FuzzOutcome, FuzzTarget};

/// Calls of the C interface.
pub(super) const CALLS: FuzzTarget = FuzzTarget {
    name: "c_calls",
    about: "calls of the C interface",
    seeds,
    words: &[
        "q: bf16 [1,2,4,8]",
        "k: [1,1,4,8]",
        "mask: causal",
        "score_mod: tanh(score)",
        "\"least_keys\":",
        "\"growth\":",
        "outputs: stats",
        "lengths: per-sequence",
        "scale",
        "stats",
        "seq_len_q",
        "scalar.0",
        "\"heads\":",
        "\n",
    ],
    check,
};

/// A layer of a serving set, as JSON.
const LAYER: &str = r#"{"heads":8,"kv_heads":2,"d_qk":64,"d_v":64,"dtype":"bf16","pages":64,"page_size":16,"layout":"nhd","values_in_keys":false,"window":null,"score_mod":null,"sink":false,"stats":false}"#;

/// A policy of one, as JSON.
const POLICY: &str = r#"{"batch":8,"queries":256,"keys":1024,"tokens":256,"least_batch":1,"least_queries":16,"least_keys":128,"few":2,"growth":{"few":2,"many":8,"mixed":16,"queries":8,"keys":16}}"#;

/// Calls of a program at most.
const MOST: usize = 64;

fn seeds() -> Vec<Vec<u8>> {
    let texts = [
        "q: bf16 [1,2,4,8]\nmask: causal\noutputs: stats",
        "q: f16 [2,4,8,16]\nk: [2,2,8,16]\nscore_mod: scalar $cap: float; tanh(score / $cap) * $cap\nlengths: per-sequence",
        "q: bf16 [1,1,2,8]\ndropout: philox 0.25",
    ];
    let long = |text: &str| [&(text.len() as u16).to_le_bytes(), text.as_bytes()].concat();
    let parse = |text: &str| [&[0][..], &long(text)].concat();
    let mut seeds = Vec::new();
    for text in texts {
        let mut program = parse(text);
        // Every question about the description, its backward, an oracle with random inputs that runs, and its outputs.
        for call in [[2, 1, 0], [3, 1, 1], [4, 1, 0], [5, 1, 0], [6, 1, 0], [7, 1, 2], [8, 1, 0], [9, 1, 1], [10, 1, 9]]
        {
            program.extend(call);
        }
        program.extend([11, 1, 7, 12, 4, 5, 15, 4, 0, 16, 4, 0, 17, 4, 0, 18, 1, 0, 19, 4, 0]);
        seeds.push(program);
    }
    for policy in [None, Some(POLICY)] {
        let mut program = vec![13];
        program.extend(long(LAYER));
        program.push(u8::from(policy.is_some()));
        program.extend(policy.map(long).unwrap_or_default());
        program.extend([14, 1, 3, 14, 1, 0, 20, 1, 2, 9, 0, 4, 0, 7, 0, 1]);
        seeds.push(program);
    }
    seeds
}

fn check(bytes: &[u8]) -> FuzzOutcome {
    let mut program = CallProgram { rest: bytes, held: Vec::new(), ended: [0; 16] };
    for _ in 0..MOST {
        if program.rest.is_empty() {
            break;
        }
        // SAFETY: the module says what is kept of a caller's promises.
        unsafe { call(&mut program) };
    }
    for held in std::mem::take(&mut program.held) {
        // SAFETY: handles that live, each freed once.
        let status = unsafe {
            match held {
                LiveHandle::Attention(at) => qkv_attention_free(at),
                LiveHandle::Serving(at) => qkv_serving_free(at),
                LiveHandle::Oracle(at, _) => qkv_oracle_free(at),
            }
        };
        assert_eq!(status, QKV_OK, "{}", last());
    }
    let ended = program.ended.map(|count| count.min(3));
    if ended[QKV_OK as usize] == 0 {
        return FuzzOutcome::refused(&last());
    }
    let counts: String = ended.iter().map(|count| char::from(b'a' + *count as u8)).collect();
    FuzzOutcome::taken(&format!("{counts} {}", last()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Programs that fail at their first call would try nothing.
    #[test]
    fn what_changes_begin_with_goes_well() {
        for (place, seed) in seeds().iter().enumerate() {
            let mut program = CallProgram { rest: seed, held: Vec::new(), ended: [0; 16] };
            let mut calls = 0;
            while !program.rest.is_empty() {
                let left = program.rest.len();
                // SAFETY: the module says what is kept of a caller's promises.
                unsafe { call(&mut program) };
                assert!(program.rest.len() < left);
                calls += 1;
            }
            let well = program.ended[QKV_OK as usize];
            assert!(well * 3 > calls * 2, "program {place}: {well} of {calls} calls go well: {}", last());
        }
    }
}
