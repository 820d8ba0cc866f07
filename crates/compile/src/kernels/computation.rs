//! What a plan of kernels computes: an attention, a conversion of a tensor, or a combination of several.

use std::fmt::{Debug, Display};

use qkvault_graph::Binding;
use qkvault_graph::{GraphKey, Valid, ValidCombination, ValidConversion};
use qkvault_kernels::recipe;

use crate::origin::Description;

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
