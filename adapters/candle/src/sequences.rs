//! Sequences of different lengths, checked on the host, with what kernels follow on the device.

#[cfg(feature = "cuda")]
use std::collections::HashMap;
#[cfg(feature = "cuda")]
use std::sync::{Mutex, PoisonError};

use candle_core::{DType, Tensor};
#[cfg(feature = "cuda")]
use candle_core::{Device, DeviceLocation};
use qkvault::graph::{self, CuSeqlens, PageTable, Role, Valid, ragged_offsets};

use crate::Error;
use crate::known::Shape;
use crate::tensor::long;

/// Keys of a tile of cuDNN's kernels.
const TILE: i64 = 128;

/// The lengths of a batch of sequences, and the pages of their keys if these lie in pages.
///
/// Kernels follow these numbers to memory, so they are made from numbers on the host, and checked. Make a value once
/// for each step and give it to every layer: what it uploads stays with it.
///
/// ```
/// use candle_core::{DType, Device, Tensor};
/// use candle_qkvault::{Options, Sequences, attention_varlen};
///
/// // Three sequences of 2, 1 and 3 tokens, one after another.
/// let q = Tensor::zeros((6, 4, 16), DType::F16, &Device::Cpu)?;
/// let lengths = Sequences::varlen(&[0, 2, 3, 6], &[0, 2, 3, 6])?.into();
/// let o = attention_varlen(&q, &q, &q, &lengths, &Options::new().causal(true).cpu_oracle(true))?;
/// assert_eq!(o.dims(), [6, 4, 16]);
/// # Ok::<(), candle_core::Error>(())
/// ```
#[derive(Debug)]
pub struct Sequences {
    queries: CuSeqlens,
    keys: CuSeqlens,
    most: (i64, i64),
    /// The pages of each sequence.
    tables: Option<Vec<Vec<i32>>>,
    /// Over pages: whether sequences have different numbers of new tokens, which lie one after another.
    packed: bool,
    #[cfg(feature = "cuda")]
    made: Mutex<HashMap<(Role, Valid, DType, DeviceLocation), Tensor>>,
}

impl Sequences {
    /// Sequences one after another, by cumulative lengths (`seqlens_q`, `seqlens_k`): from 0 to the number of tokens.
    ///
    /// # Errors
    ///
    /// Numbers that do not begin at 0 or decrease, or lists of different length, with the reasons.
    pub fn varlen(seqlens_q: &[u32], seqlens_k: &[u32]) -> candle_core::Result<Sequences> {
        let read = |list: &[u32]| CuSeqlens::new(list.iter().map(|n| i64::from(*n)).collect()).map_err(Error::from);
        Ok(Sequences::new(read(seqlens_q)?, read(seqlens_k)?, None)?)
    }

    /// As [`Sequences::varlen`], from tensors of `u32` as candle-flash-attn takes them. They are copied to the host to
    /// be checked, for which a GPU is waited for.
    ///
    /// # Errors
    ///
    /// As [`Sequences::varlen`]; tensors of another type or rank.
    pub fn of_tensors(seqlens_q: &Tensor, seqlens_k: &Tensor) -> candle_core::Result<Sequences> {
        Sequences::varlen(&seqlens_q.to_vec1::<u32>()?, &seqlens_k.to_vec1::<u32>()?)
    }

    /// Sequences whose keys lie in pages: `queries` new tokens of each, and for each the number of its keys and its
    /// pages in order.
    ///
    /// # Errors
    ///
    /// Lists of different length, or numbers that are too large.
    pub fn paged(queries: usize, lengths: &[u32], pages: &[Vec<u32>]) -> candle_core::Result<Sequences> {
        let rows =
            u32::try_from(queries).map_err(|_| Error::Tensor(format!("{queries} queries do not fit 31 bits")))?;
        Sequences::over_pages(&vec![rows; lengths.len()], lengths, pages, false)
    }

    /// As [`Sequences::paged`], with a number of new tokens for each sequence: chunks of prompts and decodes in one
    /// call, whose queries are (token, head, head dim), one sequence after another.
    ///
    /// # Errors
    ///
    /// As [`Sequences::paged`].
    pub fn mixed(queries: &[u32], lengths: &[u32], pages: &[Vec<u32>]) -> candle_core::Result<Sequences> {
        Sequences::over_pages(queries, lengths, pages, true)
    }

    /// As [`Sequences::mixed`], from tensors as candle-flash-attn takes them: cumulative lengths, and the pages of each
    /// sequence. A GPU is waited for.
    pub(crate) fn of_block_table(
        seqlens_q: &Tensor,
        seqlens_k: &Tensor,
        block_table: &Tensor,
        rows: usize,
    ) -> candle_core::Result<Sequences> {
        // Page ids as candle-flash-attn takes them: u32, or i32.
        let table = block_table.to_dtype(DType::U32)?.to_vec2::<u32>()?;
        let lengths = |cumulative: &Tensor| {
            let all = cumulative.to_vec1::<u32>()?;
            let fault = || Error::Tensor(format!("cumulative lengths decrease: {all:?}"));
            let each = all.windows(2).map(|pair| pair[1].checked_sub(pair[0]).ok_or_else(fault));
            Ok::<_, candle_core::Error>(each.collect::<Result<Vec<u32>, Error>>()?)
        };
        let (queries, keys) = (lengths(seqlens_q)?, lengths(seqlens_k)?);
        // What a row has behind the last page of its sequence is not read.
        let pages = table.into_iter().zip(&keys).map(|(mut row, keys)| {
            row.truncate((*keys as usize).div_ceil(rows.max(1)));
            row
        });
        Sequences::mixed(&queries, &keys, &pages.collect::<Vec<_>>())
    }

    fn over_pages(
        queries: &[u32],
        lengths: &[u32],
        pages: &[Vec<u32>],
        packed: bool,
    ) -> candle_core::Result<Sequences> {
        if lengths.len() != pages.len() || lengths.len() != queries.len() {
            let text = format!(
                "there are {} numbers of new tokens, {} lengths and {} lists of pages; give one of each for a sequence",
                queries.len(),
                lengths.len(),
                pages.len()
            );
            return Err(Error::Tensor(text).into());
        }
        let small = |n: &u32| i32::try_from(*n).map_err(|_| Error::Tensor(format!("{n} does not fit 31 bits")));
        let all = |list: &[u32]| list.iter().map(small).collect::<Result<Vec<i32>, _>>();
        let pages: Vec<Vec<i32>> = pages.iter().map(|list| all(list)).collect::<Result<_, _>>()?;
        let queries = CuSeqlens::from_lengths(&all(queries)?).map_err(Error::from)?;
        let keys = CuSeqlens::from_lengths(&all(lengths)?).map_err(Error::from)?;
        Ok(Sequences { packed, ..Sequences::new(queries, keys, Some(pages))? })
    }

    /// Sequences of one length each in buffers with more room.
    pub(crate) fn within(batch: usize, queries: usize, keys: usize) -> Result<Sequences, Error> {
        let all = |rows: usize| {
            let rows = i32::try_from(rows).map_err(|_| Error::Tensor(format!("{rows} rows do not fit 31 bits")))?;
            Ok::<_, Error>(CuSeqlens::from_lengths(&vec![rows; batch])?)
        };
        Sequences::new(all(queries)?, all(keys)?, None)
    }

    fn new(queries: CuSeqlens, keys: CuSeqlens, tables: Option<Vec<Vec<i32>>>) -> Result<Sequences, Error> {
        if queries.batch() != keys.batch() {
            let text = format!("there are {} sequences of queries and {} of keys", queries.batch(), keys.batch());
            return Err(Error::Tensor(text));
        }
        let most = (i64::from(queries.longest()).max(1), i64::from(keys.longest()).max(1));
        Ok(Sequences {
            queries,
            keys,
            most,
            tables,
            packed: false,
            #[cfg(feature = "cuda")]
            made: Mutex::default(),
        })
    }

    /// Room for longer sequences (`max_seqlen_q`, `max_seqlen_k`), so that steps of different lengths have one plan.
    /// Default: the longest sequences that there are; smaller numbers have no effect.
    #[must_use]
    pub fn max_seqlens(mut self, queries: usize, keys: usize) -> Sequences {
        self.most = (self.most.0.max(long(queries)), self.most.1.max(long(keys)));
        self
    }

    pub(crate) fn batch(&self) -> i64 {
        self.queries.batch().get()
    }

    /// New tokens of each sequence, of sequences whose keys lie in pages.
    pub(crate) fn queries(&self) -> i64 {
        i64::from(self.queries.longest())
    }

    /// Most queries and most keys of a sequence. Of pages cuDNN reads whole tiles, so that keys are rounded up.
    pub(crate) fn most(&self) -> (i64, i64) {
        let (queries, keys) = self.most;
        (queries, if self.is_paged() { keys.saturating_add(TILE - 1) / TILE * TILE } else { keys })
    }

    pub(crate) const fn is_paged(&self) -> bool {
        self.tables.is_some()
    }

    /// Whether the descriptions of other sequences are those of these.
    pub(crate) fn is_like(&self, other: &Sequences) -> bool {
        self.shape() == other.shape() && self.batch() == other.batch()
    }

    /// Becomes those of another step, for which what was uploaded is written anew where it lies.
    pub(crate) fn become_step(&mut self, next: Sequences) -> candle_core::Result<()> {
        (self.queries, self.keys, self.tables) = (next.queries, next.keys, next.tables);
        #[cfg(feature = "cuda")]
        {
            let made = std::mem::take(self.made.get_mut().unwrap_or_else(PoisonError::into_inner));
            for ((role, attention, ..), tensor) in &made {
                tensor.inplace_op1(&crate::cuda::Numbers::new(
                    *role,
                    self.numbers(*role, attention)?,
                    tensor.dtype(),
                )?)?;
            }
            *self.made.get_mut().unwrap_or_else(PoisonError::into_inner) = made;
        }
        Ok(())
    }

    /// The sequences as a description knows them.
    pub(crate) fn shape(&self) -> Shape {
        let (batch, (queries, keys)) = (self.batch(), self.most());
        match (self.is_paged(), self.packed) {
            (false, _) => Shape::Varlen { batch, queries, keys },
            (true, false) => Shape::Paged { keys },
            (true, true) => Shape::Mixed { batch, queries, keys },
        }
    }

    /// The numbers of an operand that kernels follow.
    pub(crate) fn numbers(&self, role: Role, attention: &Valid) -> Result<Vec<i64>, Error> {
        let table = |pool: &graph::Tensor| -> Result<Vec<i64>, Error> {
            let table = PageTable::new(pool, &self.keys, self.tables.as_deref().unwrap_or_default())?;
            Ok(table.entries().iter().map(|page| i64::from(*page)).collect())
        };
        match role {
            Role::SeqLenQ | Role::SeqLenQWhole => Ok(self.queries.lengths().map(i64::from).collect()),
            Role::SeqLenKv | Role::SeqLenKvWhole => Ok(self.keys.lengths().map(i64::from).collect()),
            Role::PageTableK => table(&attention.get().k),
            Role::PageTableV => table(&attention.get().v),
            Role::Offsets(of) => {
                let all = ragged_offsets(attention, &self.queries, &self.keys)?;
                let own = all.get(&of).map(|offsets| offsets.elements().to_vec());
                own.ok_or_else(|| Error::Tensor(format!("there are no {role}")))
            }
            other => Err(Error::Tensor(format!("{other} has no numbers here"))),
        }
    }

    /// The same on a device, made once.
    #[cfg(feature = "cuda")]
    pub(crate) fn tensor(
        &self,
        role: Role,
        attention: &Valid,
        dtype: DType,
        device: &Device,
    ) -> candle_core::Result<Tensor> {
        // Offsets are rows times the elements of one, and tables depend on the pool: the description tells them apart.
        let key = (role, attention.clone(), dtype, device.location());
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(tensor) = made.get(&key) {
            return Ok(tensor.clone());
        }
        let numbers = self.numbers(role, attention)?;
        let tensor = match crate::cuda::Numbers::new(role, numbers, dtype)? {
            crate::cuda::Numbers::Wide(numbers) => Tensor::new(&*numbers, device)?,
            crate::cuda::Numbers::Narrow(numbers) => Tensor::new(&*numbers, device)?,
        };
        made.insert(key, tensor.clone());
        Ok(tensor)
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
