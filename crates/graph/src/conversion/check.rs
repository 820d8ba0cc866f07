//! What a conversion must be: two dense tensors of the same dims, one of them in 8 bits.

use super::ValidConversion;
use crate::registry::codes;
use crate::valid::{Problems, canonical_strides, check_tensor};
use crate::{Conversion, DType, Refusal, Storage, Tensor};

/// The types of the wider tensor of a conversion.
pub const CONVERSION_DTYPES: [DType; 3] = [DType::F16, DType::BF16, DType::F32];

pub(super) fn validate(conversion: Conversion) -> Result<ValidConversion, Refusal> {
    let Conversion { wide, narrow, kind } = conversion;
    let mut problems = Problems::default();
    for (name, tensor, written) in [("wide", &wide, !kind.narrows()), ("narrow", &narrow, kind.narrows())] {
        check_tensor(name, tensor, written, &mut problems);
        if tensor.storage != Storage::Dense {
            let given = format!("{:?}", tensor.storage);
            problems.add(codes::CONVERSION_STORAGE.reason(given).at(format!("{name}.storage")));
        }
    }
    if !CONVERSION_DTYPES.contains(&wide.dtype) {
        problems.add(codes::CONVERSION_WIDE.reason(wide.dtype.to_string()).at("wide.dtype"));
    }
    if !narrow.dtype.is_fp8() {
        problems.add(codes::CONVERSION_NARROW.reason(narrow.dtype.to_string()).at("narrow.dtype"));
    }
    if wide.dims != narrow.dims {
        let given = format!("{:?}, and {:?} in 8 bits", wide.dims, narrow.dims);
        problems.add(codes::CONVERSION_DIMS.reason(given).at("narrow.dims"));
    }
    match Refusal::from_reasons(problems.into_reasons()) {
        Some(refusal) => Err(refusal),
        None => Ok(ValidConversion(Conversion { wide: canonical(wide), narrow: canonical(narrow), kind })),
    }
}

fn canonical(t: Tensor) -> Tensor {
    Tensor { strides: canonical_strides(&t), ..t }
}
