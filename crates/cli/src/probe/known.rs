//! `probe --known-wrong`: what is known to be computed wrongly, a few lines for each.

use qkvault_probe::{Wrong, known_wrong};
use serde_json::json;

use crate::{Globals, out};

pub(super) fn list(globals: &Globals) {
    let known = known_wrong();
    if globals.json {
        return out::json(&json!(known));
    }
    for Wrong { code, engine, attention, affected, shows: _, reports, seen, answer, to_do } in &known.wrong {
        let named = code.map(|code| format!(", {code}")).unwrap_or_default();
        out::line(&format!("{engine}: {attention} ({answer}{named})"));
        let ranges: Vec<&str> = affected.iter().map(|range| range.text.as_str()).collect();
        out::line(&format!("    {}", ranges.join("; ")));
        let by = [Some(seen.standing), seen.gpu, seen.versions, seen.command].into_iter().flatten();
        out::line(&format!("    {}", by.chain(reports.iter().copied()).collect::<Vec<_>>().join(", ")));
        out::line(&format!("    to do: {to_do}"));
    }
    out::line(&format!("{} wrong results; docs/known-wrong.md has guards of other projects too", known.wrong.len()));
}
