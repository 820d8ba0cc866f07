//! Mistakes that must not compile, each beside the same lines without the mistake. Read by `cargo test --doc` alone.

/// P39: an answer is not dropped unread, and a refusal has reasons.
///
/// ```
/// #![deny(unused_must_use)]
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
/// use qkvault_graph::*;
/// use qkvault_probe::{Request, check};
/// let attention = validate(Attention::bshd(1, (2, 2), (8, 8), 8, DType::F16)).unwrap();
/// let target = Profile::named("h200").unwrap().target(CudnnVersion::v9(27, 0), LibrarySet::Slim);
/// check(&Request::new(&attention, &target));
/// ```
///
/// P4, P10: a request is of a valid description and a target that is data; no handle, and no second way to say what runs.
///
/// ```compile_fail,E0308
/// use qkvault_graph::*;
/// use qkvault_probe::Request;
/// let attention = Attention::bshd(1, (2, 2), (8, 8), 8, DType::F16);
/// let target = Profile::named("h200").unwrap().target(CudnnVersion::v9(27, 0), LibrarySet::Slim);
/// let _ = Request::new(&attention, &target);
/// ```
struct Mistakes;
