//! An evaluator of the host function that the compiler prints for a kernel: what it would store into the kernel's
//! parameters for given tensors. It knows the operations of LLVM's dialect that such functions have, and no launch:
//! where the function would launch, its arguments are the result.

pub(crate) mod memory;
pub(crate) mod text;

use std::collections::HashMap;

use memory::{Memory, Value};
use text::{Function, Operation};

/// A launch as the printed function makes it.
#[derive(Clone, Debug)]
pub(crate) struct Launched {
    pub(crate) grid: [u64; 3],
    pub(crate) block: [u64; 3],
    pub(crate) shared: u64,
    /// Attributes by number, with the first four bytes of the value.
    pub(crate) attributes: Vec<(u64, u64)>,
    /// The bytes of each parameter; `None` where nothing is written.
    pub(crate) params: Vec<Vec<Option<u8>>>,
}

/// Operations that a function may take: each runs a few hundred.
const MOST: usize = 100_000;

/// What the function does with arguments, in their order; `sizes` are the bytes of each parameter of the kernel.
pub(crate) fn run(host: &str, arguments: Vec<Value>, sizes: &[usize]) -> Launched {
    let function = Function::read(host);
    assert_eq!(function.arguments.len(), arguments.len() + 1, "arguments and the stream");
    let mut names: HashMap<&str, Value> = function.arguments.iter().map(String::as_str).zip(arguments).collect();
    names.insert(&function.arguments[function.arguments.len() - 1], Value::Int(0, 64));
    let mut memory = Memory::default();
    let mut launched = None;
    let mut at = 0;
    for _ in 0..MOST {
        let (result, operation) = &function.body[at];
        at += 1;
        let value = match operation {
            Operation::Jump(label, given) => {
                at = jump(&function, label, given, &mut names);
                continue;
            }
            Operation::Branch { condition, yes, no } => {
                let (label, given) = if int(&names, condition) != 0 { yes } else { no };
                at = jump(&function, label, given, &mut names);
                continue;
            }
            Operation::Return => return launched.expect("a function launches"),
            Operation::Launch { config, params } => {
                assert!(launched.is_none(), "one launch");
                launched = Some(launch(&memory, &names[config.as_str()], &names[params.as_str()], sizes));
                Value::Int(0, 32)
            }
            Operation::Alloca => memory.object(),
            Operation::Store { value, kind, at } => {
                let (value, at) = (names[value.as_str()].clone(), names[at.as_str()].clone());
                memory.store(&at, kind, value);
                continue;
            }
            // The kernel's handle, which is a global.
            Operation::Load { at, .. } if matches!(names[at.as_str()], Value::Int(..)) => Value::Int(0, 64),
            Operation::Load { at, kind } => memory.load(&names[at.as_str()], kind),
            Operation::Element { base, path, kind } => {
                let path: Vec<u64> = path.iter().map(|n| n.parse().unwrap_or_else(|_| int(&names, n))).collect();
                names[base.as_str()].moved(kind.offset(&path))
            }
            Operation::Extract { of, path } => names[of.as_str()].part(path).clone(),
            Operation::Insert { value, into, path } => {
                let (value, mut whole) = (names[value.as_str()].clone(), names[into.as_str()].clone());
                whole.replace(path, value);
                whole
            }
            Operation::Constant(value) => value.clone(),
            Operation::Same(of) => names[of.as_str()].clone(),
            Operation::Cast { name, of, bits } => cast(name, &names[of.as_str()], *bits),
            Operation::Select { condition, yes, no } => {
                names[if int(&names, condition) != 0 { yes.as_str() } else { no.as_str() }].clone()
            }
            Operation::Compare { how, a, b } => {
                let bits = names[a.as_str()].bits();
                Value::Int(u64::from(compare(how, int(&names, a), int(&names, b), bits)), 1)
            }
            Operation::Two { name, a, b } => two(name, &names[a.as_str()], &names[b.as_str()]),
            Operation::Unreachable => panic!("the function reports an error"),
        };
        names.insert(result, value);
    }
    panic!("the function does not end");
}

fn int(names: &HashMap<&str, Value>, name: &str) -> u64 {
    match names[name] {
        Value::Int(n, _) => n,
        ref other => panic!("{name} is {other:?}, and a number is needed"),
    }
}

fn jump<'a>(function: &'a Function, label: &str, given: &[String], names: &mut HashMap<&'a str, Value>) -> usize {
    let (at, wanted) = &function.labels[label];
    let values: Vec<Value> = given.iter().map(|name| names[name.as_str()].clone()).collect();
    assert_eq!(values.len(), wanted.len(), "arguments of {label}");
    names.extend(wanted.iter().map(String::as_str).zip(values));
    *at
}

fn masked(n: u64, bits: u32) -> u64 {
    if bits >= 64 { n } else { n & ((1 << bits) - 1) }
}

fn signed(n: u64, bits: u32) -> i64 {
    ((n << (64 - bits)) as i64) >> (64 - bits)
}

fn cast(name: &str, of: &Value, bits: u32) -> Value {
    match (name, of) {
        ("sext", Value::Int(n, from)) => Value::Int(masked(signed(*n, *from) as u64, bits), bits),
        ("zext" | "trunc", Value::Int(n, _)) => Value::Int(masked(*n, bits), bits),
        ("ptrtoint" | "inttoptr", of) => of.clone(),
        _ => panic!("{name} of {of:?}"),
    }
}

fn compare(how: &str, a: u64, b: u64, bits: u32) -> bool {
    let (sa, sb) = (signed(a, bits), signed(b, bits));
    match how {
        "eq" => a == b,
        "ne" => a != b,
        "ult" => a < b,
        "ule" => a <= b,
        "ugt" => a > b,
        "uge" => a >= b,
        "slt" => sa < sb,
        "sle" => sa <= sb,
        "sgt" => sa > sb,
        "sge" => sa >= sb,
        _ => panic!("compares by {how}"),
    }
}

fn two(name: &str, a: &Value, b: &Value) -> Value {
    if let (Value::Float(a), Value::Float(b)) = (a, b) {
        return Value::Float(match name {
            "fmul" => a * b,
            "fadd" => a + b,
            "fdiv" => a / b,
            _ => panic!("{name} of floats"),
        });
    }
    let (Value::Int(a, bits), Value::Int(b, _)) = (a, b) else { panic!("{name} of {a:?} and {b:?}") };
    let (a, b, bits) = (*a, *b, *bits);
    let (sa, sb) = (signed(a, bits), signed(b, bits));
    let n = match name {
        "add" => a.wrapping_add(b),
        "sub" => a.wrapping_sub(b),
        "mul" => a.wrapping_mul(b),
        "udiv" => a / b,
        "urem" => a % b,
        "sdiv" => (sa / sb) as u64,
        "srem" => (sa % sb) as u64,
        "and" => a & b,
        "or" => a | b,
        "xor" => a ^ b,
        "shl" => a.checked_shl(b as u32).unwrap_or(0),
        "lshr" => a.checked_shr(b as u32).unwrap_or(0),
        "ashr" => (sa >> b.min(63)) as u64,
        _ => panic!("{name} of integers"),
    };
    Value::Int(masked(n, bits), bits)
}

/// The places of `cudaLaunchConfig_t`, and of an attribute, which has 72 bytes.
fn launch(memory: &Memory, config: &Value, params: &Value, sizes: &[usize]) -> Launched {
    let read = |base: &Value, at: u64| match memory.leaf(base, at) {
        Some(Value::Int(n, _)) => *n,
        other => panic!("{at}: {other:?}"),
    };
    let three = |from: u64| [0, 4, 8].map(|at| read(config, from + at));
    let attributes = memory.leaf(config, 40).expect("is stored").clone();
    let attributes =
        (0..read(config, 48)).map(|n| (read(&attributes, n * 72), read(&attributes, n * 72 + 8))).collect();
    let param = |(n, &size): (usize, &usize)| {
        let at = memory.leaf(params, n as u64 * 8).unwrap_or_else(|| panic!("parameter {n} is not stored"));
        memory.bytes(at, size)
    };
    let params = sizes.iter().enumerate().map(param).collect();
    Launched { grid: three(0), block: three(12), shared: read(config, 24), attributes, params }
}
