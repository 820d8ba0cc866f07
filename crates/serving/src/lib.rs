//! Plans for serving: an attention whose sizes change at every step, and the small set of plans that any step runs on.
//!
//! Baked into a plan are the most sequences, the most queries and the most keys of one, and what a page is. Everything else is
//! data: lengths, offsets, tables, and, up to the next power of two, how many pages the pool has. So a set of plans is a grid of those three sizes, a step takes the smallest that holds it, and
//! what it is padded by is bounded by how far apart the grid's lines are.
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
mod layer;
mod policy;

pub use buckets::{Bucket, Buckets, StepKind, StepSize};
pub use layer::{PageLayout, ServeLayer};
pub use policy::{Growth, ServePolicy};
