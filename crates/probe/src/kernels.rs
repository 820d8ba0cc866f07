//! cuDNN's dynamic shapes and kernel caches: what they give, by version, as data; and the means by which that was found.
//!
//! A kernel cache lets cuDNN build a further shape of a family in milliseconds, where it compiles the kernel again without
//! one. A plan that is kept has to be the plan of its own shape, though, and so [`DYNAMIC_SHAPES`] tells whether it is.

use std::sync::{Arc, Mutex, PoisonError};

use qkvault_graph::{CudnnVersion, Target};
use qkvault_sys::{AttributeName as A, Descriptor, Error, Kind, Library};

/// What a cuDNN does when a plan is asked for with dynamic shapes and a kernel cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DynamicShapes {
    /// No engine takes part.
    Refused,
    /// A further shape is built in milliseconds and says that it has the kernel of its family, but its bytes are no plan of
    /// that shape: the kernel's parameters (batch, heads, lengths) are those of the shape that filled the cache; a length
    /// that is no multiple of the tile gets the kernel for those that are; and a cache that was written and read again is
    /// not used. Such plans are not kept, so nothing is built this way.
    OtherPlan,
    /// A further shape is built in milliseconds, and its plan is the one that is built without a cache.
    SamePlan,
}

/// One finding: a version, a direction, compute capabilities, and what was found.
type Finding = (CudnnVersion, bool, &'static [u32], DynamicShapes);

/// What was found, with real libraries and no GPU, in the slim set. The second is whether it is the backward.
///
/// `tests/src/dynamic.rs` puts every line to the library; what is not here was not probed and is not used.
pub const DYNAMIC_SHAPES: [Finding; 6] = [
    (CudnnVersion::v9(14, 0), false, &[80, 89, 90, 100], DynamicShapes::Refused),
    (CudnnVersion::v9(14, 0), true, &[80, 89, 90, 100], DynamicShapes::Refused),
    (CudnnVersion::v9(19, 0), false, &[80, 89, 90, 100], DynamicShapes::OtherPlan),
    (CudnnVersion::v9(19, 0), true, &[80, 89, 90, 100], DynamicShapes::Refused),
    (CudnnVersion::v9(27, 0), false, &[80, 89, 90, 100], DynamicShapes::Refused),
    (CudnnVersion::v9(27, 0), true, &[80, 89, 90, 100], DynamicShapes::Refused),
];

impl DynamicShapes {
    /// What was found for a target and a direction; `None` where nobody looked.
    #[must_use]
    pub fn of(target: &Target, backward: bool) -> Option<DynamicShapes> {
        let is_it = |(version, is_backward, sms, _): &&Finding| {
            (*version, *is_backward) == (target.cudnn, backward) && sms.contains(&target.sm())
        };
        DYNAMIC_SHAPES.iter().find(is_it).map(|(.., found)| *found)
    }
}

/// cuDNN's kernels of one family of attentions: those that differ in nothing but batch, heads and lengths.
///
/// It grows with every plan that is built with it. Threads that share one build in turn: cuDNN does not say that two may
/// write to one cache.
#[derive(Debug)]
pub struct KernelCache {
    descriptor: Mutex<Descriptor>,
}

impl KernelCache {
    /// An empty cache for the family of an operation graph.
    pub(crate) fn of(ops: &Descriptor) -> Result<KernelCache, Error> {
        let mut descriptor = Descriptor::create(ops.library(), Kind::KERNEL_CACHE)?;
        descriptor.set_descriptor(A::KERNEL_CACHE_OPERATION_GRAPH, ops)?;
        Ok(KernelCache { descriptor: Mutex::new(descriptor.finalized()?) })
    }

    /// A cache from what [`KernelCache::bytes`] gave.
    pub(crate) fn read(library: &Arc<Library>, bytes: &[u8]) -> Result<KernelCache, Error> {
        let mut descriptor = Descriptor::create(library, Kind::KERNEL_CACHE)?;
        descriptor.set(A::KERNEL_CACHE_JSON_REPRESENTATION, bytes)?;
        Ok(KernelCache { descriptor: Mutex::new(descriptor.finalized()?) })
    }

    /// What cuDNN writes of it: JSON with the compiled kernels inside.
    ///
    /// # Errors
    ///
    /// cuDNN's.
    pub fn bytes(&self) -> Result<Vec<u8>, Error> {
        self.with(|cache| cache.get_bytes(A::KERNEL_CACHE_JSON_REPRESENTATION))
    }

    /// Runs `work` while nobody else uses the cache.
    pub(crate) fn with<T>(&self, work: impl FnOnce(&Descriptor) -> T) -> T {
        work(&self.descriptor.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
