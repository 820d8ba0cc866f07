//! Handles: what a caller holds by an opaque pointer. Each begins with a number that tells its kind, so that null, a
//! handle of another kind and mostly one that was freed are errors and not crashes.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::status::CallFailure;

/// An opaque type of the header.
pub(crate) trait Opaque {
    /// What its handles hold.
    type Inside;
    /// The number of its handles.
    const TAG: u64;
    /// Its name in C.
    const NAME: &'static str;
}

/// What lies at the address of a handle.
#[repr(C)]
struct HandleContent<T> {
    tag: AtomicU64,
    inside: T,
}

/// The tag of a handle that was freed.
const FREED: u64 = 0x6465_6572_665f_766b;

/// A new handle.
pub(crate) fn give<T: Opaque>(inside: T::Inside) -> *mut T {
    Box::into_raw(Box::new(HandleContent { tag: AtomicU64::new(T::TAG), inside })).cast()
}

/// Checks that a pointer is a handle of this kind.
unsafe fn check<T: Opaque>(handle: *const T) -> Result<*const HandleContent<T::Inside>, CallFailure> {
    let (held, name) = (handle.cast::<HandleContent<T::Inside>>(), T::NAME);
    if held.is_null() {
        return Err(CallFailure::argument(format!("the {name} is null; give one that this library made")));
    }
    if !held.is_aligned() {
        return Err(CallFailure::argument(format!("{handle:p} is no {name}: it has the address of no handle")));
    }
    // SAFETY: the caller promises a handle of this library, which begins with a tag.
    match unsafe { &*held.cast::<AtomicU64>() }.load(Ordering::Relaxed) {
        tag if tag == T::TAG => Ok(held),
        FREED => {
            Err(CallFailure::argument(format!("the {name} was freed; use each until it is freed, and free it once")))
        }
        _ => Err(CallFailure::argument(format!(
            "{handle:p} is no {name}: it is another handle or memory of another kind"
        ))),
    }
}

/// What a handle holds.
///
/// # Safety
///
/// `handle` must be null or a handle of this library that stays for as long as the result is used.
pub(crate) unsafe fn borrow<'a, T: Opaque>(handle: *const T) -> Result<&'a T::Inside, CallFailure> {
    // SAFETY: the caller's promise, and `check` found a handle of this kind.
    unsafe { check(handle).map(|held| &(*held).inside) }
}

/// What a handle holds, to change it.
///
/// # Safety
///
/// As for [`borrow`], and nothing else may use the handle meanwhile.
pub(crate) unsafe fn borrow_mut<'a, T: Opaque>(handle: *mut T) -> Result<&'a mut T::Inside, CallFailure> {
    // SAFETY: the caller's promise, and `check` found a handle of this kind.
    unsafe { check(handle).map(|held| &mut (*held.cast_mut()).inside) }
}

/// Frees a handle. Null is no error.
///
/// # Safety
///
/// `handle` must be null or a handle of this library that nothing uses any more.
pub(crate) unsafe fn free<T: Opaque>(handle: *mut T) -> Result<(), CallFailure> {
    if handle.is_null() {
        return Ok(());
    }
    // SAFETY: the caller's promise.
    let held = unsafe { check(handle) }?.cast_mut();
    // SAFETY: made by `give`. The tag is changed before, so that a second free is mostly an error.
    unsafe {
        (*held).tag.store(FREED, Ordering::Relaxed);
        drop(Box::from_raw(held));
    }
    Ok(())
}
