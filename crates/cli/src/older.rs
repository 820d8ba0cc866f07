//! What older versions left in the vault, for people: it is never read, and somebody should know.

use qkvault_cache::{Older, Source, Vault};
use serde_json::{Value, json};

use crate::out;

/// A line per older format that is there.
pub(super) fn notes(vault: &Vault) -> impl Iterator<Item = String> {
    vault.older().into_iter().map(|older| format!("{older} ({})", out::bytes(older.bytes)))
}

/// The line for one that was deleted.
pub(super) fn deleted(older: &Older) -> String {
    let Older { path, format, entries, bytes, .. } = older;
    format!("{entries} entries of the older format {format} deleted ({}): {}", out::bytes(*bytes), path.display())
}

/// The same as data.
pub(super) fn json(list: &[Older]) -> Value {
    let one = |Older { path, source, format, entries, bytes, .. }: &Older| {
        let layer = matches!(source, Source::Layer(_));
        json!({ "path": path, "layer": layer, "format": format, "entries": entries, "bytes": bytes })
    };
    list.iter().map(one).collect()
}
