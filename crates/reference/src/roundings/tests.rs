//! Outputs of lesser precision are right by their roundings, and one wrong row is not.

use qkvault_graph::{Attention, BackwardOptions, DType, Role, Valid, validate};

use super::*;
use crate::{Buffer, Choice, Family, LaunchJudge, Outputs, backward, backward_of_o, forward, forward_f32};

fn pair(of: Attention) -> [Valid; 2] {
    let backward = of.clone().backward(BackwardOptions::default());
    [of, backward].map(|a| validate(a).expect("valid"))
}

fn attentions() -> Vec<Valid> {
    let plain = Attention::bshd(2, (4, 2), (40, 70), 64, DType::BF16).with_stats();
    let of = |text: &str| {
        let text = format!("q: f16 [1,2,33,32]\nk: f16 [1,2,48,32]\nmask: none\nscore_mod: {text}\noutputs: stats\n");
        qkvault_graph::text::parse(&text).expect("an attention")
    };
    let bias = of("tensor @t: f16[1, 2, 33, 48] grad; score + @t");
    let cap = of("scalar $cap: float; tanh(score / $cap) * $cap");
    [plain.clone(), plain.causal(), bias, cap].into_iter().flat_map(pair).collect()
}

fn exact(a: &Valid, family: Family) -> (Inputs, Outputs) {
    let inputs = Inputs::random_with(a, 7, &Choice { family, ..Choice::default() }).expect("random");
    let outputs = if a.is_backward() { backward(a, &inputs) } else { forward(a, &inputs) };
    (inputs, outputs.expect("computes"))
}

#[test]
fn outputs_of_lesser_precision_are_right_in_every_family() {
    for (a, family) in attentions().iter().flat_map(|a| Family::ALL.map(|family| (a, family))) {
        let (inputs, outputs) = exact(a, family);
        let roundings = Roundings::of(a, &inputs).expect("followed");
        // Two ways of computing with less precision: in f32, and from row sums of the rounded O.
        let other = if a.is_backward() { backward_of_o(a, &inputs) } else { forward_f32(a, &inputs) };
        for (output, other) in outputs.iter().zip(other.expect("computes").iter()) {
            for written in [output.buffer(), other.buffer()] {
                let judged = roundings.judge(output, &written).expect("known");
                assert_eq!(judged.fault, None, "{a} {family} {}", output.role());
            }
        }
    }
}

/// A fault in one row of many is far below a bound of the whole.
#[test]
fn one_wrong_row_is_seen_in_every_family() {
    for (a, family) in attentions().iter().flat_map(|a| Family::ALL.map(|family| (a, family))) {
        let (inputs, outputs) = exact(a, family);
        let judge = LaunchJudge::new(a, &inputs);
        for output in outputs.iter().filter(|o| matches!(o.role(), Role::O | Role::DV)) {
            let mut written = output.buffer();
            let (b, h, s) = (0, 1, 17);
            // Numbers that are nearly zero in 16 bits may be zero.
            if output.at(b, h, s, 0).abs() < 1e-4 {
                continue;
            }
            for d in 0..output.operand().tensor.dims[3] as usize {
                let at = output.view_at([b, h, s, d]);
                written.set(at, 1.3 * output.values()[at]);
            }
            let seen = judge.judge(output, &written);
            let fault = seen.fault.unwrap_or_else(|| panic!("{a} {family} {}: {:?}", output.role(), seen.of_roundings));
            assert!(fault.contains("roundings explain"), "{fault}");
            assert_eq!(judge.judge(output, &output.buffer()).fault, None);
        }
    }
}

/// Gradients of equal keys cancel wholly: what is left is rounding, and hides nothing larger.
#[test]
fn sums_that_cancel_do_not_hide_wrong_numbers() {
    let [_, a] = pair(Attention::bshd(1, (2, 2), (32, 256), 64, DType::BF16).with_stats());
    let (inputs, outputs) = exact(&a, Family::Constant);
    let d_q = outputs.get(Role::DQ).expect("a gradient");
    let largest = d_q.values().iter().fold(0.0_f64, |most, x| most.max(x.abs()));
    assert!(largest < 1e-12, "{largest}");
    let judge = LaunchJudge::new(&a, &inputs);
    let all = |by: f64| {
        let mut written = d_q.buffer();
        (0..written.len()).for_each(|at| written.set(at, if at % 2 == 0 { by } else { -by }));
        judge.judge(d_q, &written).fault
    };
    assert_eq!(all(1e-6), None);
    assert!(all(0.02).is_some());
}

#[test]
fn what_no_launch_wrote_is_a_fault_whatever_its_roundings() {
    let [a, _] = pair(Attention::bshd(1, (1, 1), (4, 8), 16, DType::F16).with_stats());
    let (inputs, outputs) = exact(&a, Family::Normal);
    let judge = LaunchJudge::new(&a, &inputs);
    for output in outputs.iter() {
        let fault = judge.judge(output, &Buffer::poisoned(output.buffer().dtype(), output.values().len())).fault;
        assert!(fault.expect("unwritten").contains("never written"));
        let mut infinite = output.buffer();
        infinite.set(0, f64::NAN);
        assert!(judge.judge(output, &infinite).fault.expect("no number").contains("not finite"));
    }
}
