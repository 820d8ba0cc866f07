//! Host memory with an element type: the bytes that a device would hold, read exactly and rounded once when written.

use qkvault_graph::DType;
use rayon::prelude::*;

use crate::float::{decode_small, encode_small};
use crate::{Real, ReferenceError};

/// The byte that fills poisoned memory. An element of such bytes is NaN in every float format and -1 as a signed
/// integer.
pub const POISON: u8 = 0xff;

/// Typed host memory.
#[derive(Clone, PartialEq, Eq)]
pub struct Buffer {
    dtype: DType,
    bytes: Vec<u8>,
}

impl std::fmt::Debug for Buffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Buffer({} × {})", self.len(), self.dtype)
    }
}

impl Buffer {
    /// Creates a buffer from bytes in the machine's byte order.
    ///
    /// # Errors
    ///
    /// [`ReferenceError::Torn`] if the bytes are not a whole number of elements.
    pub fn new(dtype: DType, bytes: Vec<u8>) -> Result<Buffer, ReferenceError> {
        if bytes.len().is_multiple_of(dtype.size()) {
            Ok(Buffer { dtype, bytes })
        } else {
            Err(ReferenceError::Torn { dtype, bytes: bytes.len() })
        }
    }

    /// A buffer of `len` elements of zero bytes.
    #[must_use]
    pub fn zeros(dtype: DType, len: usize) -> Buffer {
        Buffer { dtype, bytes: vec![0; len * dtype.size()] }
    }

    /// A buffer of `len` elements of [`POISON`]. Fill outputs with it before a launch to find elements that are not
    /// written.
    #[must_use]
    pub fn poisoned(dtype: DType, len: usize) -> Buffer {
        Buffer { dtype, bytes: vec![POISON; len * dtype.size()] }
    }

    /// A buffer of these numbers, each rounded once to the element type.
    #[must_use]
    pub fn from_values(dtype: DType, values: impl IntoIterator<Item = f64>) -> Buffer {
        let values: Vec<f64> = values.into_iter().collect();
        let mut buffer = Buffer::zeros(dtype, values.len());
        for (i, x) in values.into_iter().enumerate() {
            buffer.set(i, x);
        }
        buffer
    }

    /// A buffer of `len` elements, filled `chunk` at a time on several threads; `fill` gets the index of the chunk.
    pub(crate) fn filled(dtype: DType, len: usize, chunk: usize, fill: impl Fn(usize, &mut [f64]) + Sync) -> Buffer {
        let mut buffer = Buffer::zeros(dtype, len);
        let size = dtype.size();
        buffer.bytes.par_chunks_mut(chunk * size).enumerate().for_each(|(number, bytes)| {
            let mut values = vec![0.0; bytes.len() / size];
            fill(number, &mut values);
            bytes.chunks_exact_mut(size).zip(values).for_each(|(place, x)| store(dtype, place, x));
        });
        buffer
    }

    /// Element type.
    #[must_use]
    pub const fn dtype(&self) -> DType {
        self.dtype
    }

    /// Number of elements.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.bytes.len() / self.dtype.size()
    }

    /// Whether there is no element.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// The bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The bytes, mutably, for example for a copy from a device.
    #[must_use]
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }

    /// The bytes, by value.
    #[must_use]
    pub fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }

    fn element(&self, at: usize) -> &[u8] {
        let size = self.dtype.size();
        &self.bytes[at * size..][..size]
    }

    /// Element `at` as a float64. This is exact except for integers beyond 2^53; [`Buffer::int`] reads those.
    ///
    /// # Panics
    ///
    /// If `at` is out of range.
    #[must_use]
    pub fn get(&self, at: usize) -> f64 {
        let mut out = [0.0];
        self.read(at, &mut out);
        out[0]
    }

    /// Element `at` as an integer; floats are truncated.
    ///
    /// # Panics
    ///
    /// If `at` is out of range.
    #[must_use]
    pub fn int(&self, at: usize) -> i64 {
        match self.dtype {
            DType::I64 => {
                let mut word = [0; 8];
                word.copy_from_slice(self.element(at));
                i64::from_ne_bytes(word)
            }
            _ => self.get(at) as i64,
        }
    }

    /// Reads consecutive elements, beginning at `start`.
    ///
    /// # Panics
    ///
    /// If the buffer has too few elements.
    pub fn read<T: Real>(&self, start: usize, out: &mut [T]) {
        let size = self.dtype.size();
        let bytes = &self.bytes[start * size..(start + out.len()) * size];
        let small = |bits: u32| T::from_f64(decode_small(self.dtype, bits));
        match self.dtype {
            DType::F32 => each(bytes, out, |w| T::from_f64(f64::from(f32::from_ne_bytes(w)))),
            DType::I32 => each(bytes, out, |w| T::from_f64(f64::from(i32::from_ne_bytes(w)))),
            DType::I64 => each(bytes, out, |w| T::from_f64(i64::from_ne_bytes(w) as f64)),
            DType::BF16 => {
                each(bytes, out, |w| T::from_f64(f64::from(f32::from_bits(u32::from(u16::from_ne_bytes(w)) << 16))));
            }
            DType::F16 => each(bytes, out, |w| small(u32::from(u16::from_ne_bytes(w)))),
            DType::E4M3 | DType::E5M2 | DType::E8M0 | DType::U8 | DType::Bool => {
                each(bytes, out, |[byte]: [u8; 1]| small(u32::from(byte)));
            }
        }
    }

    /// Writes a number, rounded once to the element type.
    ///
    /// # Panics
    ///
    /// If `at` is out of range.
    pub fn set(&mut self, at: usize, x: f64) {
        let size = self.dtype.size();
        store(self.dtype, &mut self.bytes[at * size..][..size], x);
    }

    /// Copies the bits of one element from a buffer of the same element type.
    pub(crate) fn copy(&mut self, at: usize, from: &Buffer) {
        let size = self.dtype.size();
        self.bytes[at * size..][..size].copy_from_slice(from.element(at));
    }

    /// Fills the whole buffer with [`POISON`].
    pub fn poison(&mut self) {
        self.bytes.fill(POISON);
    }

    /// Whether element `at` is still poison.
    ///
    /// # Panics
    ///
    /// If `at` is out of range.
    #[must_use]
    pub fn is_poison(&self, at: usize) -> bool {
        self.element(at).iter().all(|&byte| byte == POISON)
    }
}

/// Writes a number to the bytes of one element, rounded once.
fn store(dtype: DType, place: &mut [u8], x: f64) {
    match dtype {
        DType::F32 => place.copy_from_slice(&(x as f32).to_ne_bytes()),
        DType::I32 => place.copy_from_slice(&(x.round_ties_even() as i32).to_ne_bytes()),
        DType::I64 => place.copy_from_slice(&(x.round_ties_even() as i64).to_ne_bytes()),
        DType::F16 | DType::BF16 => place.copy_from_slice(&(encode_small(dtype, x) as u16).to_ne_bytes()),
        DType::E4M3 | DType::E5M2 | DType::E8M0 | DType::U8 | DType::Bool => place[0] = encode_small(dtype, x) as u8,
    }
}

fn each<T, const N: usize>(bytes: &[u8], out: &mut [T], convert: impl Fn([u8; N]) -> T) {
    for (x, word) in out.iter_mut().zip(bytes.as_chunks::<N>().0) {
        *x = convert(*word);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_come_back_rounded_once_and_poison_shows() {
        for dtype in DType::ALL {
            let mut buffer = Buffer::poisoned(dtype, 3);
            assert!(buffer.is_poison(1));
            buffer.set(1, 1.0);
            assert_eq!((buffer.get(1), buffer.int(1), buffer.len()), (1.0, 1, 3), "{dtype}");
            assert!(buffer.is_poison(0) && !buffer.is_poison(1) && buffer.is_poison(2));
            buffer.poison();
            assert!(buffer.is_poison(1));
            assert!(!dtype.is_float() || buffer.get(1).is_nan(), "{dtype}");
        }
        assert_eq!(Buffer::from_values(DType::BF16, [0.1]).get(0), crate::round(DType::BF16, 0.1));
        let wide = Buffer::new(DType::I64, i64::MAX.to_ne_bytes().to_vec()).expect("whole");
        assert_eq!(wide.int(0), i64::MAX);
        assert!(Buffer::new(DType::F32, vec![0; 6]).is_err());
    }
}
