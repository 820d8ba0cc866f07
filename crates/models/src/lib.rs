//! Model planning: a Hugging Face `config.json` becomes the attentions that its layers need.
//!
//! A model is a list of layer kinds, each with the layers of that kind. A layer kind describes its attention
//! completely (window, chunks, softcap, sinks, ALiBi). Whether that attention can run is decided later, by validation,
//! lowering and cuDNN.
//!
//! A config is read by what it says, under the names that families use for the same thing. Defaults of fields that it
//! leaves out are those of the family's class in transformers, and what only code decides is a row of data for the
//! family. A family without a row is read like any other, with a note.

mod attention;
pub mod codes;
mod defaults;
mod fields;
mod gguf;
mod manifest;
mod model;
mod phase;
mod read;
mod report;
mod shard;
mod source;
mod text;

pub use manifest::{AttentionEntry, ListedAttention, MANIFEST_VERSION, Manifest};
pub use model::{Alibi, AttentionKind, Latent, LayerKind, Model, Skipped};
pub use phase::Phase;
pub use text::LARGEST_CONFIG;

use qkvault_graph::Refusal;

impl Model {
    /// Reads a `config.json`.
    ///
    /// # Errors
    ///
    /// Every problem found: text that is not a JSON object, missing, invalid or contradictory fields.
    pub fn from_config(text: &str) -> Result<Model, Refusal> {
        read::model(&text::object(text)?)
    }
}

#[cfg(test)]
mod tests;
