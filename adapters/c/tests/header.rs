//! The header and the layout of its structs follow from the Rust code, and C and C++ compilers take both.

mod kit;

use std::fmt::Write as _;
use std::mem::offset_of;

use qkvault_c::batch::{qkv_batch_operand, qkv_range, qkv_step};
use qkvault_c::communicator::qkv_world;
use qkvault_c::context::{qkv_library_info, qkv_options};
use qkvault_c::launch::{
    qkv_buffer, qkv_launch_args, qkv_launch_named_args, qkv_named_buffer, qkv_named_number, qkv_number, qkv_pair,
    qkv_value,
};
use qkvault_c::operand::qkv_operand;
use qkvault_c::oracle::qkv_comparison;
use qkvault_c::plan_info::qkv_plan_info;
use qkvault_c::rank::{qkv_part, qkv_rank_args};
use qkvault_c::serving::qkv_bucket;
use qkvault_c::sharding::qkv_sharding;
use qkvault_c::status::qkv_error;
use qkvault_c::version::qkv_version_info;

/// The modules of the header, in its order.
const MODULES: [&str; 17] = [
    "status",
    "text",
    "version",
    "context",
    "operand",
    "describe",
    "explain",
    "plan_info",
    "plan",
    "launch",
    "training",
    "communicator",
    "sharding",
    "rank",
    "serving",
    "batch",
    "oracle",
];

const HEAD: &str = "/* qkvault: attention, compiled ahead of time: cuDNN, FlashAttention-4, own kernels.
 *
 * Generated from the Rust code by `cargo xtask header`. Version 1.2 of the interface: functions and fields are added at
 * the end and with a higher QKV_ABI_MINOR, and nothing that is here changes its meaning.
 *
 * Every function returns a status: QKV_OK, which is 0, or a QKV_ERROR_ number. qkv_last_error tells the thread's last
 * error in words. If a function fails, the places for its results are as they were before. Null handles and handles of
 * another kind are errors. No panic and no C++ exception leaves the library.
 *
 * A struct that begins with struct_size may get more fields. Set struct_size to its sizeof and the other fields to zero
 * before a call: programs and libraries of different versions then understand each other. Other structs never change.
 *
 * Threads: functions may be called from any thread. What is said at each handle tells whether threads may share it.
 * A handle is freed once, when no call uses it any more; what was made with it stays valid. Freeing null is no error.
 *
 * Strings in are UTF-8 and are copied. Strings that a function gives through a char ** are freed with qkv_string_free.
 * Sizes are in bytes, extents and strides in elements. A device is CUDA's ordinal of a GPU in this process.
 *
 * The library is linked with neither CUDA nor cuDNN. It loads libcuda.so.1 and libcudnn.so.9 when a call needs them.
 */

#ifndef QKVAULT_H
#define QKVAULT_H";

const TAIL: &str = "
/* The message of the thread's last error; an empty string if there was none. */
static inline const char *qkv_last_message(void) {
  qkv_error error = QKV_ZERO;
  error.struct_size = sizeof error;
  return qkv_last_error(&error) == QKV_OK ? error.message : \"\";
}

#endif /* QKVAULT_H */
";

/// An initialiser with which both languages set all fields to zero.
const ZERO: &str = "#ifdef __cplusplus
#define QKV_ZERO {}
#else
#define QKV_ZERO {0}
#endif";

fn header() -> String {
    let config = cbindgen::Config {
        language: cbindgen::Language::C,
        header: Some(HEAD.to_owned()),
        trailer: Some(TAIL.trim().to_owned()),
        no_includes: true,
        sys_includes: vec!["stddef.h".to_owned(), "stdint.h".to_owned()],
        after_includes: Some(format!("\n{ZERO}")),
        cpp_compat: true,
        usize_is_size_t: true,
        style: cbindgen::Style::Both,
        line_length: 100,
        documentation_style: cbindgen::DocumentationStyle::Doxy,
        ..cbindgen::Config::default()
    };
    let mut builder = cbindgen::Builder::new().with_config(config);
    for module in MODULES {
        builder = builder.with_src(kit::package().join(format!("src/{module}.rs")));
    }
    let mut bytes = Vec::new();
    builder.generate().expect("the modules parse").write(&mut bytes);
    String::from_utf8(bytes).expect("text")
}

macro_rules! layouts {
    ($text:expr; $($name:ident { $($field:ident),+ $(,)? })+) => {$(
        let name = stringify!($name);
        writeln!($text, "_Static_assert(sizeof({name}) == {}, \"{name}\");", size_of::<$name>()).expect("a text");
        $(
            let (field, at) = (stringify!($field), offset_of!($name, $field));
            writeln!($text, "_Static_assert(offsetof({name}, {field}) == {at}, \"{name}.{field}\");").expect("a text");
        )+
        // Every field is in the list: a pattern without `..` notices one that is not.
        #[allow(dead_code, unused_variables, reason = "it only has to compile")]
        fn $name(value: $name) {
            layouts!(@pattern $name value $($field),+);
        }
    )+};
    (@pattern qkv_value $value:ident $($field:ident),+) => {};
    (@pattern $name:ident $value:ident $($field:ident),+) => { let $name { $($field: _),+ } = $value; };
}

fn layout() -> String {
    let mut text =
        "/* Generated by `cargo xtask header`: the layout of every struct, which a C compiler compares. */\n\n\
                    #include \"qkvault.h\"\n\n"
            .to_owned();
    layouts! { text;
        qkv_error { struct_size, status, reason_count, message, kind, codes, reasons }
        qkv_version_info { struct_size, abi_major, abi_minor, version }
        qkv_options {
            struct_size, vault, cudnn, on_miss, vault_mode, workspace_limit, handles, reserved, remote, allow,
            engine
        }
        qkv_library_info { struct_size, version, path }
        qkv_operand {
            struct_size, role, name, role_id, dtype, dims, strides, bytes, alignment, output, scalar, constant,
            followed, reserved
        }
        qkv_plan_info {
            struct_size, key, attention_key, workspace, workspace_alignment, tensor_count, scalar_count, device,
            deterministic, sm, source, cudnn_number, cudnn, engine, what, plan_bytes, compile_ms, reserved, why,
            prepare_us, vault_us, load_us, checks_us, code_us, kernels_us, attributes_us
        }
        qkv_buffer { address, bytes }
        qkv_value { f32, i32, i64 }
        qkv_number { dtype, reserved, value }
        qkv_pair { a, b }
        qkv_named_buffer { name, buffer }
        qkv_named_number { name, number }
        qkv_launch_args {
            struct_size, tensors, tensor_count, scalars, scalar_count, workspace, stream, interleaved,
            interleaved_count
        }
        qkv_launch_named_args {
            struct_size, tensors, tensor_count, scalars, scalar_count, workspace, stream, interleaved,
            interleaved_count
        }
        qkv_world { struct_size, rank, ranks, device, port, address, secret, deadline_ms, threads }
        qkv_sharding { scheme, order, number, reserved }
        qkv_part { start, at, dims }
        qkv_rank_args { struct_size, tensors, tensor_count, scalars, scalar_count, stream }
        qkv_bucket { struct_size, batch, queries, keys, tokens, decode, reserved }
        qkv_batch_operand { struct_size, role_id, reserved, offset, bytes }
        qkv_range { offset, bytes }
        qkv_step {
            struct_size, sequences, query_lengths, key_lengths, pages, page_width, value_pages, reserved
        }
        qkv_comparison {
            struct_size, good, reserved, elements, relative, largest, non_finite, unwritten, touched
        }
    }
    text
}

#[test]
fn the_header_is_that_of_the_code() {
    kit::golden("include/qkvault.h", &header());
}

#[test]
fn the_layout_of_every_struct_is_kept() {
    let layout = layout();
    let structs = header().matches("typedef struct qkv_").count() + header().matches("typedef union qkv_").count();
    let opaque = ["context", "attention", "plan", "oracle", "serving", "batch", "communicator", "rank"];
    assert_eq!(layout.matches("sizeof").count() + opaque.len(), structs, "a struct of the header is not in the list");
    kit::golden("tests/goldens/layout.c", &layout);
}

/// A C compiler and a C++ compiler find every struct where Rust has it, and nothing to warn of.
#[test]
fn compilers_take_the_header_and_agree_about_its_structs() {
    let folder = tempfile::tempdir().expect("a folder");
    let (file, into) = (folder.path().join("layout.c"), folder.path().join("layout.o"));
    // A header in quotes is looked for beside its file first.
    std::fs::write(folder.path().join("qkvault.h"), header()).expect("it is written");
    std::fs::write(&file, layout()).expect("it is written");
    let said = kit::compile("cc", kit::C11, &file, &into, &["-c"]);
    assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
    if !kit::has("c++") {
        qkvault_skip::skip(qkvault_skip::Need::Cxx, "no C++ compiler reads the header");
        return;
    }
    let options: Vec<&str> = kit::CXX17.iter().copied().chain(["-D_Static_assert=static_assert", "-xc++"]).collect();
    let said = kit::compile("c++", &options, &file, &into, &["-c"]);
    assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
}

/// `cargo cinstall` names the library by it.
#[test]
fn the_manifest_has_the_version_of_the_interface() {
    use qkvault_c::version::{QKV_ABI_MAJOR, QKV_ABI_MINOR};
    let manifest = include_str!("../Cargo.toml");
    assert!(manifest.contains(&format!("\nversion = \"{QKV_ABI_MAJOR}.{QKV_ABI_MINOR}.0\"")));
}

/// The example of the README compiles.
#[test]
fn the_readme_compiles() {
    let readme = include_str!("../README.md");
    let example = readme.split("```c\n").nth(1).and_then(|rest| rest.split("```").next()).expect("an example");
    let folder = tempfile::tempdir().expect("a folder");
    let (file, into) = (folder.path().join("example.c"), folder.path().join("example.o"));
    std::fs::write(&file, example).expect("it is written");
    let said = kit::compile("cc", kit::C11, &file, &into, &["-c"]);
    assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
}
