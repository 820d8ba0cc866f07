//! The text form of op graphs: one line per operation, with operands by role, for goldens and errors.

use std::fmt;

use super::{Constant, OfOrigins, Op, OpGraph, OpTensor, TensorId, TensorKind};
use crate::{DType, Order};

impl fmt::Display for Constant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Constant::F32(bits) => write!(f, "{:?}", f32::from_bits(*bits)),
            Constant::I32(value) => write!(f, "{value}i"),
            Constant::OfOrigins(OfOrigins { dtype, start, query, key, least: _ }) => {
                let sign = |by: i8| if by < 0 { "-" } else { "+" };
                write!(f, "({start}")?;
                for (by, name) in [(*query, "query_origin"), (*key, "key_origin")] {
                    if by != 0 {
                        write!(f, " {} {name}", sign(by))?;
                    }
                }
                f.write_str(if *dtype == DType::F32 { ")" } else { ")i" })
            }
        }
    }
}

/// The name of a tensor in the text of its graph. A tensor that does not exist has a name too, so that broken graphs
/// print.
struct Name<'a>(&'a OpGraph, TensorId);

impl fmt::Display for Name<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(tensor) = self.0.tensors.get(self.1.0 as usize) else {
            return write!(f, "%{}?", self.1.0);
        };
        match tensor.kind {
            TensorKind::Virtual => write!(f, "%{}", self.1.0),
            TensorKind::Operand(role) | TensorKind::Scalar(role) => write!(f, "<{role}>"),
            TensorKind::Constant(constant) => write!(f, "{constant}"),
        }
    }
}

fn declare(
    f: &mut fmt::Formatter<'_>,
    graph: &OpGraph,
    t: &OpTensor,
    what: &str,
    name: &dyn fmt::Display,
) -> fmt::Result {
    let [b, h, s, d] = t.dims;
    let [sb, sh, ss, sd] = t.strides;
    write!(f, "{what} <{name}> {} [{b},{h},{s},{d}] strides [{sb},{sh},{ss},{sd}]", t.dtype)?;
    if let Some(offsets) = t.offsets {
        write!(f, " offsets {}", Name(graph, offsets))?;
    }
    writeln!(f)
}

impl fmt::Display for OpGraph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for t in &self.tensors {
            match t.kind {
                TensorKind::Operand(role) => declare(f, self, t, "operand", &role)?,
                TensorKind::Scalar(role) => writeln!(f, "scalar <{role}> {}", t.dtype)?,
                TensorKind::Virtual | TensorKind::Constant(_) => {}
            }
        }
        for op in &self.ops {
            let names: Vec<String> = op
                .outputs()
                .into_iter()
                .map(|id| match self.tensors.get(id.0 as usize) {
                    Some(OpTensor { dims, strides, dtype, kind: TensorKind::Virtual, offsets: _ }) => {
                        let plain = Order::Bhsd.checked_strides(*dims) == Some(*strides);
                        let strides = if plain { String::new() } else { format!("strides{strides:?}") };
                        format!("{}:{dtype}{dims:?}{strides}", Name(self, id)).replace(' ', "")
                    }
                    _ => Name(self, id).to_string(),
                })
                .collect();
            write!(f, "{} = ", names.join(", "))?;
            write_op(f, self, op)?;
            writeln!(f)?;
        }
        for engine in &self.excluded_engines {
            writeln!(f, "not engine {engine}")?;
        }
        if let Some(engine) = &self.engine {
            writeln!(f, "by {engine}")?;
        }
        Ok(())
    }
}

/// The name of an operation in lower case with dashes: `cmp-lt` of `CmpLt`.
pub(super) fn kebab(name: impl fmt::Debug) -> String {
    let name = format!("{name:?}");
    let dash = |(i, c): (usize, char)| {
        let start = c.is_ascii_uppercase() && i > 0;
        start.then_some('-').into_iter().chain([c.to_ascii_lowercase()])
    };
    name.chars().enumerate().flat_map(dash).collect()
}

fn write_op(f: &mut fmt::Formatter<'_>, g: &OpGraph, op: &Op) -> fmt::Result {
    let n = |id: TensorId| Name(g, id);
    let extra = |f: &mut fmt::Formatter<'_>, key: &str, id: Option<TensorId>| match id {
        Some(id) => write!(f, " {key}={}", Name(g, id)),
        None => Ok(()),
    };
    match *op {
        Op::Matmul { a, b, c: _, m, n: cols, k } => {
            write!(f, "matmul {} {}", n(a), n(b))?;
            extra(f, "m", m)?;
            extra(f, "n", cols)?;
            extra(f, "k", k)
        }
        Op::Pointwise { mode, x, b, t, y: _, axis, compute } => {
            write!(f, "{} {}", kebab(mode), n(x))?;
            if let Some(b) = b {
                write!(f, " {}", n(b))?;
            }
            extra(f, "when", t)?;
            if let Some(axis) = axis {
                write!(f, " axis={axis}")?;
            }
            if compute == DType::F32 { Ok(()) } else { write!(f, " in {compute}") }
        }
        Op::Reduction { op, x, y: _ } => write!(f, "reduce-{} {}", kebab(op), n(x)),
        Op::Rng { keep, seed, offset, y: _ } => {
            write!(f, "bernoulli {} seed={} offset={}", f64::from_bits(keep), n(seed), n(offset))
        }
        Op::Reshape { x, y: _ } => write!(f, "reshape {}", n(x)),
        Op::Dequantize { x, scale, y: _ } => write!(f, "dequantize {} by {}", n(x), n(scale)),
        Op::PagedLoad { container, table, lengths, y: _ } => {
            write!(f, "paged-load {} table={} lengths={}", n(container), n(table), n(lengths))
        }
        Op::BandMask { x, fill, seq_q, seq_kv, left, shift_right, y: _, compare } => {
            write!(f, "band-mask {} {} {}", n(x), n(fill), kebab(compare))?;
            extra(f, "seq_q", seq_q)?;
            extra(f, "seq_kv", seq_kv)?;
            extra(f, "left", left)?;
            extra(f, "shift_right", shift_right)
        }
        Op::Softmax { x, y: _, stats: _, max: _, sum_exp: _, sink } => {
            write!(f, "softmax {}", n(x))?;
            extra(f, "sink", sink)
        }
    }
}
