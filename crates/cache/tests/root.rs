//! Tests of the vault from outside: one binary, one module per concern.

mod root {
    pub(crate) mod kit;

    mod basics;
    mod packs;
}
