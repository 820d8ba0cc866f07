//! How much memory a computation takes, before it takes any: at least as much as it has at one time. Dims decide it,
//! and a description of a hundred bytes may ask for more than any machine has.

use qkvault_base::{NoMemory, room_for};
use qkvault_graph::{Attention, DType, Fp8, Operand, Pass, Role, Storage, operands};

use crate::{Inputs, ReferenceError};

/// Bytes of a number, and of a place in memory.
const WORD: u64 = 8;

/// Rows of scores that a thread has at a time, with their masks, probabilities and gradients.
const ROWS: u64 = 16 * 8;

fn product(factors: &[i64]) -> u64 {
    factors.iter().fold(1, |product: u64, factor| product.saturating_mul(factor.unsigned_abs()))
}

fn check(what: &'static str, bytes: u64) -> Result<(), ReferenceError> {
    room_for(bytes).map_err(|NoMemory { needed, most }| ReferenceError::Memory { what, needed, most })
}

/// Elements of an operand's buffer. What cannot be counted is refused by its role elsewhere, and here too.
fn elements(operand: &Operand) -> u64 {
    operand.elements().map_or(u64::MAX, |n| n as u64)
}

/// Bytes of the inputs while they are drawn.
fn drawn(a: &Attention) -> u64 {
    let one = |operand: &Operand| {
        let (size, dtype) = (operand.tensor.dtype.size() as u64, operand.tensor.dtype);
        // Normal numbers are drawn in place; others are a list of numbers first, which may double as it grows.
        let listed = !dtype.is_float() || dtype == DType::E8M0 || a.fp8 == Some(Fp8::Block);
        elements(operand).saturating_mul(size + if listed { 4 * WORD } else { 0 })
    };
    let pools = [a.k, a.v].map(|tensor| match tensor.storage {
        Storage::Paged { pages, page_size: _ } => product(&[pages, 2 * WORD as i64]),
        Storage::Dense | Storage::Varlen { .. } => 0,
    });
    let inputs = operands(a).iter().filter(|o| !o.output).map(one).fold(lengths(a), u64::saturating_add);
    pools.into_iter().fold(inputs, u64::saturating_add)
}

/// Bytes of lengths, offsets and page tables as places in memory, for each operand that has them.
fn lengths(a: &Attention) -> u64 {
    let pages = [a.k, a.v].map(|tensor| tensor.pages_per_sequence().unwrap_or(0));
    product(&[a.batch(), 64 * WORD as i64]).saturating_add(product(&[
        a.batch(),
        pages[0].saturating_add(pages[1]),
        2 * WORD as i64,
    ]))
}

/// Bytes that the results of a forward or a backward take with what lies between.
fn computed(a: &Attention) -> u64 {
    let backward = matches!(a.pass, Pass::Backward(_));
    let forward = if backward { None } else { Some(a.as_forward()) };
    let of = forward.as_ref().unwrap_or(a);
    // Each number in float64, with its state, and rounded.
    let outputs = operands(of).into_iter().filter(|o| o.output).map(|o| elements(&o).saturating_mul(2 * WORD));
    let outputs = outputs.fold(lengths(a), u64::saturating_add);
    let ((s_q, s_kv), (d_qk, d_v)) = (a.seq(), a.head_dims());
    // The rows of all heads of one sequence are kept until its end, and those of the keys for each thread.
    let widths = if backward { (d_qk, d_qk.saturating_add(d_v)) } else { (d_v.saturating_add(3).saturating_mul(3), 0) };
    let word = WORD as i64;
    let heads =
        product(&[a.q.dims[1], s_q, widths.0, word]).saturating_add(product(&[a.q.dims[1], s_kv, widths.1, word]));
    let planes = operands(of)
        .iter()
        .filter(|o| matches!(o.role, Role::DScoreTensor(_)))
        .fold(0, |sum: u64, o| sum.saturating_add(product(&[a.q.dims[1], o.tensor.dims[2], o.tensor.dims[3], word])));
    let thread = product(&[s_kv, d_qk.saturating_add(d_v).saturating_mul(4), word])
        .saturating_add(product(&[s_kv, ROWS as i64, word]))
        .saturating_add(product(&[s_q, 4, word]));
    let threads = (rayon::current_num_threads() as u64).saturating_mul(thread).saturating_mul(2);
    [heads, planes, threads].into_iter().fold(outputs, u64::saturating_add)
}

/// Checks that there is room for random inputs.
///
/// # Errors
///
/// [`ReferenceError::Memory`] if there is not.
pub(crate) fn for_random(a: &Attention) -> Result<(), ReferenceError> {
    check("the inputs", drawn(a))
}

/// Checks that there is room for the outputs of an attention, and for computing them.
///
/// # Errors
///
/// [`ReferenceError::Memory`] if there is not.
pub(crate) fn for_outputs(a: &Attention) -> Result<(), ReferenceError> {
    check("the outputs", computed(a))
}

/// Checks that there is room for a second copy of the inputs.
///
/// # Errors
///
/// [`ReferenceError::Memory`] if there is not.
pub(crate) fn for_copy(inputs: &Inputs) -> Result<(), ReferenceError> {
    check("copies of the inputs", inputs.iter().map(|(_, buffer)| 2 * buffer.bytes().len() as u64).sum())
}

#[cfg(test)]
mod tests {
    use qkvault_graph::{Tensor, text, validate};

    use super::*;
    use crate::{Buffer, backward, forward};

    fn valid(described: &str) -> qkvault_graph::Valid {
        validate(text::parse(described).expect("it reads")).expect("it is sound")
    }

    /// The audit's description, which ended the process, and others of a hundred bytes that take as much.
    #[test]
    fn audit_6_inputs_that_no_machine_holds_are_refused_before_memory_is_taken() {
        for described in [
            "q: bf16 [1024,128,1048576,128]",
            "q: bf16 [1,1,64,64]\nk: [1,1,64,64] paged 2147483647 x 1\nlengths: per-sequence",
            "q: bf16 [65536,1,65536,64] varlen tokens 65536\nk: [65536,1,65536,64]\nlengths: per-sequence",
            "q: bf16 [1,1,2147483647,64]\npass: backward",
        ] {
            let a = valid(described);
            let refused = Inputs::random(&a, 7).expect_err(described);
            let ReferenceError::Memory { needed, most, .. } = refused else { panic!("{described}: {refused}") };
            assert!(needed > most, "{refused}");
            assert!(refused.to_string().contains(&needed.to_string()), "{refused}");
        }
        // Few numbers of scores of which no row fits.
        let a = valid("q: bf16 [1,1,2147483647,8]\nk: [1,1,1,8]");
        assert!(matches!(for_outputs(&a), Err(ReferenceError::Memory { .. })));
    }

    #[test]
    fn what_a_computation_takes_is_no_less_than_its_numbers_and_little_for_small_ones() {
        for described in [
            "q: bf16 [2,4,64,32]\nk: [2,2,96,32]\noutputs: stats",
            "q: f16 [2,4,64,32] varlen tokens 100\nk: [2,2,96,32] varlen tokens 150\nlengths: per-sequence\noutputs: stats",
            "q: bf16 [2,4,1,64]\nk: [2,2,96,64] paged 40 x 16\nlengths: per-sequence",
            "q: bf16 [2,4,64,32]\npass: backward",
        ] {
            let a = valid(described);
            let inputs = Inputs::random(&a, 7).expect("small");
            let bytes: usize = inputs.iter().map(|(_, buffer)| buffer.bytes().len()).sum();
            assert!((bytes as u64..64 << 20).contains(&drawn(&a)), "{described}: {} for {bytes}", drawn(&a));
            let outputs = if a.is_backward() { backward(&a, &inputs) } else { forward(&a, &inputs) }.expect("small");
            let numbers: usize = outputs.iter().map(|output| 9 * output.values().len()).sum();
            assert!((numbers as u64..64 << 20).contains(&computed(&a)), "{described}: {}", computed(&a));
        }
        let tensor = Tensor::bshd(1, 1, 4, 8, DType::F32);
        let copy: Inputs = [(Role::Q, Buffer::zeros(tensor.dtype, 32))].into_iter().collect();
        for_copy(&copy).expect("128 bytes");
    }
}
