//! What a backend gave for a case, and the judgement of it by the float64 definition, row by row.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use burn_qkvault::qkvault::graph::{DType, Role, Valid};
use burn_qkvault::qkvault::reference::{Buffer, LaunchJudge, backward, forward};
use burn_qkvault::{AttentionBackend, Error, Flex, Options, operands};
use burn_qkvault_examples::case::Case;
use burn_qkvault_examples::tensors::tokens;
use burn_tensor::TensorData;
use burn_tensor::backend::AutodiffBackend;

/// The output and the gradients of a case, on the host, or why there are none.
pub(crate) type Results = (TensorData, [Option<TensorData>; 6]);

/// What a backend gave for a case.
pub(crate) struct Given(pub(crate) Result<Results, Error>);

/// A judgement: the largest difference relative to what roundings explain where those were followed, codes of reasons,
/// or what is wrong.
#[derive(Clone, Debug)]
pub(crate) enum Judged {
    Right(f64),
    Refused(String),
    Wrong(String),
}

impl Given {
    /// Computes a case in both directions.
    pub(crate) fn of<B>(case: &Case, device: &B::Device, base: Options<B>) -> Given
    where
        B: AutodiffBackend + AttentionBackend,
    {
        let leaves = case.leaves::<B>(device, false).tracked(case.tracked);
        let o = match case.attend(&leaves, base) {
            Ok(o) => o,
            Err(error) => return Given(Err(error)),
        };
        let weights = case.weights::<B>(device, case.dtype);
        let gradients = (o.clone() * weights).sum().backward();
        Given(Ok((o.into_data(), leaves.gradients(&gradients, case.tracked))))
    }
}

/// Judges all cases, by as many threads as there are cores.
pub(crate) fn all(cases: &[Case], given: &[Given]) -> Vec<Judged> {
    let (next, made) = (AtomicUsize::new(0), Mutex::new(vec![None; cases.len()]));
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some(case) = cases.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let at = cases.iter().position(|own| std::ptr::eq(own, case)).unwrap_or(0);
                    let own = one(case, &given[at]);
                    if let Ok(mut made) = made.lock() {
                        made[at] = Some(own);
                    }
                }
            });
        }
    });
    let lacking = || Judged::Wrong("a judge ended early".to_owned());
    made.into_inner().unwrap_or_default().into_iter().map(|own| own.unwrap_or_else(lacking)).collect()
}

fn one(case: &Case, given: &Given) -> Judged {
    match &given.0 {
        Ok(results) => judged(case, results).unwrap_or_else(|error| Judged::Wrong(error.to_string())),
        Err(error) => match error.refusal() {
            Some(refusal) => {
                let mut codes: Vec<String> = refusal.reasons().iter().map(|own| own.code.to_string()).collect();
                codes.dedup();
                Judged::Refused(codes.join(" "))
            }
            None => Judged::Wrong(error.to_string()),
        },
    }
}

fn judged(case: &Case, (o, gradients): &Results) -> Result<Judged, super::Failure> {
    let case = case.unturned();
    let device = Default::default();
    let leaves = case.leaves::<Flex>(&device, false);
    let options = case.options(&leaves, Options::new());
    let weights = case.weights::<Flex>(&device, case.dtype);
    let sequences = case.sequences()?;
    let both = match &sequences {
        None => operands(leaves.qkv.clone(), None, &options, case.tracked, weights)?,
        Some(own) => operands(leaves.qkv.clone().map(tokens), Some(own), &options, case.tracked, tokens(weights))?,
    };
    let mut worst = 0f64;
    for (valid, mut inputs) in both {
        // The backward has read the O that its forward wrote. Where a row sees few keys, a rounding of it moves dQ by
        // ten times as much as the roundings of the backward do.
        if valid.is_backward() {
            inputs.insert(Role::O, buffer(o, sequences.is_some())?);
        }
        let (valid, inputs) = (&valid, &inputs);
        let exact = if valid.is_backward() { backward(valid, inputs) } else { forward(valid, inputs) }?;
        let judge = LaunchJudge::new(valid, inputs);
        for expected in exact.iter() {
            let Some(place) = place(valid, expected.role()) else { continue };
            let written = match place {
                0 => o,
                place => match &gradients[place - 1] {
                    Some(own) => own,
                    None if case.tracked[place - 1] => return Ok(Judged::Wrong(format!("no {}", expected.role()))),
                    None => continue,
                },
            };
            let verdict = judge.judge(expected, &buffer(written, sequences.is_some() && place <= 3)?);
            if let Some(fault) = verdict.fault {
                return Ok(Judged::Wrong(fault));
            }
            worst = worst.max(verdict.of_roundings.unwrap_or(0.0));
        }
    }
    Ok(Judged::Right(worst))
}

/// Where an output stands: 0 is the output, then gradients by the places of a call.
fn place(valid: &Valid, role: Role) -> Option<usize> {
    let facts = valid.operand_facts();
    let name = facts.iter().find(|fact| fact.role == role).and_then(|fact| fact.name);
    match (role, name) {
        (Role::O, _) if !valid.is_backward() => Some(0),
        (Role::DQ, _) => Some(1),
        (Role::DK, _) => Some(2),
        (Role::DV, _) => Some(3),
        (_, Some("bias")) => Some(4),
        (_, Some("alibi_slopes")) => Some(5),
        (Role::DSink, _) => Some(6),
        _ => None,
    }
}

/// The bytes of a tensor as the oracle has them; of (1, head, token, head dim) as (token, head, head dim).
fn buffer(of: &TensorData, packed: bool) -> Result<Buffer, super::Failure> {
    let (dtype, size) = match of.dtype {
        burn_tensor::DType::BF16 => (DType::BF16, 2),
        burn_tensor::DType::F16 => (DType::F16, 2),
        _ => (DType::F32, 4),
    };
    let bytes = of.as_bytes();
    let bytes = match (packed, &of.shape.to_vec()[..]) {
        (true, &[1, h, s, d]) => {
            let row = d * size;
            let rows = (0..s * h).map(|at| (at % h) * s + at / h);
            rows.flat_map(|at| &bytes[at * row..(at + 1) * row]).copied().collect()
        }
        _ => bytes.to_vec(),
    };
    Ok(Buffer::new(dtype, bytes)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Cpu;

    #[test]
    fn one_wrong_row_of_any_output_is_seen() {
        let cases: Vec<Case> = (0..6).map(|seed| Case::new(seed, true)).collect();
        for case in &cases {
            let given = || Given::of::<Cpu>(case, &Default::default(), Options::new()).0.expect("it is computed");
            assert!(matches!(judged(case, &given()).expect("it is judged"), Judged::Right(_)), "{case:?}");
            let outputs = 1 + given().1.iter().flatten().count();
            for output in 0..outputs {
                let (mut o, mut gradients) = given();
                let changed = std::iter::once(&mut o).chain(gradients.iter_mut().flatten()).nth(output);
                let changed = changed.expect("it is there");
                // The highest bits of the exponent of the first element: 16 and 32 bits alike.
                let last = changed.dtype.size() - 1;
                changed.bytes[last] ^= 0x40;
                let own = judged(case, &(o, gradients)).expect("it is judged");
                assert!(matches!(own, Judged::Wrong(_)), "output {output} of {case:?}");
            }
        }
    }
}
