//! Host memory for the numbers that a variant pack points to, scalars and constants, at addresses that do not move.

use std::ffi::c_void;
use std::ptr::NonNull;

/// Numbers of eight bytes on the heap. cuDNN gets their addresses once and reads them at every launch. They change only
/// through `&mut`.
///
/// The field is a pointer and not a `Box`, because the compiler may assume that a box is the only way to its contents,
/// and cuDNN has another.
pub(crate) struct HostScalars {
    cells: NonNull<[u64]>,
}

// SAFETY: plain numbers, read and written only through this value, or by cuDNN while a launch borrows it.
unsafe impl Send for HostScalars {}

impl HostScalars {
    pub(crate) fn new(values: Vec<u64>) -> HostScalars {
        let cells = Box::into_raw(values.into_boxed_slice());
        HostScalars { cells: NonNull::new(cells).expect("a box is never null") }
    }

    /// The address of a number, for cuDNN to read.
    pub(crate) fn address(&self, at: usize) -> *mut c_void {
        assert!(at < self.cells.len(), "cells are counted when they are made");
        // SAFETY: in bounds of one allocation.
        unsafe { self.cells.as_ptr().cast::<u64>().add(at) }.cast()
    }

    /// The value of a number.
    pub(crate) fn get(&self, at: usize) -> u64 {
        // SAFETY: in bounds of one allocation, and changed only through `&mut`.
        unsafe { self.address(at).cast::<u64>().read() }
    }

    pub(crate) fn set(&mut self, at: usize, value: u64) {
        let cell = self.address(at).cast::<u64>();
        // SAFETY: in bounds, and no one reads it: a launch borrows the owner of the numbers.
        unsafe { cell.write(value) };
    }
}

impl Drop for HostScalars {
    fn drop(&mut self) {
        // SAFETY: made by `Box::into_raw`, dropped once.
        drop(unsafe { Box::from_raw(self.cells.as_ptr()) });
    }
}

impl std::fmt::Debug for HostScalars {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "HostScalars({})", self.cells.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bindings::Number;

    #[test]
    fn addresses_outlive_moves_and_see_new_values() {
        let cells = HostScalars::new(vec![Number::F32(0.5).cell(), Number::I32(-3).cell(), 7]);
        let (first, second) = (cells.address(0).cast::<f32>(), cells.address(1).cast::<i32>());
        let mut moved = Box::new(cells);
        // SAFETY: the cells are alive.
        assert_eq!(unsafe { (first.read(), second.read()) }, (0.5, -3));
        moved.set(0, Number::F32(0.125).cell());
        assert_eq!(moved.address(0).cast::<f32>(), first);
        // SAFETY: the cells are alive.
        assert_eq!(unsafe { first.read() }, 0.125);
    }
}
