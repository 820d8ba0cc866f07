//! Constants on a GPU without cudarc: operands, uploaded once for each session and freed with it, and data of plans.

use std::ffi::{c_int, c_uint, c_void};
use std::sync::{Mutex, OnceLock, PoisonError};

use qkvault_graph::{Attention, Role};

use crate::constants::slopes;
use crate::driver::open;
use crate::raw::launch::DeviceBuffer;
use crate::raw::primary::checked;
use crate::raw::relaxed::RelaxedCaptures;

type Alloc = unsafe extern "C" fn(*mut u64, usize) -> c_int;
type Free = unsafe extern "C" fn(u64) -> c_int;
type Create = unsafe extern "C" fn(*mut *mut c_void, c_uint) -> c_int;
type Copy = unsafe extern "C" fn(u64, *const c_void, usize, *mut c_void) -> c_int;
type OfStream = unsafe extern "C" fn(*mut c_void) -> c_int;

/// The functions of the driver that this module calls.
struct CopyFunctions {
    alloc: Alloc,
    free: Free,
    create: Create,
    copy: Copy,
    synchronize: OfStream,
    destroy: OfStream,
}

fn functions() -> Option<&'static CopyFunctions> {
    static FUNCTIONS: OnceLock<Option<CopyFunctions>> = OnceLock::new();
    let find = || {
        let driver = open().ok()?;
        // SAFETY: every driver since CUDA 5 has these functions with these signatures.
        unsafe {
            Some(CopyFunctions {
                alloc: *driver.get::<Alloc>("cuMemAlloc_v2").ok()?,
                free: *driver.get::<Free>("cuMemFree_v2").ok()?,
                create: *driver.get::<Create>("cuStreamCreate").ok()?,
                copy: *driver.get::<Copy>("cuMemcpyHtoDAsync_v2").ok()?,
                synchronize: *driver.get::<OfStream>("cuStreamSynchronize").ok()?,
                destroy: *driver.get::<OfStream>("cuStreamDestroy_v2").ok()?,
            })
        }
    };
    FUNCTIONS.get_or_init(find).as_ref()
}

/// `CU_STREAM_NON_BLOCKING` of the driver API.
const NON_BLOCKING: c_uint = 1;

/// The constant operands of all plans of a session, by their values.
#[derive(Debug, Default)]
pub(crate) struct RawConstants(Mutex<Vec<(Vec<f32>, DeviceBuffer)>>);

impl RawConstants {
    /// The constant operands of an attention on the GPU whose context is current. New ones are uploaded, waiting for
    /// the upload; an attention without constants asks nothing of the driver.
    pub(crate) fn uploaded(&self, attention: &Attention) -> Result<Vec<(Role, DeviceBuffer)>, String> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut list = Vec::new();
        for (role, values) in slopes(attention) {
            let same = |other: &[f32]| other.iter().map(|x| x.to_bits()).eq(values.iter().map(|x| x.to_bits()));
            let found = all.iter().find(|(other, _)| same(other)).map(|(_, buffer)| *buffer);
            let buffer = match found {
                Some(buffer) => buffer,
                None => {
                    let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_ne_bytes()).collect();
                    let buffer = upload(&bytes)?;
                    all.push((values, buffer));
                    buffer
                }
            };
            list.push((role, buffer));
        }
        Ok(list)
    }

    /// Frees everything. The context must be current; the driver waits for launches that are under way.
    pub(crate) fn free(&mut self) {
        let all = self.0.get_mut().unwrap_or_else(PoisonError::into_inner);
        for (_, buffer) in all.drain(..) {
            if let Err(detail) = free(buffer) {
                tracing::warn!(detail, "a constant operand");
            }
        }
    }
}

/// Frees memory that [`upload`] made, in its context. The driver waits for launches that are under way.
pub(crate) fn free(buffer: DeviceBuffer) -> Result<(), String> {
    // SAFETY: allocated by `upload`; whoever has the buffer frees it once.
    let status = functions().map_or(0, |functions| unsafe { (functions.free)(buffer.address) });
    checked("free a constant", status)
}

/// Copies bytes to new memory of the GPU whose context is current, on a stream that waits for no other.
pub(crate) fn upload(values: &[u8]) -> Result<DeviceBuffer, String> {
    let functions = functions().ok_or("the driver lacks functions that every driver has")?;
    let _relaxed = RelaxedCaptures::enter();
    let bytes = values.len();
    let (mut address, mut stream) = (0, std::ptr::null_mut());
    // SAFETY: `address` is writable.
    checked("allocate a constant", unsafe { (functions.alloc)(&raw mut address, bytes) })?;
    let mut copy = || {
        // SAFETY: `stream` is writable.
        checked("create a stream", unsafe { (functions.create)(&raw mut stream, NON_BLOCKING) })?;
        // SAFETY: both sides have this many bytes, and the values outlive the wait below.
        let copied = unsafe { (functions.copy)(address, values.as_ptr().cast(), bytes, stream) };
        // SAFETY: the stream was created above.
        let (waited, destroyed) = unsafe { ((functions.synchronize)(stream), (functions.destroy)(stream)) };
        checked("copy a constant", copied)?;
        checked("wait for a constant", waited)?;
        checked("destroy a stream", destroyed)
    };
    match copy() {
        Ok(()) => Ok(DeviceBuffer { address, bytes: bytes as u64 }),
        Err(detail) => {
            // SAFETY: allocated above, and no copy into it is under way.
            unsafe { (functions.free)(address) };
            Err(detail)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use qkvault_graph::DType;
    use qkvault_graph::expr::{library, score};

    #[test]
    fn an_attention_without_constants_asks_nothing_of_a_driver() {
        let mut constants = RawConstants::default();
        let plain = Attention::bshd(1, (4, 2), (8, 8), 16, DType::BF16);
        assert_eq!(constants.uploaded(&plain), Ok(Vec::new()));
        let alibi = library::alibi(score(), 4).build_score_mod().expect("a score");
        if crate::driver::driver().is_err() {
            let error = constants.uploaded(&plain.with_score_mod(alibi)).expect_err("there is no GPU");
            assert!(error.contains("driver"), "{error}");
        }
        assert!(constants.0.get_mut().expect("no panic").is_empty());
        constants.free();
    }
}
