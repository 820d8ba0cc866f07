//! Descriptions on both sides of a rule's bound.

#![allow(dead_code, reason = "each test file uses a part of it")]

pub(crate) mod fp8;
pub(crate) mod mxfp8;

use qkvault_cudnn::{Profile, Target};
use qkvault_graph::{CudnnVersion, LibrarySet, Valid, text, validate};
use qkvault_probe::{Request, check};

/// A description, a GPU and a version.
pub(crate) type Given = (&'static str, &'static str, &'static str);

/// A case in which a rule fires, and one in which it does not.
pub(crate) struct Bounds {
    pub(crate) code: &'static str,
    pub(crate) fires: &'static [Given],
    pub(crate) not: &'static [Given],
}

pub(crate) fn attention(given: &str) -> Valid {
    let a = text::parse(given).unwrap_or_else(|e| panic!("{given}\n{e}"));
    validate(a).unwrap_or_else(|e| panic!("{given}\n{e}"))
}

/// A built-in GPU, or one with a compute capability that no profile has.
pub(crate) fn target(gpu: &str, version: &str) -> Target {
    let cudnn: CudnnVersion = version.parse().expect("a version");
    let profile = Profile::named(if gpu.starts_with("sm_") { "h200" } else { gpu }).expect("built in");
    let mut target = profile.target(cudnn, LibrarySet::Slim);
    if let Some(sm) = gpu.strip_prefix("sm_") {
        target.device.device_ver = sm.parse::<i64>().expect("a number") * 10;
    }
    target
}

/// Every row whose result is not the expected one.
pub(crate) fn wrong(rows: &[Bounds]) -> Vec<String> {
    let mut wrong = Vec::new();
    for Bounds { code, fires, not } in rows {
        for (list, expected) in [(fires, true), (not, false)] {
            for (given, gpu, version) in *list {
                let (valid, target) = (attention(given), target(gpu, version));
                if check(&Request::new(&valid, &target)).reasons.iter().any(|r| r.code.as_str() == *code) != expected {
                    wrong.push(format!("{code} for {given:?} on {gpu} under {version}: not {expected}"));
                }
            }
        }
    }
    wrong
}
