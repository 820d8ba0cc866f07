//! Plans for serving: a small set of plans that runs every step of an engine, although the sizes change at each step.
//!
//! A plan fixes the maximum number of sequences, the maximum numbers of queries and keys per sequence, and the page
//! layout. Lengths, offsets, page tables and (up to the next power of two) the number of pages are data of a launch. A
//! set of plans is therefore a grid over those three sizes. A step runs on the smallest plan that holds it, and the
//! spacing of the grid bounds the padding.
//!
//! ```
//! use qkvault_graph::DType;
//! use qkvault_serving::{Buckets, ServeLayer, ServePolicy, StepKind, StepSize};
//!
//! let policy = ServePolicy { batch: 64, queries: 2048, keys: 32_768, ..ServePolicy::default() };
//! let buckets = Buckets::new(&policy)?;
//! let step = StepSize { sequences: 23, queries: 300, keys: 5000 };
//! let bucket = buckets.get(buckets.pick(step).expect("within the ranges"));
//! assert_eq!((bucket.kind, bucket.batch, bucket.queries, bucket.keys), (StepKind::Mixed, 64, 2048, 32_768));
//!
//! let layer = ServeLayer::new((32, 8), (128, 128), DType::BF16, 10_000, 64);
//! println!("{}", layer.attention(&bucket)?.get());
//! # Ok::<(), qkvault_graph::Refusal>(())
//! ```

mod buckets;
pub mod codes;
mod layer;
mod policy;

pub use buckets::{Bucket, Buckets, StepKind, StepSize};
pub use layer::{PageLayout, ServeLayer};
pub use policy::{Growth, MOST, ServePolicy};
