//! The attentions of `bench/strides.txt` and `bench/odd-tensors.txt`, which are run on a GPU: valid, and complete for
//! their question.

use std::collections::BTreeSet;

use qkvault_graph::{Attention, Role, Storage, operands, text, validate};

fn attentions(text: &str) -> Vec<Attention> {
    let parts = text.split("\n---").map(str::trim).filter(|part| !part.is_empty());
    let read = parts.map(|part| text::parse(part).unwrap_or_else(|e| panic!("{e}\n{part}")));
    read.map(|a| validate(a).unwrap_or_else(|e| panic!("{e}")).get().clone()).collect()
}

/// Remainders modulo 16 bytes of the strides that are used, by role and axis.
fn remainders(a: &Attention) -> BTreeSet<(Role, usize, i64)> {
    use Role::{DK, DO, DQ, DV, K, O, Q, V};
    let list = operands(a).into_iter().filter(|o| matches!(o.role, Q | K | V | O | DO | DQ | DK | DV));
    let each = list.flat_map(|o| {
        let (extents, bytes) = (o.tensor.extents(), o.tensor.dtype.size() as i64);
        let walked = (0..3).filter(move |&axis| extents[axis] > 1);
        walked.map(move |axis| (o.role, axis, o.tensor.strides[axis] * bytes % 16))
    });
    each.filter(|(_, _, over)| *over != 0).collect()
}

#[test]
fn the_file_has_strides_of_every_remainder_modulo_16_bytes_for_every_operand() {
    let all = attentions(include_str!("../../../bench/strides.txt"));
    let seen = |pass: fn(&Attention) -> bool, roles: &[Role], overs: &[i64]| {
        let found: BTreeSet<_> = all.iter().filter(|a| pass(a)).flat_map(remainders).collect();
        for &role in roles {
            for (axis, &over) in (0..3).flat_map(|axis| overs.iter().map(move |over| (axis, over))) {
                assert!(found.contains(&(role, axis, over)), "{role}: stride {axis}, {over} bytes over");
            }
        }
    };
    let dense = |a: &Attention| [a.q, a.k].iter().all(|t| t.storage == Storage::Dense);
    let every = [2, 4, 6, 8, 10, 12, 14];
    let forward = [Role::Q, Role::K, Role::V, Role::O];
    seen(|a| !a.is_backward() && a.seq().0 > 1, &forward, &every);
    seen(Attention::is_backward, &[Role::DO, Role::DQ, Role::DK, Role::DV], &every);
    seen(Attention::is_backward, &forward, &[2, 8]);
    seen(|a| a.seq().0 == 1 && a.k.storage == Storage::Dense, &[Role::K, Role::V], &[2, 4, 8]);
    seen(|a| a.k.is_paged(), &[Role::K, Role::V], &[2, 8]);
    let one = all.iter().filter(|a| dense(a)).map(remainders).filter(|off| off.len() == 1).count();
    assert!(one > 200, "{one} attentions in which one stride is off and nothing else");
    let odd_stats = |a: &Attention| operands(a).iter().any(|o| o.role == Role::Stats && o.tensor.strides[1] % 4 != 0);
    assert!(all.iter().any(odd_stats), "Stats whose head stride is not a multiple of 16 bytes");
}

#[test]
fn the_file_has_tensors_of_an_odd_number_of_keys_in_both_passes() {
    let all = attentions(include_str!("../../../bench/odd-tensors.txt"));
    for backward in [false, true] {
        let tensors = all.iter().filter(|a| a.is_backward() == backward).flat_map(operands);
        let tensors = tensors.filter(|o| matches!(o.role, Role::ScoreTensor(_)) && o.tensor.dtype.size() == 2);
        let dims: BTreeSet<[i64; 4]> = tensors.map(|o| o.tensor.dims).collect();
        for odd in [17, 63, 65, 127] {
            for wanted in [[1, 1, 1, odd], [1, 2, 1, odd], [2, 1, 64, odd], [1, 1, 65, odd], [2, 2, 65, odd]] {
                assert!(dims.contains(&wanted), "backward {backward}: {wanted:?}");
            }
        }
    }
    assert!(all.iter().any(|a| operands(a).iter().any(|o| matches!(o.role, Role::DScoreTensor(_)))));
}
