//! What a plan computes: an attention, a conversion of a tensor, a combination of several, an update of scales, or an
//! append to caches.

use std::fmt::{Debug, Display};

use qkvault_graph::{
    Attention, Binding, CacheAppend, Combination, Conversion, GraphKey, Refusal, ScaleUpdate, Valid, ValidCacheAppend,
    ValidCombination, ValidConversion, ValidScaleUpdate, validate,
};
use qkvault_kernels::recipe;
use serde::{Deserialize, Serialize};

/// A description of a computation, in canonical form.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
pub enum Description {
    /// An attention.
    Attention(Box<Attention>),
    /// A conversion to or from 8 bits.
    Conversion(Conversion),
    /// A combination of tensors.
    Combination(Combination),
    /// An update of scales.
    Scales(ScaleUpdate),
    /// An append of new keys and values to caches.
    Append(CacheAppend),
}

/// A description without contradictions.
#[derive(Clone, Debug)]
pub(crate) enum ValidDescription {
    Attention(Valid),
    Conversion(ValidConversion),
    Combination(ValidCombination),
    Scales(ValidScaleUpdate),
    Append(ValidCacheAppend),
}

impl Description {
    pub(crate) fn attention(of: &Valid) -> Description {
        Description::Attention(Box::new(Attention::clone(of)))
    }

    pub(crate) fn validate(self) -> Result<ValidDescription, Refusal> {
        Ok(match self {
            Description::Attention(attention) => ValidDescription::Attention(validate(*attention)?),
            Description::Conversion(conversion) => ValidDescription::Conversion(conversion.validate()?),
            Description::Combination(combination) => ValidDescription::Combination(combination.validate()?),
            Description::Scales(update) => ValidDescription::Scales(update.validate()?),
            Description::Append(append) => ValidDescription::Append(append.validate()?),
        })
    }
}

impl ValidDescription {
    pub(crate) fn computation(&self) -> &dyn Computation {
        match self {
            ValidDescription::Attention(of) => of,
            ValidDescription::Conversion(of) => of,
            ValidDescription::Combination(of) => of,
            ValidDescription::Scales(of) => of,
            ValidDescription::Append(of) => of,
        }
    }
}

/// A description that kernels of qkvault's own compute. Its `Display` names it in messages and lists.
pub trait Computation: Debug + Display + Sync {
    /// Its key.
    fn graph_key(&self) -> GraphKey;

    /// The operands that a launch binds, in order of unique id.
    fn bindings(&self) -> Vec<Binding>;

    /// The description itself, as data.
    fn description(&self) -> Description;
}

impl Computation for Valid {
    fn graph_key(&self) -> GraphKey {
        self.key()
    }

    fn bindings(&self) -> Vec<Binding> {
        recipe::bindings(self)
    }

    fn description(&self) -> Description {
        Description::attention(self)
    }
}

impl Computation for ValidConversion {
    fn graph_key(&self) -> GraphKey {
        self.key()
    }

    fn bindings(&self) -> Vec<Binding> {
        ValidConversion::bindings(self)
    }

    fn description(&self) -> Description {
        Description::Conversion(**self)
    }
}

impl Computation for ValidCombination {
    fn graph_key(&self) -> GraphKey {
        self.key()
    }

    fn bindings(&self) -> Vec<Binding> {
        ValidCombination::bindings(self)
    }

    fn description(&self) -> Description {
        Description::Combination((**self).clone())
    }
}

impl Computation for ValidScaleUpdate {
    fn graph_key(&self) -> GraphKey {
        self.key()
    }

    fn bindings(&self) -> Vec<Binding> {
        ValidScaleUpdate::bindings(self)
    }

    fn description(&self) -> Description {
        Description::Scales((**self).clone())
    }
}

impl Computation for ValidCacheAppend {
    fn graph_key(&self) -> GraphKey {
        self.key()
    }

    fn bindings(&self) -> Vec<Binding> {
        ValidCacheAppend::bindings(self)
    }

    fn description(&self) -> Description {
        Description::Append(**self)
    }
}
