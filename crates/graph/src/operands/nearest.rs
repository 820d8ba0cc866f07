//! Finds the name that was probably meant by a misspelt one.

/// The name most similar to `given`: the one with the fewest letters inserted, deleted, changed or exchanged with their
/// neighbour, ignoring case. `None` if every name differs in half of its letters or more. Of equally similar names, the
/// first.
///
/// ```
/// use qkvault_graph::nearest_name;
///
/// assert_eq!(nearest_name("sofcap", ["slope", "softcap"]), Some("softcap"));
/// assert_eq!(nearest_name("temperature", ["slope", "softcap"]), None);
/// ```
#[must_use]
pub fn nearest<'a>(given: &str, names: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let given = folded(given);
    let scored = names.into_iter().filter_map(|name| {
        let other = folded(name);
        let steps = distance(&given, &other);
        (2 * steps < given.len().max(other.len())).then_some((steps, name))
    });
    scored.min_by_key(|(steps, _)| *steps).map(|(_, name)| name)
}

fn folded(name: &str) -> Vec<char> {
    name.chars().flat_map(char::to_lowercase).collect()
}

/// Number of edits from one to the other; an exchange of neighbours counts as one, and no letter is edited twice.
fn distance(a: &[char], b: &[char]) -> usize {
    let mut before: Vec<usize> = Vec::new();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.iter().enumerate() {
        let mut next = vec![i + 1];
        for (j, y) in b.iter().enumerate() {
            let mut steps = (row[j] + usize::from(x != y)).min(row[j + 1] + 1).min(next[j] + 1);
            if i > 0 && j > 0 && a[i - 1] == *y && *x == b[j - 1] {
                steps = steps.min(before[j - 1] + 1);
            }
            next.push(steps);
        }
        before = std::mem::replace(&mut row, next);
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn steps(a: &str, b: &str) -> usize {
        distance(&folded(a), &folded(b))
    }

    #[test]
    fn edits_are_counted() {
        for (a, b, expected) in [
            ("", "", 0),
            ("", "cap", 3),
            ("cap", "cap", 0),
            ("cap", "Cap", 0),
            ("cap", "cpa", 1),
            ("cap", "clap", 1),
            ("cap", "ca", 1),
            ("cap", "cup", 1),
            ("kitten", "sitting", 3),
            ("äb", "bä", 1),
        ] {
            assert_eq!([steps(a, b), steps(b, a)], [expected; 2], "{a} {b}");
        }
    }

    #[test]
    fn a_name_unlike_the_others_has_no_suggestion() {
        assert_eq!(nearest("x", ["y", "zz"]), None);
        assert_eq!(nearest("cap", []), None);
        assert_eq!(nearest("softcap", ["softcap_2", "soft_cap"]), Some("soft_cap"));
        assert_eq!(nearest("abcd", ["abxd", "abyd"]), Some("abxd"), "the first of equals");
    }
}
