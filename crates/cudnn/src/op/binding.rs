//! The inputs of a launch of an op graph: its operands, and fixed numbers.

use serde::{Deserialize, Serialize};

use super::{Constant, OpGraph, TensorId, TensorKind};
use crate::{ALIGNMENT, Attention, Binding, DType, Role, Storage, bytes_bound};

/// A number fixed by the graph, or by the origins of a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fixed {
    /// Unique id of its tensor.
    pub uid: i64,
    /// The number.
    pub value: Constant,
}

impl OpGraph {
    /// The operands that a launch binds, in order of unique id.
    ///
    /// The offsets of a launch decide how far a varlen operand reaches, and its tables how far a pool of pages; both
    /// count here with the room in the description. Without a description they count as dense, with every sequence at
    /// its longest.
    #[must_use]
    pub fn bindings(&self, attention: Option<&Attention>) -> Vec<Binding> {
        let backward = self.tensors.iter().any(|t| matches!(t.kind, TensorKind::Operand(Role::DO)));
        let mut list: Vec<(i64, Binding)> = self
            .tensors
            .iter()
            .filter_map(|t| {
                let (role, scalar) = match t.kind {
                    TensorKind::Operand(role) if role.memory() == role => (role, false),
                    TensorKind::Operand(_) => return None,
                    TensorKind::Scalar(role) => (role, true),
                    TensorKind::Virtual | TensorKind::Constant(_) => return None,
                };
                let span: i64 = match t.dtype {
                    // Whole tiles, whatever strides cuDNN is given.
                    DType::E8M0 => t.dims.iter().product(),
                    _ => t.dims.iter().zip(t.strides).map(|(n, s)| (n - 1) * s).sum::<i64>() + 1,
                };
                let stored = attention.and_then(|a| a.stored(role)).filter(|stored| stored.storage != Storage::Dense);
                let room =
                    stored.filter(|stored| t.offsets.is_some() || stored.is_paged()).and_then(|stored| stored.span());
                let output = role.is_output(backward);
                let bytes = bytes_bound(role, t.dtype, room.unwrap_or(span).unsigned_abs(), output);
                // A number on the host has the alignment of its type; operands must have the declared alignment.
                let alignment = if scalar { t.dtype.size() } else { ALIGNMENT } as u32;
                Some((role.uid(), Binding { role, dtype: t.dtype, scalar, output, bytes, alignment }))
            })
            .collect();
        // Numbers that follow from origins are in the graph, and a launch gets the origins.
        if self.tensors.iter().any(|t| matches!(t.kind, TensorKind::Constant(Constant::OfOrigins(_)))) {
            list.extend(
                [Role::QueryOrigin, Role::KeyOrigin].map(|role| (role.uid(), Binding::number(role, DType::I32))),
            );
        }
        list.sort_unstable_by_key(|(uid, _)| *uid);
        list.into_iter().map(|(_, binding)| binding).collect()
    }

    /// The operands that the graph declares a second time: a launch passes the address of [`Role::memory`] for each.
    #[must_use]
    pub fn declared_again(&self) -> Vec<Role> {
        self.roles().into_iter().filter(|role| role.memory() != *role).collect()
    }

    /// The numbers that the graph fixes, and those that follow from the origins of a launch.
    #[must_use]
    pub fn fixed_numbers(&self) -> Vec<Fixed> {
        let numbers = self.tensors.iter().enumerate().filter_map(|(i, t)| match t.kind {
            TensorKind::Constant(value) => Some(Fixed { uid: self.uid(TensorId(i as u32)), value }),
            TensorKind::Virtual | TensorKind::Operand(_) | TensorKind::Scalar(_) => None,
        });
        numbers.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{CompileOptions, CudnnVersion, LibrarySet, Profile, lower, text, validate};

    /// Bytes of the bias of a forward over 63 keys.
    fn demanded(tensor: &str) -> u64 {
        let written = format!(
            "pass: forward\nq: f16 [1,1,64,64] bshd\nk: f16 [1,1,63,64] bshd\nscore_mod: tensor @t1: {tensor}; score + @t1"
        );
        let attention = validate(text::parse(&written).expect("reads")).expect("is valid");
        let target = Profile::named("h200").expect("built in").target(CudnnVersion::v9(19, 0), LibrarySet::Slim);
        let graph = lower(&attention, &target, &CompileOptions::default()).expect("lowers");
        let list = graph.bindings(Some(&attention));
        list.iter().find(|b| b.role == Role::ScoreTensor(0)).expect("it has a bias").bytes
    }

    #[test]
    fn an_odd_16_bit_bias_needs_two_bytes_beyond_its_last_element() {
        assert_eq!([demanded("f16[1,1,1,63]"), demanded("bf16[1,1,1,63]")], [128, 128]);
        // A 16-bit tensor with an even number of elements, and a 32-bit tensor, end at their last element.
        assert_eq!([demanded("f16[1,1,64,63]"), demanded("f32[1,1,1,63]")], [2 * 64 * 63, 252]);
    }
}
