//! The slopes of ALiBi for an attention, computed differently from `AlibiSlopes::values`, whose result launches use:
//! from the list for the next power of two of heads, its odd entries first, as MPT's model does.

use qkvault_graph::expr::AlibiSlopes;
use qkvault_graph::{Attention, DType, Role};

use crate::Buffer;

/// The slopes that an operand of an attention holds; `None` for any other operand.
#[must_use]
pub fn alibi_slopes(attention: &Attention, role: Role) -> Option<Buffer> {
    let Role::ScoreTensor(number) = role else { return None };
    let expressions = [attention.score_mod.as_ref(), attention.mask.mask_mod.as_ref()];
    let spec = expressions.into_iter().flatten().flat_map(|e| e.tensors()).nth(number.into())?;
    let part = all(&spec.alibi?).into_iter().skip(spec.alibi?.first_head as usize).take(spec.dims[1] as usize);
    Some(Buffer::from_values(DType::F32, part.collect::<Vec<_>>()))
}

/// The slopes of every head of the model.
fn all(slopes: &AlibiSlopes) -> Vec<f64> {
    let heads = slopes.model_heads as usize;
    let wide = heads.next_power_of_two();
    let ratio = 2f64.powf(-f64::from(slopes.bias_max.value()) / wide as f64);
    let list: Vec<f64> = (1..=wide).map(|i| ratio.powf(i as f64)).collect();
    if wide == heads {
        return list;
    }
    let every_other = |start: usize| list.iter().skip(start).step_by(2).copied();
    every_other(1).chain(every_other(0)).take(heads).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use qkvault_graph::expr::{library, score};
    use qkvault_graph::{Attention, DType};

    #[test]
    fn b5_two_ways_of_computing_slopes_agree() {
        for (heads, first, here, max) in
            [(32, 0, 32, 16.0), (32, 16, 16, 8.0), (20, 3, 11, 4.5), (1, 0, 1, 8.0), (71, 0, 71, 8.0)]
        {
            let slopes = AlibiSlopes::for_heads(heads).from_head(first).with_bias_max(max).expect("finite");
            let score = library::alibi_of(score(), here, slopes).build_score_mod().expect("a score");
            let attention = Attention::bshd(1, (here, 1), (8, 8), 16, DType::BF16).with_score_mod(score);
            let own = alibi_slopes(&attention, Role::ScoreTensor(0)).expect("it holds slopes");
            let given = slopes.values(here);
            assert_eq!(own.len(), given.len());
            for (at, &value) in given.iter().enumerate() {
                let off = (own.get(at) - f64::from(value)).abs() / f64::from(value);
                assert!(off < 1e-6, "head {at} of {slopes}: {} and {value}", own.get(at));
            }
            assert_eq!(alibi_slopes(&attention, Role::ScoreTensor(1)), None);
            assert_eq!(alibi_slopes(&attention, Role::Q), None);
        }
    }
}
