//! Keys, operands and contradictions of conversions.

use crate::registry::codes;
use crate::{Along, Conversion, ConversionKind, DType, Order, Role, Tensor};

fn wide() -> Tensor {
    Tensor::bshd(2, 3, 40, 192, DType::BF16)
}

#[test]
fn every_kind_has_a_key_of_its_own_and_binds_what_it_reads_and_writes() {
    let mut keys = std::collections::BTreeSet::new();
    for kind in ConversionKind::ALL {
        for dtype in [DType::E4M3, DType::E5M2] {
            let conversion = Conversion::to(dtype, wide(), kind).validate().expect("sound");
            keys.insert(conversion.key());
            let bound: Vec<(Role, bool, u64)> =
                conversion.bindings().iter().map(|b| (b.role, b.output, b.bytes)).collect();
            let (size, to) = (2 * 3 * 40 * 192, kind.narrows());
            assert_eq!(bound[..2], [(Role::Wide, !to, 2 * size), (Role::Narrow, to, size)], "{conversion}");
            let numbers = |list: [(Role, bool); 3]| list.map(|(role, output)| (role, output, 4)).to_vec();
            let rest = match kind {
                ConversionKind::Delayed | ConversionKind::Current { .. } => numbers([
                    (Role::NarrowScale, kind != ConversionKind::Delayed),
                    (Role::NarrowDescale, true),
                    (Role::NarrowAmax, true),
                ]),
                ConversionKind::Dequantize => vec![(Role::NarrowDescale, false, 4)],
                ConversionKind::Blocks(Along::HeadDim) | ConversionKind::DequantizeBlocks(Along::HeadDim) => {
                    vec![(Role::NarrowDescale, to, 2 * 3 * 128 * 8)]
                }
                ConversionKind::Blocks(_) | ConversionKind::DequantizeBlocks(_) => {
                    vec![(Role::NarrowDescale, to, 2 * 3 * 4 * 256)]
                }
            };
            assert_eq!(bound[2..], rest, "{conversion}");
        }
    }
    assert_eq!(keys.len(), 16);
}

#[test]
fn strides_that_are_never_used_change_no_key() {
    let one = Tensor::bshd(1, 1, 40, 64, DType::F32);
    let other = Tensor { strides: [7, 9, 64, 1], ..one };
    let of = |t| Conversion::to(DType::E4M3, t, ConversionKind::Delayed).validate().expect("sound");
    let far = Tensor { strides: [40 * 80, 80, 80, 1], ..one };
    assert_eq!(of(one).wide, of(other).wide);
    assert_eq!(of(one).key(), Conversion { wide: other, ..*of(one) }.validate().expect("sound").key());
    assert_ne!(of(one).key(), of(far).key());
    // An order that is not that of a contiguous tensor becomes (batch, head, sequence, head dim).
    assert_eq!(of(Tensor { strides: [9999, 4000, 80, 1], ..wide() }).narrow.order(), Some(Order::Bhsd));
}

#[test]
fn contradictions_are_told_all_at_once_with_their_places() {
    let sound = Conversion::to(DType::E4M3, wide(), ConversionKind::Delayed);
    let refused = |conversion: Conversion| {
        let refusal = conversion.validate().expect_err("refused");
        refusal.reasons().iter().map(|r| (r.code.to_string(), r.field.to_string())).collect::<Vec<_>>()
    };
    let code = |code: &crate::Code, field: &str| (code.to_string(), field.to_owned());
    let mut both = sound;
    (both.wide.dtype, both.narrow.dtype) = (DType::E8M0, DType::F16);
    both.narrow.dims[0] = 1;
    assert_eq!(
        refused(both),
        [
            code(&codes::CONVERSION_WIDE, "wide.dtype"),
            code(&codes::CONVERSION_NARROW, "narrow.dtype"),
            code(&codes::CONVERSION_DIMS, "narrow.dims"),
        ]
    );
    let packed = Tensor::thd(2, 3, 40, 192, 70, DType::BF16);
    assert_eq!(refused(Conversion { wide: packed, ..sound }), [code(&codes::CONVERSION_STORAGE, "wide.storage")]);
    let shared = Tensor { strides: [0, 192, 1, 1], ..sound.narrow };
    assert_eq!(refused(Conversion { narrow: shared, ..sound }), [code(&codes::TENSOR_STRIDES, "narrow.strides")]);
    let overlapping = Tensor { strides: [1, 192, 1, 1], ..sound.narrow };
    let narrow = Conversion { narrow: overlapping, ..sound };
    assert_eq!(refused(narrow), [code(&codes::TENSOR_OVERLAP, "narrow.strides")]);
    // Two elements of an input may share memory.
    assert!(Conversion { kind: ConversionKind::Dequantize, ..narrow }.validate().is_ok());
    let none = Tensor { dims: [0, 3, 40, 192], ..wide() };
    assert!(refused(Conversion { wide: none, ..sound }).contains(&code(&codes::TENSOR_DIMS, "wide.dims")));
}
