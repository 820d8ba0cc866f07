//! Random variables, and how far tensors are apart.
#![allow(dead_code, unused_imports, reason = "each test program uses a part")]

use candle_core::{DType, Device, Tensor, Var};

pub(crate) use candle_qkvault_examples::plain::{Plain, plain};

/// A variable of random numbers that 16 bits have exactly.
pub(crate) fn var(dims: &[usize], dtype: DType) -> Var {
    let random = Tensor::randn(0f32, 1.0, dims, &Device::Cpu).expect("random numbers");
    let rounded = random.to_dtype(dtype).expect("rounds").to_dtype(DType::F32).expect("widens");
    Var::from_tensor(&rounded).expect("a variable")
}

/// The largest difference of two tensors, over the largest number of the second.
pub(crate) fn apart(a: &Tensor, b: &Tensor) -> f32 {
    let largest = |t: Tensor| t.abs().and_then(|t| t.flatten_all()?.max(0)?.to_scalar::<f32>()).expect("numbers");
    let (a, b) = (a.to_dtype(DType::F32).expect("widens"), b.to_dtype(DType::F32).expect("widens"));
    assert_eq!(a.dims(), b.dims());
    largest((a - &b).expect("same dims")) / largest(b).max(1e-3)
}

/// Fails unless two tensors agree as 16-bit results do.
pub(crate) fn near(what: &str, a: &Tensor, b: &Tensor) {
    let off = apart(a, b);
    assert!(off < 0.02, "{what} is off by {off}");
}
