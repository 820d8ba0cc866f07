//! Mistakes that must not compile, each after the same lines without the mistake. Only `cargo test --doc` reads them.

/// P4: only a validated attention can be lowered, so only these reach cuDNN.
///
/// ```
/// use qkvault_cudnn::{CompileOptions, Profile, lower};
/// use qkvault_graph::*;
/// let attention = Attention::bshd(1, (2, 2), (8, 8), 8, DType::F16);
/// let target = Profile::named("h200").unwrap().target(CudnnVersion::v9(27, 0), LibrarySet::Slim);
/// let attention = validate(attention).unwrap();
/// let _ = lower(&attention, &target, &CompileOptions::default());
/// ```
///
/// ```compile_fail,E0308
/// use qkvault_cudnn::{CompileOptions, Profile, lower};
/// use qkvault_graph::*;
/// let attention = Attention::bshd(1, (2, 2), (8, 8), 8, DType::F16);
/// let target = Profile::named("h200").unwrap().target(CudnnVersion::v9(27, 0), LibrarySet::Slim);
/// let _ = lower(&attention, &target, &CompileOptions::default());
/// ```
struct OnlyTheValid;
