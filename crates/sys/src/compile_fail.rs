//! What does not compile, as doctests: each would let two threads use one object of cuDNN at the same time.

/// One handle is no two threads' at a time.
///
/// ```compile_fail,E0277
/// fn share(handle: &qkvault_sys::CudnnHandle) {
///     std::thread::scope(|scope| { scope.spawn(|| handle.stream()); });
/// }
/// ```
///
/// A handle whose stream is set is not launched with meanwhile.
///
/// ```compile_fail,E0502
/// use qkvault_sys::{CudnnHandle, ExecutionPlan, VariantPack};
/// fn set(handle: &mut CudnnHandle, plan: &ExecutionPlan, pack: &VariantPack) {
///     let launching: &CudnnHandle = handle;
///     let _ = unsafe { handle.set_stream(std::ptr::null_mut()) };
///     let _ = unsafe { plan.execute(launching, pack) };
/// }
/// ```
///
/// It compiles to move one.
///
/// ```
/// fn moved(handle: qkvault_sys::CudnnHandle) {
///     let _ = std::thread::spawn(move || handle.stream().is_ok());
/// }
/// ```
struct Handles;

/// One descriptor is no two threads' at a time.
///
/// ```compile_fail,E0277
/// fn share(cache: &qkvault_sys::Descriptor) {
///     std::thread::scope(|scope| { scope.spawn(|| cache.kind()); });
/// }
/// ```
///
/// What is being changed is not read.
///
/// ```compile_fail,E0502
/// use qkvault_sys::{AttributeName, Descriptor};
/// fn set(plan: &mut Descriptor) {
///     let other: &Descriptor = plan;
///     let _ = plan.set_descriptor(AttributeName::EXECUTION_PLAN_KERNEL_CACHE, other);
/// }
/// ```
struct Descriptors;
