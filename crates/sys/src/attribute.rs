//! Attributes: values set on a descriptor before it is finalized, and read from it afterwards.

use std::ffi::c_void;
use std::sync::Arc;

use crate::bindings::{AttributeName, AttributeType, Kind};
use crate::descriptor::{Descriptor, KeptObject};
use crate::element::Element;
use crate::error::Error;
use crate::handle::CudnnHandle;
use crate::library::function;

impl Descriptor {
    /// Sets an attribute to a list of values; the C type follows from the Rust type.
    ///
    /// # Errors
    ///
    /// [`Error::Call`] if cuDNN refuses the attribute or its values; [`Error::NoFunction`] if it lacks the function.
    pub fn set<T: Element>(&mut self, attribute: AttributeName, values: &[T]) -> Result<(), Error> {
        // SAFETY: the values have the C type that `T::TYPE` names, and cuDNN copies them.
        unsafe { self.set_raw(attribute, T::TYPE, values.len(), values.as_ptr().cast()) }
    }

    /// Sets an attribute that holds one value.
    ///
    /// # Errors
    ///
    /// [`Error::Call`] if cuDNN refuses the attribute or its values; [`Error::NoFunction`] if it lacks the function.
    pub fn set_one<T: Element>(&mut self, attribute: AttributeName, value: T) -> Result<(), Error> {
        self.set(attribute, &[value])
    }

    /// Sets a boolean attribute.
    ///
    /// # Errors
    ///
    /// [`Error::Call`] if cuDNN refuses the attribute or its values; [`Error::NoFunction`] if it lacks the function.
    pub fn set_bool(&mut self, attribute: AttributeName, value: bool) -> Result<(), Error> {
        // SAFETY: a boolean attribute is one C++ bool, which has the layout of Rust's `bool`.
        unsafe { self.set_raw(attribute, AttributeType::BOOLEAN, 1, std::ptr::from_ref(&value).cast()) }
    }

    /// Sets an attribute to other descriptors, which must be finalized. This descriptor keeps them alive.
    ///
    /// # Errors
    ///
    /// [`Error::Call`] if cuDNN refuses the attribute or its values; [`Error::NoFunction`] if it lacks the function.
    pub fn set_descriptors(&mut self, attribute: AttributeName, values: &[&Self]) -> Result<(), Error> {
        let pointers = values.iter().map(|value| value.raw.pointer).collect::<Vec<_>>();
        values.iter().for_each(|value| self.reach.extend(&value.reach));
        // SAFETY: an array of live descriptors, which cuDNN copies. The loop below keeps them alive.
        unsafe {
            self.set_raw(attribute, AttributeType::BACKEND_DESCRIPTOR, pointers.len(), pointers.as_ptr().cast())
        }?;
        for value in values {
            self.raw.keep(KeptObject::Descriptor(Arc::clone(&value.raw)), &value.reach);
        }
        Ok(())
    }

    /// Sets an attribute to one other descriptor.
    ///
    /// # Errors
    ///
    /// [`Error::Call`] if cuDNN refuses the attribute or its values; [`Error::NoFunction`] if it lacks the function.
    pub fn set_descriptor(&mut self, attribute: AttributeName, value: &Self) -> Result<(), Error> {
        self.set_descriptors(attribute, &[value])
    }

    /// Sets an attribute to a handle. This descriptor keeps the handle alive.
    ///
    /// # Errors
    ///
    /// [`Error::Call`] if cuDNN refuses the attribute or its values; [`Error::NoFunction`] if it lacks the function.
    pub fn set_handle(&mut self, attribute: AttributeName, handle: &CudnnHandle) -> Result<(), Error> {
        let pointer = handle.raw().pointer();
        self.reach.add_handle(handle.raw().busy());
        // SAFETY: the address of one live handle. The call to `keep` below keeps it alive.
        unsafe { self.set_raw(attribute, AttributeType::HANDLE, 1, std::ptr::from_ref(&pointer).cast()) }?;
        self.raw.keep(KeptObject::Handle(Arc::clone(handle.raw())), &self.reach);
        Ok(())
    }

    /// Reads all values of an attribute.
    ///
    /// # Errors
    ///
    /// [`Error::Call`] if the descriptor has no such attribute; [`Error::NoFunction`] if cuDNN lacks the function.
    pub fn get<T: Element>(&self, attribute: AttributeName) -> Result<Vec<T>, Error> {
        let mut count = self.count(attribute, T::TYPE)?;
        loop {
            let mut values = vec![T::ZERO; count];
            // SAFETY: `values` has room for `count` values of this type.
            let found = unsafe { self.get_raw(attribute, T::TYPE, count, values.as_mut_ptr().cast()) }?;
            if found <= count {
                values.truncate(found);
                return Ok(values);
            }
            // The list can grow between the two calls.
            count = found;
        }
    }

    /// Reads an attribute that holds one value.
    ///
    /// # Errors
    ///
    /// [`Error::Count`] if it does not hold exactly one value; [`Error::Call`] if the descriptor has no such attribute.
    pub fn get_one<T: Element>(&self, attribute: AttributeName) -> Result<T, Error> {
        // Given room for one of several values, cuDNN would write the first and not report the others.
        match self.get(attribute)?[..] {
            [value] => Ok(value),
            ref values => Err(Error::Count { kind: self.kind(), attribute, found: values.len() }),
        }
    }

    /// Reads a boolean attribute.
    ///
    /// # Errors
    ///
    /// [`Error::Count`] if it does not hold one value; [`Error::Call`] if the descriptor has no such attribute.
    pub fn get_bool(&self, attribute: AttributeName) -> Result<bool, Error> {
        // Read into a byte: cuDNN writes a C++ bool, and a value other than 0 and 1 would be undefined behaviour in a
        // Rust `bool`.
        let mut value = 0_u8;
        // SAFETY: `value` has room for one C++ bool, which is one byte.
        let found =
            unsafe { self.get_raw(attribute, AttributeType::BOOLEAN, 1, std::ptr::from_mut(&mut value).cast()) }?;
        if found == 1 { Ok(value != 0) } else { Err(Error::Count { kind: self.kind(), attribute, found }) }
    }

    /// Reads an attribute that holds text or bytes, such as the JSON of a plan or a device, and removes a NUL at the
    /// end.
    ///
    /// # Errors
    ///
    /// [`Error::Call`] if the descriptor has no such attribute; [`Error::NoFunction`] if cuDNN lacks the function.
    pub fn get_bytes(&self, attribute: AttributeName) -> Result<Vec<u8>, Error> {
        let mut bytes = self.get::<u8>(attribute)?;
        if bytes.last() == Some(&0) {
            bytes.pop();
        }
        Ok(bytes)
    }

    /// Reads an attribute that holds descriptors of one kind: heuristic results, knobs, the engine of a configuration.
    ///
    /// Each descriptor returned refers to this one and keeps it alive.
    ///
    /// # Errors
    ///
    /// [`Error::Call`] if the descriptor has no such attribute or cuDNN cannot create the descriptors.
    pub fn get_descriptors(&self, attribute: AttributeName, kind: Kind) -> Result<Vec<Self>, Error> {
        let count = self.count(attribute, AttributeType::BACKEND_DESCRIPTOR)?;
        let mut values = (0..count).map(|_| Self::create(&self.raw.library, kind)).collect::<Result<Vec<_>, _>>()?;
        let mut pointers = values.iter().map(|value| value.raw.pointer).collect::<Vec<_>>();
        // SAFETY: an array of `count` live descriptors, which cuDNN fills in.
        let found =
            unsafe { self.get_raw(attribute, AttributeType::BACKEND_DESCRIPTOR, count, pointers.as_mut_ptr().cast()) }?;
        values.truncate(found);
        for value in &mut values {
            value.reach.extend(&self.reach);
            value.raw.keep(KeptObject::Descriptor(Arc::clone(&self.raw)), &self.reach);
        }
        Ok(values)
    }

    /// # Safety
    ///
    /// `values` must point to `count` values of the C type that `ty` names.
    unsafe fn set_raw(
        &mut self,
        attribute: AttributeName,
        ty: AttributeType,
        count: usize,
        values: *const c_void,
    ) -> Result<(), Error> {
        let set = function!(self.raw.library, cudnnBackendSetAttribute)?;
        let _held = self.reach.hold();
        // SAFETY: the descriptor is live; the caller promises the rest.
        let status = unsafe { set(self.raw.pointer, attribute, ty, count as i64, values) };
        Ok(self.raw.library.check("cudnnBackendSetAttribute", status, Some(self.kind()), Some(attribute))?)
    }

    fn count(&self, attribute: AttributeName, ty: AttributeType) -> Result<usize, Error> {
        // SAFETY: with room for no values cuDNN writes none and returns their number.
        unsafe { self.get_raw(attribute, ty, 0, std::ptr::null_mut()) }
    }

    /// # Safety
    ///
    /// `values` must have room for `count` values of the C type that `ty` names.
    unsafe fn get_raw(
        &self,
        attribute: AttributeName,
        ty: AttributeType,
        count: usize,
        values: *mut c_void,
    ) -> Result<usize, Error> {
        let get = function!(self.raw.library, cudnnBackendGetAttribute)?;
        let _held = self.reach.hold();
        let mut found = 0_i64;
        // SAFETY: the descriptor is live and `found` is writable; the caller promises the rest.
        let status = unsafe { get(self.raw.pointer, attribute, ty, count as i64, &mut found, values) };
        self.raw.library.check("cudnnBackendGetAttribute", status, Some(self.kind()), Some(attribute))?;
        Ok(usize::try_from(found).unwrap_or(0))
    }
}
