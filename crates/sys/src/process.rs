//! What the dynamic loader of this process already has: looked at before anything is loaded, so that two cuDNNs never meet.

use std::ffi::{CStr, OsStr, c_int, c_void};
use std::mem::ManuallyDrop;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};

/// Opens a library for good: dropping the returned value does not close it.
///
/// cuDNN's libraries keep threads, caches and tables of functions of each other, so unloading one is never safe.
pub(crate) fn open(name: &OsStr) -> Result<ManuallyDrop<Library>, libloading::Error> {
    // SAFETY: loading runs the library's initialisers. The name is cuDNN's, one of its companions', or a path that the user chose to be
    // one; the same trust as linking to it.
    let library = unsafe { Library::open(Some(name), RTLD_NOW | RTLD_LOCAL) }?;
    Ok(ManuallyDrop::new(library))
}

/// The library of this SONAME that the process has loaded already, if any. Loads nothing.
pub(crate) fn already_open(soname: &str) -> Option<ManuallyDrop<Library>> {
    // SAFETY: with RTLD_NOLOAD nothing is loaded and no initialiser runs; the handle only counts one more user.
    let library = unsafe { Library::open(Some(soname), RTLD_NOW | RTLD_LOCAL | libc::RTLD_NOLOAD) }.ok()?;
    Some(ManuallyDrop::new(library))
}

/// The file that `symbol` of an open library was loaded from.
pub(crate) fn file_of(library: &Library, symbol: &str) -> Option<PathBuf> {
    // SAFETY: the symbol is only used as an address, never called, so its type does not matter.
    let address = unsafe { library.get::<*const c_void>(symbol) }.ok()?.as_raw_ptr();
    let mut info = libc::Dl_info {
        dli_fname: std::ptr::null(),
        dli_fbase: std::ptr::null_mut(),
        dli_sname: std::ptr::null(),
        dli_saddr: std::ptr::null_mut(),
    };
    // SAFETY: dladdr accepts any address and writes only into `info`.
    let found = unsafe { libc::dladdr(address, &mut info) };
    if found == 0 || info.dli_fname.is_null() {
        return None;
    }
    // SAFETY: dladdr gave a NUL-terminated name that lives as long as the library, which is never closed.
    let name = unsafe { CStr::from_ptr(info.dli_fname) };
    Some(PathBuf::from(OsStr::from_bytes(name.to_bytes())))
}

/// The files of every shared object that the process has loaded now.
pub(crate) fn loaded_files() -> Vec<PathBuf> {
    unsafe extern "C" fn visit(info: *mut libc::dl_phdr_info, _size: usize, files: *mut c_void) -> c_int {
        // SAFETY: the loader calls this with a valid record; `files` is the vector passed below, not used elsewhere meanwhile.
        let (info, files) = unsafe { (&*info, &mut *files.cast::<Vec<PathBuf>>()) };
        if !info.dlpi_name.is_null() {
            // SAFETY: a non-null name is a NUL-terminated string owned by the loader, which holds its lock during the call.
            let name = unsafe { CStr::from_ptr(info.dlpi_name) }.to_bytes();
            if !name.is_empty() {
                files.push(PathBuf::from(OsStr::from_bytes(name)));
            }
        }
        0
    }
    let mut files = Vec::<PathBuf>::new();
    // SAFETY: `visit` has the signature asked for and does not unwind: pushing to a vector can only abort.
    unsafe { libc::dl_iterate_phdr(Some(visit), std::ptr::from_mut(&mut files).cast()) };
    files
}

/// The loaded file of this name, if any.
pub(crate) fn loaded_file(file_name: &str) -> Option<PathBuf> {
    loaded_files().into_iter().find(|file| file.file_name() == Some(OsStr::new(file_name)))
}

/// Whether two paths name one file, symbolic links followed.
pub(crate) fn same_file(a: &Path, b: &Path) -> bool {
    match (a.canonicalize(), b.canonicalize()) {
        (Ok(a), Ok(b)) => a == b,
        _ => a == b,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_c_library_is_found_in_this_process() {
        let libc = already_open("libc.so.6").expect("every test process has a C library");
        let file = file_of(&libc, "malloc").expect("it has malloc");
        assert_eq!(file.file_name(), Some(OsStr::new("libc.so.6")));
        assert_eq!(loaded_file("libc.so.6").as_deref(), Some(&*file));
    }

    #[test]
    fn looking_does_not_load() {
        assert!(already_open("libqkvault-no-such-library.so.1").is_none());
    }

    #[test]
    fn the_reason_of_a_failed_open_is_in_the_text() {
        let error = open(OsStr::new("/nonexistent/libx.so")).expect_err("there is no such file");
        let text = qkvault_base::with_sources(&error);
        assert!(text.contains("No such file"), "{text}");
    }
}
