//! Times that were measured on a GPU host for one attention, kept in the vault: they decide before the table does.

use qkvault_cache::{Entry, EntryKind, Key, Lookup, StoreError};
use qkvault_graph::{EngineName, EnginePolicy, GraphKey, Valid, codec};
use qkvault_kernels::recipe::architecture;
use serde::{Deserialize, Serialize};

use crate::choice::{Candidates, Why};
use crate::engine::{Engine, EngineId};
use crate::engines::Engines;
use crate::planner::Planner;
use crate::times::{CLEAR, Times};

/// The format of stored times.
const FORMAT: u32 = 1;

/// The tag that separates their keys from those of plans.
const TAG: &str = "qkvault measured times of engines, key format 1";

/// Stored times, as the payload of an entry.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Stored {
    format: u32,
    /// The attention and the compute capability, which the key has too.
    graph_key: GraphKey,
    sm: u32,
    /// What was measured: other versions have other times.
    by: String,
    /// Where.
    gpu: String,
    /// Microseconds of each engine.
    times: Vec<(EngineName, f64)>,
}

/// The versions of the engines that this program compiles itself.
fn by(engines: &Engines) -> String {
    let own = format!("qkvault {}", env!("CARGO_PKG_VERSION"));
    [own].into_iter().chain(engines.iter().filter_map(Engine::versions)).collect::<Vec<_>>().join(", ")
}

fn key(attention: &Valid, sm: u32) -> Key {
    let mut hasher = blake3::Hasher::new_derive_key(TAG);
    hasher.update(attention.key().bytes()).update(&sm.to_le_bytes());
    Key(*hasher.finalize().as_bytes())
}

impl Stored {
    /// The times of an entry, if they are of this attention and of these engines.
    fn read(entry: &Entry, attention: &Valid, sm: u32, by: &str) -> Option<Times> {
        if entry.kind != EntryKind::Times {
            return None;
        }
        let Stored { format, graph_key, sm: of, by: versions, gpu: _, times: list } =
            codec::decode(&entry.payload).ok()?;
        let sound = list.iter().all(|(_, us)| us.is_finite() && *us > 0.0);
        if format != FORMAT || graph_key != attention.key() || of != sm || versions != by || !sound {
            return None;
        }
        Some(list.into_iter().collect())
    }
}

impl Planner {
    /// Keeps times that were measured on a GPU for an attention, in microseconds. Later look-ups in this vault for GPUs
    /// of that compute capability begin with the engine that was fastest, if it was clearly faster than the one that
    /// the table of measured times names.
    ///
    /// # Errors
    ///
    /// [`StoreError`] if the vault keeps nothing.
    pub fn store_times(&self, attention: &Valid, sm: u32, gpu: &str, times: &Times) -> Result<(), StoreError> {
        let (graph_key, gpu, times) = (attention.key(), gpu.to_owned(), times.iter().collect());
        let stored = Stored { format: FORMAT, graph_key, sm, by: by(&self.engines), gpu, times };
        let label = |text: String| text.chars().take(80).collect::<String>();
        let entry = Entry {
            kind: EntryKind::Times,
            target: architecture(sm),
            what: label(attention.to_string()),
            library: label(stored.by.clone()),
            meta: Vec::new(),
            payload: codec::encode(&stored),
        };
        self.vault.put(&key(attention, sm), entry).map(drop)
    }

    /// The stored times of an attention, if there are some that are sound and of these versions. No remote is asked:
    /// they are of the machines that share this vault.
    #[must_use]
    pub fn stored_times(&self, attention: &Valid, sm: u32) -> Option<Times> {
        let (vault, key) = (self.vault.local(), key(attention, sm));
        let entry = vault.recall(&key).or_else(|| match vault.get(&key) {
            Lookup::Hit(entry) => Some(entry),
            Lookup::Absent | Lookup::Rejected(_) => None,
        })?;
        Stored::read(&entry, attention, sm, &by(&self.engines))
    }

    /// The engines that [`Planner::plan`] asks for an attention on GPUs of a compute capability, in order: by times
    /// that the vault has for it ([`Planner::store_times`]), else as
    /// [`Engines::candidates`](crate::Engines::candidates) says.
    #[must_use]
    pub fn candidates(&self, attention: &Valid, sm: u32, policy: EnginePolicy) -> Candidates {
        let usual = self.engines.candidates(attention, sm, policy);
        if policy != EnginePolicy::Auto || usual.engines.len() < 2 {
            return usual;
        }
        match self.stored_times(attention, sm) {
            Some(times) => usual.timed(&times),
            None => usual,
        }
    }
}

impl Candidates {
    /// The candidates by times of the attention itself. The usual first one stays the first if no other one is clearly
    /// faster.
    #[must_use]
    pub fn timed(self, times: &Times) -> Candidates {
        let first = self.engines[0];
        let mut engines = self.engines.clone();
        // Those without a time are last, in their order.
        let us = |engine: &EngineId| times.us(*engine).unwrap_or(f64::INFINITY);
        engines.sort_by(|a, b| us(a).total_cmp(&us(b)));
        if us(&engines[0]) >= CLEAR * us(&first) {
            engines.retain(|engine| *engine != first);
            engines.insert(0, first);
        }
        match times.ratio(engines[0], &self.engines) {
            Some((ratio, beside)) => {
                Candidates { near: times.near(&engines), engines, why: Why::Timed { ratio, beside }, never: self.never }
            }
            None => self,
        }
    }
}

#[cfg(test)]
mod tests {
    use qkvault_cache::{Vault, VaultOptions};
    use qkvault_graph::{Attention, DType, validate};

    use super::*;
    use crate::{CUDNN, FA4, KERNELS};

    const SM: u32 = 90;

    fn prompt(seq: i64) -> Valid {
        validate(Attention::bshd(4, (16, 16), (seq, seq), 128, DType::BF16).causal()).expect("valid")
    }

    fn planner() -> (tempfile::TempDir, Planner) {
        let folder = tempfile::tempdir().expect("a folder");
        let vault = VaultOptions::in_folder(folder.path()).without_environment();
        let planner = Planner::new(Vault::open(vault).expect("a vault"), None);
        (folder, planner)
    }

    fn times(cudnn_us: f64, fa4_us: f64) -> Times {
        [(CUDNN.name(), cudnn_us), (FA4.name(), fa4_us)].into_iter().collect()
    }

    fn engines(planner: &Planner, attention: &Valid, sm: u32) -> Vec<EngineId> {
        planner.candidates(attention, sm, EnginePolicy::Auto).engines
    }

    #[test]
    fn times_of_this_vault_decide_before_the_table_if_they_are_clear() {
        let ((_folder, planner), attention) = (planner(), prompt(4096));
        assert_eq!(engines(&planner, &attention, SM), [FA4, CUDNN, KERNELS]);
        planner.store_times(&attention, SM, "NVIDIA H200", &times(90.0, 100.0)).expect("is kept");
        let candidates = planner.candidates(&attention, SM, EnginePolicy::Auto);
        assert_eq!(candidates.engines, [CUDNN, FA4, KERNELS]);
        assert_eq!(candidates.why, Why::Timed { ratio: 0.9, beside: FA4 });
        // Within the noise the usual choice stays, and the other attention and GPU have their own.
        planner.store_times(&attention, SM, "NVIDIA H200", &times(98.0, 100.0)).expect("is kept");
        assert_eq!(engines(&planner, &attention, SM), [FA4, CUDNN, KERNELS]);
        planner.store_times(&attention, SM, "NVIDIA H200", &times(90.0, 100.0)).expect("is kept");
        assert_eq!(engines(&planner, &prompt(8192), SM), [FA4, CUDNN, KERNELS]);
        assert_eq!(engines(&planner, &attention, 100), [CUDNN]);
        let named = planner.candidates(&attention, SM, FA4.policy());
        assert_eq!((named.engines, named.why), (vec![FA4], Why::Named));
    }

    #[test]
    fn times_that_are_damaged_or_of_something_else_are_none() {
        let attention = prompt(4096);
        let good = || Stored {
            format: FORMAT,
            graph_key: attention.key(),
            sm: SM,
            by: by(&Engines::built_in()),
            gpu: String::new(),
            times: vec![(CUDNN.name(), 90.0), (FA4.name(), 100.0)],
        };
        let read = |kind, payload| {
            let (target, what, library) = (String::new(), String::new(), String::new());
            Stored::read(
                &Entry { kind, target, what, library, meta: Vec::new(), payload },
                &attention,
                SM,
                &by(&Engines::built_in()),
            )
        };
        let of = |stored: &Stored| read(EntryKind::Times, codec::encode(stored));
        assert_eq!(of(&good()), Some(times(90.0, 100.0)));
        assert_eq!(read(EntryKind::Plan, codec::encode(&good())), None);
        let whole = codec::encode(&good());
        for end in 0..whole.len() {
            assert_eq!(read(EntryKind::Times, whole[..end].to_vec()), None, "{end} bytes");
        }
        let bad: [fn(&mut Stored); 6] = [
            |s| s.format += 1,
            |s| s.graph_key = GraphKey::from_bytes([7; 32]),
            |s| s.sm = 100,
            |s| s.by.push('x'),
            |s| s.times[0].1 = f64::NAN,
            |s| s.times[1].1 = 0.0,
        ];
        for (at, change) in bad.into_iter().enumerate() {
            let mut stored = good();
            change(&mut stored);
            assert_eq!(of(&stored), None, "change {at}");
        }
    }
}
