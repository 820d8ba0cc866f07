//! What a combination must be: dense tensors of the same dims, with types that can be added.

use super::{Combination, MOST_PARTS, Partial, ValidCombination};
use crate::registry::codes;
use crate::valid::{Problems, canonical_strides, check_tensor};
use crate::{DType, Refusal, Storage, Tensor};

/// The types of what is merged and added up.
pub const COMBINATION_DTYPES: [DType; 3] = [DType::F16, DType::BF16, DType::F32];

pub(super) fn validate(mut combination: Combination) -> Result<ValidCombination, Refusal> {
    let mut problems = Problems::default();
    match &combination {
        Combination::Merge { parts, rows: _, sink: _, o, stats } => {
            number(parts.len(), &mut problems);
            added("o", o, true, o, &mut problems);
            let rows = Tensor { dims: [o.dims[0], o.dims[1], o.dims[2], 1], ..*o };
            for Partial { o: part, stats } in parts {
                added("parts.o", part, false, o, &mut problems);
                same("parts.o", part, parts[0].o.dtype, &mut problems);
                of_rows("parts.stats", stats, false, &rows, &mut problems);
            }
            if let Some(stats) = stats {
                of_rows("stats", stats, true, &rows, &mut problems);
            }
        }
        Combination::Sum { parts, rows: _, into } => {
            number(parts.len(), &mut problems);
            added("into", into, true, into, &mut problems);
            for part in parts {
                added("parts", part, false, into, &mut problems);
                same("parts", part, parts[0].dtype, &mut problems);
            }
        }
        Combination::Copy { from, to } => {
            one("to", to, true, to, &mut problems);
            one("from", from, false, to, &mut problems);
            same("from", from, to.dtype, &mut problems);
        }
        Combination::Fill { to, hidden } => {
            one("to", to, true, to, &mut problems);
            if *hidden {
                same("to", to, DType::F32, &mut problems);
            }
        }
        Combination::Keep { to, heads, below: _ } => {
            added("to", to, true, to, &mut problems);
            if to.dims[1] > i64::from(*heads) || i64::from(*heads) * to.dims[0] > i64::from(u32::MAX) {
                let given = format!("{:?} for a part of {heads} heads", to.dims);
                problems.add(codes::COMBINATION_DIMS.reason(given).at("to.dims"));
            }
        }
    }
    if let Some(refusal) = Refusal::from_reasons(problems.into_reasons()) {
        return Err(refusal);
    }
    combination.tensors_mut().into_iter().for_each(|t| t.strides = canonical_strides(t));
    Ok(ValidCombination(combination))
}

fn number(parts: usize, problems: &mut Problems) {
    if !(1..=MOST_PARTS).contains(&parts) {
        problems.add(codes::COMBINATION_PARTS.reason(parts.to_string()).at("parts"));
    }
}

/// Checks a tensor alone, and against the dims of the result.
fn one(name: &'static str, t: &Tensor, written: bool, like: &Tensor, problems: &mut Problems) {
    check_tensor(name, t, written, problems);
    if t.storage != Storage::Dense {
        problems.add(codes::COMBINATION_STORAGE.reason(format!("{:?}", t.storage)).at(format!("{name}.storage")));
    }
    if t.dims != like.dims {
        let given = format!("{:?}, and {:?}", t.dims, like.dims);
        problems.add(codes::COMBINATION_DIMS.reason(given).at(format!("{name}.dims")));
    }
}

fn added(name: &'static str, t: &Tensor, written: bool, like: &Tensor, problems: &mut Problems) {
    one(name, t, written, like, problems);
    if !COMBINATION_DTYPES.contains(&t.dtype) {
        problems.add(codes::COMBINATION_DTYPE.reason(t.dtype.to_string()).at(format!("{name}.dtype")));
    }
}

fn of_rows(name: &'static str, t: &Tensor, written: bool, rows: &Tensor, problems: &mut Problems) {
    one(name, t, written, rows, problems);
    same(name, t, DType::F32, problems);
}

fn same(name: &'static str, t: &Tensor, dtype: DType, problems: &mut Problems) {
    if t.dtype != dtype {
        let given = format!("{}, and {dtype}", t.dtype);
        problems.add(codes::COMBINATION_DTYPE.reason(given).at(format!("{name}.dtype")));
    }
}

impl Combination {
    fn tensors_mut(&mut self) -> Vec<&mut Tensor> {
        match self {
            Combination::Merge { parts, rows: _, sink: _, o, stats } => {
                let parts = parts.iter_mut().flat_map(|part| [&mut part.o, &mut part.stats]);
                parts.chain([o]).chain(stats).collect()
            }
            Combination::Sum { parts, rows: _, into } => parts.iter_mut().chain([into]).collect(),
            Combination::Copy { from, to } => vec![from, to],
            Combination::Fill { to, hidden: _ } | Combination::Keep { to, .. } => vec![to],
        }
    }
}
