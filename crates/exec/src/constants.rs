//! The values of constant operands, which follow from the description: ALiBi slopes.

use qkvault_graph::{Attention, Role};

/// The values of constant operands: the ALiBi slopes of the tensors in a description's expressions. They are not part
/// of a plan, so that attentions with other slopes share one.
#[must_use]
pub fn slopes(attention: &Attention) -> Vec<(Role, Vec<f32>)> {
    let expressions = [attention.score_mod.as_ref(), attention.mask.mask_mod.as_ref()];
    let specs = expressions.into_iter().flatten().flat_map(|e| e.tensors());
    let held = specs.zip(0_u16..).filter_map(|(spec, number)| {
        let heads = spec.dims[1];
        Some((Role::ScoreTensor(number), spec.alibi?.values(heads)))
    });
    held.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use qkvault_graph::DType;
    use qkvault_graph::expr::{AlibiSlopes, Expr, TensorSpec, library, scalar, score, tensor};

    fn slopes_of(score: Expr) -> Vec<(Role, Vec<f32>)> {
        let score = score.build_score_mod().expect("a score");
        slopes(&Attention::bshd(1, (4, 2), (8, 8), 16, DType::BF16).with_score_mod(score))
    }

    #[test]
    fn slopes_are_known_by_the_description_and_not_by_a_name() {
        let softcapped = library::softcap(library::alibi(score(), 4), scalar("cap"));
        assert_eq!(slopes_of(softcapped), [(Role::ScoreTensor(0), vec![0.25, 0.0625, 0.015_625, 0.003_906_25])]);
        let named = |name: &str, spec| library::alibi_with(score(), tensor(name, spec));
        let spec = TensorSpec::new(DType::F32, [1, 4, 1, 1]);
        assert_eq!(slopes_of(named(library::ALIBI_SLOPES, spec)), []);
        assert_eq!(slopes_of(named("other", TensorSpec::of_slopes(4, AlibiSlopes::for_heads(4)))).len(), 1);
    }

    #[test]
    fn slopes_are_those_of_the_models_maximum_and_heads() {
        let slopes = |slopes| slopes_of(library::alibi_of(score(), 4, slopes)).remove(0).1;
        let steep = AlibiSlopes::for_heads(4).with_bias_max(16.0).expect("finite");
        assert_eq!(slopes(steep), [0.0625, 0.003_906_25, 2_f32.powi(-12), 2_f32.powi(-16)]);
        // The second of two GPUs of a model of 8 heads.
        assert_eq!(
            slopes(AlibiSlopes::for_heads(8).from_head(4)),
            [2_f32.powi(-5), 2_f32.powi(-6), 2_f32.powi(-7), 2_f32.powi(-8)]
        );
    }
}
