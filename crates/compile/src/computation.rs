//! What a plan of kernels computes: an attention, a conversion of a tensor, or a combination of several.

use std::fmt::{Debug, Display};

use qkvault_graph::op::Binding;
use qkvault_graph::{GraphKey, Valid, ValidCombination, ValidConversion};
use qkvault_kernels::recipe;

/// A description that kernels of qkvault's own compute. Its `Display` names it in messages and lists.
pub trait Computation: Debug + Display + Sync {
    /// Its key.
    fn graph_key(&self) -> GraphKey;

    /// The operands that a launch binds, in order of unique id.
    fn bindings(&self) -> Vec<Binding>;
}

impl Computation for Valid {
    fn graph_key(&self) -> GraphKey {
        self.key()
    }

    fn bindings(&self) -> Vec<Binding> {
        recipe::bindings(self)
    }
}

impl Computation for ValidConversion {
    fn graph_key(&self) -> GraphKey {
        self.key()
    }

    fn bindings(&self) -> Vec<Binding> {
        ValidConversion::bindings(self)
    }
}

impl Computation for ValidCombination {
    fn graph_key(&self) -> GraphKey {
        self.key()
    }

    fn bindings(&self) -> Vec<Binding> {
        ValidCombination::bindings(self)
    }
}
