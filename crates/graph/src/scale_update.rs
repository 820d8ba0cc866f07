//! The update of the scales of an 8-bit training from the largest magnitudes of a step, as data.

use std::fmt;
use std::ops::Deref;

use serde::{Deserialize, Serialize};

use crate::registry::codes;
use crate::{Binding, DType, Fingerprint, GraphKey, Reason, Refusal, Role, Scaled, codec};

/// Most steps whose magnitudes are kept. A count of them is a whole number in f32.
pub const MOST_HISTORY: u32 = 65_536;

/// Most powers of two of room, with which a scale stays far from the smallest float.
pub const MOST_MARGIN: u8 = 100;

/// Numbers of a tensor's history before its magnitudes: the place of the next one, and how many were no numbers.
pub const HISTORY_HEAD: usize = 2;

/// A tensor in 8 bits whose scale follows from its largest magnitudes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ScaledTensor {
    /// Which one.
    pub of: Scaled,
    /// Its type, e4m3 or e5m2.
    pub dtype: DType,
    /// The steps whose largest magnitude counts.
    pub history: u32,
}

/// An update of scales: described as data, [validated](ScaleUpdate::validate), identified by a key.
///
/// Of each tensor a launch reads [`Role::Amax`], adds it to [`Role::AmaxHistory`] in the place of the oldest, and
/// writes [`Role::ScaleOf`] and [`Role::Descale`]: `scale = largest / amax / 2^margin`, where `amax` is the largest
/// of the history and `largest` the largest finite number of the type; at most 2^126 and at least the inverse of the
/// largest f32. A magnitude that is zero, infinite or NaN takes the place of the oldest too and counts as none; a
/// history without any leaves the scale.
///
/// The history is f32, tensors one after the other: the place of the next magnitude, the number of magnitudes that
/// were infinite or NaN, and the magnitudes. Zeros are an empty one; a place that is none is the first.
///
/// ```
/// use qkvault_graph::{DType, Role, ScaleUpdate, Scaled, ScaledTensor};
///
/// let of = |of, dtype| ScaledTensor { of, dtype, history: 16 };
/// let tensors = vec![of(Scaled::Q, DType::E4M3), of(Scaled::DO, DType::E5M2)];
/// let update = ScaleUpdate { tensors, margin: 0 }.validate()?;
/// let history = update.bindings().into_iter().find(|b| b.role == Role::AmaxHistory);
/// assert_eq!(history.map(|b| b.bytes), Some(2 * (2 + 16) * 4));
/// # Ok::<(), qkvault_graph::Refusal>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ScaleUpdate {
    /// The tensors, in the order of the history.
    pub tensors: Vec<ScaledTensor>,
    /// Powers of two of room above the largest magnitude, at most [`MOST_MARGIN`].
    pub margin: u8,
}

impl ScaleUpdate {
    /// Checks the description.
    ///
    /// # Errors
    ///
    /// Every tensor that has no such scale, with its place.
    pub fn validate(self) -> Result<ValidScaleUpdate, Refusal> {
        let mut reasons: Vec<Reason> = Vec::new();
        if self.tensors.is_empty() {
            reasons.push(codes::CONVERSION_SCALES.reason("no tensors").at("tensors"));
        }
        for (at, tensor) in self.tensors.iter().enumerate() {
            let ScaledTensor { of, dtype, history } = *tensor;
            let mut wrong = |given: String, field: &str| {
                reasons.push(codes::CONVERSION_SCALES.reason(given).at(format!("tensors[{at}].{field}")));
            };
            if of == Scaled::S || self.tensors[..at].iter().any(|other| other.of == of) {
                wrong(format!("{of:?}"), "of");
            }
            if !dtype.is_fp8() {
                wrong(dtype.to_string(), "dtype");
            }
            if !(1..=MOST_HISTORY).contains(&history) {
                wrong(format!("{history} steps"), "history");
            }
        }
        if self.margin > MOST_MARGIN {
            reasons.push(codes::CONVERSION_SCALES.reason(format!("2^{}", self.margin)).at("margin"));
        }
        match Refusal::from_reasons(reasons) {
            Some(refusal) => Err(refusal),
            None => Ok(ValidScaleUpdate(self)),
        }
    }
}

/// An update of scales without contradictions. Only [`ScaleUpdate::validate`] makes one.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ValidScaleUpdate(ScaleUpdate);

impl Deref for ValidScaleUpdate {
    type Target = ScaleUpdate;

    fn deref(&self) -> &ScaleUpdate {
        &self.0
    }
}

/// The tag that separates the keys of updates from those of attentions.
const TAG: &str = "qkvault update of scales, key format 1";

impl ValidScaleUpdate {
    /// The key of this update.
    #[must_use]
    pub fn key(&self) -> GraphKey {
        let ScaleUpdate { tensors, margin } = &self.0;
        let tensors: Vec<(i64, u8, u32)> = (tensors.iter())
            .map(|ScaledTensor { of, dtype, history }| (Role::Amax(*of).uid(), dtype.code(), *history))
            .collect();
        let mut hasher = blake3::Hasher::new_derive_key(TAG);
        hasher.update(&codec::encode(&(tensors, *margin)));
        GraphKey::from_bytes(*hasher.finalize().as_bytes())
    }

    /// Identifies this update inside this process, among other descriptions.
    #[must_use]
    pub fn fingerprint(&self) -> Fingerprint {
        Fingerprint::of_key(&self.key())
    }

    /// The numbers of the history.
    #[must_use]
    pub fn history_len(&self) -> usize {
        self.tensors.iter().map(|tensor| HISTORY_HEAD + tensor.history as usize).sum()
    }

    /// The operands that a launch binds, in order of unique id.
    #[must_use]
    pub fn bindings(&self) -> Vec<Binding> {
        let size = DType::F32.size() as u64;
        let binding = |role, output, count| Binding {
            role,
            dtype: DType::F32,
            scalar: false,
            output,
            bytes: count * size,
            alignment: size as u32,
        };
        let of = |ScaledTensor { of, .. }: &ScaledTensor| {
            [(Role::Amax(*of), false), (Role::ScaleOf(*of), true), (Role::Descale(*of), true)]
        };
        let mut list: Vec<Binding> =
            self.tensors.iter().flat_map(of).map(|(role, output)| binding(role, output, 1)).collect();
        list.push(binding(Role::AmaxHistory, true, self.history_len() as u64));
        list.sort_by_key(|binding| binding.role.uid());
        list
    }
}

impl fmt::Display for ValidScaleUpdate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ScaleUpdate { tensors, margin } = &self.0;
        write!(
            f,
            "scales of {} tensors from {} steps",
            tensors.len(),
            tensors.iter().map(|t| t.history).max().unwrap_or(0)
        )?;
        if *margin > 0 { write!(f, ", margin {margin}") } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scaled(of: Scaled, dtype: DType, history: u32) -> ScaledTensor {
        ScaledTensor { of, dtype, history }
    }

    #[test]
    fn what_has_no_scale_is_refused_with_its_place() {
        let sound = scaled(Scaled::Q, DType::E4M3, 4);
        for (tensors, at) in [
            (vec![], "tensors"),
            (vec![scaled(Scaled::S, DType::E4M3, 4)], "tensors[0].of"),
            (vec![sound, sound], "tensors[1].of"),
            (vec![sound, scaled(Scaled::O, DType::BF16, 4)], "tensors[1].dtype"),
            (vec![scaled(Scaled::K, DType::E5M2, 0)], "tensors[0].history"),
            (vec![scaled(Scaled::K, DType::E5M2, MOST_HISTORY + 1)], "tensors[0].history"),
        ] {
            let refusal = ScaleUpdate { tensors, margin: 0 }.validate().expect_err(at);
            assert_eq!(refusal.reasons().len(), 1);
            assert!(refusal.to_string().contains(at) && refusal.to_string().contains("conversion.scales"), "{refusal}");
        }
    }

    #[test]
    fn a_margin_leaves_numbers() {
        let update = |margin| ScaleUpdate { tensors: vec![scaled(Scaled::Q, DType::E4M3, 4)], margin }.validate();
        assert!(update(MOST_MARGIN).is_ok() && update(MOST_MARGIN + 1).is_err());
    }

    #[test]
    fn every_field_is_in_the_key() {
        let key = |tensors: &[ScaledTensor], margin| {
            ScaleUpdate { tensors: tensors.to_vec(), margin }.validate().expect("sound").key()
        };
        let (q, k) = (scaled(Scaled::Q, DType::E4M3, 4), scaled(Scaled::K, DType::E4M3, 4));
        let keys = [
            key(&[q], 0),
            key(&[k], 0),
            key(&[q], 1),
            key(&[q, k], 0),
            key(&[k, q], 0),
            key(&[scaled(Scaled::Q, DType::E5M2, 4)], 0),
            key(&[scaled(Scaled::Q, DType::E4M3, 5)], 0),
        ];
        let different: std::collections::BTreeSet<_> = keys.iter().map(|key| *key.bytes()).collect();
        assert_eq!(different.len(), keys.len());
    }
}
