//! What the stages of a call do once, what they take, and what they say.

use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use qkvault::graph::{DType, Role, text, validate};
use qkvault::reference::forward;

use super::super::call::XlaCall;
use super::super::frame::Frame;
use super::super::plans::CallPlans;
use super::super::{cuda, frame, handler};
use super::{CallFrame, FORWARD, GivenBuffer, MadeCall, abi, qkv_xla_reference};
use crate::status::{CallFailure, QKV_ERROR_MISSING};

/// How often plans were loaded, and seen by whoever made them, in the test below.
static COUNTED: [AtomicUsize; 2] = [const { AtomicUsize::new(0) }; 2];
static TABLE: LazyLock<CallPlans<&str>> = LazyLock::new(CallPlans::default);

/// `initialize` with a table that counts, whose first load on a GPU fails.
unsafe extern "C" fn counts(frame: *mut CallFrame) -> *mut c_void {
    let body = |frame: Frame<'_>| {
        let load = |_: Frame<'_>, _: &XlaCall, _| match COUNTED[0].fetch_add(1, Relaxed) {
            0 => Err(CallFailure::new(QKV_ERROR_MISSING, "the vault has no plan")),
            _ => Ok("a plan"),
        };
        let call = XlaCall::from_frame(frame)?;
        let made = |_: &&str| _ = COUNTED[1].fetch_add(1, Relaxed);
        cuda::planned(frame, &call, &TABLE, load, made).map(drop)
    };
    // SAFETY: the test's frame.
    unsafe { handler::handle(frame, body).cast() }
}

#[test]
fn a_second_initialize_loads_nothing_and_captures_nothing_anew() {
    let (mut made, ..) = MadeCall::new(FORWARD);
    let (code, message) = made.call(counts, abi::INITIALIZE).expect_err("the first load fails");
    assert!(code == 5 && message == "the vault has no plan", "XLA's NOT_FOUND: {code} {message}");
    for _ in 0..5 {
        made.call(counts, abi::INITIALIZE).expect("it is loaded");
    }
    // Once in vain, which is no plan, and once.
    assert_eq!(COUNTED.each_ref().map(|count| count.load(Relaxed)), [2, 1]);
}

#[test]
fn a_program_that_was_traced_for_another_plan_is_told_what_to_do() {
    let call = XlaCall::parsed(FORWARD).expect("it reads");
    let (at, dims) = (0x7001_usize as *mut c_void, [1024_i64]);
    let scratch = |needed| {
        let memory = |at| frame::FrameMemory { dtype: 6, dims: &dims, at };
        let results = [memory(null_mut()), memory(null_mut()), memory(at)];
        cuda::scratch(needed, "fwd bf16", &call, &results)
    };
    let found = scratch(769).expect("what is left behind the alignment is enough");
    assert_eq!((found.address, found.bytes), (0x7100, 769));
    let told = scratch(770).expect_err("one byte more");
    for part in ["'fwd bf16' needs 770 bytes", "traced with 1024", "another GPU or cuDNN", "configure(target=...)"] {
        assert!(told.message().contains(part), "{part}: {}", told.message());
    }
    assert_eq!(scratch(0).expect("nothing is needed").bytes, 0);
}

#[test]
fn integers_of_64_bits_may_be_two_words() {
    const PACKED: &str = "q: bf16 [3,4,16,8] varlen tokens 20\nk: [3,2,16,8] varlen tokens 20\nlengths: per-sequence";
    let (mut made, attention, inputs) = MadeCall::new(PACKED);
    let facts = attention.operand_facts();
    let arguments = facts.iter().filter(|fact| !fact.scalar && !fact.output);
    for (given, fact) in made.args.iter_mut().zip(arguments) {
        match fact.role {
            Role::Q => given.dims = vec![20, 4, 8],
            Role::K | Role::V => given.dims = vec![20, 2, 8],
            Role::Offsets(_) => (given.dtype, given.dims) = (DType::I64, vec![4, 2]),
            _ => {}
        }
    }
    made.rets[0].dims = vec![20, 4, 8];
    let wide = made.call(qkv_xla_reference, abi::EXECUTE).expect_err("pairs of 64 bits are no offsets");
    assert!(wide.1.contains("offsets.q"), "{wide:?}");
    made.words = true;
    made.call(qkv_xla_reference, abi::EXECUTE).expect("pairs of 32 bits are");
    let exact = forward(&attention, &inputs).expect("it computes");
    assert_eq!(made.rets[0].bytes, exact.buffer(Role::O).expect("an output").bytes());
}

#[test]
fn a_call_with_dropout_on_a_cpu_is_an_error_that_says_what_to_do() {
    let (mut made, ..) = MadeCall::new(FORWARD);
    let dropped = validate(text::parse("q: bf16 [1,1,8,8]\ndropout: philox 0.5").expect("it reads")).expect("sound");
    made.text = text::print(&dropped);
    made.key = dropped.key().bytes().iter().map(|byte| format!("{byte:02x}")).collect();
    let given = |dtype, dims: &[i64], bytes| GivenBuffer { dtype, dims: dims.to_vec(), bytes: vec![0; bytes] };
    made.args = (0..3).map(|_| given(DType::BF16, &[1, 8, 1, 8], 128)).collect();
    made.args.extend((0..2).map(|_| given(DType::I64, &[], 8)));
    (made.rets, made.scalars) = (vec![given(DType::BF16, &[1, 8, 1, 8], 128)], vec![1.0]);
    let (_, message) = made.call(qkv_xla_reference, abi::EXECUTE).expect_err("there is no mask");
    assert!(message.contains("dropout_rate=0.0"), "{message}");
}
