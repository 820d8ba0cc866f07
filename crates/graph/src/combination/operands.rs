//! What a launch of a combination binds.

use crate::operands::Binding;
use crate::{Combination, DType, Role, Tensor, ValidCombination};

/// An operand of a combination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CombinationOperand {
    /// Its role.
    pub role: Role,
    /// The tensor; that of sinks has one number for each head, that of counted rows one for each row of a sequence.
    pub tensor: Tensor,
    /// Whether a launch writes it.
    pub output: bool,
}

impl ValidCombination {
    /// The operands, in order of unique id.
    #[must_use]
    pub fn operands(&self) -> Vec<CombinationOperand> {
        let input = |role, tensor| CombinationOperand { role, tensor, output: false };
        let output = |role, tensor| CombinationOperand { role, tensor, output: true };
        let mut list = Vec::new();
        let counted = |of: &Tensor, parts: usize| {
            let rows = Tensor::bhsd(of.dims[0], 1, of.dims[2], 1, DType::U8);
            (0..).take(parts).map(move |n| input(Role::PartRows(n), rows))
        };
        match &**self {
            Combination::Merge { parts, rows, sink, o, stats } => {
                list.push(output(Role::O, *o));
                list.extend(stats.map(|stats| output(Role::Stats, stats)));
                if *sink {
                    list.push(input(Role::Sink, Tensor::bhsd(1, o.dims[1], 1, 1, DType::F32)));
                }
                for (n, part) in (0..).zip(parts) {
                    list.extend([input(Role::Part(n), part.o), input(Role::PartStats(n), part.stats)]);
                }
                list.extend(counted(o, if *rows { parts.len() } else { 0 }));
            }
            Combination::Sum { parts, rows, into } => {
                list.push(output(Role::Into, *into));
                list.extend((0..).zip(parts).map(|(n, part)| input(Role::Part(n), *part)));
                list.extend(counted(into, if *rows { parts.len() } else { 0 }));
            }
            Combination::Copy { from, to } => list.extend([output(Role::Into, *to), input(Role::Part(0), *from)]),
            Combination::Fill { to, hidden: _ } => list.push(output(Role::Into, *to)),
            Combination::Keep { to, .. } => {
                let number = |dtype| Tensor::bhsd(1, 1, 1, 1, dtype);
                list.push(output(Role::Into, *to));
                list.extend([Role::DropoutSeed, Role::DropoutOffset].map(|role| input(role, number(DType::I64))));
                list.extend([0, 1, 2].map(|n| input(Role::Scalar(n), number(DType::I32))));
            }
        }
        list.sort_by_key(|operand| operand.role.uid());
        list
    }

    /// What a launch binds, in order of unique id. Operands begin at whole elements: a part of a buffer will do.
    #[must_use]
    pub fn bindings(&self) -> Vec<Binding> {
        let binding = |CombinationOperand { role, tensor, output }| Binding {
            role,
            dtype: tensor.dtype,
            scalar: role.is_scalar(),
            output,
            bytes: tensor.bytes().map_or(u64::MAX, i64::unsigned_abs),
            alignment: tensor.dtype.size() as u32,
        };
        self.operands().into_iter().map(binding).collect()
    }
}
