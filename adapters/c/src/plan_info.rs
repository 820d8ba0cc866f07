//! The facts of a plan, as callers read them.

use std::ffi::c_char;

use crate::sized::Grows;

/// The process had loaded the plan before.
pub const QKV_SOURCE_LOADED: i32 = 0;
/// The plan was in the vault's memory.
pub const QKV_SOURCE_MEMORY: i32 = 1;
/// The plan was in the vault's folder.
pub const QKV_SOURCE_DISK: i32 = 2;
/// The plan was in a layer of the vault.
pub const QKV_SOURCE_LAYER: i32 = 3;
/// The plan was in the vault's remote.
pub const QKV_SOURCE_REMOTE: i32 = 4;
/// The call compiled the plan.
pub const QKV_SOURCE_BUILT: i32 = 5;
/// Another call compiled the plan meanwhile.
pub const QKV_SOURCE_WAITED: i32 = 6;

/// The facts of a plan. The strings are valid until the plan is freed.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct qkv_plan_info {
    /// Set this to `sizeof(qkv_plan_info)`.
    pub struct_size: usize,
    /// The key of the plan: attention, target and options.
    pub key: [u8; 32],
    /// The key of its attention.
    pub attention_key: [u8; 32],
    /// Bytes of scratch memory that a launch needs.
    pub workspace: u64,
    /// Alignment in bytes of the scratch memory's address.
    pub workspace_alignment: u32,
    /// Tensors that a launch takes (`qkv_plan_tensor`).
    pub tensor_count: u32,
    /// Scalars that a launch takes (`qkv_plan_scalar`).
    pub scalar_count: u32,
    /// CUDA's ordinal of the GPU on which it is loaded; -1 if it is compiled ahead.
    pub device: i32,
    /// 1 if two launches on the same input agree bit for bit, else 0.
    pub deterministic: i32,
    /// Compute capability of its target, major * 10 + minor.
    pub sm: i32,
    /// Where it came from: a `QKV_SOURCE_...` number.
    pub source: i32,
    /// The version of the cuDNN that compiled it and that alone loads it, as major * 10000 + minor * 100 + patch;
    /// 0 for a plan that needs none.
    pub cudnn_number: i32,
    /// The same as text, empty for a plan that needs none.
    pub cudnn: *const c_char,
    /// Engine and knobs of cuDNN, or whose kernels it has.
    pub engine: *const c_char,
    /// Its attention in one short line.
    pub what: *const c_char,
    /// Bytes of cuDNN's serialised plan.
    pub plan_bytes: u64,
    /// Milliseconds that compiling took.
    pub compile_ms: u32,
    /// Must be ignored.
    pub reserved: u32,
    /// Whose plan it is, why, and why not those of other engines, in words; null if that is not known.
    pub why: *const c_char,
    /// Microseconds of the `qkv_prepare` that loaded it; 0 if another call had. The times below are parts of it.
    pub prepare_us: f64,
    /// Computing its key, and reading and checking its entry of the vault.
    pub vault_us: f64,
    /// Loading it on the GPU. The times below are parts of it.
    pub load_us: f64,
    /// Comparing its facts with the machine, and its recipe with its bytes.
    pub checks_us: f64,
    /// Reading cuDNN's plan, or loading cubins that no other plan had loaded.
    pub code_us: f64,
    /// Finding kernels and bringing their code.
    pub kernels_us: f64,
    /// Giving kernels their shared memory.
    pub attributes_us: f64,
}

// SAFETY: numbers and pointers.
unsafe impl Grows for qkv_plan_info {
    const LEAST: usize = std::mem::offset_of!(qkv_plan_info, cudnn);
    const NAME: &'static str = "qkv_plan_info";
}
