//! Code that plans share. A source of attention has no batch, no number of queries or keys and no steps of operands, so
//! most plans of a serving set have one of a few sources, and NVRTC takes about a second for each.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use qkvault_kernels::Generated;

/// The most cubins that are kept: some 50 KB each.
const KEPT: usize = 64;

/// Of a source, its options and the architecture.
type SourceDigest = [u8; 32];

type Slot = Arc<Mutex<Option<Vec<u8>>>>;

/// Cubins by what they were compiled from, those of the last [`KEPT`] sources.
#[derive(Debug)]
pub(super) struct SharedCode(Mutex<VecDeque<(SourceDigest, Slot)>>);

/// Of this process. What a source becomes follows from it and from the pinned NVRTC alone.
pub(super) static CODE: SharedCode = SharedCode::new();

impl SharedCode {
    const fn new() -> SharedCode {
        SharedCode(Mutex::new(VecDeque::new()))
    }

    /// The cubin of a source, compiled if it is not known. Threads that ask for the same one wait for the first; what
    /// failed is tried again.
    pub(super) fn cubin<E>(&self, of: &Generated, compile: impl FnOnce() -> Result<Vec<u8>, E>) -> Result<Vec<u8>, E> {
        let digest = digest(of);
        let slot = {
            let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            let found = known.iter().find(|(source, _)| *source == digest).map(|(_, slot)| Arc::clone(slot));
            found.unwrap_or_else(|| {
                let slot = Slot::default();
                known.push_back((digest, Arc::clone(&slot)));
                if known.len() > KEPT {
                    known.pop_front();
                }
                slot
            })
        };
        let mut held = slot.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(cubin) = &*held {
            return Ok(cubin.clone());
        }
        Ok(held.insert(compile()?).clone())
    }
}

fn digest(Generated { source, options, recipe }: &Generated) -> SourceDigest {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&recipe.sm.to_le_bytes());
    // Lengths in front, so that no option passes for a part of the source.
    for text in options.iter().chain([source]) {
        hasher.update(&text.len().to_le_bytes()).update(text.as_bytes());
    }
    *hasher.finalize().as_bytes()
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use qkvault_graph::{Attention, DType};
    use qkvault_kernels::{SM, generate};

    use super::*;

    fn made(batch: i64, queries: i64, keys: i64) -> Generated {
        let a = Attention::bshd(batch, (32, 8), (queries, keys), 128, DType::BF16).with_lengths();
        generate(&a.validate().expect("valid"), SM).expect("is taken")
    }

    #[test]
    fn a_source_is_compiled_once_for_threads_that_ask_at_once_and_what_failed_is_tried_again() {
        let (code, count, one) = (SharedCode::new(), AtomicUsize::new(0), made(1, 1, 1024));
        assert_eq!(code.cubin(&one, || Err::<Vec<u8>, &str>("no")), Err("no"));
        std::thread::scope(|scope| {
            for batch in 1..9 {
                let (code, count) = (&code, &count);
                scope.spawn(move || {
                    let compile = || Ok::<_, ()>(count.fetch_add(1, Ordering::Relaxed).to_le_bytes().to_vec());
                    assert_eq!(code.cubin(&made(batch, 1, batch * 512), compile), Ok(0_usize.to_le_bytes().to_vec()));
                });
            }
        });
        assert_eq!(count.into_inner(), 1);
    }

    /// A head dim, an option and an architecture are parts of what is compiled; the batch and the keys are not.
    #[test]
    fn plans_share_code_only_if_sources_options_and_architectures_are_the_same() {
        let one = made(1, 1, 1024);
        assert_eq!(digest(&one), digest(&made(64, 4, 32_768)));
        assert_ne!(digest(&one), digest(&made(1, 64, 1024)), "tiles of other rows");
        let mut other = one.clone();
        other.recipe.sm += 10;
        assert_ne!(digest(&one), digest(&other));
        let mut other = one.clone();
        other.options.push(String::new());
        assert_ne!(digest(&one), digest(&other));
    }

    #[test]
    fn the_oldest_of_too_many_sources_is_left() {
        let code = SharedCode::new();
        for n in 0..=KEPT {
            let of = Generated { source: n.to_string(), ..made(1, 1, 64) };
            code.cubin(&of, || Ok::<_, ()>(Vec::new())).expect("compiles");
        }
        assert_eq!(code.0.lock().expect("no thread panics").len(), KEPT);
    }
}
