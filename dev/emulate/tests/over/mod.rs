//! An attention over random operands on a CPU, beside the oracle.
#![allow(dead_code, reason = "each file of tests uses a part")]

use std::collections::BTreeMap;

use qkvault_emulate::HostProgram;
use qkvault_graph::{Attention, Band, DType, Role, Tensor, Valid, buffer_len, operands, validate};
use qkvault_kernels::Generated;
use qkvault_reference::{Buffer, Inputs, LaunchJudge, LengthChoice, POISON, RandomChoice, Unused, forward};
use qkvault_skip::{Need, skip};

/// Launches twice, with other turns of threads, and compares with the oracle over `inputs`. Operands of `other` hold
/// these bytes in a launch.
pub(crate) fn check_over(
    a: &Valid,
    made: &Generated,
    inputs: &Inputs,
    shared: &[(Role, Role)],
    other: &[(Role, Vec<u8>)],
) -> Result<(), String> {
    let expected = forward(a, inputs).expect("the oracle computes it");
    let program = HostProgram::compile(&made.source, &made.recipe, true).map_err(|error| error.to_string())?;
    for (seed, poison) in [(1, POISON), (2, 0)] {
        let (mut buffers, mut numbers) = (BTreeMap::new(), BTreeMap::new());
        for operand in operands(a) {
            let role = operand.role;
            if operand.output {
                let len = buffer_len(a, role).expect("every operand has a size");
                buffers.insert(role, Buffer::poisoned(operand.tensor.dtype, len).into_bytes());
            } else if !shared.iter().any(|(one, _)| *one == role) {
                let given = other.iter().find(|(of, _)| *of == role).map(|(_, bytes)| bytes.clone());
                let bytes =
                    given.unwrap_or_else(|| inputs.buffer(role).expect("every input is there").bytes().to_vec());
                if role.is_scalar() { &mut numbers } else { &mut buffers }.insert(role, bytes);
            }
        }
        let launched = program.launch(&made.recipe, &mut buffers, &numbers, shared, seed, poison);
        launched.map_err(|error| error.to_string())?;
        for output in expected.iter() {
            let Some(bytes) = buffers.get(&output.role()) else { continue };
            let found = Buffer::new(output.buffer().dtype(), bytes.clone()).expect("whole elements");
            if let Some(fault) = LaunchJudge::new(a, inputs).judge(output, &found).fault {
                return Err(format!("wrong: {fault}"));
            }
        }
    }
    Ok(())
}

/// Random operands with these lengths: what lies outside of them is no number.
pub(crate) fn inputs(a: &Valid, seed: u64, q: &[usize], kv: &[usize], shared: &[(Role, Role)]) -> Inputs {
    let lengths = LengthChoice::Exact { q: q.to_vec(), kv: kv.to_vec() };
    let choice = RandomChoice { lengths, unused: Unused::Poison, ..RandomChoice::default() };
    let mut inputs = Inputs::random_with(a, seed, &choice).expect("random operands");
    for &(role, of) in shared {
        let from = inputs.buffer(of).expect("an input").bytes().to_vec();
        let to = inputs.get_mut(role).expect("an input").bytes_mut();
        to.copy_from_slice(&from[..to.len()]);
    }
    inputs
}

/// Pages that many sequences of these lengths need.
pub(crate) fn pool(kv: &[usize], page: i64) -> i64 {
    kv.iter().map(|&n| (n as i64 + page - 1) / page).sum::<i64>() + 3
}

/// An attention over pages: heads of queries and of keys, queries, head dim, rows of a page.
pub(crate) fn paged(heads: (i64, i64), queries: i64, d: i64, page: i64, kv: &[usize]) -> Attention {
    let (batch, keys) = (kv.len() as i64, kv.iter().copied().max().unwrap_or(1) as i64);
    let mut a = Attention::bshd(batch, heads, (queries, keys), d, DType::BF16).with_lengths().with_stats();
    a.k = Tensor::paged_nhd(batch, heads.1, keys, d, pool(kv, page), page, DType::BF16);
    a.v = a.k;
    a.with_band(Band::CAUSAL_BOTTOM_RIGHT)
}

pub(crate) fn valid(a: Attention) -> Valid {
    validate(a).unwrap_or_else(|refusal| panic!("{refusal}"))
}

/// Runs what takes long in two threads.
pub(crate) fn all<T: Sync>(list: &[T], one: impl Fn(&T) -> Result<(), String> + Sync) {
    if !HostProgram::can_run() {
        return skip(Need::Cxx, "no C++ compiler of x86-64");
    }
    let wrong: Vec<String> = std::thread::scope(|scope| {
        let running = [0, 1].map(|from| {
            let one = &one;
            scope.spawn(move || list.iter().skip(from).step_by(2).filter_map(|x| one(x).err()).collect::<Vec<_>>())
        });
        running.into_iter().flat_map(|thread| thread.join().expect("ends")).collect()
    });
    assert!(wrong.is_empty(), "{wrong:#?}");
}
