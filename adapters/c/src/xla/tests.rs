//! Calls as XLA makes them, built by hand: layouts, what a handler says of itself, the oracle's numbers, and errors.

use std::ffi::{CStr, c_int, c_void};
use std::mem::offset_of;
use std::ptr::{null, null_mut};

use qkvault::graph::{DType, Role, Valid, text, validate};
use qkvault::reference::{Buffer, Inputs, backward, forward};

use super::abi::{self, CallFrame};
use super::cuda::{qkv_xla_execute, qkv_xla_initialize};
use super::reference::qkv_xla_reference;
use super::{frame, handler};

mod stages;

/// An error that the functions below made.
struct MadeError {
    message: String,
    code: c_int,
}

unsafe extern "C" fn create(args: *mut abi::ErrorCreate) -> *mut abi::XlaError {
    // SAFETY: a handler's arguments.
    let args = unsafe { &*args };
    assert_eq!(args.struct_size, 28, "up to the code");
    // SAFETY: as above.
    let message = unsafe { CStr::from_ptr(args.message) }.to_string_lossy().into_owned();
    Box::into_raw(Box::new(MadeError { message, code: args.code })).cast()
}

unsafe extern "C" fn details(args: *mut abi::ErrorDetails) {
    // SAFETY: a handler's arguments.
    unsafe { (*args).message = c"there is no GPU here".as_ptr() };
}

unsafe extern "C" fn destroy(args: *mut abi::ErrorDestroy) -> *mut abi::XlaError {
    // SAFETY: `no_stream` made it.
    drop(unsafe { Box::from_raw((*args).error.cast::<MadeError>()) });
    null_mut()
}

unsafe extern "C" fn no_stream(_: *mut abi::StreamGet) -> *mut abi::XlaError {
    Box::into_raw(Box::new(MadeError { message: String::new(), code: 0 })).cast()
}

unsafe extern "C" fn ordinal(args: *mut abi::OrdinalGet) -> *mut abi::XlaError {
    // SAFETY: a handler's arguments.
    unsafe { (*args).ordinal = 0 };
    null_mut()
}

fn api(minor: c_int) -> abi::Api {
    let extension = null_mut();
    let version = abi::ApiVersion { struct_size: size_of::<abi::ApiVersion>(), extension, major: 0, minor };
    abi::Api {
        struct_size: size_of::<abi::Api>(),
        extension,
        version,
        internal: null(),
        error_create: Some(create),
        error_details: Some(details),
        error_destroy: Some(destroy),
        handler_register: null(),
        stream_get: Some(no_stream),
        type_register: null(),
        context_get: null(),
        state_set: null(),
        state_get: null(),
        memory_allocate: null(),
        memory_free: null(),
        pool_schedule: null(),
        pool_threads: null(),
        future_create: null(),
        future_available: null(),
        future_error: null(),
        run_id: null(),
        ordinal_get: Some(ordinal),
    }
}

/// One argument or result.
struct GivenBuffer {
    dtype: DType,
    dims: Vec<i64>,
    bytes: Vec<u8>,
}

/// A call with everything that a frame points to.
struct MadeCall {
    text: String,
    key: String,
    version: i32,
    scalars: Vec<f64>,
    args: Vec<GivenBuffer>,
    rets: Vec<GivenBuffer>,
    /// Whether integers of 64 bits are said to be pairs of words.
    words: bool,
}

type Handler = unsafe extern "C" fn(*mut CallFrame) -> *mut c_void;

impl MadeCall {
    /// A call of a description: random inputs, with the shapes that `qkvault.jax` gives them.
    fn new(description: &str) -> (MadeCall, Valid, Inputs) {
        let attention = validate(text::parse(description).expect("a description")).expect("sound");
        let mut inputs = Inputs::random(&attention, 7).expect("inputs");
        if attention.is_backward() {
            inputs.add_forward(&attention).expect("a forward");
        }
        let (mut args, mut rets, mut scalars) = (Vec::new(), Vec::new(), Vec::new());
        for fact in attention.operand_facts() {
            let rows = fact.strides[1] < fact.strides[2];
            let dims = if rows { [0, 2, 1, 3].map(|axis| fact.dims[axis]) } else { fact.dims };
            let bytes = inputs.get(fact.role).map(|buffer| buffer.bytes().to_vec());
            match (fact.scalar, fact.output) {
                (true, _) => scalars.push(inputs.get(fact.role).expect("set").get(0)),
                (_, output) => {
                    let bytes = bytes.filter(|_| !output).unwrap_or_else(|| vec![0; fact.bytes as usize]);
                    let list = if output { &mut rets } else { &mut args };
                    list.push(GivenBuffer { dtype: fact.dtype, dims: dims.to_vec(), bytes });
                }
            }
        }
        let key = attention.key().bytes().iter().map(|byte| format!("{byte:02x}")).collect();
        (
            MadeCall { text: text::print(&attention), key, version: 1, scalars, args, rets, words: false },
            attention,
            inputs,
        )
    }

    /// Calls a handler; an error is its code and message.
    fn call(&mut self, handler: Handler, stage: c_int) -> Result<(), (c_int, String)> {
        let api = api(4);
        let extension = null_mut();
        let span = |text: &str| abi::ByteSpan { at: text.as_ptr().cast(), len: text.len() };
        let (key, text) = (span(&self.key), span(&self.text));
        let scalars = abi::Array { dtype: 12, size: self.scalars.len(), data: self.scalars.as_ptr().cast() };
        let version = abi::Scalar { dtype: 4, value: (&raw const self.version).cast() };
        let names = ["key", "scalars", "text", "v"].map(span);
        let names = names.each_ref().map(|name| &raw const *name);
        let values: [*const c_void; 4] = [
            (&raw const key).cast(),
            (&raw const scalars).cast(),
            (&raw const text).cast(),
            (&raw const version).cast(),
        ];
        let types = [abi::STRING, abi::ARRAY, abi::STRING, abi::SCALAR];
        let attrs = abi::Attrs {
            struct_size: size_of::<abi::Attrs>(),
            extension,
            size: 4,
            types: types.as_ptr(),
            names: names.as_ptr(),
            attrs: values.as_ptr(),
        };
        let words = self.words;
        let buffer = |given: &mut GivenBuffer| abi::FfiBuffer {
            struct_size: size_of::<abi::FfiBuffer>(),
            extension,
            dtype: if words && given.dtype == DType::I64 { frame::U32 } else { frame::code(given.dtype) },
            data: given.bytes.as_mut_ptr().cast(),
            rank: given.dims.len() as i64,
            dims: given.dims.as_ptr(),
        };
        let mut args: Vec<abi::FfiBuffer> = self.args.iter_mut().map(buffer).collect();
        let mut rets: Vec<abi::FfiBuffer> = self.rets.iter_mut().map(buffer).collect();
        let at = |list: &mut [abi::FfiBuffer]| list.iter_mut().map(|one| &raw mut *one).collect::<Vec<_>>();
        let (args, rets) = (at(&mut args), at(&mut rets));
        let operands = |list: &[*mut abi::FfiBuffer]| abi::FfiOperands {
            struct_size: size_of::<abi::FfiOperands>(),
            extension,
            size: list.len() as i64,
            types: null(),
            operands: list.as_ptr(),
        };
        let struct_size = size_of::<CallFrame>();
        let (args, rets, context, future) = (operands(&args), operands(&rets), null_mut(), null_mut());
        let mut frame =
            CallFrame { struct_size, extension, api: &raw const api, context, stage, args, rets, attrs, future };
        // SAFETY: a frame with all that it points to.
        let error = unsafe { handler(&raw mut frame) };
        if error.is_null() {
            return Ok(());
        }
        // SAFETY: `create` made it.
        let told = unsafe { Box::from_raw(error.cast::<MadeError>()) };
        Err((told.code, told.message))
    }
}

#[test]
fn layouts_are_those_of_the_header_of_jaxlib() {
    assert_eq!(
        (offset_of!(CallFrame, future), offset_of!(CallFrame, args), offset_of!(CallFrame, attrs)),
        (168, 40, 120)
    );
    assert_eq!((size_of::<abi::Api>(), offset_of!(abi::Api, error_create)), (192, 48));
    assert_eq!(
        (size_of::<abi::FfiBuffer>(), offset_of!(abi::FfiBuffer, data), offset_of!(abi::FfiBuffer, dims)),
        (48, 24, 40)
    );
    assert_eq!((size_of::<abi::FfiOperands>(), size_of::<abi::Attrs>()), (40, 48));
    assert_eq!((offset_of!(abi::Metadata, traits), offset_of!(abi::Metadata, state_type)), (32, 40));
    assert_eq!((size_of::<abi::ErrorCreate>(), offset_of!(abi::ErrorCreate, code)), (32, 24));
    assert_eq!((offset_of!(abi::StreamGet, stream), offset_of!(abi::OrdinalGet, ordinal)), (24, 24));
}

/// What a handler says of itself to an XLA of a version; none for one that gives no functions.
fn said(minor: Option<c_int>) -> abi::Metadata {
    let extension = null_mut();
    let version = abi::ApiVersion { struct_size: 0, extension, major: 77, minor: 77 };
    let mut metadata = abi::Metadata { struct_size: 36, api_version: version, traits: 0, state_type: 77 };
    let base = abi::Extension { struct_size: size_of::<abi::Extension>(), kind: abi::METADATA, next: extension };
    let mut asked = abi::MetadataExtension { base, metadata: &raw mut metadata };
    let api = minor.map(api);
    // SAFETY: a frame of zeros is one without arguments.
    let mut frame: CallFrame = unsafe { std::mem::zeroed() };
    (frame.extension, frame.api) = ((&raw mut asked).cast(), api.as_ref().map_or(null(), |api| &raw const *api));
    // SAFETY: a frame of a metadata call.
    assert!(unsafe { qkv_xla_execute(&raw mut frame) }.is_null());
    metadata
}

#[test]
fn a_handler_says_its_version_and_that_it_may_be_captured() {
    for (minor, state) in [(None, 77), (Some(1), 77), (Some(2), 0), (Some(5), 0)] {
        let metadata = said(minor);
        assert_eq!((metadata.api_version.major, metadata.api_version.minor), (0, 1));
        assert_eq!(metadata.traits, abi::COMMAND_BUFFER_COMPATIBLE);
        assert_eq!(metadata.state_type, state, "the field is there since 0.2: {minor:?}");
    }
}

const FORWARD: &str = "q: bf16 [2,4,16,8]\nk: [2,2,16,8]\nmask: causal\noutputs: stats\n\
    score_mod: scalar $cap: float; tensor @slopes: f32[1,4,1,1]; tanh(score / $cap) * $cap + @slopes * float(key)";

#[test]
fn a_call_computes_what_the_oracle_computes() {
    let (mut made, attention, inputs) = MadeCall::new(FORWARD);
    made.call(qkv_xla_reference, abi::EXECUTE).expect("it computes");
    let exact = forward(&attention, &inputs).expect("it computes");
    for (ret, role) in made.rets.iter().zip([Role::O, Role::Stats]) {
        assert_eq!(ret.bytes, exact.buffer(role).expect("an output").bytes(), "{role}");
    }
    let both = text::print(&attention.backward(qkvault::graph::BackwardOptions::default()));
    let (mut made, attention, inputs) = MadeCall::new(&both);
    made.rets.push(GivenBuffer { dtype: DType::U8, dims: vec![0], bytes: Vec::new() });
    made.call(qkv_xla_reference, abi::EXECUTE).expect("scratch memory is no output");
    let exact = backward(&attention, &inputs).expect("it computes");
    for (ret, role) in made.rets.iter().zip([Role::DQ, Role::DK, Role::DV]) {
        assert_eq!(ret.bytes, exact.buffer(role).expect("an output").bytes(), "{role}");
    }
}

#[test]
fn scalars_are_those_of_the_call() {
    let (mut made, attention, mut inputs) = MadeCall::new(FORWARD);
    let cap = attention.scalar_role("cap").expect("it has one");
    let place = attention.operand_facts().iter().filter(|fact| fact.scalar).position(|fact| fact.role == cap);
    made.scalars[place.expect("a scalar")] = 0.25;
    made.call(qkv_xla_reference, abi::EXECUTE).expect("it computes");
    inputs.insert(cap, Buffer::from_values(DType::F32, [0.25]));
    let exact = forward(&attention, &inputs).expect("it computes");
    assert_eq!(made.rets[0].bytes, exact.buffer(Role::O).expect("an output").bytes());
}

#[test]
fn a_wrong_call_is_an_error_that_says_what_came() {
    type CallChange = fn(&mut MadeCall);
    let wrong: [(&str, CallChange); 9] = [
        ("[3, 16, 4, 8]", |made| made.args[0].dims[0] = 3),
        ("type 10", |made| made.args[1].dtype = DType::F16),
        ("2 arguments", |made| made.args.truncate(2)),
        ("0 results", |made| made.rets.clear()),
        ("1 scalars", |made| made.scalars.truncate(1)),
        ("version 2", |made| (made.version, made.text) = (2, format!("{}# 2", made.text))),
        ("the key", |made| made.key = "00".repeat(32)),
        ("line 1", |made| (made.text, made.key) = ("what: is this".into(), "ff".repeat(32))),
        ("dtype.input", |made| (made.text, made.key) = ("q: f32 [1,1,8,8]".into(), "fe".repeat(32))),
    ];
    for (part, change) in wrong {
        let (mut made, ..) = MadeCall::new(FORWARD);
        change(&mut made);
        let (code, message) = made.call(qkv_xla_reference, abi::EXECUTE).expect_err(part);
        assert!(code == 3 && message.contains(part), "{part}: {code} {message}");
    }
}

#[test]
fn a_call_for_gpus_without_one_is_an_error_with_the_words_of_xla() {
    for (handler, stage) in [(qkv_xla_initialize as Handler, abi::INITIALIZE), (qkv_xla_execute, abi::EXECUTE)] {
        let (mut made, ..) = MadeCall::new(FORWARD);
        let (code, message) = made.call(handler, stage).expect_err("there is no stream");
        assert!(code == 13 && message.contains("there is no GPU here"), "{code} {message}");
    }
}

unsafe extern "C" fn panics(frame: *mut CallFrame) -> *mut c_void {
    // SAFETY: the test's frame.
    unsafe { handler::handle(frame, |_| panic!("on purpose")).cast() }
}

#[test]
fn a_panic_is_an_error() {
    let (code, message) = MadeCall::new(FORWARD).0.call(panics, abi::EXECUTE).expect_err("it panics");
    assert!(code == 13 && message.contains("on purpose"), "{code} {message}");
}
