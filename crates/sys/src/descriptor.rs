//! Backend descriptors: what every graph, heuristic and plan is made of, owned.

use std::ffi::c_void;
use std::sync::{Arc, Mutex, PoisonError};

use crate::bindings::{AttributeName, AttributeType, Kind, cudnnBackendDescriptor_t};
use crate::element::Element;
use crate::error::Error;
use crate::handle::{Handle, RawHandle};
use crate::library::{Library, function};

/// A backend descriptor of one kind.
///
/// Made empty, given attributes, finalized, then read or referred to by others. It stays alive, on cuDNN's side too, as long as it or
/// anything that refers to it does; the library stays loaded for ever.
///
/// # Threads
///
/// `Send`: cuDNN ties no descriptor to the thread that made it, and while one is being built nothing else refers to it (every setter
/// takes `&mut self`, and cuDNN accepts only finalized descriptors as values, which it then only reads). Not `Sync`: cuDNN's documentation
/// does not say that two threads may call into one descriptor, so this type does not let them.
#[derive(Debug)]
pub struct Descriptor {
    raw: Arc<Raw>,
    /// Makes the type `!Sync`.
    _not_sync: std::marker::PhantomData<std::cell::Cell<()>>,
}

/// What must outlive a descriptor because cuDNN's side points to it.
#[derive(Debug)]
#[expect(dead_code, reason = "held only to be dropped later")]
enum Value {
    Descriptor(Arc<Raw>),
    Handle(Arc<RawHandle>),
}

/// cuDNN's object; destroyed with the last of those who refer to it.
#[derive(Debug)]
struct Raw {
    library: Arc<Library>,
    kind: Kind,
    pointer: cudnnBackendDescriptor_t,
    values: Mutex<Vec<Value>>,
}

// SAFETY: see `Descriptor`, "Threads": calls into the object happen through a `Descriptor`, which is not `Sync`; this type itself calls
// only `cudnnBackendDestroyDescriptor`, when nobody else refers to the object.
unsafe impl Send for Raw {}
// SAFETY: as above.
unsafe impl Sync for Raw {}

impl Raw {
    fn keep(&self, value: Value) {
        self.values.lock().unwrap_or_else(PoisonError::into_inner).push(value);
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        if let Ok(destroy) = &self.library.table().cudnnBackendDestroyDescriptor {
            // SAFETY: made by cuDNN, destroyed once; everything it points to is dropped after it, with the fields.
            unsafe { destroy(self.pointer) };
        }
    }
}

impl Descriptor {
    /// An empty descriptor.
    ///
    /// First it is checked that what cuDNN's engines need is there ([`Library::check_engines`]).
    pub fn create(library: &Arc<Library>, kind: Kind) -> Result<Self, Error> {
        library.check_engines()?;
        let create = function!(library, cudnnBackendCreateDescriptor)?;
        let mut pointer = std::ptr::null_mut();
        // SAFETY: one valid place to write to.
        let status = unsafe { create(kind, &mut pointer) };
        library.check("cudnnBackendCreateDescriptor", status, Some(kind), None)?;
        let raw = Raw { library: Arc::clone(library), kind, pointer, values: Mutex::default() };
        Ok(Self { raw: Arc::new(raw), _not_sync: std::marker::PhantomData })
    }

    /// What it is.
    pub fn kind(&self) -> Kind {
        self.raw.kind
    }

    /// The library it is of.
    pub fn library(&self) -> &Arc<Library> {
        &self.raw.library
    }

    /// cuDNN's pointer, for calls that this crate does not wrap. Valid as long as this value.
    pub fn as_ptr(&self) -> *mut c_void {
        self.pointer()
    }

    /// Sets an attribute to these values; the attribute's C type follows from the Rust type.
    pub fn set<T: Element>(&mut self, attribute: AttributeName, values: &[T]) -> Result<(), Error> {
        // SAFETY: the values are what their type says, and cuDNN copies them.
        unsafe { self.set_raw(attribute, T::TYPE, values.len(), values.as_ptr().cast()) }
    }

    /// Sets an attribute that holds one value.
    pub fn set_one<T: Element>(&mut self, attribute: AttributeName, value: T) -> Result<(), Error> {
        self.set(attribute, &[value])
    }

    /// Sets a boolean attribute.
    pub fn set_bool(&mut self, attribute: AttributeName, value: bool) -> Result<(), Error> {
        // SAFETY: a boolean attribute is one C++ bool, which is laid out as Rust's.
        unsafe { self.set_raw(attribute, AttributeType::BOOLEAN, 1, std::ptr::from_ref(&value).cast()) }
    }

    /// Sets an attribute that holds other descriptors, which must be finalized; they are kept alive with this one.
    pub fn set_descriptors(&mut self, attribute: AttributeName, values: &[&Self]) -> Result<(), Error> {
        let pointers = values.iter().map(|value| value.raw.pointer).collect::<Vec<_>>();
        // SAFETY: an array of live descriptors, which cuDNN copies; they are kept alive below.
        unsafe {
            self.set_raw(attribute, AttributeType::BACKEND_DESCRIPTOR, pointers.len(), pointers.as_ptr().cast())
        }?;
        for value in values {
            self.raw.keep(Value::Descriptor(Arc::clone(&value.raw)));
        }
        Ok(())
    }

    /// Sets an attribute that holds one other descriptor.
    pub fn set_descriptor(&mut self, attribute: AttributeName, value: &Self) -> Result<(), Error> {
        self.set_descriptors(attribute, &[value])
    }

    /// Sets an attribute that holds a handle, which is kept alive with this descriptor.
    pub fn set_handle(&mut self, attribute: AttributeName, handle: &Handle) -> Result<(), Error> {
        let pointer = handle.raw().pointer();
        // SAFETY: the address of one live handle; it is kept alive below.
        unsafe { self.set_raw(attribute, AttributeType::HANDLE, 1, std::ptr::from_ref(&pointer).cast()) }?;
        self.raw.keep(Value::Handle(Arc::clone(handle.raw())));
        Ok(())
    }

    /// Sets an attribute that holds addresses.
    ///
    /// # Safety
    ///
    /// cuDNN keeps the addresses and may read or write what they point to, now or when a plan is executed: they must be valid, for the
    /// host or the device as the attribute demands, whenever that happens.
    pub unsafe fn set_pointers(&mut self, attribute: AttributeName, values: &[*mut c_void]) -> Result<(), Error> {
        // SAFETY: an array of addresses, which cuDNN copies; that they may be followed is the caller's promise.
        unsafe { self.set_raw(attribute, AttributeType::VOID_PTR, values.len(), values.as_ptr().cast()) }
    }

    /// Checks what was set and freezes it. For an execution plan this is where kernels are compiled.
    pub fn finalize(&mut self) -> Result<(), Error> {
        let finalize = function!(self.raw.library, cudnnBackendFinalize)?;
        // SAFETY: a live descriptor.
        let status = unsafe { finalize(self.raw.pointer) };
        Ok(self.raw.library.check("cudnnBackendFinalize", status, Some(self.kind()), None)?)
    }

    /// Finalizes and gives itself back, for building in one expression.
    pub fn finalized(mut self) -> Result<Self, Error> {
        self.finalize()?;
        Ok(self)
    }

    /// Reads an attribute: as many values as it has.
    pub fn get<T: Element>(&self, attribute: AttributeName) -> Result<Vec<T>, Error> {
        let count = self.count(attribute, T::TYPE)?;
        let mut values = vec![T::ZERO; count];
        // SAFETY: room for `count` values of the type that is named.
        let found = unsafe { self.get_raw(attribute, T::TYPE, count, values.as_mut_ptr().cast()) }?;
        values.truncate(found);
        Ok(values)
    }

    /// Reads an attribute that holds one value.
    pub fn get_one<T: Element>(&self, attribute: AttributeName) -> Result<T, Error> {
        let mut value = T::ZERO;
        // SAFETY: room for one value of the type that is named.
        let found = unsafe { self.get_raw(attribute, T::TYPE, 1, std::ptr::from_mut(&mut value).cast()) }?;
        if found == 1 { Ok(value) } else { Err(Error::Count { kind: self.kind(), attribute, found }) }
    }

    /// Reads an attribute that holds text or bytes: a plan's or a device's JSON. A NUL at the end is left out.
    pub fn get_bytes(&self, attribute: AttributeName) -> Result<Vec<u8>, Error> {
        let mut bytes = self.get::<u8>(attribute)?;
        if bytes.last() == Some(&0) {
            bytes.pop();
        }
        Ok(bytes)
    }

    /// Reads an attribute that holds descriptors: heuristic results, knobs, the engine of a configuration.
    ///
    /// `kind` is what they are. They refer to this descriptor, so each keeps it alive.
    pub fn get_descriptors(&self, attribute: AttributeName, kind: Kind) -> Result<Vec<Self>, Error> {
        let count = self.count(attribute, AttributeType::BACKEND_DESCRIPTOR)?;
        let mut values = (0..count).map(|_| Self::create(&self.raw.library, kind)).collect::<Result<Vec<_>, _>>()?;
        let mut pointers = values.iter().map(|value| value.raw.pointer).collect::<Vec<_>>();
        // SAFETY: an array of `count` live descriptors for cuDNN to fill.
        let found =
            unsafe { self.get_raw(attribute, AttributeType::BACKEND_DESCRIPTOR, count, pointers.as_mut_ptr().cast()) }?;
        values.truncate(found);
        for value in &values {
            value.raw.keep(Value::Descriptor(Arc::clone(&self.raw)));
        }
        Ok(values)
    }

    pub(crate) fn pointer(&self) -> cudnnBackendDescriptor_t {
        self.raw.pointer
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
        // SAFETY: a live descriptor, and the caller's promise on the rest.
        let status = unsafe { set(self.raw.pointer, attribute, ty, count as i64, values) };
        Ok(self.raw.library.check("cudnnBackendSetAttribute", status, Some(self.kind()), Some(attribute))?)
    }

    fn count(&self, attribute: AttributeName, ty: AttributeType) -> Result<usize, Error> {
        // SAFETY: nothing is asked for, so nothing is written; cuDNN tells how many there are.
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
        let mut found = 0_i64;
        // SAFETY: a live descriptor, a valid place for the count, and the caller's promise on the rest.
        let status = unsafe { get(self.raw.pointer, attribute, ty, count as i64, &mut found, values) };
        self.raw.library.check("cudnnBackendGetAttribute", status, Some(self.kind()), Some(attribute))?;
        Ok(usize::try_from(found).unwrap_or(0))
    }
}
