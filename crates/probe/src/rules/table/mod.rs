//! The rows, by what they are about.

mod masks;
mod shapes;
mod versions;

use super::Rule;

/// Every rule, by what they are about. Lowering has rules of its own beside these; [`super::check`] tells both.
pub const RULES: &[&[Rule]] = &[versions::RULES, shapes::RULES, masks::RULES];
