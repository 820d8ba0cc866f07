//! Calls that ask for more memory than there is, under a limit of the address space, in a process of their own: each is
//! an error with a status, and the process goes on. And calls of every function with pointers and numbers that are
//! wrong.

mod kit;

use std::ffi::{CStr, CString, c_char, c_void};
use std::process::Command;
use std::ptr::{null, null_mut};

use qkvault_c::describe::{qkv_attention, qkv_attention_free, qkv_attention_parse};
use qkvault_c::operand::{QKV_F32, QKV_F64};
use qkvault_c::oracle::{
    qkv_oracle, qkv_oracle_add_forward, qkv_oracle_free, qkv_oracle_new, qkv_oracle_output, qkv_oracle_random,
    qkv_oracle_run, qkv_oracle_run_of_o, qkv_oracle_set,
};
use qkvault_c::serving::{qkv_serving, qkv_serving_attention, qkv_serving_count, qkv_serving_free, qkv_serving_new};
use qkvault_c::status::{
    QKV_ERROR_ARGUMENT, QKV_ERROR_MEMORY, QKV_ERROR_PARSE, QKV_ERROR_REFUSED, QKV_OK, qkv_error, qkv_last_error,
};

/// The variable that tells the process of a case how many megabytes it has.
const MEGABYTES: &str = "QKVAULT_TEST_CHILD";

/// Limits the address space to what the process has, and so many megabytes.
fn limit(megabytes: u64) {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux");
    let size = status.lines().find_map(|line| line.strip_prefix("VmSize:")).expect("it is there");
    let size: u64 = size.trim().trim_end_matches(" kB").parse().expect("a number");
    let most = size * 1024 + (megabytes << 20);
    let limit = libc::rlimit { rlim_cur: most, rlim_max: most };
    // SAFETY: a limit of this process.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_AS, &raw const limit) }, 0);
}

/// The message of the last error.
fn message() -> String {
    let nothing = null();
    let mut error = qkv_error {
        struct_size: size_of::<qkv_error>(),
        status: 0,
        reason_count: 0,
        message: nothing,
        kind: nothing,
        codes: nothing,
        reasons: nothing,
    };
    // SAFETY: a struct with its size; the message is a C string.
    unsafe {
        assert_eq!(qkv_last_error(&raw mut error), QKV_OK);
        CStr::from_ptr(error.message).to_string_lossy().into_owned()
    }
}

fn described(text: &str) -> Result<*mut qkv_attention, i32> {
    let mut attention = null_mut();
    // SAFETY: a text with its length, and a place.
    match unsafe { qkv_attention_parse(text.as_ptr().cast::<c_char>(), text.len(), &raw mut attention) } {
        QKV_OK => Ok(attention),
        status => Err(status),
    }
}

/// A call's name, its status, and those that it may have.
fn told(name: &str, status: i32, may: &[i32]) {
    assert!(may.contains(&status), "{name}: status {status}: {}", message());
    if status != QKV_OK {
        assert!(!message().is_empty(), "{name}");
    }
}

/// Descriptions of a hundred bytes whose oracle takes from a hundred megabytes to more than any machine has.
const HUGE: &[&str] = &[
    "q: bf16 [1024,128,1048576,128]",
    "q: bf16 [1,1,2147483647,8]",
    "q: bf16 [2147483647,1,1,8]",
    "q: bf16 [1,1,64,8]\nk: [1,1,64,8] paged 2147483647 x 1\nlengths: per-sequence",
    "q: bf16 [1,1,64,64]\nk: [1,1,67108864,64]",
    "q: bf16 [4194304,1,1,8]\nlengths: per-sequence",
    "q: bf16 [8,8,16384,128]\noutputs: stats",
    "q: bf16 [8,8,16384,128]\npass: backward",
    "q: bf16 [1,64,16384,64]\nk: [1,64,64,64]\npass: backward",
    "q: bf16 [1,1,64,64]\nscore_mod: tensor @bias: f32[1, 1, 1048576, 1048576]; score + @bias",
];

/// What the process with little memory does.
#[test]
fn calls_with_little_memory() {
    let Some(megabytes) = std::env::var(MEGABYTES).ok().and_then(|text| text.parse().ok()) else { return };
    let small = described("q: bf16 [1,1,64,64]\noutputs: stats").expect("it reads");
    let mut oracle: *mut qkv_oracle = null_mut();
    // SAFETY: a description and a place.
    assert_eq!(unsafe { qkv_oracle_new(small, &raw mut oracle) }, QKV_OK);
    // Threads of the oracle begin before: their stacks are no matter of a call.
    // SAFETY: an oracle of this thread.
    unsafe {
        assert_eq!(qkv_oracle_random(oracle, 7), QKV_OK);
        assert_eq!(qkv_oracle_run(oracle), QKV_OK);
    }
    // Data of the caller, of which the library makes copies.
    let data = vec![0_u8; 200 << 20];
    let long = format!("q: bf16 [1,1,64,64]\nscore_mod: {}score", "1+".repeat(7 << 20));
    let json = format!("[{}0]", "0,".repeat(7 << 20));
    limit(megabytes);
    let memory = [QKV_ERROR_MEMORY];
    let any = [QKV_OK, QKV_ERROR_MEMORY];
    for text in HUGE {
        let attention = match described(text) {
            Ok(attention) => attention,
            Err(status) => {
                told(text, status, &[QKV_ERROR_MEMORY, QKV_ERROR_REFUSED]);
                continue;
            }
        };
        let mut large: *mut qkv_oracle = null_mut();
        // SAFETY: a description, an oracle of this thread, names, and places.
        unsafe {
            let made = qkv_oracle_new(attention, &raw mut large);
            told("new", made, &any);
            if made == QKV_OK {
                told(text, qkv_oracle_random(large, 7), &memory);
                told("run", qkv_oracle_run(large), &[QKV_ERROR_ARGUMENT, QKV_ERROR_MEMORY]);
                told("run of o", qkv_oracle_run_of_o(large), &[QKV_ERROR_ARGUMENT, QKV_ERROR_MEMORY]);
                told("add forward", qkv_oracle_add_forward(large), &[QKV_ERROR_ARGUMENT, QKV_ERROR_MEMORY]);
                for dtype in [QKV_F32, QKV_F64] {
                    let set = qkv_oracle_set(large, c"q".as_ptr(), dtype, data.as_ptr().cast::<c_void>(), data.len());
                    told("set", set, &memory);
                }
                assert_eq!(qkv_oracle_free(large), QKV_OK);
            }
            assert_eq!(qkv_attention_free(attention), QKV_OK);
        }
    }
    // Texts.
    let may = [QKV_ERROR_MEMORY, QKV_ERROR_PARSE, QKV_ERROR_ARGUMENT];
    told("a long text", described(&long).expect_err("too long"), &may);
    let mut serving: *mut qkv_serving = null_mut();
    let mut attention = null_mut();
    // SAFETY: texts with their lengths, and places.
    unsafe {
        let at = json.as_ptr().cast::<c_char>();
        told("long JSON", qkvault_c::describe::qkv_attention_from_json(at, json.len(), &raw mut attention), &may);
        told("a long layer", qkv_serving_new(at, json.len(), at, json.len(), &raw mut serving), &may);
        let name = CString::new(&json[..]).expect("no null character");
        told("a long name", qkv_oracle_output(oracle, name.as_ptr(), 0, null_mut(), null_mut()), &may);
        let mut kept = 0.0;
        let keep = qkvault_c::torch::native::qkv_torch_keep;
        told("a long specification", keep(name.as_ptr(), null(), 0, &raw mut kept), &may);
        told("many numbers", keep(c"x".as_ptr(), data.as_ptr().cast::<f64>(), data.len() / 8, &raw mut kept), &may);
    }
    // Serving sets: the audit's policy, and large ones.
    let layer = r#"{"heads":8,"kv_heads":2,"d_qk":64,"d_v":64,"dtype":"bf16","pages":64,"page_size":16,"layout":"nhd",
        "values_in_keys":false,"window":null,"score_mod":null,"sink":false,"stats":false}"#;
    for field in ["least_keys", "least_batch", "least_queries", "keys", "batch", "queries", "tokens", "few"] {
        for number in [i64::MAX, i64::MAX - 127, 1 << 30, 1 << 31, 0, -1, i64::MIN] {
            let policy = format!("{{\"{field}\":{number}}}");
            // SAFETY: texts with their lengths, and places.
            unsafe {
                let (layer_at, policy_at) = (layer.as_ptr().cast::<c_char>(), policy.as_ptr().cast::<c_char>());
                let made = qkv_serving_new(layer_at, layer.len(), policy_at, policy.len(), &raw mut serving);
                told(&policy, made, &[QKV_OK, QKV_ERROR_REFUSED, QKV_ERROR_MEMORY]);
                if made == QKV_OK {
                    let mut count = 0;
                    assert_eq!(qkv_serving_count(serving, &raw mut count), QKV_OK);
                    let status = qkv_serving_attention(serving, count - 1, &raw mut attention);
                    told("its last", status, &[QKV_OK, QKV_ERROR_REFUSED, QKV_ERROR_MEMORY]);
                    if status == QKV_OK {
                        assert_eq!(qkv_attention_free(attention), QKV_OK);
                    }
                    assert_eq!(qkv_serving_free(serving), QKV_OK);
                }
            }
        }
    }
    println!("went through");
}

/// From where no large piece is given to where some are.
#[test]
fn audit_6_calls_that_ask_for_more_memory_than_there_is_fail_and_the_process_goes_on() {
    for megabytes in [50, 90, 200] {
        let mut child = Command::new(std::env::current_exe().expect("a program has a path"));
        child.args(["--exact", "calls_with_little_memory", "--nocapture", "--test-threads", "1"]);
        let said = child.env(MEGABYTES, megabytes.to_string()).output().expect("it starts");
        let (out, err) = (String::from_utf8_lossy(&said.stdout), String::from_utf8_lossy(&said.stderr));
        assert!(said.status.success() && out.contains("went through"), "{megabytes} MB: {}\n{out}\n{err}", said.status);
    }
}

#[path = "limits/wrong.rs"]
mod wrong;
