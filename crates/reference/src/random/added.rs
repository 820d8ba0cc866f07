//! Families of the tensors that are added to scores, as biases and padding masks are.

use qkvault_graph::expr::{Binary, Node, NodeId, Program, TensorId};
use qkvault_graph::{Attention, DType, Role};

use super::Family;
use crate::Inputs;

/// The scores that whole rows have in [`Family::Biased`].
const LEVELS: [f64; 4] = [-30_000.0, -120.0, 120.0, 30_000.0];

/// Changes the tensors whose elements a score expression adds to its value.
pub(super) fn shape(a: &Attention, family: Family, inputs: &mut Inputs) {
    // A log-sum-exp of the lowest number has no digits left for the number of keys, so no backward can be right.
    let Some(program) =
        a.score_mod.as_ref().map(|e| e.program()).filter(|_| family == Family::Biased || !a.is_backward())
    else {
        return;
    };
    let mut tensors = Vec::new();
    added(program, program.root(), &mut tensors);
    for id in tensors {
        let [_, heads, queries, keys] = program.tensors()[id.at()].dims.map(|n| n as usize);
        let Some(buffer) = inputs.get_mut(Role::ScoreTensor(id.at() as u16)) else { continue };
        let lowest = lowest(buffer.dtype());
        for (row, start) in (0..buffer.len() / keys).zip((0..).step_by(keys)) {
            let place = row % queries + row / queries % heads + row / (queries * heads);
            for key in 0..keys {
                let x = buffer.get(start + key);
                let padding = place % 3 == 0 || key >= keys - keys / 4;
                let value = match family {
                    Family::Biased => x + LEVELS[place % LEVELS.len()],
                    _ if padding => lowest,
                    _ => x,
                };
                buffer.set(start + key, value);
            }
        }
    }
}

/// The lowest finite number of a type: `finfo.min`.
fn lowest(dtype: DType) -> f64 {
    match dtype {
        DType::F16 => -65_504.0,
        DType::BF16 => -f64::from(f32::from_bits(0x7f7f_0000)),
        _ => f64::from(f32::MIN),
    }
}

/// The float tensors among the summands of a node.
fn added(program: &Program, node: NodeId, found: &mut Vec<TensorId>) {
    match program.nodes()[node.at()] {
        Node::Binary(Binary::Add, a, b) => {
            added(program, a, found);
            added(program, b, found);
        }
        Node::Binary(Binary::Sub, a, _) => added(program, a, found),
        Node::Select { keep: _, yes, no } => {
            added(program, yes, found);
            added(program, no, found);
        }
        Node::Tensor(id) => {
            let spec = &program.tensors()[id.at()];
            if spec.dtype.is_float() && spec.alibi.is_none() && !found.contains(&id) {
                found.push(id);
            }
        }
        _ => {}
    }
}

/// Whether an expression does nothing with the score but to add something to it.
pub(super) fn only_adds(program: &Program) -> bool {
    let is_score = |id: NodeId| program.nodes()[id.at()] == Node::Score;
    let mut summands = 0;
    for &node in program.nodes() {
        match node {
            Node::Binary(Binary::Add, a, b) => summands += usize::from(is_score(a)) + usize::from(is_score(b)),
            Node::Binary(Binary::Sub, a, b) if is_score(a) && !is_score(b) => summands += 1,
            Node::Binary(_, a, b) | Node::Compare(_, a, b) if is_score(a) || is_score(b) => return false,
            Node::Unary(_, a) if is_score(a) => return false,
            Node::Select { keep: _, yes, no } if is_score(yes) || is_score(no) => return false,
            _ => {}
        }
    }
    // The sum must be the value itself, or a summand of it.
    summands == 1 && sums(program, program.root())
}

/// Whether the score is a summand of a node.
fn sums(program: &Program, node: NodeId) -> bool {
    match program.nodes()[node.at()] {
        Node::Score => true,
        Node::Binary(Binary::Add, a, b) => sums(program, a) || sums(program, b),
        Node::Binary(Binary::Sub, a, _) => sums(program, a),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use qkvault_graph::{text, validate};

    use crate::{Family, Inputs, RandomChoice, forward};
    use qkvault_graph::Role;

    #[test]
    fn scores_are_far_only_where_an_expression_adds_to_them() {
        for (body, adds) in [
            ("score + 1.0", true),
            ("1.0 - float(key) + score - 2.0", true),
            ("score + score * score", false),
            ("tanh(score)", false),
            ("tanh(score + 1.0)", false),
            ("select(key > query, score, score * 0.5)", false),
        ] {
            let a = text::parse(&format!("q: f16 [1,2,6,16]\nmask: none\nscore_mod: {body}")).expect("an attention");
            assert_eq!(super::only_adds(a.score_mod.expect("it has one").program()), adds, "{body}");
        }
    }

    fn run(family: Family, dtype: &str) -> (Vec<f64>, Vec<f64>) {
        let of = format!(
            "q: {dtype} [1,2,6,16]\nk: {dtype} [1,2,8,16]\nmask: none\nscore_mod: tensor @t: {dtype}[1, 2, 6, 8]; score + @t\noutputs: stats"
        );
        let a = validate(text::parse(&of).expect("an attention")).expect("valid");
        let inputs = Inputs::random_with(&a, 3, &RandomChoice { family, ..RandomChoice::default() }).expect("random");
        let outputs = forward(&a, &inputs).expect("computes");
        let of = |role| outputs.get(role).expect("asked for").values().to_vec();
        (of(Role::Stats), of(Role::O))
    }

    #[test]
    fn rows_have_the_levels_and_rows_of_the_lowest_number_weigh_all_keys() {
        let (stats, _) = run(Family::Biased, "f16");
        for (row, stat) in stats.iter().enumerate() {
            let level = super::LEVELS[(row % 6 + row / 6) % 4];
            assert!((stat - level).abs() < 40.0, "{row}: {stat} for {level}");
        }
        let (stats, o) = run(Family::Lowest, "bf16");
        let far = stats.iter().filter(|stat| **stat < -1e38).count();
        assert!(far >= 2 && far < stats.len() && o.iter().all(|x| x.is_finite()), "{stats:?}");
    }
}
