//! The sizes of models, and the limits of a server.

use std::path::PathBuf;
use std::time::Duration;

use qkvault::Runtime;
use qkvault::cache::VaultOptions;
use qkvault::graph::{DType, Valid};
use qkvault::serving::{Buckets, Growth, ServeLayer, ServePolicy};

use crate::ServerError;

/// The sizes of a Llama-shaped model: RMSNorm, grouped queries with rotary embedding, a gated feed-forward network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModelShape {
    /// Its name on the command line.
    pub name: &'static str,
    /// Tokens that the model knows.
    pub vocab: usize,
    /// Numbers of a hidden state.
    pub hidden: usize,
    /// Layers.
    pub layers: usize,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads.
    pub kv_heads: usize,
    /// Numbers of a head.
    pub head_dim: usize,
    /// Numbers between the two products of the feed-forward network.
    pub inner: usize,
}

/// Every model, the smallest first. `1b` has the layers of Llama-3.2-1B and a smaller vocabulary.
pub const SHAPES: [ModelShape; 3] = [
    ModelShape { name: "tiny", vocab: 512, hidden: 64, layers: 2, heads: 4, kv_heads: 2, head_dim: 16, inner: 128 },
    ModelShape { name: "small", vocab: 4096, hidden: 512, layers: 4, heads: 8, kv_heads: 2, head_dim: 64, inner: 1536 },
    ModelShape {
        name: "1b",
        vocab: 32_768,
        hidden: 2048,
        layers: 16,
        heads: 32,
        kv_heads: 8,
        head_dim: 64,
        inner: 8192,
    },
];

impl ModelShape {
    /// The model of a name.
    ///
    /// # Errors
    ///
    /// A name that no model has, with those that there are.
    pub fn named(name: &str) -> Result<ModelShape, ServerError> {
        let names = SHAPES.map(|shape| shape.name).join(", ");
        SHAPES
            .into_iter()
            .find(|shape| shape.name == name)
            .ok_or_else(|| format!("'{name}' is no model; there are {names}").into())
    }

    /// Columns of the product that makes queries, keys and values.
    #[must_use]
    pub const fn qkv(&self) -> usize {
        (self.heads + 2 * self.kv_heads) * self.head_dim
    }

    /// Numbers of all weights.
    #[must_use]
    pub const fn parameters(&self) -> usize {
        let layer = self.hidden * (self.qkv() + self.heads * self.head_dim + 3 * self.inner + 2);
        2 * self.vocab * self.hidden + self.layers * layer + self.hidden
    }
}

/// What a server takes at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServerLimits {
    /// Sequences that run at once.
    pub batch: usize,
    /// New tokens of a step, over all sequences.
    pub tokens: usize,
    /// New tokens of one sequence in a step: longer prompts run in chunks.
    pub chunk: usize,
    /// Tokens of a prompt and its answer together.
    pub context: usize,
    /// Pages of the pool.
    pub pages: usize,
    /// Tokens of a page.
    pub page: usize,
    /// Requests that wait for room.
    pub queue: usize,
    /// How long a request waits for room.
    pub patience: Duration,
    /// Whether an answer on a GPU has the same bits whatever else is answered.
    pub invariant: bool,
}

impl ServerLimits {
    /// Limits for tests and for the CPU.
    pub const SMALL: ServerLimits = ServerLimits {
        batch: 8,
        tokens: 64,
        chunk: 32,
        context: 256,
        pages: 72,
        page: 16,
        queue: 16,
        patience: Duration::from_secs(10),
        invariant: false,
    };

    /// Limits for a GPU.
    pub const LARGE: ServerLimits = ServerLimits {
        batch: 256,
        tokens: 2048,
        chunk: 512,
        context: 4096,
        pages: 8192,
        page: 64,
        queue: 1024,
        patience: Duration::from_secs(60),
        invariant: false,
    };

    /// The pages that so many tokens take.
    #[must_use]
    pub const fn pages_of(&self, tokens: usize) -> usize {
        tokens.div_ceil(self.page)
    }

    /// The ranges of steps, for the set of plans. A step runs its decodes on one plan and its chunks on another.
    #[must_use]
    pub fn policy(&self, shape: &ModelShape) -> ServePolicy {
        let (batch, queries, keys) = (self.batch as i64, self.chunk as i64, self.context as i64);
        ServePolicy {
            batch,
            queries,
            keys,
            tokens: self.tokens as i64,
            least_queries: queries.min(128),
            // One plan for all keys: kernels stop at the lengths.
            least_keys: keys,
            growth: Growth::default(),
            ..ServePolicy::default()
        }
        .for_heads(shape.kv_heads as i64)
    }

    /// The attention layer of a model over the pool.
    #[must_use]
    pub fn layer(&self, shape: &ModelShape) -> ServeLayer {
        let (heads, head_dim) = ((shape.heads as i64, shape.kv_heads as i64), shape.head_dim as i64);
        let layer = ServeLayer::new(heads, (head_dim, head_dim), DType::BF16, self.pages as i64, self.page as i64);
        if self.invariant { layer.invariant() } else { layer }
    }

    /// The attentions of every step of a server.
    ///
    /// # Errors
    ///
    /// Limits that make no sound attention.
    pub fn attentions(&self, shape: &ModelShape) -> Result<Vec<Valid>, ServerError> {
        let layer = self.layer(shape);
        Ok(Buckets::new(&self.policy(shape))?
            .iter()
            .map(|bucket| layer.attention(&bucket))
            .collect::<Result<_, _>>()?)
    }

    /// Compiles the plans that a server needs on a GPU, which need not be here, into a vault (the user's without one).
    /// Returns how many there are, and how many the GPU's library refuses: decodes of those run as chunks.
    ///
    /// # Errors
    ///
    /// No cuDNN, no vault, or a plan that does not compile.
    pub fn plan(&self, shape: &ModelShape, gpu: &str, vault: Option<PathBuf>) -> Result<(usize, usize), ServerError> {
        let vault = vault.map_or_else(VaultOptions::new, VaultOptions::in_folder);
        let runtime = Runtime::options().vault(vault).build_missing(true).open_for(gpu)?;
        let plans = runtime.warm(&self.attentions(shape)?, |_, _| ())?;
        let refused = plans.iter().filter(|plan| plan.as_ref().is_err_and(|error| error.is_refused())).count();
        let count = plans.len() - refused;
        match plans.into_iter().find_map(|plan| plan.err().filter(|error| !error.is_refused())) {
            Some(error) => Err(error.into()),
            None => Ok((count, refused)),
        }
    }

    /// Checks that the limits fit each other.
    ///
    /// # Errors
    ///
    /// The first that does not.
    pub fn checked(self) -> Result<ServerLimits, ServerError> {
        let ServerLimits { batch, tokens, chunk, context, pages, page, queue: _, patience: _, invariant: _ } = self;
        if [batch, tokens, chunk, context, pages, page].contains(&0) {
            return Err("every limit must be 1 or more".into());
        }
        if tokens < batch || tokens < chunk || context < chunk {
            return Err(format!(
                "a step of {tokens} tokens needs room for one of each of {batch} sequences and for a chunk of {chunk}, \
                 and a chunk is no longer than the context of {context}"
            )
            .into());
        }
        Ok(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_large_model_has_about_a_billion_weights_and_an_unknown_name_is_told() {
        let shape = ModelShape::named("1b").expect("it is there");
        assert!((1_000_000_000..1_200_000_000).contains(&shape.parameters()), "{}", shape.parameters());
        let error = ModelShape::named("7b").expect_err("there is none").to_string();
        assert!(error.contains("'7b'") && error.contains("tiny, small, 1b"), "{error}");
        assert!(ServerLimits { tokens: 4, ..ServerLimits::SMALL }.checked().is_err());
    }

    #[test]
    fn both_kinds_of_limits_make_sound_plans() {
        for (limits, name) in [(ServerLimits::SMALL, "tiny"), (ServerLimits::LARGE, "1b")] {
            let shape = ModelShape::named(name).expect("it is there");
            let limits = limits.checked().expect("sound");
            let attentions = limits.attentions(&shape).expect("sound");
            assert!(attentions.len() < 16, "{}", attentions.len());
        }
    }
}
