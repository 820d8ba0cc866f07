//! The table of calls: what a kernel does for tensors of one kind is made once, and found by a quick hash.

use std::collections::HashMap;
use std::hash::{Hash as _, Hasher};
use std::sync::{Arc, PoisonError, RwLock};

use super::call::{CallPass, TorchCall};
use super::context::CallContext;
use super::shim::Shim;
use super::value::TensorShape;
use crate::status::CallFailure;

/// Calls by a hash of pass, text and shapes.
type CallTable = HashMap<u64, Vec<Arc<TorchCall>>, IdentityHash>;

/// The calls that were made.
static CALLS: RwLock<Option<CallTable>> = RwLock::new(None);

/// Forgets every call, because plans are looked for in another place.
pub(super) fn forget() {
    *CALLS.write().unwrap_or_else(PoisonError::into_inner) = None;
}

/// The call for these tensors: in a fraction of a microsecond if there was one like it.
pub(super) fn find(
    shim: &Shim,
    chosen: impl FnOnce() -> Result<CallContext, CallFailure>,
    pass: CallPass,
    spec: &str,
    shapes: &[TensorShape],
) -> Result<Arc<TorchCall>, CallFailure> {
    let mut hash = Fold(pass as u64);
    spec.hash(&mut hash);
    shapes.hash(&mut hash);
    let hash = hash.finish();
    let same = |call: &&Arc<TorchCall>| call.is(pass, spec, shapes);
    {
        let calls = CALLS.read().unwrap_or_else(PoisonError::into_inner);
        let found = calls.as_ref().and_then(|calls| calls.get(&hash)).and_then(|all| all.iter().find(same));
        if let Some(call) = found {
            return Ok(call.clone());
        }
    }
    let call = Arc::new(TorchCall::new(shim, &chosen()?, pass, spec, shapes)?);
    let mut calls = CALLS.write().unwrap_or_else(PoisonError::into_inner);
    let all = calls.get_or_insert_default().entry(hash).or_default();
    if all.iter().find(same).is_none() {
        all.push(call.clone());
    }
    Ok(call)
}

/// A quick hash of words; equal hashes are compared.
struct Fold(u64);

impl Hasher for Fold {
    fn write(&mut self, bytes: &[u8]) {
        let (words, rest) = bytes.as_chunks::<8>();
        words.iter().for_each(|word| self.write_u64(u64::from_ne_bytes(*word)));
        let mut last = [0; 8];
        last[..rest.len()].copy_from_slice(rest);
        self.write_u64(u64::from_ne_bytes(last) ^ bytes.len() as u64);
    }

    fn write_u64(&mut self, word: u64) {
        self.0 = (self.0.rotate_left(23) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    fn finish(&self) -> u64 {
        self.0 ^ self.0 >> 32
    }
}

/// The numbers of the table are hashes already.
type IdentityHash = std::hash::BuildHasherDefault<Same>;

#[derive(Default)]
struct Same(u64);

impl Hasher for Same {
    fn write(&mut self, _: &[u8]) {}

    fn write_u64(&mut self, word: u64) {
        self.0 = word;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}
