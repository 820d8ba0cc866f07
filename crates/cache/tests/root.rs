//! Tests of the vault from outside: one binary, one module per concern.
//!
//! A test that needs something this machine may lack (mounts, another user, python) says so and passes; with
//! `QKVAULT_REQUIRE=faults` it fails instead.

#![allow(clippy::unwrap_used, clippy::print_stdout, clippy::print_stderr, reason = "tests, and the jobs they start")]

mod root {
    pub(crate) mod child;
    pub(crate) mod kit;

    mod basics;
    mod bounds;
    mod disk_faults;
    #[cfg(feature = "http")]
    mod http;
    mod kills;
    mod kinds;
    mod looks;
    mod malice;
    mod older;
    mod packs;
    mod processes;
    mod reads;
    mod remotes;
    #[cfg(feature = "http")]
    pub(crate) mod server;
    mod trust;
}
