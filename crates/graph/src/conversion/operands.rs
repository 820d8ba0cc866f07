//! What a launch of a conversion binds.

use crate::operands::{ALIGNMENT, Binding, block_scales};
use crate::{Conversion, ConversionKind, DType, Order, Role, Tensor, ValidConversion};

impl ValidConversion {
    /// The tensor of the powers of two of a microscaled conversion, one for 32 elements: its dims are padded to whole
    /// tiles, and their product is the number of its bytes. `None` for other conversions.
    #[must_use]
    pub fn block_scales(&self) -> Option<Tensor> {
        self.kind.along().map(|along| block_scales(&self.narrow, along))
    }

    /// The operands that a launch binds, in order of unique id. None of them is a number on the host: a scale changes
    /// on the GPU.
    #[must_use]
    pub fn bindings(&self) -> Vec<Binding> {
        let Conversion { wide, narrow, kind } = **self;
        let number = Tensor::dense(Order::Bhsd, [1; 4], DType::F32);
        let mut list = vec![(Role::Wide, wide, !kind.narrows()), (Role::Narrow, narrow, kind.narrows())];
        match kind {
            ConversionKind::Delayed | ConversionKind::Current { .. } => list.extend([
                (Role::NarrowScale, number, kind != ConversionKind::Delayed),
                (Role::NarrowDescale, number, true),
                (Role::NarrowAmax, number, true),
            ]),
            ConversionKind::Dequantize => list.push((Role::NarrowDescale, number, false)),
            ConversionKind::Blocks(_) | ConversionKind::DequantizeBlocks(_) => {
                list.extend(self.block_scales().map(|t| (Role::NarrowDescale, t, kind.narrows())));
            }
        }
        let bytes = |t: &Tensor| t.bytes().map_or(u64::MAX, i64::unsigned_abs);
        list.sort_by_key(|(role, ..)| role.uid());
        let alignment = ALIGNMENT as u32;
        let binding = |(role, t, output): (Role, Tensor, bool)| Binding {
            role,
            dtype: t.dtype,
            scalar: false,
            output,
            bytes: bytes(&t),
            // Numbers are read one by one.
            alignment: if t.dims == [1; 4] && t.dtype == DType::F32 { DType::F32.size() as u32 } else { alignment },
        };
        list.into_iter().map(binding).collect()
    }
}
