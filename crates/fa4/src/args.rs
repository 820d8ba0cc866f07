//! Arguments of a kernel, and the bytes of parameters that they become.

use qkvault_graph::{DType, Role};
use qkvault_kernels::recipe::{LaunchValue, Param, Patch, TensorMap};
use serde::{Deserialize, Serialize};

use crate::divisor::Divisor;
use crate::types::{Leaf, LeafKind, Type};

/// An argument of a kernel, in the terms of its function in Python.
#[derive(Clone, Debug)]
pub(crate) enum Arg {
    /// The extents of a tensor that tensor maps reach.
    Extents(Vec<i64>),
    /// A tensor: where it is, extents, and those strides that are not 1.
    Tensor { at: LaunchValue, extents: Vec<i64>, strides: Vec<i64> },
    /// A tensor map over a view; the box is what the compiler printed.
    Map(TensorView),
    /// A number.
    Int(i64),
    /// A number to divide by, which is followed by the number itself.
    Divisor(i64),
    /// A number of a launch, or a constant.
    Float(Float),
    /// A choice of instructions that is always off.
    Off,
    /// A number of a launch, of four bytes.
    Number(Role, DType),
    /// The address of an operand, as a number of 64 bits.
    Address(Role),
    /// A number of 64 bits.
    Long(i64),
}

/// A number in f32.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Float {
    /// A constant.
    Constant(f32),
    /// The softmax scale times a constant.
    Scale(f32),
}

/// A tensor of a description as kernels see it: extents and strides in elements, the fastest axis second.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TensorView {
    pub(crate) role: Role,
    pub(crate) dtype: DType,
    pub(crate) extents: Vec<i64>,
    pub(crate) strides: Vec<i64>,
}

/// Log2(e) as the kernels multiply by it.
pub(crate) const LOG2_E: f32 = std::f32::consts::LOG2_E;

/// The launch's side and the kernel's do not agree.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParameterMismatch {
    /// A kernel has another number of parameters than a launch gives.
    #[error("the kernel has {has} parameters, and a launch gives {given}")]
    Count {
        /// Those of the kernel.
        has: usize,
        /// Those of the launch.
        given: usize,
    },
    /// A parameter has another type than a launch gives.
    #[error("parameter {at} of the kernel is {has}, and a launch gives {given}")]
    Kind {
        /// Which parameter.
        at: usize,
        /// Its type.
        has: String,
        /// What a launch gives.
        given: String,
    },
    /// A parameter has another size in the cubin than its printed type has.
    #[error("parameter {at} has {size} bytes at {offset} in the cubin, and its printed type {printed} at {expected}")]
    Place {
        /// Which parameter.
        at: usize,
        /// Its size in the cubin.
        size: u32,
        /// Its offset there.
        offset: u32,
        /// The size of its type.
        printed: u32,
        /// The offset that follows from the types before it.
        expected: u32,
    },
    /// Something about the launch differs.
    #[error("{what} is {has} for the kernel, and a launch gives {given}")]
    Launch {
        /// What.
        what: &'static str,
        /// What the compiler tells.
        has: String,
        /// What a launch gives.
        given: String,
    },
    /// A number does not fit.
    #[error("parameter {at} would be {given}, which does not fit into {bytes} bytes")]
    Large {
        /// Which parameter.
        at: usize,
        /// The number.
        given: i64,
        /// Its bytes.
        bytes: u32,
    },
}

/// A value for one part of a parameter.
enum ParameterValue {
    Int(i64),
    Unsigned(u32),
    Float(f32),
    Patch(LaunchValue),
    /// The same where the kernel has an integer.
    Bits(LaunchValue),
    Map(Box<TensorMap>),
}

impl ParameterValue {
    fn kind(&self) -> LeafKind {
        match self {
            ParameterValue::Int(_) | ParameterValue::Unsigned(_) | ParameterValue::Bits(_) => LeafKind::Integer,
            ParameterValue::Float(_) | ParameterValue::Patch(LaunchValue::Product(..)) => LeafKind::Float,
            ParameterValue::Patch(LaunchValue::Number(_)) => LeafKind::Float,
            ParameterValue::Patch(_) => LeafKind::Pointer,
            ParameterValue::Map(_) => LeafKind::Map,
        }
    }
}

/// How the compiler cuts a tensor into boxes for one tensor map.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Boxes {
    /// For each dim of the map, the fastest first: the extent of the box, and the axis of the view.
    pub dims: Vec<(u32, usize)>,
    /// Bytes of the swizzle.
    pub swizzle: u32,
}

impl TensorView {
    /// The tensor map over this view in boxes; `None` if the boxes are of other axes.
    pub(crate) fn map(&self, boxes: &Boxes) -> Option<TensorMap> {
        let size = self.dtype.size() as u64;
        let axis = |axis: usize| Some((*self.extents.get(axis)?, *self.strides.get(axis)?));
        let axes: Vec<(i64, i64)> = boxes.dims.iter().map(|&(_, at)| axis(at)).collect::<Option<_>>()?;
        let all = axes.len() == self.extents.len() && axes.first().is_some_and(|&(_, stride)| stride == 1);
        // The step of an axis with one element is never taken; the driver still needs a multiple of 16 bytes.
        let step = |&(n, stride): &(i64, i64)| if n == 1 { 16 } else { stride.unsigned_abs() * size };
        all.then(|| TensorMap {
            role: self.role,
            dtype: self.dtype,
            dims: axes.iter().map(|(n, _)| n.unsigned_abs()).collect(),
            strides: axes[1..].iter().map(step).collect(),
            tile: boxes.dims.iter().map(|&(tile, _)| tile).collect(),
            swizzle: boxes.swizzle,
        })
    }
}

/// The parameters of a kernel: arguments in order, each laid out as the type of its parameter.
pub(crate) fn params(args: &[Arg], types: &[Type], boxes: &[Boxes]) -> Result<Vec<Param>, ParameterMismatch> {
    let mut boxes = boxes.iter();
    let mut groups: Vec<Vec<ParameterValue>> = Vec::new();
    for arg in args {
        let ints = |list: &[i64]| list.iter().map(|&n| ParameterValue::Int(n)).collect::<Vec<_>>();
        match arg {
            Arg::Extents(extents) => groups.push(ints(extents)),
            Arg::Tensor { at, extents, strides } => {
                let address = std::iter::once(ParameterValue::Patch(at.clone()));
                groups.push(address.chain(ints(extents)).chain(ints(strides)).collect());
            }
            Arg::Map(view) => {
                let map = boxes.next().and_then(|boxes| view.map(boxes));
                let given = || format!("a tensor map of {}", view.role);
                let wrong =
                    || ParameterMismatch::Kind { at: groups.len(), has: "over other axes".to_owned(), given: given() };
                let map = map.ok_or_else(wrong)?;
                groups.push(vec![ParameterValue::Map(Box::new(map))]);
            }
            Arg::Int(n) | Arg::Long(n) => groups.push(vec![ParameterValue::Int(*n)]),
            Arg::Divisor(n) => {
                let positive = u32::try_from(*n).unwrap_or(u32::MAX);
                let Divisor { divisor, multiplier, shift1, shift2 } = Divisor::new(positive);
                let shifts = [shift1, shift2].map(|n| ParameterValue::Int(n.into()));
                groups.push([divisor, multiplier].map(ParameterValue::Unsigned).into_iter().chain(shifts).collect());
                groups.push(vec![ParameterValue::Int(*n)]);
            }
            Arg::Float(Float::Constant(value)) => groups.push(vec![ParameterValue::Float(*value)]),
            Arg::Float(Float::Scale(by)) => {
                let value =
                    if *by == 1.0 { LaunchValue::Number(Role::Scale) } else { LaunchValue::product(Role::Scale, *by) };
                groups.push(vec![ParameterValue::Patch(value)]);
            }
            Arg::Off => groups.push(vec![ParameterValue::Int(0)]),
            Arg::Number(role, DType::I32) => groups.push(vec![ParameterValue::Bits(LaunchValue::Number(*role))]),
            Arg::Number(role, _) => groups.push(vec![ParameterValue::Patch(LaunchValue::Number(*role))]),
            Arg::Address(role) => groups.push(vec![ParameterValue::Bits(LaunchValue::Address(*role))]),
        }
    }
    if groups.len() != types.len() || boxes.next().is_some() {
        return Err(ParameterMismatch::Count { has: types.len(), given: groups.len() });
    }
    groups.into_iter().zip(types).enumerate().map(|(at, (parts, kind))| param(at, parts, kind)).collect()
}

fn param(at: usize, parts: Vec<ParameterValue>, kind: &Type) -> Result<Param, ParameterMismatch> {
    let leaves = kind.leaves();
    let names = |list: &[LeafKind]| list.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    let has: Vec<LeafKind> = leaves.iter().map(|leaf| leaf.kind).collect();
    let given: Vec<LeafKind> = parts.iter().map(ParameterValue::kind).collect();
    if has != given {
        return Err(ParameterMismatch::Kind { at, has: names(&has), given: names(&given) });
    }
    let mut bytes = vec![0_u8; kind.layout().0 as usize];
    let mut patches = Vec::new();
    for (part, Leaf { at: place, size, .. }) in parts.into_iter().zip(leaves) {
        let (begin, end) = (place as usize, (place + size) as usize);
        match part {
            ParameterValue::Int(n) => {
                let bits = size * 8;
                let fits = bits >= 64 || (n < 1 << (bits - 1) && n >= -(1 << (bits - 1)));
                if !fits {
                    return Err(ParameterMismatch::Large { at, given: n, bytes: size });
                }
                bytes[begin..end].copy_from_slice(&n.to_le_bytes()[..size as usize]);
            }
            ParameterValue::Unsigned(n) if size == 4 => bytes[begin..end].copy_from_slice(&n.to_le_bytes()),
            ParameterValue::Unsigned(n) => return Err(ParameterMismatch::Large { at, given: n.into(), bytes: size }),
            ParameterValue::Float(n) => bytes[begin..end].copy_from_slice(&n.to_le_bytes()),
            ParameterValue::Patch(value) | ParameterValue::Bits(value) => patches.push(Patch { at: place, value }),
            ParameterValue::Map(map) => patches.push(Patch { at: place, value: LaunchValue::Map(*map) }),
        }
    }
    Ok(Param { bytes, patches })
}
