//! What differs between two launches of a kernel, as data.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::ops::Range;

use qkvault_fa4::Told;
use serde::Serialize;

use crate::printed::Launched;

/// Something that is another by the tried toolchain.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Change {
    /// Which kernel of the family.
    pub(crate) kernel: String,
    /// What: a parameter, the grid, registers.
    pub(crate) what: String,
    /// By the pinned toolchain.
    pub(crate) before: String,
    /// By the tried one.
    pub(crate) after: String,
    /// Whether the launch differs, and not the machine code alone.
    pub(crate) launch: bool,
}

impl Change {
    pub(crate) fn launch(kernel: &str, what: &str, before: &str, after: &str) -> Change {
        let [kernel, what, before, after] = [kernel, what, before, after].map(str::to_owned);
        Change { kernel, what, before, after, launch: true }
    }

    pub(crate) fn code(kernel: &str, what: &str, before: &str, after: &str) -> Change {
        Change { launch: false, ..Change::launch(kernel, what, before, after) }
    }
}

/// The names of attributes that a launch may have (`cudaLaunchAttributeID`).
fn attribute(id: u64) -> String {
    match id {
        2 => "attribute 'cooperative'".to_owned(),
        4 => "attribute 'cluster'".to_owned(),
        6 => "attribute 'programmatic stream serialization'".to_owned(),
        _ => format!("attribute {id}"),
    }
}

/// A change of the launch, if the values differ.
fn unless_same<T: Debug + PartialEq>(kernel: &str, what: &str, before: T, after: T) -> Option<Change> {
    (before != after).then(|| Change::launch(kernel, what, &format!("{before:?}"), &format!("{after:?}")))
}

/// What differs between two launches with the same arguments.
pub(crate) fn launches(kernel: &str, before: &Launched, after: &Launched) -> Vec<Change> {
    let Launched { grid, block, shared, attributes, params } = before;
    let places = [("grid", grid, &after.grid), ("block", block, &after.block)];
    let mut found: Vec<Change> =
        places.into_iter().filter_map(|(what, before, after)| unless_same(kernel, what, before, after)).collect();
    found.extend(unless_same(kernel, "dynamic shared memory", *shared, after.shared));
    // An attribute that is off is none.
    let on = |list: &[(u64, u64)]| list.iter().copied().filter(|(_, value)| *value != 0).collect::<BTreeMap<_, _>>();
    let [old, new] = [on(attributes), on(&after.attributes)];
    let ids: BTreeSet<u64> = old.keys().chain(new.keys()).copied().collect();
    let value = |of: &BTreeMap<u64, u64>, id| of.get(&id).copied().unwrap_or_default();
    found
        .extend(ids.into_iter().filter_map(|id| unless_same(kernel, &attribute(id), value(&old, id), value(&new, id))));
    found.extend(parameters(kernel, params, &after.params));
    found
}

fn parameters(kernel: &str, before: &[Vec<Option<u8>>], after: &[Vec<Option<u8>>]) -> Vec<Change> {
    if before.len() != after.len() {
        // Those behind a parameter that came or went are others, which says nothing.
        let first = before.iter().zip(after).position(|(old, new)| zeroed(old) != zeroed(new));
        let first = first.unwrap_or_else(|| before.len().min(after.len()));
        let what = format!("number of parameters, of which {first} is the first that differs");
        return unless_same(kernel, &what, before.len(), after.len()).into_iter().collect();
    }
    let pairs = before.iter().zip(after).map(|(old, new)| (zeroed(old), zeroed(new)));
    let change = |(at, (old, new)): (usize, (Vec<u8>, Vec<u8>))| {
        if old.len() != new.len() {
            return unless_same(kernel, &format!("size of parameter {at}"), old.len(), new.len());
        }
        let places = differing(&old, &new);
        let [old, new] = [old, new].map(|bytes| hex(&places, &bytes));
        (!places.is_empty()).then(|| Change::launch(kernel, &format!("parameter {at}"), &old, &new))
    };
    pairs.enumerate().filter_map(change).collect()
}

/// The bytes of a parameter; those that the function does not store are padding, which is zero.
fn zeroed(bytes: &[Option<u8>]) -> Vec<u8> {
    bytes.iter().map(|byte| byte.unwrap_or_default()).collect()
}

/// The places where bytes differ.
fn differing(before: &[u8], after: &[u8]) -> Vec<Range<usize>> {
    let mut places: Vec<Range<usize>> = Vec::new();
    for at in (0..before.len()).filter(|at| before[*at] != after[*at]) {
        match places.last_mut() {
            Some(place) if place.end == at => place.end += 1,
            _ => places.push(at..at + 1),
        }
    }
    places
}

/// Bytes at these places, as `4..8: 00c0ffee`.
fn hex(places: &[Range<usize>], bytes: &[u8]) -> String {
    let one = |at: &Range<usize>| {
        let digits: String = bytes[at.clone()].iter().map(|byte| format!("{byte:02x}")).collect();
        format!("{}..{}: {digits}", at.start, at.end)
    };
    places.iter().map(one).collect::<Vec<_>>().join(", ")
}

/// What the compiler tells otherwise of a launch that no byte of it shows: types of parameters, boxes of tensor maps.
pub(crate) fn told(kernel: &str, before: &Told, after: &Told) -> Vec<Change> {
    let Told { params, boxes, block: _, shared: _, overlap: _ } = before;
    let mut found = Vec::new();
    // Of another number, those behind one that came or went are others.
    let pairs = params.iter().zip(&after.params).filter(|_| params.len() == after.params.len());
    for (at, (old, new)) in pairs.enumerate().filter(|(_, (old, new))| old != new) {
        found.push(Change::launch(
            kernel,
            &format!("type of parameter {at}"),
            &format!("{old:?}"),
            &format!("{new:?}"),
        ));
    }
    if *boxes != after.boxes {
        let [old, new] = [boxes, &after.boxes].map(|boxes| format!("{boxes:?}"));
        found.push(Change::launch(kernel, "boxes of tensor maps", &old, &new));
    }
    found
}

#[cfg(test)]
mod tests {
    use qkvault_fa4::{Boxes, Type};

    use super::*;

    fn launched() -> Launched {
        let params = vec![vec![Some(1), Some(2), None, Some(4)], vec![Some(5); 8]];
        Launched { grid: [3, 2, 1], block: [384, 1, 1], shared: 1024, attributes: vec![(6, 1), (4, 0)], params }
    }

    /// What differs after a change, in short.
    fn after(change: impl FnOnce(&mut Launched)) -> Vec<String> {
        let mut changed = launched();
        change(&mut changed);
        let list = launches("forward", &launched(), &changed);
        assert!(list.iter().all(|one| one.launch && one.kernel == "forward"));
        list.into_iter().map(|Change { what, before, after, .. }| format!("{what}: {before} -> {after}")).collect()
    }

    #[test]
    fn the_same_launch_has_no_changes_and_padding_is_zero() {
        assert_eq!(after(|_| {}), [""; 0]);
        assert_eq!(after(|launch| launch.params[0][2] = Some(0)), [""; 0]);
        assert_eq!(after(|launch| launch.attributes = vec![(6, 1)]), [""; 0]);
    }

    #[test]
    fn changed_bytes_are_told_with_their_places() {
        let changed = after(|launch| {
            launch.params[1][2] = Some(0xfe);
            launch.params[1][3] = Some(0);
            launch.params[1][7] = None;
        });
        assert_eq!(changed, ["parameter 1: 2..4: 0505, 7..8: 05 -> 2..4: fe00, 7..8: 00"]);
        assert_eq!(after(|launch| launch.params[0].truncate(2)), ["size of parameter 0: 4 -> 2"]);
    }

    #[test]
    fn a_missing_parameter_is_told_once_with_its_place() {
        let text = "number of parameters, of which 0 is the first that differs: 2 -> 1";
        assert_eq!(after(|launch| drop(launch.params.remove(0))), [text]);
        assert_eq!(after(|launch| drop(launch.params.pop())), [text.replace("which 0", "which 1")]);
    }

    #[test]
    fn grid_block_shared_memory_cluster_and_attributes_are_compared() {
        assert_eq!(after(|launch| launch.grid[0] = 4), ["grid: [3, 2, 1] -> [4, 2, 1]"]);
        assert_eq!(after(|launch| launch.block[0] = 256), ["block: [384, 1, 1] -> [256, 1, 1]"]);
        assert_eq!(after(|launch| launch.shared = 2048), ["dynamic shared memory: 1024 -> 2048"]);
        assert_eq!(after(|launch| launch.attributes[1].1 = 2), ["attribute 'cluster': 0 -> 2"]);
        let serial = "attribute 'programmatic stream serialization': 1 -> 0";
        assert_eq!(after(|launch| launch.attributes = vec![(9, 7)]), [serial, "attribute 9: 0 -> 7"]);
    }

    #[test]
    fn types_and_boxes_that_no_byte_shows_are_compared() {
        let told = Told {
            params: vec![Type::Pointer, Type::Integer(4)],
            boxes: vec![Boxes { dims: vec![(64, 1), (128, 0)], swizzle: 128 }],
            block: [384, 1, 1],
            shared: 0,
            overlap: false,
        };
        assert_eq!(super::told("forward", &told, &told), []);
        let mut other = told.clone();
        other.params[1] = Type::Float;
        other.boxes[0].swizzle = 64;
        let what = super::told("forward", &told, &other).into_iter().map(|change| change.what);
        assert_eq!(what.collect::<Vec<_>>(), ["type of parameter 1", "boxes of tensor maps"]);
        let fewer = Told { params: vec![Type::Float], ..told.clone() };
        assert_eq!(super::told("forward", &told, &fewer), [], "bytes show it");
    }
}
