//! Misuse of launches that does not compile. Each example fails with the error that its first line names.

/// An output is not an input too, nor two outputs, and is not read-only:
///
/// ```
/// # use qkvault_exec::{Args, cudarc::driver::CudaSlice};
/// fn right(q: &CudaSlice<half::bf16>, o: &mut CudaSlice<half::bf16>, lse: &mut CudaSlice<f32>) {
///     let _ = Args::new().q(q).k(q).v(q).o(o).lse(lse);
/// }
/// ```
///
/// ```compile_fail,E0502
/// # use qkvault_exec::{Args, cudarc::driver::CudaSlice};
/// fn over_an_input(q: &CudaSlice<half::bf16>, mut o: CudaSlice<half::bf16>) {
///     let _ = Args::new().q(q).k(&o).v(q).o(&mut o);
/// }
/// ```
///
/// ```compile_fail,E0499
/// # use qkvault_exec::{Args, cudarc::driver::CudaSlice};
/// fn one_for_two(mut o: CudaSlice<f32>) {
///     let _ = Args::new().o(&mut o).lse(&mut o);
/// }
/// ```
///
/// ```compile_fail,E0277
/// # use qkvault_exec::{Args, cudarc::driver::CudaSlice};
/// fn shared(o: &CudaSlice<half::bf16>) {
///     let _ = Args::new().o(o);
/// }
/// ```
///
/// ```compile_fail,E0277
/// # use qkvault_exec::{Args, cudarc::driver::CudaSlice};
/// # use std::sync::Arc;
/// fn counted(o: Arc<CudaSlice<half::bf16>>) {
///     let _ = Args::new().o(o);
/// }
/// ```
#[cfg(doctest)]
struct OutputsAreExclusive;

/// A bound plan keeps its operands from being read, written and dropped:
///
/// ```
/// # use qkvault_exec::{Args, LoadedPlan, cudarc::driver::{CudaSlice, CudaStream}};
/// # use std::sync::Arc;
/// fn right(plan: &LoadedPlan, stream: &Arc<CudaStream>, mut o: CudaSlice<half::bf16>) {
///     let mut bound = plan.bind(Args::new().o(&mut o), stream).expect("bound");
///     bound.launch(stream).expect("queued");
///     drop(bound);
///     stream.clone_dtoh(&o).expect("read");
/// }
/// ```
///
/// ```compile_fail,E0502
/// # use qkvault_exec::{Args, LoadedPlan, cudarc::driver::{CudaSlice, CudaStream}};
/// # use std::sync::Arc;
/// fn read_too_early(plan: &LoadedPlan, stream: &Arc<CudaStream>, mut o: CudaSlice<half::bf16>) {
///     let mut bound = plan.bind(Args::new().o(&mut o), stream).expect("bound");
///     stream.clone_dtoh(&o).expect("read");
///     bound.launch(stream).expect("queued");
/// }
/// ```
///
/// ```compile_fail,E0505
/// # use qkvault_exec::{Args, LoadedPlan, cudarc::driver::{CudaSlice, CudaStream}};
/// # use std::sync::Arc;
/// fn dropped(plan: &LoadedPlan, stream: &Arc<CudaStream>, q: CudaSlice<half::bf16>) {
///     let mut graph = plan.bind(Args::new().q(&q), stream).expect("bound").capture(stream).expect("captured");
///     drop(q);
///     graph.launch().expect("queued");
/// }
/// ```
#[cfg(doctest)]
struct BoundBorrows;

/// Elements and scalars have the types that plans know; indices that nothing checked, addresses and launches into a
/// capture of one's own are `unsafe`:
///
/// ```compile_fail,E0277
/// # use qkvault_exec::{Args, cudarc::driver::CudaSlice};
/// fn doubles(q: &CudaSlice<f64>) {
///     let _ = Args::new().q(q);
/// }
/// ```
///
/// ```compile_fail,E0277
/// # use qkvault_exec::Args;
/// let _ = Args::new().scalar("softcap", 50.0_f64);
/// ```
///
/// ```compile_fail,E0133
/// # use qkvault_exec::{Args, cudarc::driver::CudaSlice};
/// # use qkvault_graph::Role;
/// fn lengths(lengths: &CudaSlice<i32>) {
///     let _ = Args::new().indices(Role::SeqLenKv, lengths);
/// }
/// ```
///
/// ```compile_fail,E0133
/// # use qkvault_exec::Args;
/// # use qkvault_graph::Role;
/// let _ = Args::new().address(Role::Q, 0x7f00_0000_0000, 4096);
/// ```
///
/// ```compile_fail,E0133
/// # use qkvault_exec::{Args, LoadedPlan, cudarc::driver::CudaStream};
/// # use std::sync::Arc;
/// fn recorded(plan: &LoadedPlan, stream: &Arc<CudaStream>) {
///     let _ = plan.launch_captured(stream, Args::new());
/// }
/// ```
#[cfg(doctest)]
struct UncheckedIsUnsafe;
