//! Structs that may grow. They begin with their size as the caller knows it, so that callers and libraries of different
//! versions understand each other.

use std::mem::{MaybeUninit, size_of};

use crate::status::CallFailure;

/// A struct of the interface that may get further fields at its end.
///
/// # Safety
///
/// It is `repr(C)`, begins with a `usize` that is its size, and is valid if all of its bytes are zero.
pub unsafe trait Grows: Copy {
    /// Bytes of its first version.
    const LEAST: usize;
    /// Its name in C.
    const NAME: &'static str;
}

/// The size that a caller gives, if it can be used.
unsafe fn size_given<T: Grows>(at: *const T) -> Result<usize, CallFailure> {
    if at.is_null() {
        return Err(CallFailure::argument(format!("a pointer to {} is null; give the address of one", T::NAME)));
    }
    if !at.is_aligned() {
        return Err(CallFailure::argument(format!("the address of {} is {at:p}, which no such struct has", T::NAME)));
    }
    // SAFETY: the caller promises a struct that begins with its size.
    let given = unsafe { at.cast::<usize>().read() };
    if given < T::LEAST {
        let (name, least) = (T::NAME, T::LEAST);
        return Err(CallFailure::argument(format!(
            "struct_size of {name} is {given}, and the first version has {least} bytes; set it to sizeof({name})"
        )));
    }
    Ok(given)
}

/// Reads a struct. Fields that the caller's version lacks are zero, and those that ours lacks are ignored.
///
/// # Safety
///
/// `at` must be null, or point to as many readable bytes as the size at its beginning says.
pub(crate) unsafe fn read<T: Grows>(at: *const T) -> Result<T, CallFailure> {
    // SAFETY: the caller's promise.
    let given = unsafe { size_given(at) }?;
    let mut own = MaybeUninit::<T>::zeroed();
    // SAFETY: both have as many bytes as the smaller, and bytes of zero are a valid struct.
    unsafe {
        std::ptr::copy_nonoverlapping(at.cast::<u8>(), own.as_mut_ptr().cast::<u8>(), given.min(size_of::<T>()));
        Ok(own.assume_init())
    }
}

/// Writes a struct, all but its size, as far as the caller's version has it.
///
/// # Safety
///
/// `at` must be null, or point to as many writable bytes as the size at its beginning says.
pub(crate) unsafe fn write<T: Grows>(at: *mut T, value: T) -> Result<(), CallFailure> {
    // SAFETY: the caller's promise.
    let given = unsafe { size_given(at) }?;
    let (from, skip) = (std::ptr::from_ref(&value).cast::<u8>(), size_of::<usize>());
    // SAFETY: both have as many bytes as the smaller, which is at least that of the first version.
    unsafe {
        std::ptr::copy_nonoverlapping(from.add(skip), at.cast::<u8>().add(skip), given.min(size_of::<T>()) - skip)
    };
    Ok(())
}

/// Checks that there is a place for a value, before any of several is written.
pub(crate) fn place<T>(at: *const T, what: &str) -> Result<(), CallFailure> {
    if at.is_null() || !at.is_aligned() {
        return Err(CallFailure::argument(format!("the place for {what} is {at:p}; give the address of a variable")));
    }
    Ok(())
}

/// Writes a value that never grows.
///
/// # Safety
///
/// `at` must be null or writable.
pub(crate) unsafe fn put<T>(at: *mut T, value: T, what: &str) -> Result<(), CallFailure> {
    place(at, what)?;
    // SAFETY: the caller promises that it is writable.
    unsafe { at.write(value) };
    Ok(())
}

/// A list of values that never grow.
///
/// # Safety
///
/// `at` must be null, or point to `count` readable values.
pub(crate) unsafe fn list<'a, T>(at: *const T, count: usize, what: &str) -> Result<&'a [T], CallFailure> {
    if count == 0 {
        return Ok(&[]);
    }
    let fits = count.checked_mul(size_of::<T>()).is_some_and(|bytes| isize::try_from(bytes).is_ok());
    if at.is_null() || !at.is_aligned() || !fits {
        return Err(CallFailure::argument(format!("{what} are {count} at {at:p}, where there is no such list")));
    }
    // SAFETY: not null, aligned, and the caller promises that so many are readable.
    Ok(unsafe { std::slice::from_raw_parts(at, count) })
}

/// Reads one value that never grows.
///
/// # Safety
///
/// `at` must be null or readable.
pub(crate) unsafe fn one<T: Copy>(at: *const T, what: &str) -> Result<T, CallFailure> {
    // SAFETY: the caller's promise.
    Ok(unsafe { list(at, 1, what) }?[0])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::{qkv_batch_operand, qkv_step};
    use crate::communicator::qkv_world;
    use crate::context::{qkv_library_info, qkv_options};
    use crate::launch::{qkv_launch_args, qkv_launch_named_args};
    use crate::operand::qkv_operand;
    use crate::oracle::qkv_comparison;
    use crate::plan_info::qkv_plan_info;
    use crate::rank::qkv_rank_args;
    use crate::serving::qkv_bucket;
    use crate::status::qkv_error;
    use crate::version::qkv_version_info;

    /// Memory for any struct of the interface.
    #[repr(C, align(16))]
    struct StructMemory([u8; 512]);

    /// What a caller meets who has the struct's first version, or a later one than the library.
    fn grows<T: Grows>() -> &'static str {
        let (name, least, own) = (T::NAME, T::LEAST, size_of::<T>());
        assert!(size_of::<usize>() < least && least <= own && own + 32 <= 512, "{name}: {least} of {own} bytes");
        // SAFETY: bytes of zero are valid.
        let zeros = unsafe { MaybeUninit::<T>::zeroed().assume_init() };
        for given in [least, own, own + 32] {
            let mut place = StructMemory([77; 512]);
            place.0[..8].copy_from_slice(&given.to_ne_bytes());
            // SAFETY: a place that is longer than any size here.
            unsafe { write(place.0.as_mut_ptr().cast::<T>(), zeros) }.expect("a size of some version");
            let end = given.min(own);
            assert_eq!(place.0[..8], given.to_ne_bytes(), "{name}: the size stays the caller's");
            assert!(place.0[8..end].iter().all(|byte| *byte == 0), "{name}: what the caller knows is written");
            assert!(place.0[end..].iter().all(|byte| *byte == 77), "{name}: nothing behind it is");
        }
        for given in [0, 7, 8, least - 1] {
            let mut place = StructMemory([0; 512]);
            place.0[..8].copy_from_slice(&given.to_ne_bytes());
            let at = place.0.as_mut_ptr().cast::<T>();
            // SAFETY: as above.
            let told = [unsafe { write(at, zeros) }.err(), unsafe { read(at.cast_const()) }.err()];
            for failure in told {
                let message = failure.expect("too small").message().to_owned();
                assert!(message.contains(name) && message.contains(&format!("is {given},")), "{message}");
            }
        }
        // What an older caller does not have counts as zero, whatever lies behind its struct.
        let mut place = StructMemory([77; 512]);
        place.0[..8].copy_from_slice(&least.to_ne_bytes());
        place.0[8..least].fill(0);
        // SAFETY: a place as long as its size says; all fields are zero.
        let mut found = [unsafe { read(place.0.as_ptr().cast::<T>()) }.expect("the first version")];
        // SAFETY: the bytes of a struct that began as bytes of zero.
        let bytes = unsafe { std::slice::from_raw_parts(found.as_mut_ptr().cast::<u8>(), own) };
        assert!(bytes[8..].iter().all(|byte| *byte == 0), "{name}");
        name
    }

    #[test]
    fn callers_with_the_first_version_of_any_struct_go_on_working() {
        let mut tried = [
            grows::<qkv_batch_operand>(),
            grows::<qkv_step>(),
            grows::<qkv_options>(),
            grows::<qkv_library_info>(),
            grows::<qkv_launch_args>(),
            grows::<qkv_launch_named_args>(),
            grows::<qkv_operand>(),
            grows::<qkv_comparison>(),
            grows::<qkv_plan_info>(),
            grows::<qkv_bucket>(),
            grows::<qkv_world>(),
            grows::<qkv_rank_args>(),
            grows::<qkv_error>(),
            grows::<qkv_version_info>(),
        ];
        tried.sort_unstable();
        let mut known: Vec<String> = Vec::new();
        let mut name = String::new();
        for line in include_str!("../include/qkvault.h").lines() {
            if let Some(of) = line.strip_prefix("typedef struct ") {
                name = of.trim_end_matches(" {").to_owned();
            } else if line.trim() == "size_t struct_size;" {
                known.push(name.clone());
            }
        }
        known.sort_unstable();
        assert_eq!(tried.to_vec(), known, "every struct of the header that may grow is tried");
    }
}
