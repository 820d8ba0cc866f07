//! Mistakes that must not compile, each after the same lines without the mistake. Only `cargo test --doc` reads them.

/// P39: an answer must be used.
///
/// ```
/// #![deny(unused_must_use)]
/// use qkvault_cudnn::Profile;
/// use qkvault_graph::*;
/// use qkvault_probe::{Request, check};
/// let attention = validate(Attention::bshd(1, (2, 2), (8, 8), 8, DType::F16)).unwrap();
/// let target = Profile::named("h200").unwrap().target(CudnnVersion::v9(27, 0), LibrarySet::Slim);
/// let verdict = check(&Request::new(&attention, &target));
/// assert!(verdict.supported());
/// ```
///
/// ```compile_fail
/// #![deny(unused_must_use)]
/// use qkvault_cudnn::Profile;
/// use qkvault_graph::*;
/// use qkvault_probe::{Request, check};
/// let attention = validate(Attention::bshd(1, (2, 2), (8, 8), 8, DType::F16)).unwrap();
/// let target = Profile::named("h200").unwrap().target(CudnnVersion::v9(27, 0), LibrarySet::Slim);
/// check(&Request::new(&attention, &target));
/// ```
///
/// P4, P10: a request needs a valid description, and a target that is plain data.
///
/// ```compile_fail,E0308
/// use qkvault_cudnn::Profile;
/// use qkvault_graph::*;
/// use qkvault_probe::Request;
/// let attention = Attention::bshd(1, (2, 2), (8, 8), 8, DType::F16);
/// let target = Profile::named("h200").unwrap().target(CudnnVersion::v9(27, 0), LibrarySet::Slim);
/// let _ = Request::new(&attention, &target);
/// ```
struct Mistakes;
