//! Runs bindgen on `cudnn_graph.h` and writes the declarations that `qkvault-sys` compiles.
//!
//! The declarations have the header's names, numbers and signatures, but not its comments, which are NVIDIA's text.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;
use std::sync::{Arc, Mutex};

use anyhow::{Context, Result};
use bindgen::callbacks::{EnumVariantCustomBehavior, EnumVariantValue, ItemInfo, ParseCallbacks};

/// One C enum: its C name, its Rust name, and the prefix and suffix of its constants.
struct EnumNames {
    c: &'static str,
    rust: &'static str,
    prefix: &'static str,
    suffix: &'static str,
}

const fn names(c: &'static str, rust: &'static str, prefix: &'static str) -> EnumNames {
    EnumNames { c, rust, prefix, suffix: "" }
}

/// Every enum that the declarations use.
const ENUMS: &[EnumNames] = &[
    names("cudnnStatus_t", "Status", "CUDNN_STATUS_"),
    names("cudnnSeverity_t", "Severity", "CUDNN_SEV_"),
    names("cudnnDataType_t", "DataType", "CUDNN_DATA_"),
    names("cudnnPointwiseMode_t", "PointwiseMode", "CUDNN_POINTWISE_"),
    names("cudnnReduceTensorOp_t", "ReduceTensorOp", "CUDNN_REDUCE_TENSOR_"),
    names("cudnnRngDistribution_t", "RngDistribution", "CUDNN_RNG_DISTRIBUTION_"),
    names("cudnnBackendAttributeName_t", "AttributeName", "CUDNN_ATTR_"),
    names("cudnnBackendAttributeType_t", "AttributeType", "CUDNN_TYPE_"),
    EnumNames { c: "cudnnBackendDescriptorType_t", rust: "Kind", prefix: "CUDNN_BACKEND_", suffix: "_DESCRIPTOR" },
    names("cudnnBackendNumericalNote_t", "NumericalNote", "CUDNN_NUMERICAL_NOTE_"),
    names("cudnnBackendBehaviorNote_t", "BehaviorNote", "CUDNN_BEHAVIOR_NOTE_"),
    names("cudnnBackendKnobType_t", "KnobType", "CUDNN_KNOB_TYPE_"),
    names("cudnnBackendHeurMode_t", "HeurMode", "CUDNN_HEUR_MODE_"),
    names("cudnnBackendTensorReordering_t", "TensorReordering", "CUDNN_TENSOR_REORDERING_"),
    names("cudnnBackendReshapeMode_t", "ReshapeMode", "CUDNN_RESHAPE_"),
    names("cudnnBackendOperationGraphMode_t", "OperationGraphMode", "CUDNN_OPERATIONGRAPH_MODE_"),
];

/// Functions of cuDNN 9. Older versions lack some of them; `qkvault-sys` finds out at run time.
const FUNCTIONS: &str = "cudnnBackend.*|cudnn(Create|Destroy|GetVersion|GetMaxDeviceVersion|GetCudartVersion|GetErrorString|\
GetLastErrorString|SetStream|GetStream|GraphVersionCheck|SetCallback|GetCallback)";

/// C names and numbers of the constants of each enum, by Rust name, in the header's order.
type Constants = BTreeMap<&'static str, Vec<(String, i64)>>;

/// Renames enums and constants, hides sentinels, and records each constant's C name for the name tables.
#[derive(Debug, Default)]
struct Namer {
    seen: Arc<Mutex<Constants>>,
}

fn enum_names(c: Option<&str>) -> Option<&'static EnumNames> {
    let c = c?.trim_start_matches("enum ");
    ENUMS.iter().find(|names| names.c == c)
}

fn is_sentinel(constant: &str) -> bool {
    constant.ends_with("_COUNT") || constant.ends_with("_COUNTS")
}

impl ParseCallbacks for Namer {
    fn item_name(&self, item: ItemInfo<'_>) -> Option<String> {
        enum_names(Some(item.name)).map(|names| names.rust.to_owned())
    }

    fn enum_variant_behavior(
        &self,
        _enum_name: Option<&str>,
        constant: &str,
        _value: EnumVariantValue,
    ) -> Option<EnumVariantCustomBehavior> {
        is_sentinel(constant).then_some(EnumVariantCustomBehavior::Hide)
    }

    fn enum_variant_name(&self, enum_name: Option<&str>, constant: &str, value: EnumVariantValue) -> Option<String> {
        let names = enum_names(enum_name)?;
        if is_sentinel(constant) {
            return None;
        }
        let value = match value {
            EnumVariantValue::Signed(value) => value,
            EnumVariantValue::Unsigned(value) => i64::try_from(value).ok()?,
            EnumVariantValue::Boolean(value) => i64::from(value),
        };
        self.seen.lock().ok()?.entry(names.rust).or_default().push((constant.to_owned(), value));
        let short = constant.strip_prefix(names.prefix).unwrap_or(constant);
        Some(short.strip_suffix(names.suffix).unwrap_or(short).to_owned())
    }
}

/// Generates the declarations from `include/cudnn_graph.h`.
///
/// `release` is the cuDNN release of the folder, for the banner.
pub(super) fn generate(include: &Path, stub: &Path, release: &str) -> Result<String> {
    let namer = Namer::default();
    let seen = Arc::clone(&namer.seen);
    let used = ENUMS.iter().map(|names| names.c).collect::<Vec<_>>().join("|");
    let bindings = bindgen::Builder::default()
        .header(include.join("cudnn_graph.h").to_str().context("the header folder's name is not UTF-8")?)
        .clang_args(["-nostdinc".to_owned(), format!("-I{}", stub.display()), format!("-I{}", include.display())])
        .allowlist_function(FUNCTIONS)
        .allowlist_type(used)
        .allowlist_var("CUDNN_(MAJOR|MINOR|PATCHLEVEL)")
        .default_enum_style(bindgen::EnumVariation::NewType { is_bitfield: false, is_global: false })
        .prepend_enum_name(false)
        .generate_comments(false)
        .layout_tests(true)
        .wrap_unsafe_ops(true)
        .use_core()
        .merge_extern_blocks(true)
        .sort_semantically(true)
        .derive_eq(true)
        .derive_hash(true)
        .derive_ord(true)
        .rust_edition(bindgen::RustEdition::Edition2024)
        .rust_target(bindgen::RustTarget::stable(89, 0).map_err(|error| anyhow::anyhow!("{error}"))?)
        .disable_header_comment()
        .formatter(bindgen::Formatter::Prettyplease)
        .parse_callbacks(Box::new(namer))
        .generate()
        .context("bindgen could not read cudnn_graph.h")?
        .to_string();

    let mut text = format!(
        "// Generated by `cargo xtask bindings` (bindgen 0.73.2) from cudnn_graph.h of cuDNN {release}; do not edit.\n\
         // Names, numbers and signatures only. cuDNN is NVIDIA's, under its own licence, and is fetched by you.\n\n"
    );
    text.push_str("use crate::declare::{functions, numbers};\n\n");
    let mut numbers = BTreeMap::new();
    without_numbers(&bindings, &mut text, &mut numbers)?;
    let seen = seen.lock().map_err(|_| anyhow::anyhow!("bindgen panicked"))?;
    for (rust, constants) in seen.iter() {
        let names = ENUMS.iter().find(|names| names.rust == *rust).context("a constant of no known enum")?;
        let integer = numbers.get(*rust).with_context(|| format!("bindgen wrote no type for {rust}"))?;
        write_numbers(&mut text, names, integer, constants)?;
    }
    Ok(text)
}

/// Copies bindgen's text without the types of enums, whose integers are collected, and their constants; the functions
/// become what a library has when it is loaded. Both are written by macros of `crates/sys/src/declare.rs`.
fn without_numbers(bindings: &str, text: &mut String, integers: &mut BTreeMap<&'static str, String>) -> Result<()> {
    let mut lines = bindings.lines();
    let mut attributes = Vec::new();
    while let Some(line) = lines.next() {
        if line.starts_with("#[") {
            attributes.push(line);
            continue;
        }
        let of_enum = |start: &str, end: &str| {
            ENUMS.iter().find_map(|names| Some((names.rust, line.strip_prefix(&format!("{start}{}{end}", names.rust))?)))
        };
        if let Some((rust, rest)) = of_enum("pub struct ", "(pub ") {
            integers.insert(rust, rest.trim_end_matches(");").to_owned());
            attributes.clear();
        } else if of_enum("impl ", " {").is_some() {
            lines.by_ref().take_while(|line| *line != "}").for_each(drop);
        } else {
            for line in attributes.drain(..) {
                writeln!(text, "{line}")?;
            }
            writeln!(text, "{}", if line == "unsafe extern \"C\" {" { "functions! {" } else { line })?;
        }
    }
    Ok(())
}

/// Appends the type of one enum, with as many constants in a line as fit.
fn write_numbers(text: &mut String, names: &EnumNames, integer: &str, constants: &[(String, i64)]) -> Result<()> {
    let EnumNames { rust, prefix, suffix, .. } = names;
    write!(text, "numbers! {{\n    {rust}({integer}), {prefix:?}, {suffix:?}:")?;
    let mut column = usize::MAX;
    for (constant, value) in constants {
        let short = constant.strip_prefix(prefix).and_then(|short| short.strip_suffix(suffix));
        let short = short.with_context(|| format!("{constant} is not named as the others of {rust}"))?;
        let row = format!(" {short} = {value},");
        column = column.saturating_add(row.len());
        if column > 120 {
            text.push_str("\n   ");
            column = 3 + row.len();
        }
        text.push_str(&row);
    }
    text.push_str("\n}\n");
    Ok(())
}
