//! Reports entries that older versions of qkvault left in the vault. They are never read.

use qkvault_cache::{Older, Source, Vault};
use serde_json::{Value, json};

use crate::out;

/// One line per older format in the vault.
pub(super) fn notes(vault: &Vault) -> impl Iterator<Item = String> {
    vault.older().into_iter().map(|older| format!("{older} ({})", out::bytes(older.bytes)))
}

/// The line about a deleted older format.
pub(super) fn deleted(older: &Older) -> String {
    let Older { path, format, entries, bytes, .. } = older;
    format!(
        "{} of the older format {format} deleted ({}): {}",
        out::entries(*entries),
        out::bytes(*bytes),
        path.display()
    )
}

/// Older formats as JSON.
pub(super) fn json(list: &[Older]) -> Value {
    let one = |Older { path, source, format, entries, bytes, .. }: &Older| {
        let layer = matches!(source, Source::Layer(_));
        json!({ "path": path, "layer": layer, "format": format, "entries": entries, "bytes": bytes })
    };
    list.iter().map(one).collect()
}
