//! The report: each family with what is another in it, how many are the same, and what to do next.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Display, Formatter};

use qkvault_fa4::Fa4Toolchain;
use serde::Serialize;

use crate::changes::Change;

/// Most families that the last line names.
const NAMED: usize = 8;

/// What became of a family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Verdict {
    /// Launch and machine code are the same.
    Same,
    /// The launch is the same, the machine code another.
    OtherCode,
    /// The launch is another.
    OtherLaunch,
    /// A kernel does not compile.
    DoesNotCompile,
}

/// A family, compared in some shapes.
#[derive(Debug)]
pub(crate) struct FamilyReport {
    pub(crate) name: String,
    /// Shapes that are compared.
    pub(crate) shapes: usize,
    /// What differs, each thing once, as the first shape shows it, with the number of shapes that do.
    pub(crate) changes: Vec<(Change, usize)>,
    /// Last words of the compiler about kernels that do not compile.
    pub(crate) errors: Vec<String>,
}

/// The whole report.
pub(crate) struct Report {
    pub(crate) pinned: Fa4Toolchain,
    pub(crate) tried: Fa4Toolchain,
    /// Kernels of all families together.
    pub(crate) kernels: usize,
    pub(crate) families: Vec<FamilyReport>,
}

impl FamilyReport {
    pub(crate) fn new(name: &str) -> FamilyReport {
        FamilyReport { name: name.to_owned(), shapes: 0, changes: Vec::new(), errors: Vec::new() }
    }

    /// Adds what differs in one shape.
    pub(crate) fn shape(&mut self, found: Vec<Change>) {
        self.shapes += 1;
        // A kernel that is launched twice is told once.
        let mut told = BTreeSet::new();
        for change in found {
            if !told.insert((change.kernel.clone(), change.what.clone())) {
                continue;
            }
            let same = |one: &Change| (&one.kernel, &one.what) == (&change.kernel, &change.what);
            match self.changes.iter_mut().find(|(one, _)| same(one)) {
                Some((_, shapes)) => *shapes += 1,
                None => self.changes.push((change, 1)),
            }
        }
    }

    /// Adds the error of a kernel that does not compile, once.
    pub(crate) fn fails(&mut self, kernel: &str, error: &str) {
        let error = format!("{kernel}: {error}");
        if !self.errors.contains(&error) {
            self.errors.push(error);
        }
    }

    pub(crate) fn verdict(&self) -> Verdict {
        if !self.errors.is_empty() {
            Verdict::DoesNotCompile
        } else if self.changes.iter().any(|(change, _)| change.launch) {
            Verdict::OtherLaunch
        } else if self.changes.is_empty() {
            Verdict::Same
        } else {
            Verdict::OtherCode
        }
    }
}

impl Report {
    /// Whether every family is the same.
    pub(crate) fn is_same(&self) -> bool {
        self.count(Verdict::Same) == self.families.len()
    }

    fn judged(&self, verdict: Verdict) -> impl Iterator<Item = &FamilyReport> {
        self.families.iter().filter(move |family| family.verdict() == verdict)
    }

    fn count(&self, verdict: Verdict) -> usize {
        self.judged(verdict).count()
    }

    /// The last line, and what to do next.
    fn summary(&self) -> String {
        let [same, code, launch, fails] =
            [Verdict::Same, Verdict::OtherCode, Verdict::OtherLaunch, Verdict::DoesNotCompile].map(|v| self.count(v));
        let changed = format!("{} changed ({launch} in their launch, {code} in machine code alone)", launch + code);
        let names = self.judged(Verdict::DoesNotCompile).chain(self.judged(Verdict::OtherLaunch));
        let mut names: Vec<&str> = names.map(|family| family.name.as_str()).collect();
        let more = names.len().saturating_sub(NAMED);
        names.truncate(NAMED);
        let named = if names.is_empty() { String::new() } else { format!(": {}", names.join(", ")) };
        let more = if more == 0 { String::new() } else { format!(" and {more} more") };
        format!("{same} families the same, {changed}, {fails} do not compile{named}{more}")
    }

    /// What an upgrade changes, by what the report says.
    pub(crate) fn next(&self) -> Vec<&'static str> {
        let mut steps = Vec::new();
        if self.tried == self.pinned {
            return steps;
        }
        if self.count(Verdict::DoesNotCompile) > 0 {
            steps.push("crates/fa4/src/compiler.py (packed.py, rows.py, words.py): call what the kernels have now");
        }
        if self.count(Verdict::OtherLaunch) > 0 {
            steps.push(
                "crates/fa4/src/forward.rs, backward.rs, args.rs: the arguments of launches; tests/families: those \
                        of the front end",
            );
        }
        steps.push("xtask/wheels.toml and crates/fa4/src/toolchain.rs (TOOLCHAIN): the new versions, with hashes");
        steps.push("cargo xtask fa4-tests: every launch beside the new toolchain's own");
        if !self.is_same() {
            steps.push(
                "crates/fa4/data/unproven.json (families: src/proven.rs): what has changed, until `gpu_fa4` of \
                        crates/exec/tests passes on a GPU",
            );
        }
        steps
    }

    /// The report as one object.
    pub(crate) fn json(&self) -> serde_json::Result<String> {
        let versions = |of: Fa4Toolchain| of.packages().into_iter().collect::<BTreeMap<_, _>>();
        let families = self.families.iter().map(|family| {
            let FamilyReport { name, shapes, changes, errors } = family;
            let changes = changes.iter().map(|(change, shapes)| serde_json::json!({ "change": change, "shapes": shapes }));
            let changes: Vec<_> = changes.collect();
            let verdict = family.verdict();
            serde_json::json!({ "name": name, "verdict": verdict, "shapes": shapes, "changes": changes, "errors": errors })
        });
        serde_json::to_string(&serde_json::json!({
            "pinned": versions(self.pinned),
            "tried": versions(self.tried),
            "kernels": self.kernels,
            "families": families.collect::<Vec<_>>(),
            "summary": self.summary(),
            "next": self.next(),
        }))
    }
}

impl Display for Report {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let versions = |of: Fa4Toolchain| of.packages().map(|(name, version)| format!("{name} {version}")).join(", ");
        writeln!(f, "pinned: {}\ntried:  {}", versions(self.pinned), versions(self.tried))?;
        for family in &self.families {
            let verdict = match family.verdict() {
                Verdict::Same => "the same",
                Verdict::OtherCode => "other code",
                Verdict::OtherLaunch => "other launch",
                Verdict::DoesNotCompile => "does not compile",
            };
            writeln!(f, "{verdict:<16}  {}", family.name)?;
            for (Change { kernel, what, before, after, launch: _ }, shapes) in &family.changes {
                let of = family.shapes;
                writeln!(f, "    {kernel}: {what}: {before} -> {after} ({shapes} of {of} shapes)")?;
            }
            family.errors.iter().try_for_each(|error| writeln!(f, "    {error}"))?;
        }
        writeln!(f, "{}", self.summary())?;
        if !self.next().is_empty() {
            writeln!(f, "next, for an upgrade:")?;
        }
        self.next().iter().try_for_each(|step| writeln!(f, "  * {step}"))
    }
}

#[cfg(test)]
mod tests {
    use qkvault_fa4::TOOLCHAIN;

    use super::*;

    fn grid(to: u64) -> Change {
        Change::launch("forward", "grid", "[1, 1, 1]", &format!("[{to}, 1, 1]"))
    }

    /// A family of each verdict.
    fn report() -> Report {
        let mut families = ["a", "b", "c", "d"].map(FamilyReport::new);
        for _ in 0..2 {
            families[0].shape(Vec::new());
            families[1].shape(vec![Change::code("forward", "registers", "168", "160")]);
        }
        families[2].shape(vec![grid(2), grid(2)]);
        families[2].shape(Vec::new());
        families[2].shape(vec![grid(3)]);
        families[3].fails("postprocess", "TypeError: tile_m");
        families[3].fails("postprocess", "TypeError: tile_m");
        families[3].shape(vec![Change::code("backward", "registers", "168", "160")]);
        let tried = Fa4Toolchain { flash_attn: "4.0.0b99", ..TOOLCHAIN };
        Report { pinned: TOOLCHAIN, tried, kernels: 4, families: families.into() }
    }

    #[test]
    fn every_family_is_told_with_what_has_changed_and_what_to_do() {
        let text = report().to_string();
        for line in [
            "tried:  flash-attn-4 4.0.0b99, ",
            "the same          a\n",
            "other code        b\n    forward: registers: 168 -> 160 (2 of 2 shapes)\n",
            "other launch      c\n    forward: grid: [1, 1, 1] -> [2, 1, 1] (2 of 3 shapes)\n",
            "does not compile  d\n    backward: registers: 168 -> 160 (1 of 1 shapes)\n    postprocess: TypeError: tile_m\n1 fam",
            "1 families the same, 2 changed (1 in their launch, 1 in machine code alone), 1 do not compile: d, c\n",
            "compiler.py",
            "forward.rs",
            "TOOLCHAIN",
            "unproven.json",
        ] {
            assert!(text.contains(line), "'{line}' is not in:\n{text}");
        }
        assert!(!report().is_same());
        let json: serde_json::Value = serde_json::from_str(&report().json().expect("text")).expect("JSON");
        let verdicts: Vec<_> = (0..4).map(|n| json["families"][n]["verdict"].as_str().unwrap_or_default()).collect();
        assert_eq!(verdicts, ["same", "other-code", "other-launch", "does-not-compile"]);
        assert_eq!(json["families"][2]["changes"][0]["shapes"], 2);
    }

    #[test]
    fn where_everything_is_the_same_versions_alone_are_to_be_changed() {
        let mut report = report();
        report.families.truncate(1);
        assert!(report.is_same());
        let next = report.next().concat();
        assert!(
            next.contains("TOOLCHAIN") && !next.contains("unproven.json") && !next.contains("compiler.py"),
            "{next}"
        );
    }
}
