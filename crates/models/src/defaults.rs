//! What transformers' configuration classes say where a config says nothing: the default of each field that attention
//! depends on, other names of fields, and the classes of nested configs.
//!
//! `data/defaults.json` is written by `data/defaults.py` from the classes of the version of transformers that it names.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use serde::Deserialize;
use serde_json::{Map, Value};

/// The role of a stack of layers, which decides what its mask is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum StackRole {
    /// Causal.
    Decoder,
    /// Bidirectional, of text or sound.
    Encoder,
    /// Bidirectional, of images.
    Vision,
}

/// What is known of a `model_type`.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct KnownDefaults {
    /// The defaults of fields.
    pub(crate) fields: Map<String, Value>,
    /// From the usual name of a field to the name in this family's configs.
    pub(crate) names: BTreeMap<String, String>,
    /// Nested configs, with the `model_type` that one without its own has.
    pub(crate) parts: BTreeMap<String, String>,
    /// What the model is, unless it is a decoder.
    pub(crate) role: Option<StackRole>,
}

/// The whole table.
pub(crate) static DEFAULTS: LazyLock<BTreeMap<String, KnownDefaults>> = LazyLock::new(|| {
    // A test reads the table, so it is never empty.
    serde_json::from_str(include_str!("../data/defaults.json")).unwrap_or_default()
});

/// What is known of a `model_type`.
pub(crate) fn known(model_type: &str) -> Option<&'static KnownDefaults> {
    DEFAULTS.get(model_type)
}
