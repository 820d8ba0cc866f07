//! From a conversion to CUDA source and a launch recipe: a tensor becomes 8 bits with scales, or comes back.

mod rows;
#[cfg(test)]
mod tests;

use std::fmt::Write as _;

use crate::codes;
use qkvault_graph::{Along, BLOCK, Conversion, ConversionKind, DType, Refusal, Role, ValidConversion};

use crate::generate::{Generated, own_recipe};
use crate::params::Params;
use crate::recipe::{Launch, LaunchRecipe, LaunchValue, RecipeStep};
use rows::ConvertedRows;

pub(crate) const ARITHMETIC: &str = include_str!("cuda/convert/arithmetic.cu");
pub(crate) const INSTRUCTIONS: &str = include_str!("cuda/convert/instructions.cu");
pub(crate) const CHUNKS: &str = include_str!("cuda/convert/chunks.cu");
const SCALE: &str = include_str!("cuda/convert/scale.cu");
const SCALED: &str = include_str!("cuda/convert/scaled.cu");
const BLOCKS: &str = include_str!("cuda/convert/blocks.cu");

/// The oldest compute capability with instructions that round to 8 bits.
pub const CONVERSION_SM: u32 = 89;

/// Threads of a block.
const THREADS: u64 = 256;

/// Blocks that fill any GPU: eight for each of 148 multiprocessors. Fewer if there is less to do.
pub(crate) const MOST_BLOCKS: u64 = 1184;

/// Bytes of scratch memory of a launch: what its blocks share.
const SHARED: u64 = 256;

/// The source and the recipe of a conversion for GPUs of a compute capability.
///
/// # Errors
///
/// The reason why no GPU of the capability runs it: `conversion.gpu`.
pub fn generate_conversion(conversion: &ValidConversion, sm: u32) -> Result<Generated, Refusal> {
    has_8_bits(sm)?;
    Ok(Generated {
        source: source(conversion),
        options: vec!["--std=c++17".to_owned()],
        recipe: recipe(conversion, sm),
    })
}

/// Whether GPUs of a compute capability have numbers in 8 bits.
pub(crate) fn has_8_bits(sm: u32) -> Result<(), Refusal> {
    if sm < CONVERSION_SM {
        return Err(codes::CONVERSION_GPU.reason(format!("compute capability {}.{}", sm / 10, sm % 10)).into());
    }
    Ok(())
}

/// The source.
fn source(conversion: &ValidConversion) -> String {
    let mut text = String::new();
    for (name, value) in defines(conversion) {
        let _ = writeln!(text, "#define {name} {value}");
    }
    text.push_str(ARITHMETIC);
    text.push('\n');
    text.push_str(SCALE);
    let wide = match conversion.wide.dtype {
        DType::F32 => "float",
        _ => "u16",
    };
    let index = if work(conversion) < 1 << 31 { "u32" } else { "u64" };
    let _ = writeln!(text, "\ntypedef {wide} Wide;\ntypedef {index} Index;\n");
    text.push_str(INSTRUCTIONS);
    text.push_str(CHUNKS);
    text.push_str(&params(conversion).text());
    text.push_str(if conversion.kind.along().is_some() { BLOCKS } else { SCALED });
    text
}

/// A number that no index of a thread reaches.
fn work(conversion: &ValidConversion) -> u64 {
    let scales = conversion.block_scales().map_or(0, |t| t.dims.iter().map(|n| n.unsigned_abs()).product::<u64>() * 8);
    let elements: u64 = conversion.wide.dims.iter().map(|n| n.unsigned_abs()).product();
    elements.max(scales).saturating_add(MOST_BLOCKS * THREADS * 16)
}

/// The numbers that the source is written for.
fn defines(conversion: &ValidConversion) -> Vec<(&'static str, String)> {
    let Conversion { wide, narrow, kind } = **conversion;
    let e5m2 = narrow.dtype == DType::E5M2;
    let along = kind.along();
    let power_of_two = matches!(kind, ConversionKind::Current { power_of_two: true });
    let mut list: Vec<(&'static str, String)> = Vec::new();
    let mut number = |name, value: i64| {
        list.push((name, if i32::try_from(value).is_ok() { value.to_string() } else { format!("{value}ll") }));
    };
    for (name, flag) in [
        ("NARROW_E5M2", e5m2),
        ("WIDE_F32", wide.dtype == DType::F32),
        ("WIDE_F16", wide.dtype == DType::F16),
        ("NARROWS", kind.narrows()),
        ("MEASURE", matches!(kind, ConversionKind::Current { .. })),
        ("POWER_OF_TWO", power_of_two),
        ("ALONG_SEQUENCE", along == Some(Along::Sequence)),
    ] {
        number(name, flag.into());
    }
    number("LARGEST_EXPONENT", if e5m2 { 15 } else { 8 });
    number("THREADS", THREADS as i64);
    let [batch, heads, s, d] = wide.dims;
    number("BATCH", batch);
    number("HEADS", heads);
    let groups = |n: i64| n.div_ceil_by(BLOCK as i64).multiple_of(4);
    let (outer, inner) = match along {
        Some(Along::Sequence) => (d.multiple_of(128), groups(s)),
        _ => (s.multiple_of(128), groups(d)),
    };
    number("PADDED_OUTER", outer);
    number("PADDED_INNER", inner);
    if along.is_some() {
        let aligned = |strides: [i64; 4]| strides[..3].iter().zip(wide.dims).all(|(step, n)| n == 1 || step % 8 == 0);
        number("VECTOR", i64::from(aligned(wide.strides) && aligned(narrow.strides)));
        for (name, value) in ["WIDE_B", "WIDE_H", "WIDE_S"].into_iter().zip(wide.strides) {
            number(name, value);
        }
        for (name, value) in ["NARROW_B", "NARROW_H", "NARROW_S"].into_iter().zip(narrow.strides) {
            number(name, value);
        }
    } else {
        let rows = ConvertedRows::between(&wide, &narrow);
        number("VECTOR", rows.aligned(8).into());
        number("READ", if wide.dtype == DType::F32 { 2 } else { 4 });
        number("ROW", rows.row);
        number("CHUNKS", rows.row.div_ceil_by(8));
        let names = [["N0", "WIDE_0", "NARROW_0"], ["N1", "WIDE_1", "NARROW_1"], ["N2", "WIDE_2", "NARROW_2"]];
        for (names, axis) in names.into_iter().zip(rows.outer) {
            names.into_iter().zip([axis.n, axis.wide, axis.narrow]).for_each(|(name, value)| number(name, value));
        }
    }
    // Counts without a sign, so that they are compared with indices.
    let unsigned = |n: i64| format!("{n}u");
    list.push(("ROWS", unsigned(s)));
    list.push(("COLUMNS", unsigned(d)));
    list.push(("ALL_CHUNKS", format!("{}ull", chunks(conversion))));
    list.push(("ALL_TILES", format!("{}ull", tiles(conversion))));
    list.push(("LARGEST_NUMBER", format!("{}.f", narrow.dtype.largest_fp8().unwrap_or(1.0))));
    list
}

/// Chunks of up to eight elements of a row.
fn chunks(conversion: &ValidConversion) -> u64 {
    let Conversion { wide, narrow, kind } = **conversion;
    let (rows, row) = match kind.along() {
        Some(_) => (wide.dims[..3].iter().product::<i64>(), wide.dims[3]),
        None => {
            let rows = ConvertedRows::between(&wide, &narrow);
            (rows.outer.iter().map(|axis| axis.n).product(), rows.row)
        }
    };
    rows.unsigned_abs() * row.div_ceil_by(8).unsigned_abs()
}

/// What the scales of blocks are made in: blocks of rows one by one, blocks of columns 64 at a time.
fn tiles(conversion: &ValidConversion) -> u64 {
    let scales = conversion.block_scales().map_or(0, |t| t.dims.iter().product::<i64>().unsigned_abs());
    if conversion.kind.along() == Some(Along::Sequence) { scales / 64 } else { scales }
}

fn params(conversion: &ValidConversion) -> Params {
    let Conversion { wide, kind, .. } = **conversion;
    let mut p = Params::default();
    let (from, to) = if kind.narrows() { ("const ", "") } else { ("", "const ") };
    let wide = if wide.dtype == DType::F32 { "float" } else { "u16" };
    p.pointer(&format!("{from}{wide}"), "wide", LaunchValue::Address(Role::Wide));
    p.pointer(&format!("{to}u8"), "narrow", LaunchValue::Address(Role::Narrow));
    match kind {
        ConversionKind::Delayed | ConversionKind::Current { .. } => {
            p.pointer("float", "scale", LaunchValue::Address(Role::NarrowScale));
            p.pointer("float", "descale", LaunchValue::Address(Role::NarrowDescale));
            p.pointer("float", "amax", LaunchValue::Address(Role::NarrowAmax));
            p.pointer("void", "shared", LaunchValue::Scratch(0));
        }
        ConversionKind::Blocks(_) => p.pointer("u8", "scales", LaunchValue::Address(Role::NarrowDescale)),
        ConversionKind::DequantizeBlocks(_) => {
            p.pointer("const u8", "scales", LaunchValue::Address(Role::NarrowDescale))
        }
        _ => p.pointer("const float", "descale", LaunchValue::Address(Role::NarrowDescale)),
    }
    p
}

/// The kernels of a conversion in order, each with the number of its blocks.
fn launches(conversion: &ValidConversion) -> Vec<(&'static str, u64)> {
    let kind = conversion.kind;
    let read = if conversion.wide.dtype == DType::F32 { 2 } else { 4 };
    let of = |threads: u64| threads.div_ceil(THREADS).clamp(1, MOST_BLOCKS);
    let chunks = of(chunks(conversion).div_ceil(read));
    match kind {
        ConversionKind::Current { .. } => vec![("measure", chunks), ("quantize", chunks)],
        ConversionKind::Delayed => vec![("quantize", chunks)],
        ConversionKind::Blocks(Along::Sequence) => vec![("quantize_columns", of(tiles(conversion) * 32))],
        ConversionKind::Blocks(Along::HeadDim) => vec![("quantize_rows", of(tiles(conversion) * 4))],
        ConversionKind::DequantizeBlocks(_) => vec![("dequantize_blocks", of(self::chunks(conversion)))],
        _ => vec![("dequantize", chunks)],
    }
}

fn recipe(conversion: &ValidConversion, sm: u32) -> LaunchRecipe {
    let measures = matches!(conversion.kind, ConversionKind::Delayed | ConversionKind::Current { .. });
    let mut steps: Vec<RecipeStep> =
        measures.then_some(RecipeStep::Clear { at: 0, bytes: SHARED, value: 0 }).into_iter().collect();
    let param = params(conversion).param();
    let launch = |(function, blocks): (&str, u64)| {
        RecipeStep::Launch(Launch {
            module: 0,
            function: function.to_owned(),
            grid: [u32::try_from(blocks).unwrap_or(u32::MAX), 1, 1],
            block: [THREADS as u32, 1, 1],
            shared: 0,
            cluster: None,
            overlap: false,
            params: vec![param.clone()],
        })
    };
    steps.extend(launches(conversion).into_iter().map(launch));
    own_recipe(sm, if measures { SHARED } else { 0 }, steps)
}

/// Whole numbers of parts, for extents, which are positive.
trait Parts {
    fn div_ceil_by(self, by: i64) -> i64;
    fn multiple_of(self, of: i64) -> i64;
}

impl Parts for i64 {
    fn div_ceil_by(self, by: i64) -> i64 {
        (self - 1) / by + 1
    }

    fn multiple_of(self, of: i64) -> i64 {
        self.div_ceil_by(of) * of
    }
}
