//! From a combination of tensors to CUDA source and a launch recipe: merges, sums, copies, fills, dropout masks. They
//! are bound by memory: every thread has 16 bytes of the result, or 32 of f32, and reads the same of each part.

mod axes;

use std::fmt::Write as _;

use qkvault_graph::{Combination, DType, Role, Tensor, ValidCombination};

use crate::generate::{Generated, own_recipe};
use crate::params::Params;
use crate::recipe::{Launch, LaunchRecipe, LaunchValue, Limits, RecipeStep};
use axes::{Axes, strides};

const MACHINE: &str = include_str!("../cuda/machine.cu");
const PLACES: &str = include_str!("../cuda/combine/places.cu");
const MERGE: &str = include_str!("../cuda/combine/merge.cu");
const SUM: &str = include_str!("../cuda/combine/sum.cu");
const KEEP: &str = include_str!("../cuda/combine/keep.cu");
const COPY: &str = include_str!("../cuda/combine/copy.cu");

/// Threads of a block.
const THREADS: u64 = 256;

/// The source and the recipe of a combination for GPUs of a compute capability.
#[must_use]
pub fn generate_combination(of: &ValidCombination, sm: u32) -> Generated {
    let writer = CombinationWriter::new(of);
    Generated { source: writer.source(), options: vec!["--std=c++17".to_owned()], recipe: writer.recipe(sm) }
}

/// An operand as the kernel sees it.
struct KernelOperand {
    role: Role,
    field: String,
    /// Its type in CUDA C.
    element: &'static str,
    output: bool,
    /// Whether its elements are those of the result, and not one for each row.
    wide: bool,
    size: i64,
}

struct CombinationWriter<'a> {
    of: &'a ValidCombination,
    operands: Vec<KernelOperand>,
    /// What is written, with the strides of all operands in their order.
    axes: Axes,
    result: Tensor,
    chunk: i64,
}

impl<'a> CombinationWriter<'a> {
    fn new(of: &'a ValidCombination) -> CombinationWriter<'a> {
        let (result, adds) = match &**of {
            Combination::Merge { o, .. } => (*o, true),
            Combination::Sum { into, .. } => (*into, true),
            Combination::Keep { to, .. } => (*to, true),
            Combination::Copy { to, .. } | Combination::Fill { to, .. } => (*to, false),
        };
        let mut operands = Vec::new();
        let mut lie = Vec::new();
        for operand in of.operands() {
            let (field, wide) = match operand.role {
                Role::O => ("o".to_owned(), true),
                Role::Into => ("into".to_owned(), true),
                Role::Part(n) => (format!("part{n}"), true),
                Role::PartStats(n) => (format!("stats{n}"), false),
                Role::PartRows(n) => (format!("rows{n}"), false),
                Role::Sink => ("sink".to_owned(), false),
                Role::DropoutSeed => ("seed".to_owned(), false),
                Role::DropoutOffset => ("offset".to_owned(), false),
                Role::Scalar(n) => (format!("first_{}", ["head", "query", "key"][usize::from(n).min(2)]), false),
                _ => ("stats".to_owned(), false),
            };
            let t = operand.tensor;
            // The result, which bears the lowest number, decides the order of the dims.
            lie.push(match operand.role {
                Role::Sink => [0, 1, 0],
                Role::PartRows(_) => [t.dims[2], 0, 1],
                Role::DropoutSeed | Role::DropoutOffset | Role::Scalar(_) => [0; 3],
                _ => strides(&t),
            });
            let element = if adds { added(t.dtype) } else { "Element" };
            let (role, output, size) = (operand.role, operand.output, t.dtype.size() as i64);
            operands.push(KernelOperand { role, field, element, output, wide, size });
        }
        if matches!(**of, Combination::Keep { .. }) {
            // The places of a chunk: as if a tensor counted one dim each.
            lie.extend([[1, 0, 0], [0, 1, 0], [0, 0, 1]]);
        }
        // A number for each row keeps rows apart.
        let by_row = operands.iter().any(|operand| !operand.wide);
        let axes = Axes::in_memory_order(result.dims, &lie, !by_row);
        let chunk = if adds { 8 } else { 16 / result.dtype.size() as i64 };
        CombinationWriter { of, operands, axes, result, chunk }
    }

    /// Where the elements of a place lie in an operand, as an expression.
    fn at(&self, role: Role) -> String {
        let found = self.operands.iter().zip(&self.axes.strides).find(|(operand, _)| operand.role == role);
        let Some((operand, strides)) = found else { return "0".to_owned() };
        let column = if operand.wide { " + at.column" } else { "" };
        format!("{}{column}", along(*strides))
    }

    /// The batch, the head and the query of a place, as expressions. Their strides follow those of the operands.
    fn places(&self) -> [String; 3] {
        let of = |n: usize| self.axes.strides.get(self.operands.len() + n).map_or("0".to_owned(), |s| along(*s));
        [of(0), of(1), of(2)]
    }

    /// Whether the row of a place counts in a part, as an expression.
    fn counts(&self, n: u16, rows: bool) -> String {
        if rows { format!("p.rows{n}[{}]", self.at(Role::PartRows(n))) } else { "true".to_owned() }
    }

    /// Whether every chunk begins at a multiple of 16 bytes if the operands do.
    fn aligned(&self) -> bool {
        let wide = self.operands.iter().zip(&self.axes.strides).filter(|(operand, _)| operand.wide);
        wide.into_iter().all(|(operand, strides)| strides.iter().all(|stride| stride * operand.size % 16 == 0))
    }

    fn source(&self) -> String {
        let mut text = String::new();
        let half = if self.result.dtype == DType::F16 { "f16" } else { "bf16" };
        let _ = writeln!(text, "#define HALF_TYPE \"{half}\"");
        let mut define = |name: &str, value: String| {
            let _ = writeln!(text, "#define {name} {value}");
        };
        let [_, n1, n2] = self.axes.outer;
        let (row, chunk, all) = (self.axes.row, self.chunk, self.axes.chunks(self.chunk));
        let adds = matches!(**self.of, Combination::Merge { .. } | Combination::Sum { .. } | Combination::Keep { .. });
        define("THREADS", THREADS.to_string());
        define("ADDS", u8::from(adds).to_string());
        define("VECTOR", u8::from(self.aligned()).to_string());
        define("CHUNK", chunk.to_string());
        define("CHUNKS", format!("{}u", row.unsigned_abs().div_ceil(chunk.unsigned_abs())));
        define("ROW", format!("{row}u"));
        define("N1", format!("{n1}u"));
        define("N2", format!("{n2}u"));
        define("ALL_CHUNKS", format!("{all}ull"));
        let addresses = self.operands.iter().filter(|o| o.wide).map(|o| format!("(u64)p.{}", o.field));
        define("ALIGNED", format!("((({}) & 15) == 0)", addresses.collect::<Vec<_>>().join(" | ")));
        match &**self.of {
            Combination::Merge { parts, rows, sink, o: _, stats } => {
                define("PART_F16", u8::from(parts[0].o.dtype == DType::F16).to_string());
                define("STATS", u8::from(stats.is_some()).to_string());
                let of_head = format!("p.sink[{}]", self.at(Role::Sink));
                define("SINK", if *sink { of_head } else { "-INFINITE".to_owned() });
                define("AT_O", self.at(Role::O));
                define("AT_STATS", self.at(Role::Stats));
                let part = |n: u16| {
                    let (o, stats) = (self.at(Role::Part(n)), self.at(Role::PartStats(n)));
                    format!("DO(p.part{n}, p.stats{n}, {o}, {stats}, {})", self.counts(n, *rows))
                };
                define("EACH_PART(DO)", (0..).take(parts.len()).map(part).collect::<Vec<_>>().join(" "));
            }
            Combination::Sum { parts, rows, into: _ } => {
                define("PART_F16", u8::from(parts[0].dtype == DType::F16).to_string());
                define("AT_INTO", self.at(Role::Into));
                let part = |n: u16| format!("DO(p.part{n}, {}, {})", self.at(Role::Part(n)), self.counts(n, *rows));
                define("EACH_PART(DO)", (0..).take(parts.len()).map(part).collect::<Vec<_>>().join(" "));
            }
            Combination::Keep { to: _, heads, below } => {
                define("PART_F16", "0".to_owned());
                define("HEADS", format!("{heads}u"));
                define("BELOW", format!("{below}u"));
                define("AT_INTO", self.at(Role::Into));
                for (name, place) in ["AT_BATCH", "AT_HEAD", "AT_QUERY"].into_iter().zip(self.places()) {
                    define(name, place);
                }
            }
            Combination::Copy { .. } => {
                define("FILL", "0".to_owned());
                define("AT_INTO", self.at(Role::Into));
                define("AT_PART", self.at(Role::Part(0)));
            }
            Combination::Fill { hidden, .. } => {
                define("FILL", "1".to_owned());
                define("WORD", if *hidden { "0xff800000u" } else { "0u" }.to_owned());
                define("AT_INTO", self.at(Role::Into));
            }
        }
        text.push_str(MACHINE);
        let index = if all < 1 << 31 { "u32" } else { "u64" };
        let _ = writeln!(text, "\ntypedef {index} Index;\ntypedef {} Element;\n", element(self.result.dtype));
        text.push_str(&self.params().text());
        text.push_str(PLACES);
        text.push_str(match **self.of {
            Combination::Merge { .. } => MERGE,
            Combination::Sum { .. } => SUM,
            Combination::Keep { .. } => KEEP,
            Combination::Copy { .. } | Combination::Fill { .. } => COPY,
        });
        text
    }

    fn params(&self) -> Params {
        let mut params = Params::default();
        for KernelOperand { role, field, element, output, .. } in &self.operands {
            if role.is_scalar() {
                params.number("int", field, LaunchValue::Number(*role));
                continue;
            }
            let element = if *output { (*element).to_owned() } else { format!("const {element}") };
            params.pointer(&element, field, LaunchValue::Address(*role));
        }
        params
    }

    fn recipe(&self, sm: u32) -> LaunchRecipe {
        let blocks = self.axes.chunks(self.chunk).div_ceil(THREADS).min(Limits::GRID_X.into());
        let launch = Launch {
            module: 0,
            function: "combine".to_owned(),
            grid: [blocks as u32, 1, 1],
            block: [THREADS as u32, 1, 1],
            shared: 0,
            cluster: None,
            overlap: false,
            params: vec![self.params().param()],
        };
        own_recipe(sm, 0, vec![RecipeStep::Launch(launch)])
    }
}

/// The sum of a place's numbers along the dims around a row, each times a stride, as an expression.
fn along([a, b, c]: [i64; 3]) -> String {
    format!("at.a * {a}ll + at.b * {b}ll + at.c * {c}ll")
}

/// The type of a tensor that is added up, or that tells what counts, in CUDA C.
fn added(dtype: DType) -> &'static str {
    match dtype {
        DType::F32 => "float",
        DType::U8 => "unsigned char",
        DType::I64 => "i64",
        _ => "u16",
    }
}

/// A type of the size of an element.
fn element(dtype: DType) -> &'static str {
    match dtype.size() {
        1 => "unsigned char",
        2 => "unsigned short",
        4 => "unsigned int",
        _ => "unsigned long long",
    }
}
