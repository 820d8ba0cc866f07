//! Values and memory of an evaluated function.

use std::collections::BTreeMap;

use super::text::Kind;

/// A value.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Value {
    /// An integer with its bits; also an address on the GPU.
    Int(u64, u32),
    Float(f32),
    /// An address in the evaluator's memory: which object, and the offset.
    Pointer(usize, u64),
    Struct(Vec<Value>),
    /// Nothing yet.
    Poison,
}

/// Objects on the function's stack: values of single parts by offset.
#[derive(Debug, Default)]
pub(crate) struct Memory(Vec<BTreeMap<u64, Value>>);

impl Value {
    pub(crate) fn bits(&self) -> u32 {
        match self {
            Value::Int(_, bits) => *bits,
            other => panic!("{other:?} has no bits"),
        }
    }

    pub(crate) fn part(&self, path: &[usize]) -> &Value {
        path.iter().fold(self, |value, at| match value {
            Value::Struct(fields) => &fields[*at],
            Value::Poison => value,
            other => panic!("{other:?} has no part {at}"),
        })
    }

    pub(crate) fn replace(&mut self, path: &[usize], with: Value) {
        let Some((&at, rest)) = path.split_first() else {
            *self = with;
            return;
        };
        if *self == Value::Poison {
            *self = Value::Struct(Vec::new());
        }
        let Value::Struct(fields) = self else { panic!("{self:?} has no part {at}") };
        if fields.len() <= at {
            fields.resize(at + 1, Value::Poison);
        }
        fields[at].replace(rest, with);
    }

    pub(crate) fn moved(&self, by: u64) -> Value {
        match self {
            Value::Pointer(object, at) => Value::Pointer(*object, at + by),
            Value::Int(address, 64) => Value::Int(address + by, 64),
            other => panic!("{other:?} is no address"),
        }
    }
}

impl Memory {
    pub(crate) fn object(&mut self) -> Value {
        self.0.push(BTreeMap::new());
        Value::Pointer(self.0.len() - 1, 0)
    }

    pub(crate) fn store(&mut self, at: &Value, kind: &Kind, value: Value) {
        let Value::Pointer(object, at) = at else { panic!("stores to {at:?}") };
        store(&mut self.0[*object], *at, kind, value);
    }

    pub(crate) fn load(&self, at: &Value, kind: &Kind) -> Value {
        match kind {
            Kind::Struct(_) | Kind::Array(..) => {
                Value::Struct(kind.fields().into_iter().map(|(by, kind)| self.load(&at.moved(by), kind)).collect())
            }
            _ => self.leaf(at, 0).cloned().unwrap_or(Value::Poison),
        }
    }

    pub(crate) fn leaf(&self, base: &Value, by: u64) -> Option<&Value> {
        let Value::Pointer(object, at) = base else { panic!("loads from {base:?}") };
        self.0[*object].get(&(at + by))
    }

    /// The bytes of an object; `None` where nothing is stored.
    pub(crate) fn bytes(&self, base: &Value, size: usize) -> Vec<Option<u8>> {
        let Value::Pointer(object, _) = base else { panic!("reads {base:?}") };
        let mut bytes = vec![None; size];
        for (&at, value) in &self.0[*object] {
            let value = match value {
                Value::Int(n, bits) => n.to_le_bytes()[..bits.div_ceil(8) as usize].to_vec(),
                Value::Float(n) => n.to_le_bytes().to_vec(),
                Value::Poison => continue,
                other => panic!("{other:?} in a parameter"),
            };
            for (n, byte) in value.into_iter().enumerate() {
                bytes[at as usize + n] = Some(byte);
            }
        }
        bytes
    }
}

fn store(object: &mut BTreeMap<u64, Value>, at: u64, kind: &Kind, value: Value) {
    match (kind, value) {
        (Kind::Struct(_) | Kind::Array(..), Value::Struct(values)) => {
            for ((by, kind), value) in kind.fields().into_iter().zip(values) {
                store(object, at + by, kind, value);
            }
        }
        (_, value) => {
            object.insert(at, value);
        }
    }
}
