//! Contexts: a vault, and as soon as a call needs them, a cuDNN and GPUs.

use std::ffi::{CString, c_char};
use std::path::Path;

use qkvault::CompileOptions;
use qkvault::RawRuntime;
use qkvault::Runtime;
use qkvault::cache::{Mode, SealKey, UnpackOptions, VaultOptions};
use qkvault::compile::Engines;
use qkvault::graph::EnginePolicy;
use qkvault::sys::Search;

use crate::handle::{Opaque, borrow, free, give};
use crate::sized::{Grows, put, read, write};
use crate::status::{CallFailure, c_string, guarded, guarded_with_memory};
use crate::text::{name, optional};

/// A vault, a cuDNN and the GPUs that plans run on.
///
/// Threads may share it. Close it when no call uses it any more; plans and descriptions stay valid.
pub struct qkv_context {
    _opaque: [u8; 0],
}

/// What a context holds.
#[derive(Debug)]
pub(crate) struct RuntimeContext {
    pub(crate) runtime: RawRuntime,
    /// Version and path of the cuDNN, as soon as somebody asked for them.
    library: std::sync::OnceLock<(CString, CString)>,
}

impl Opaque for qkv_context {
    type Inside = RuntimeContext;
    const TAG: u64 = 0x0001_7478_6574_6e63;
    const NAME: &'static str = "qkv_context";
}

/// A plan that the vault lacks is an error (`QKV_ERROR_MISSING`).
pub const QKV_ON_MISS_FAIL: i32 = 0;
/// A plan that the vault lacks is built, which takes 0.3 to 1 second.
pub const QKV_ON_MISS_BUILD: i32 = 1;

/// The vault is used as `QKVAULT_CACHE` says: read and written if it says nothing.
pub const QKV_VAULT_DEFAULT: i32 = 0;
/// The vault is read and written.
pub const QKV_VAULT_READ_WRITE: i32 = 1;
/// The vault is only read.
pub const QKV_VAULT_READ_ONLY: i32 = 2;
/// No vault is used: nothing is kept on disk.
pub const QKV_VAULT_OFF: i32 = 3;

/// Options of a context. Zeros and nulls are the defaults.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct qkv_options {
    /// Set this to `sizeof(qkv_options)`.
    pub struct_size: usize,
    /// The folder of the vault. Null: that of the environment, else the user's, as the command `qkvault` uses it.
    pub vault: *const c_char,
    /// A `libcudnn.so.9`, its folder, or a prefix above it. Null: the usual search, which prefers `QKVAULT_CUDNN_PATH`
    /// and then the cuDNN that the process has loaded.
    pub cudnn: *const c_char,
    /// What to do for a plan that the vault lacks: `QKV_ON_MISS_FAIL` or `QKV_ON_MISS_BUILD`.
    pub on_miss: i32,
    /// What may be done with the vault: a `QKV_VAULT_...` number.
    pub vault_mode: i32,
    /// Most bytes of scratch memory that a plan may need. 0: no limit.
    pub workspace_limit: u64,
    /// cuDNN handles that are created with the first use of a GPU: as many as threads launch at a time, at most 1024.
    /// 0: one. The first context that uses a GPU decides; `qkv_reserve_handles` creates more.
    pub handles: u32,
    /// Must be 0.
    pub reserved: u32,
    /// A remote store of plans: an HTTP address or a folder. Null: that of the environment, if it names one.
    pub remote: *const c_char,
    /// Codes of quirks, separated by commas, that are allowed although cuDNN computes them wrongly. Null: none.
    pub allow: *const c_char,
    /// Whose plans are taken: `auto`, `cudnn`, `kernels` or `fa4`. Null: `auto`, which is by measured times.
    pub engine: *const c_char,
}

// SAFETY: numbers and pointers.
unsafe impl Grows for qkv_options {
    const LEAST: usize = std::mem::offset_of!(qkv_options, remote);
    const NAME: &'static str = "qkv_options";
}

/// The cuDNN of a context. The strings are valid until the context is closed.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct qkv_library_info {
    /// Set this to `sizeof(qkv_library_info)`.
    pub struct_size: usize,
    /// Its version, such as `9.27.0`.
    pub version: *const c_char,
    /// The file that is loaded.
    pub path: *const c_char,
}

// SAFETY: a number and pointers.
unsafe impl Grows for qkv_library_info {
    const LEAST: usize = size_of::<qkv_library_info>();
    const NAME: &'static str = "qkv_library_info";
}

/// Opens a context. It opens the vault and nothing else: no cuDNN, no driver, no GPU.
///
/// `options` may be null: defaults. `context` gets the context; close it with `qkv_close`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn qkv_open(options: *const qkv_options, context: *mut *mut qkv_context) -> i32 {
    guarded_with_memory(|| {
        // SAFETY: the caller's pointer is null or to options with their size, whose strings are valid.
        let options = unsafe { if options.is_null() { None } else { Some(read(options)?) } };
        // SAFETY: as above.
        let runtime = unsafe { options.map_or_else(|| Ok(Runtime::options()), |options| chosen(&options)) }?;
        let runtime = runtime.open_raw()?;
        // SAFETY: the caller's place.
        unsafe { put_handle(context, RuntimeContext { runtime, library: std::sync::OnceLock::new() }) }
    })
}

/// Gives a new handle to the caller, or frees it if there is no place for it.
///
/// # Safety
///
/// `place` must be null or writable.
pub(crate) unsafe fn put_handle<T: Opaque>(place: *mut *mut T, inside: T::Inside) -> Result<(), CallFailure> {
    let handle = give::<T>(inside);
    // SAFETY: the caller's promise; a handle that nobody got is freed.
    unsafe { put(place, handle, T::NAME).inspect_err(|_| drop(free(handle))) }
}

/// # Safety
///
/// The strings of the options must be null or valid.
unsafe fn chosen(options: &qkv_options) -> Result<qkvault::RuntimeOptions, CallFailure> {
    let qkv_options { struct_size: _, vault, cudnn, on_miss, vault_mode, workspace_limit, handles, reserved, .. } =
        *options;
    let qkv_options { remote, allow, engine, .. } = *options;
    if reserved != 0 {
        return Err(CallFailure::argument(format!("qkv_options.reserved is {reserved}; set it to 0")));
    }
    // SAFETY: the caller's promise.
    let (folder, cudnn, remote, allow, engine) = unsafe {
        let (vault, cudnn) = (optional(vault, "qkv_options.vault")?, optional(cudnn, "qkv_options.cudnn")?);
        let (remote, allow) = (optional(remote, "qkv_options.remote")?, optional(allow, "qkv_options.allow")?);
        (vault, cudnn, remote, allow, optional(engine, "qkv_options.engine")?)
    };
    let mut vault = VaultOptions::new().memory(0, 0);
    if let Some(folder) = folder {
        vault = vault.folder(folder);
    }
    if let Some(remote) = remote.map(str::to_owned) {
        vault = vault.environment(move |name| match name {
            "QKVAULT_REMOTE" => Some(remote.clone().into()),
            _ => std::env::var_os(name),
        });
    }
    vault = match vault_mode {
        QKV_VAULT_DEFAULT => vault,
        QKV_VAULT_READ_WRITE => vault.mode(Mode::ReadWrite),
        QKV_VAULT_READ_ONLY => vault.mode(Mode::ReadOnly),
        QKV_VAULT_OFF => vault.mode(Mode::Off),
        other => {
            return Err(CallFailure::argument(format!("qkv_options.vault_mode is {other}; give a QKV_VAULT_ number")));
        }
    };
    let build = match on_miss {
        QKV_ON_MISS_FAIL => false,
        QKV_ON_MISS_BUILD => true,
        other => {
            return Err(CallFailure::argument(format!("qkv_options.on_miss is {other}; give a QKV_ON_MISS_ number")));
        }
    };
    few_handles(handles)?;
    let allowed = allow.unwrap_or_default().parse()?;
    let engine = match engine {
        None => EnginePolicy::default(),
        Some(name) => {
            let engines = Engines::built_in();
            engines.policy(name).map_err(|_| {
                let names = engines.words().join(", ");
                CallFailure::argument(format!("qkv_options.engine is '{name}'; give one of {names}, or null"))
            })?
        }
    };
    let compile = CompileOptions { allowed, engine, ..CompileOptions::default() };
    let search = cudnn.map_or_else(Search::default, Search::at);
    let runtime = Runtime::options().vault(vault).build_missing(build).cudnn(search).compile(compile);
    let runtime = runtime.handles(handles.max(1) as usize);
    Ok(if workspace_limit == 0 { runtime } else { runtime.workspace_limit(workspace_limit) })
}

/// Most cuDNN handles of a GPU, each of which takes megabytes there: more than threads that launch at a time.
const MOST_HANDLES: u32 = 1024;

fn few_handles(handles: u32) -> Result<(), CallFailure> {
    if handles <= MOST_HANDLES {
        return Ok(());
    }
    Err(CallFailure::argument(format!("{handles} cuDNN handles are asked for; give at most {MOST_HANDLES}")))
}

/// Closes a context. Null is no error.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn qkv_close(context: *mut qkv_context) -> i32 {
    // SAFETY: the caller promises a context that no call uses any more, or null.
    guarded(|| unsafe { free(context) })
}

/// Tells which cuDNN the context uses. The first call loads it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn qkv_library(context: *const qkv_context, info: *mut qkv_library_info) -> i32 {
    guarded_with_memory(|| {
        // SAFETY: the caller promises a context.
        let context = unsafe { borrow(context) }?;
        let library = context.runtime.library()?;
        let (version, path) = context
            .library
            .get_or_init(|| (c_string(library.version().to_string()), c_string(library.path().display().to_string())));
        let own = qkv_library_info { struct_size: 0, version: version.as_ptr(), path: path.as_ptr() };
        // SAFETY: the caller's pointer is null or to a `qkv_library_info` with its size.
        unsafe { write(info, own) }
    })
}

/// Stores the plans of a pack (`qkvault pack`) in the vault. The whole pack is checked before the first is stored.
///
/// `seal_file` is a file with the secret of the pack's seal; null for packs without one. `stored`, unless it is null,
/// gets the number of plans and refusals that the vault did not have.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn qkv_unpack(
    context: *const qkv_context,
    pack: *const c_char,
    seal_file: *const c_char,
    stored: *mut u64,
) -> i32 {
    guarded_with_memory(|| {
        // SAFETY: the caller promises a context, and strings that are null or valid.
        let (context, pack, seal) =
            unsafe { (borrow(context)?, name(pack, "pack")?, optional(seal_file, "seal_file")?) };
        let seal = seal.map(secret).transpose()?;
        let report = context.runtime.unpack(Path::new(pack), &UnpackOptions { seal, ..UnpackOptions::default() })?;
        if stored.is_null() {
            return Ok(());
        }
        // SAFETY: the caller's place.
        unsafe { put(stored, report.stored, "the number of plans") }
    })
}

fn secret(file: &str) -> Result<SealKey, CallFailure> {
    SealKey::from_file(Path::new(file)).map_err(|error| CallFailure::argument(error.to_string()))
}

/// Creates cuDNN handles for a GPU until there are this many, ahead of launches that run at one time or are captured:
/// one for each thread that launches at a time. While a stream is captured, none can be created.
///
/// `device` is CUDA's ordinal of the GPU.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn qkv_reserve_handles(context: *const qkv_context, device: i32, handles: u32) -> i32 {
    guarded_with_memory(|| {
        few_handles(handles)?;
        // SAFETY: the caller promises a context.
        let session = unsafe { borrow(context) }?.runtime.session(device)?;
        Ok(session.reserve_handles(handles as usize).map_err(qkvault::Error::from)?)
    })
}
