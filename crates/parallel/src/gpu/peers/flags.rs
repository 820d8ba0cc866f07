//! Flags between ranks: numbers in their memory, which streams set and wait for. What belongs together is one
//! operation of the driver, and one node of a graph.

use std::ffi::c_uint;

use cudarc::driver::DriverError;
use cudarc::driver::sys::{
    CUstream, CUstreamBatchMemOpParams, CUstreamBatchMemOpParams_union_CUstreamMemOpWaitValueParams_st,
    CUstreamBatchMemOpParams_union_CUstreamMemOpWaitValueParams_st__bindgen_ty_1,
    CUstreamBatchMemOpParams_union_CUstreamMemOpWriteValueParams_st,
    CUstreamBatchMemOpParams_union_CUstreamMemOpWriteValueParams_st__bindgen_ty_1, CUstreamBatchMemOpType,
    CUstreamWaitValue_flags, CUstreamWriteValue_flags, cuStreamBatchMemOp_v2,
};
use qkvault_exec::cudarc;

/// Sets flags after everything before them on the stream.
///
/// # Safety
///
/// The stream's context is current, and the flags are memory that it may write.
pub(super) unsafe fn set(stream: CUstream, flags: impl IntoIterator<Item = u64>) -> Result<(), DriverError> {
    // SAFETY: as promised.
    unsafe { queue(stream, flags.into_iter().map(|flag| write(flag, 1)).collect()) }
}

/// Waits for flags of this rank, and clears them.
///
/// # Safety
///
/// As for [`set`].
pub(super) unsafe fn taken(stream: CUstream, flags: impl IntoIterator<Item = u64>) -> Result<(), DriverError> {
    // SAFETY: as promised.
    unsafe { queue(stream, flags.into_iter().flat_map(|flag| [wait(flag), write(flag, 0)]).collect()) }
}

/// Operations of a stream are done in their order.
unsafe fn queue(stream: CUstream, mut list: Vec<CUstreamBatchMemOpParams>) -> Result<(), DriverError> {
    if list.is_empty() {
        return Ok(());
    }
    // SAFETY: the caller has the stream's context current; so many operations on memory that it may write.
    unsafe { cuStreamBatchMemOp_v2(stream, list.len() as c_uint, list.as_mut_ptr(), 0) }.result()
}

fn write(address: u64, value: u32) -> CUstreamBatchMemOpParams {
    CUstreamBatchMemOpParams {
        writeValue: CUstreamBatchMemOpParams_union_CUstreamMemOpWriteValueParams_st {
            operation: CUstreamBatchMemOpType::CU_STREAM_MEM_OP_WRITE_VALUE_32,
            address,
            __bindgen_anon_1: CUstreamBatchMemOpParams_union_CUstreamMemOpWriteValueParams_st__bindgen_ty_1 {
                value64: value.into(),
            },
            flags: CUstreamWriteValue_flags::CU_STREAM_WRITE_VALUE_DEFAULT as c_uint,
            alias: 0,
        },
    }
}

/// Until the flag is 1.
fn wait(address: u64) -> CUstreamBatchMemOpParams {
    CUstreamBatchMemOpParams {
        waitValue: CUstreamBatchMemOpParams_union_CUstreamMemOpWaitValueParams_st {
            operation: CUstreamBatchMemOpType::CU_STREAM_MEM_OP_WAIT_VALUE_32,
            address,
            __bindgen_anon_1: CUstreamBatchMemOpParams_union_CUstreamMemOpWaitValueParams_st__bindgen_ty_1 {
                value64: 1,
            },
            flags: CUstreamWaitValue_flags::CU_STREAM_WAIT_VALUE_EQ as c_uint,
            alias: 0,
        },
    }
}
