//! Operands: what a launch reads and writes, in numbers.

use std::ffi::{CString, c_char};

use qkvault::graph::Binding;
use qkvault::graph::{DType, OperandFact, Role, Tensor, Valid};

use crate::sized::Grows;
use crate::status::{CallFailure, c_string};

/// Half precision.
pub const QKV_F16: i32 = 1;
/// bfloat16.
pub const QKV_BF16: i32 = 2;
/// Single precision.
pub const QKV_F32: i32 = 3;
/// 8-bit float with 4 exponent bits.
pub const QKV_E4M3: i32 = 4;
/// 8-bit float with 5 exponent bits.
pub const QKV_E5M2: i32 = 5;
/// 8-bit power of two.
pub const QKV_E8M0: i32 = 6;
/// 32-bit signed integer.
pub const QKV_I32: i32 = 7;
/// 64-bit signed integer.
pub const QKV_I64: i32 = 8;
/// Unsigned byte.
pub const QKV_U8: i32 = 9;
/// Boolean of one byte.
pub const QKV_BOOL: i32 = 10;
/// Double precision: for arrays of the oracle alone. No operand has it.
pub const QKV_F64: i32 = 64;

/// An operand of an attention or of a plan. The strings are valid until the description or plan that told it is freed.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct qkv_operand {
    /// Set this to `sizeof(qkv_operand)`.
    pub struct_size: usize,
    /// The name of its role, such as `q`, `stats`, `d_q`, `scalar.0` or `offsets.q`. It is the same in every version.
    pub role: *const c_char,
    /// Its name in the description's expressions, for scalars and tensors of these; for the gradient of such a tensor,
    /// with `d_` before it. Else null.
    pub name: *const c_char,
    /// The number of its role, the same in every version.
    pub role_id: i32,
    /// Element type: `QKV_BF16` and so on.
    pub dtype: i32,
    /// Extents over (batch, head, sequence, head dim), or over (batch, head, query, key) for operands of expressions.
    pub dims: [i64; 4],
    /// Elements between neighbours along each dim.
    pub strides: [i64; 4],
    /// Bytes of its buffer, from the first to one past the last element.
    pub bytes: u64,
    /// Alignment in bytes of its address.
    pub alignment: u32,
    /// 1 if a launch writes it, else 0.
    pub output: i32,
    /// 1 if it is one number on the host, else 0: memory on the GPU.
    pub scalar: i32,
    /// 1 if its values follow from the description (ALiBi slopes): a launch does not take it. Else 0.
    pub constant: i32,
    /// 1 if kernels follow its numbers to other memory: lengths, offsets and page tables. Wrong numbers make kernels
    /// read and write anywhere. Else 0.
    pub followed: i32,
    /// Must be ignored.
    pub reserved: i32,
}

// SAFETY: numbers and pointers.
unsafe impl Grows for qkv_operand {
    const LEAST: usize = std::mem::offset_of!(qkv_operand, followed);
    const NAME: &'static str = "qkv_operand";
}

/// An operand with its names as C strings.
#[derive(Debug)]
pub(crate) struct NamedOperand {
    role: Role,
    role_name: CString,
    name: Option<CString>,
    dtype: DType,
    dims: [i64; 4],
    strides: [i64; 4],
    bytes: u64,
    alignment: u32,
    output: bool,
    scalar: bool,
    constant: bool,
}

impl NamedOperand {
    pub(crate) fn new(fact: &OperandFact<'_>, constant: bool) -> NamedOperand {
        let role = fact.role;
        let name = fact.name.map(|name| match role {
            Role::DScoreTensor(_) => c_string(format!("d_{name}")),
            _ => c_string(name),
        });
        NamedOperand {
            role,
            role_name: c_string(role.name()),
            name,
            dtype: fact.dtype,
            dims: fact.dims,
            strides: fact.strides,
            bytes: fact.bytes,
            alignment: fact.alignment,
            output: fact.output,
            scalar: fact.scalar,
            constant,
        }
    }

    /// The operand of a plan's binding: types, bytes and alignment are the plan's.
    pub(crate) fn of_plan(attention: &Valid, binding: &Binding) -> Result<NamedOperand, CallFailure> {
        let Binding { role, dtype, scalar, output, bytes, alignment } = *binding;
        let facts = attention.operand_facts();
        let fact = facts.iter().find(|fact| fact.role == role);
        let unknown = || CallFailure::new(crate::status::QKV_ERROR_INTERNAL, format!("the description has no {role}"));
        let operand = NamedOperand::new(fact.ok_or_else(unknown)?, false);
        Ok(NamedOperand { dtype, scalar, output, bytes, alignment, ..operand })
    }

    /// A tensor that a rank has and no launch reads.
    pub(crate) fn input(role: Role, dtype: DType) -> NamedOperand {
        NamedOperand {
            role,
            role_name: c_string(role.name()),
            name: None,
            dtype,
            dims: [1; 4],
            strides: [1; 4],
            bytes: 0,
            alignment: qkvault::graph::ALIGNMENT as u32,
            output: false,
            scalar: false,
            constant: false,
        }
    }

    /// Whether it is the operand of a role's name, or has the name in the description.
    pub(crate) fn is_named(&self, wanted: &str) -> bool {
        [Some(&self.role_name), self.name.as_ref()]
            .into_iter()
            .flatten()
            .any(|name| name.as_bytes() == wanted.as_bytes())
    }

    /// The same operand in other memory.
    pub(crate) fn with_tensor(self, tensor: &Tensor) -> NamedOperand {
        let bytes = tensor.bytes().map_or(0, i64::unsigned_abs);
        NamedOperand { dims: tensor.dims, strides: tensor.strides, bytes, ..self }
    }

    pub(crate) const fn dtype(&self) -> DType {
        self.dtype
    }

    /// Whether a launch takes it from its caller, and writes it.
    pub(crate) const fn given(&self) -> Option<bool> {
        if self.constant || self.scalar { None } else { Some(self.output) }
    }

    pub(crate) fn info(&self) -> qkv_operand {
        let NamedOperand { role, role_name, name, dtype, dims, strides, bytes, alignment, output, scalar, constant } =
            self;
        qkv_operand {
            struct_size: 0,
            role: role_name.as_ptr(),
            name: name.as_ref().map_or(std::ptr::null(), |name| name.as_ptr()),
            role_id: id(*role),
            dtype: i32::from(dtype.code()),
            dims: *dims,
            strides: *strides,
            bytes: *bytes,
            alignment: *alignment,
            output: i32::from(*output),
            scalar: i32::from(*scalar),
            constant: i32::from(*constant),
            followed: i32::from(role.is_followed()),
            reserved: 0,
        }
    }
}

/// The number of a role: below 10,000.
pub(crate) fn id(role: Role) -> i32 {
    i32::try_from(role.uid()).unwrap_or(0)
}

/// The role of a number.
pub(crate) fn role(id: i32) -> Result<Role, CallFailure> {
    let unknown = || CallFailure::argument(format!("there is no role {id}; take role_id of a qkv_operand"));
    Role::from_uid(i64::from(id)).ok_or_else(unknown)
}

/// The element type of a number.
pub(crate) fn dtype(code: i32) -> Result<DType, CallFailure> {
    let found = DType::ALL.into_iter().find(|dtype| i32::from(dtype.code()) == code);
    found.ok_or_else(|| CallFailure::argument(format!("{code} is no element type; give QKV_BF16 or another one")))
}
