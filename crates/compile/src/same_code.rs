//! Whether code is the same. Two builds of one plan of cuDNN have different bytes: cuDNN leaves parts of a kernel's
//! parameters unset, and the number of the compiler's update is in each kernel. All else is equal, byte for byte.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

/// A parameter of a kernel in a plan of cuDNN, by the numbers of both.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Parameter {
    kernel: usize,
    parameter: usize,
}

/// The parameters whose bytes differ between two plans of cuDNN; `None` if anything else does. `now` is a plan of this
/// process, whose text says where parameters begin.
pub(crate) fn parameters_that_differ(stored: &[u8], now: &[u8]) -> Option<Vec<Parameter>> {
    let texts = |blob| <[u8]>::split(blob, |byte: &u8| *byte == b'"');
    if texts(stored).count() != texts(now).count() {
        return None;
    }
    let begins = begins(now);
    let (mut list, mut kernel, mut before) = (Vec::new(), 0, [&b""[..]; 2]);
    for (a, b) in texts(stored).zip(texts(now)) {
        let raw = before == [&b"rawData"[..], b":"];
        match (raw, a == b) {
            (true, equal) => {
                if !equal {
                    list.extend(
                        differ(a, b, begins.get(kernel)?)?.into_iter().map(|n| Parameter { kernel, parameter: n }),
                    );
                }
                kernel += 1;
            }
            (false, true) => {}
            (false, false) if a.starts_with(KERNEL) && same_kernel(a, b) => {}
            (false, false) => return None,
        }
        before = [before[1], b];
    }
    Some(list)
}

/// Where parameters begin in the bytes of each kernel's parameters, in order.
fn begins(plan: &[u8]) -> Vec<Vec<usize>> {
    let plan: serde_json::Value = serde_json::from_slice(plan).unwrap_or_default();
    let kernels = plan.pointer("/engine/payload/kernels").and_then(|kernels| kernels.as_array());
    let of = |kernel: &serde_json::Value| {
        let offsets = kernel.pointer("/kernelParams/offsets").and_then(|offsets| offsets.as_array());
        let numbers = offsets.into_iter().flatten().filter_map(|offset| offset.get("value")?.as_u64());
        numbers.filter_map(|offset| usize::try_from(offset).ok()).collect()
    };
    kernels.into_iter().flatten().map(of).collect()
}

/// The numbers of the parameters in which two kernels' parameters differ; `None` if they cannot be compared.
fn differ(stored: &[u8], now: &[u8], begins: &[usize]) -> Option<Vec<usize>> {
    let (stored, now) = (STANDARD.decode(stored).ok()?, STANDARD.decode(now).ok()?);
    if stored.len() != now.len() || !begins.is_sorted() {
        return None;
    }
    let places = stored.iter().zip(&now).enumerate().filter(|(_, (a, b))| a != b);
    // What lies before the first one belongs to none.
    let mut list: Vec<usize> =
        places.map(|(at, _)| begins.partition_point(|begin| *begin <= at).checked_sub(1)).collect::<Option<_>>()?;
    list.dedup();
    Some(list)
}

/// Whether two kernels are equal except for the update of NVRTC that made them: a number in a note of the file, which
/// no key contains.
fn same_kernel(stored: &[u8], now: &[u8]) -> bool {
    without_update(stored).is_some_and(|stored| Some(stored) == without_update(now))
}

/// How the text of a kernel begins: base64 of an ELF file.
const KERNEL: &[u8] = b"f0VMR";

/// The name of NVRTC in a kernel, as in `Cuda compilation tools, release 13.0, V13.0.88`.
const RELEASE: &[u8] = b"Cuda compilation tools, release ";

/// Whether cubins are equal except for the update of NVRTC that made them.
pub(crate) fn same_code(stored: &[u8], now: &[u8]) -> bool {
    stored == now || code_without_update(stored.to_vec()) == code_without_update(now.to_vec())
}

/// The file of a kernel with zeros for the number of the compiler's update; `None` if it is not a kernel.
fn without_update(text: &[u8]) -> Option<Vec<u8>> {
    STANDARD.decode(text).ok().map(code_without_update)
}

fn code_without_update(mut file: Vec<u8>) -> Vec<u8> {
    let places: Vec<usize> =
        file.windows(RELEASE.len()).enumerate().filter(|(_, bytes)| *bytes == RELEASE).map(|(at, _)| at).collect();
    for at in places {
        let line = &mut file[at..];
        let end = line.iter().position(|byte| *byte == 0).unwrap_or(line.len());
        let line = &mut line[..end];
        if let Some(update) = line.windows(3).position(|bytes| bytes == b", V") {
            line[update + 3..].fill(0);
        }
    }
    file
}

/// The compiled kernels in a plan's bytes.
pub(crate) fn kernels(blob: &[u8]) -> Vec<&[u8]> {
    blob.split(|byte| *byte == b'"').filter(|text| text.starts_with(KERNEL)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kernel(release: &str, code: u8) -> String {
        let mut file = b"\x7fELF\x02\x01".to_vec();
        file.extend(b"Cuda compilation tools, release ");
        file.extend(release.as_bytes());
        file.extend([0, code, b',', b' ', b'V', code]);
        STANDARD.encode(file)
    }

    /// A plan as cuDNN writes one, with two parameters: 8 bytes, and the rest.
    fn plan(cubin: &str, raw: [u8; 24], uid: u8) -> Vec<u8> {
        let raw = STANDARD.encode(raw);
        let offsets = format!(r#"[{{"value":0,"uid":{uid}}},{{"value":8}}]"#);
        let kernel = format!(r#"{{"kernelParams":{{"offsets":{offsets},"rawData":"{raw}"}},"cubin":"{cubin}"}}"#);
        format!(r#"{{"engine":{{"payload":{{"kernels":[{kernel}]}}}}}}"#).into_bytes()
    }

    /// 13.0.48 and 13.0.88 gave the same code under one key.
    #[test]
    fn b3_kernels_of_two_updates_of_one_nvrtc_are_the_same_and_others_are_not() {
        let like = |a: &str, b: &str| {
            let (a, b) = (plan(a, [0; 24], 1), plan(b, [0; 24], 1));
            parameters_that_differ(&a, &b) == Some(Vec::new())
        };
        let base = kernel("13.0, V13.0.88", 1);
        assert!(base.starts_with("f0VMR"));
        assert!(like(&base, &base) && like(&base, &kernel("13.0, V13.0.48", 1)));
        assert!(!like(&base, &kernel("13.0, V13.0.88", 2)), "other code");
        assert!(!like(&base, &kernel("13.2, V13.2.51", 1)), "another NVRTC");
        assert!(!like(&base, "f0VMR!"));
    }

    /// The audit's third fault: a check by a rebuild looked at kernels alone, so K and V could change places.
    #[test]
    fn audit_3_a_plan_with_other_uids_or_parameters_is_another_one() {
        let cubin = kernel("13.0, V13.0.88", 1);
        let now = plan(&cubin, [0; 24], 1);
        assert_eq!(parameters_that_differ(&plan(&cubin, [0; 24], 2), &now), None, "another uid");
        assert_eq!(parameters_that_differ(&now[1..], &now), None, "cut");
        let mut raw = [0; 24];
        raw[20] = 1;
        let second = Parameter { kernel: 0, parameter: 1 };
        assert_eq!(parameters_that_differ(&plan(&cubin, raw, 1), &now), Some(vec![second]));
        raw[0] = 1;
        let first = Parameter { kernel: 0, parameter: 0 };
        assert_eq!(parameters_that_differ(&plan(&cubin, raw, 1), &now), Some(vec![first, second]));
    }
}
