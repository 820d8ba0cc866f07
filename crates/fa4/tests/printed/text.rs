//! Reads the text of a function in LLVM's dialect of MLIR.

use std::collections::HashMap;

use super::memory::Value;

/// A function: names of its arguments, operations with the name of their result, and where labels lead to.
#[derive(Debug)]
pub(crate) struct Function {
    pub(crate) arguments: Vec<String>,
    pub(crate) body: Vec<(String, Operation)>,
    pub(crate) labels: HashMap<String, (usize, Vec<String>)>,
}

/// A type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Bytes(u64),
    Struct(Vec<Kind>),
    Array(u64, Box<Kind>),
}

pub(crate) type Target = (String, Vec<String>);

#[derive(Debug)]
pub(crate) enum Operation {
    Constant(Value),
    Same(String),
    Alloca,
    Store { value: String, kind: Kind, at: String },
    Load { at: String, kind: Kind },
    Element { base: String, path: Vec<String>, kind: Kind },
    Extract { of: String, path: Vec<usize> },
    Insert { value: String, into: String, path: Vec<usize> },
    Cast { name: String, of: String, bits: u32 },
    Select { condition: String, yes: String, no: String },
    Compare { how: String, a: String, b: String },
    Two { name: String, a: String, b: String },
    Jump(String, Vec<String>),
    Branch { condition: String, yes: Target, no: Target },
    Launch { config: String, params: String },
    Return,
    Unreachable,
}

impl Kind {
    /// Reads a type at the beginning of a text, and returns the rest.
    fn part(text: &str) -> (Kind, &str) {
        let text = text.trim_start().trim_start_matches("!llvm.");
        if let Some(mut rest) = text.strip_prefix("struct<(") {
            let mut fields = Vec::new();
            loop {
                rest = rest.trim_start().trim_start_matches(',').trim_start();
                if let Some(rest) = rest.strip_prefix(")>") {
                    return (Kind::Struct(fields), rest);
                }
                let (field, behind) = Kind::part(rest);
                fields.push(field);
                rest = behind;
            }
        }
        if let Some(rest) = text.strip_prefix("array<") {
            let (count, rest) = rest.split_once(" x ").expect("a count");
            let (of, rest) = Kind::part(rest);
            let rest = rest.strip_prefix('>').expect("an end");
            return (Kind::Array(count.parse().expect("a number"), Box::new(of)), rest);
        }
        let words = [("ptr<1>", 8), ("ptr", 8), ("f32", 4), ("i64", 8), ("i32", 4), ("i16", 2), ("i8", 1), ("i1", 1)];
        let found = words.iter().find_map(|(word, size)| Some((Kind::Bytes(*size), text.strip_prefix(word)?)));
        found.unwrap_or_else(|| panic!("the type '{text}'"))
    }

    pub(crate) fn read(text: &str) -> Kind {
        Kind::part(text).0
    }

    fn layout(&self) -> (u64, u64) {
        match self {
            Kind::Bytes(size) => (*size, *size),
            Kind::Array(count, of) => (of.layout().0 * count, of.layout().1),
            Kind::Struct(_) => {
                let (mut end, mut most) = (0, 1);
                for (at, field) in self.fields() {
                    let (size, align) = field.layout();
                    (end, most) = (at + size, most.max(align));
                }
                (end.next_multiple_of(most), most)
            }
        }
    }

    /// The fields with their offsets.
    pub(crate) fn fields(&self) -> Vec<(u64, &Kind)> {
        match self {
            Kind::Bytes(_) => Vec::new(),
            Kind::Array(count, of) => (0..*count).map(|n| (n * of.layout().0, &**of)).collect(),
            Kind::Struct(list) => {
                let mut end = 0_u64;
                let place = |field| {
                    let (size, align) = Kind::layout(field);
                    let at = end.next_multiple_of(align);
                    end = at + size;
                    (at, field)
                };
                list.iter().map(place).collect()
            }
        }
    }

    /// The offset of a path, whose first number counts whole values.
    pub(crate) fn offset(&self, path: &[u64]) -> u64 {
        let (first, rest) = path.split_first().expect("a path");
        let mut at = first * self.layout().0;
        let mut kind = self;
        for n in rest {
            let (by, inner) = kind.fields()[*n as usize];
            (at, kind) = (at + by, inner);
        }
        at
    }
}

impl Function {
    pub(crate) fn read(text: &str) -> Function {
        let mut lines = text.lines();
        let head = lines.next().expect("a head");
        let arguments = head.split("%arg").skip(1).map(|part| {
            let digits: String = part.chars().take_while(char::is_ascii_digit).collect();
            format!("%arg{digits}")
        });
        let mut function = Function { arguments: arguments.collect(), body: Vec::new(), labels: HashMap::new() };
        for line in lines.map(str::trim).filter(|line| !line.is_empty() && *line != "}") {
            if let Some(label) = line.strip_prefix('^') {
                let label = label.split(':').next().unwrap_or(label);
                let (name, rest) = label.split_once('(').unwrap_or((label, ""));
                let whole = line.split("//").next().unwrap_or(line);
                let wanted = if rest.is_empty() { Vec::new() } else { names(&whole[name.len() + 1..]) };
                function.labels.insert(name.to_owned(), (function.body.len(), wanted));
                continue;
            }
            let (result, operation) = line.split_once(" = llvm.").unwrap_or(("", line.trim_start_matches("llvm.")));
            function.body.push((result.to_owned(), operation_of(operation)));
        }
        function
    }
}

/// The names of values in a text, in order.
fn names(text: &str) -> Vec<String> {
    let part = |part: &str| {
        let name: String = part.chars().take_while(|c| c.is_ascii_alphanumeric()).collect();
        format!("%{name}")
    };
    text.split('%').skip(1).map(part).collect()
}

fn path(text: &str) -> Vec<String> {
    let inner = text.split_once('[').and_then(|(_, rest)| rest.split_once(']')).expect("a path").0;
    inner.split(", ").map(str::to_owned).collect()
}

fn target(text: &str) -> Target {
    let label: String = text.trim_start_matches('^').chars().take_while(|c| c.is_ascii_alphanumeric()).collect();
    let given = text.split(" : ").next().unwrap_or(text);
    (label, names(given))
}

fn operation_of(text: &str) -> Operation {
    let end = text.find([' ', '(']).unwrap_or(text.len());
    let (name, rest) = text.split_at(end);
    let rest = rest.trim_start();
    let values = names(rest);
    let value = |n: usize| values[n].clone();
    let kind = |text: &str| Kind::read(text.rsplit_once(" : ").expect("a type").1);
    match name {
        "mlir.constant" => Operation::Constant(constant(rest)),
        "mlir.poison" | "mlir.undef" | "mlir.zero" => Operation::Constant(Value::Poison),
        "mlir.addressof" => Operation::Constant(Value::Int(0, 64)),
        "alloca" => Operation::Alloca,
        "store" => {
            let types = rest.rsplit_once(" : ").expect("types").1;
            Operation::Store { value: value(0), kind: Kind::read(types), at: value(1) }
        }
        "load" if rest.contains("@") => Operation::Constant(Value::Int(0, 64)),
        "load" => Operation::Load { at: value(0), kind: Kind::read(rest.rsplit_once("-> ").expect("a type").1) },
        "getelementptr" => {
            let kind = rest.rsplit_once("-> !llvm.ptr, ").expect("a type").1;
            Operation::Element { base: value(0), path: path(rest), kind: Kind::read(kind) }
        }
        "extractvalue" => Operation::Extract { of: value(0), path: numbers(rest) },
        "insertvalue" => Operation::Insert { value: value(0), into: value(1), path: numbers(rest) },
        "sext" | "zext" | "trunc" => {
            let bits = rest.rsplit_once(" to i").and_then(|(_, bits)| bits.parse().ok()).expect("bits");
            Operation::Cast { name: name.to_owned(), of: value(0), bits }
        }
        "ptrtoint" | "inttoptr" => Operation::Same(value(0)),
        "select" => Operation::Select { condition: value(0), yes: value(1), no: value(2) },
        "icmp" => {
            let how = rest.split('"').nth(1).expect("a comparison").to_owned();
            Operation::Compare { how, a: value(0), b: value(1) }
        }
        "br" => {
            let (label, given) = target(rest);
            Operation::Jump(label, given)
        }
        "cond_br" => {
            let (condition, targets) = rest.split_once(", ").expect("targets");
            let (yes, no) = targets.split_once(", ^").expect("two targets");
            Operation::Branch { condition: condition.to_owned(), yes: target(yes), no: target(no) }
        }
        "call" if rest.starts_with("@_cudaLaunchKernelEx(") => Operation::Launch { config: value(0), params: value(2) },
        "call" | "intr.trap" | "unreachable" => Operation::Unreachable,
        "return" => Operation::Return,
        _ if values.len() == 2 => {
            let _ = kind(rest);
            Operation::Two { name: name.to_owned(), a: value(0), b: value(1) }
        }
        _ => panic!("the operation 'llvm.{text}'"),
    }
}

fn numbers(text: &str) -> Vec<usize> {
    path(text).iter().map(|n| n.parse().expect("a number")).collect()
}

fn constant(text: &str) -> Value {
    // `(7 : i32) : i32`, or `(true) : i1`.
    let inner = text.trim().trim_start_matches('(');
    let (number, kind) = inner.split_once(" : ").expect("a type");
    let number = number.trim_end_matches(')');
    match kind.split(')').next().unwrap_or(kind) {
        "f32" => Value::Float(match number.strip_prefix("0x") {
            Some(hex) => f32::from_bits(u32::from_str_radix(hex, 16).expect("bits")),
            None => number.parse().expect("a float"),
        }),
        "i1" => Value::Int(u64::from(number == "true"), 1),
        kind => {
            let bits: u32 = kind.trim_start_matches('i').parse().unwrap_or_else(|_| panic!("the constant '{text}'"));
            let n: i64 = number.parse().expect("a number");
            Value::Int(if bits == 64 { n as u64 } else { n as u64 & ((1 << bits) - 1) }, bits)
        }
    }
}
