//! Sequences of different lengths, checked on the host, with what kernels follow on the device.

#[cfg(feature = "cuda")]
use std::collections::HashMap;
#[cfg(feature = "cuda")]
use std::sync::{Mutex, PoisonError};

#[cfg(feature = "cuda")]
use cubecl::server::Handle;
use qkvault::graph::{CuSeqlens, Role, Valid, ragged_offsets};

use crate::Error;
use crate::tensor::long;

/// The lengths of a batch of sequences that lie one after another.
///
/// Kernels follow these numbers to memory, so they are made from numbers on the host, and checked. Make a value once
/// for each step and give it to every layer: what it uploads stays with it.
#[derive(Debug)]
pub struct Sequences {
    queries: CuSeqlens,
    keys: CuSeqlens,
    most: (i64, i64),
    #[cfg(feature = "cuda")]
    made: Mutex<HashMap<(usize, Role, Valid), Handle>>,
}

impl Sequences {
    /// Sequences by the tokens of each: of queries, and of keys.
    ///
    /// # Errors
    ///
    /// Lists of different length, or numbers that are too large.
    pub fn new(queries: &[usize], keys: &[usize]) -> Result<Sequences, Error> {
        if queries.len() != keys.len() {
            let text = format!("there are {} sequences of queries and {} of keys", queries.len(), keys.len());
            return Err(Error::Tensor(text));
        }
        let sums = |lengths: &[usize]| {
            let mut sum = 0i64;
            let each = lengths.iter().map(|n| {
                sum = sum.saturating_add(long(*n));
                sum
            });
            CuSeqlens::new(std::iter::once(0).chain(each).collect())
        };
        let (queries, keys) = (sums(queries)?, sums(keys)?);
        let most = (i64::from(queries.longest()).max(1), i64::from(keys.longest()).max(1));
        Ok(Sequences {
            queries,
            keys,
            most,
            #[cfg(feature = "cuda")]
            made: Mutex::default(),
        })
    }

    /// Room for longer sequences, so that steps of different lengths have one plan. Default: the longest sequences that
    /// there are; smaller numbers have no effect.
    #[must_use]
    pub fn room(mut self, queries: usize, keys: usize) -> Sequences {
        self.most = (self.most.0.max(long(queries)), self.most.1.max(long(keys)));
        self
    }

    pub(crate) fn batch(&self) -> i64 {
        self.queries.batch().get()
    }

    /// Most queries and most keys of a sequence.
    pub(crate) const fn most(&self) -> (i64, i64) {
        self.most
    }

    /// The numbers of an operand that kernels follow.
    pub(crate) fn numbers(&self, role: Role, attention: &Valid) -> Result<Vec<i64>, Error> {
        match role {
            Role::SeqLenQ | Role::SeqLenQWhole => Ok(self.queries.lengths().map(i64::from).collect()),
            Role::SeqLenKv | Role::SeqLenKvWhole => Ok(self.keys.lengths().map(i64::from).collect()),
            Role::Offsets(of) => {
                let all = ragged_offsets(attention, &self.queries, &self.keys)?;
                let own = all.get(&of).map(|offsets| offsets.elements().to_vec());
                own.ok_or_else(|| Error::Tensor(format!("there are no {role}")))
            }
            other => Err(Error::Tensor(format!("{other} has no numbers here"))),
        }
    }

    /// The same on a GPU, made by `upload` the first time.
    #[cfg(feature = "cuda")]
    pub(crate) fn uploaded(
        &self,
        gpu: usize,
        role: Role,
        attention: &Valid,
        upload: impl FnOnce(Vec<i64>) -> Result<Handle, Error>,
    ) -> Result<Handle, Error> {
        // Offsets are rows times the elements of one: the description tells them apart.
        let key = (gpu, role, attention.clone());
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(handle) = made.get(&key) {
            return Ok(handle.clone());
        }
        let handle = upload(self.numbers(role, attention)?)?;
        made.insert(key, handle.clone());
        Ok(handle)
    }

    /// Fails if the sequences are not those of tensors with so many rows.
    pub(crate) fn check(&self, queries: i64, keys: i64) -> Result<(), Error> {
        for (name, lengths, rows) in [("q", &self.queries, queries), ("k", &self.keys, keys)] {
            if lengths.tokens().get() > rows {
                let text = format!("the sequences have {} tokens, and {name} has {rows}", lengths.tokens());
                return Err(Error::Tensor(text));
            }
        }
        Ok(())
    }
}
