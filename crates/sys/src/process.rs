//! The libraries that this process has already loaded. They are checked before anything is loaded, so that a process
//! never has two cuDNNs.

use std::ffi::{CStr, OsStr, c_int, c_void};
use std::mem::ManuallyDrop;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};

/// Opens a library and never closes it: dropping the returned value does not close it.
///
/// cuDNN's libraries have threads, caches and pointers to each other's functions, so unloading one is never safe.
pub(crate) fn open(name: &OsStr) -> Result<ManuallyDrop<Library>, libloading::Error> {
    // SAFETY: loading runs the library's initialisers. The name is cuDNN's, that of a companion, or a path that the
    // user gave for one, which needs the same trust as linking to it.
    let library = unsafe { Library::open(Some(name), RTLD_NOW | RTLD_LOCAL) }?;
    Ok(ManuallyDrop::new(library))
}

/// The library with this SONAME that the process has already loaded, if any. Loads nothing.
pub(crate) fn already_open(soname: &str) -> Option<ManuallyDrop<Library>> {
    // SAFETY: with RTLD_NOLOAD nothing is loaded and no initialiser runs; the handle only adds to the reference count.
    let library = unsafe { Library::open(Some(soname), RTLD_NOW | RTLD_LOCAL | libc::RTLD_NOLOAD) }.ok()?;
    Some(ManuallyDrop::new(library))
}

/// The file that `symbol` of an open library was loaded from.
pub(crate) fn file_of(library: &Library, symbol: &str) -> Option<PathBuf> {
    // SAFETY: the symbol is used only as an address and never called, so its type does not matter.
    let address = unsafe { library.get::<*const c_void>(symbol) }.ok()?.as_raw_ptr();
    let mut info = libc::Dl_info {
        dli_fname: std::ptr::null(),
        dli_fbase: std::ptr::null_mut(),
        dli_sname: std::ptr::null(),
        dli_saddr: std::ptr::null_mut(),
    };
    // SAFETY: dladdr accepts any address and writes only to `info`.
    let found = unsafe { libc::dladdr(address, &mut info) };
    if found == 0 || info.dli_fname.is_null() {
        return None;
    }
    // SAFETY: dladdr returned a NUL-terminated name that lives as long as the library, which is never closed.
    let name = unsafe { CStr::from_ptr(info.dli_fname) };
    Some(PathBuf::from(OsStr::from_bytes(name.to_bytes())))
}

/// The files of every shared object that the process has loaded.
pub(crate) fn loaded_files() -> Vec<PathBuf> {
    unsafe extern "C" fn visit(info: *mut libc::dl_phdr_info, _size: usize, files: *mut c_void) -> c_int {
        // SAFETY: the loader calls this with a valid record; `files` is the vector passed below, and nothing else uses
        // it meanwhile.
        let (info, files) = unsafe { (&*info, &mut *files.cast::<Vec<PathBuf>>()) };
        if !info.dlpi_name.is_null() {
            // SAFETY: a non-null name is a NUL-terminated string of the loader, which holds its lock during the call.
            let name = unsafe { CStr::from_ptr(info.dlpi_name) }.to_bytes();
            if !name.is_empty() {
                files.push(PathBuf::from(OsStr::from_bytes(name)));
            }
        }
        0
    }
    let mut files = Vec::<PathBuf>::new();
    // SAFETY: `visit` has the required signature and does not unwind: pushing to a vector can only abort.
    unsafe { libc::dl_iterate_phdr(Some(visit), std::ptr::from_mut(&mut files).cast()) };
    files
}

/// The path of the loaded file with this name, if any.
pub(crate) fn loaded_file(file_name: &str) -> Option<PathBuf> {
    loaded_files().into_iter().find(|file| file.file_name() == Some(OsStr::new(file_name)))
}

/// Whether two paths name the same file, following symbolic links.
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
