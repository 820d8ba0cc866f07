//! Reports entries that the vault rejected in this process. A rejected entry is built again.

use qkvault_cache::{STORE_FORMAT, Vault};

/// A line about the entries rejected since the vault was opened, if there are any.
pub(super) fn note(vault: &Vault) -> Option<String> {
    let stats = vault.stats();
    let causes: Vec<String> = stats.rejections.iter().map(|(cause, n)| format!("{n} {cause}")).collect();
    let aside = match (stats.quarantined, vault.folder()) {
        (n @ 1.., Some(folder)) => {
            format!("; {n} set aside in {}", folder.join(format!("vault/v{STORE_FORMAT}/quarantine")).display())
        }
        _ => String::new(),
    };
    let (what, was) = if stats.rejected() == 1 { ("entry", "was") } else { ("entries", "were") };
    (!causes.is_empty()).then(|| {
        format!("{} stored {what} {was} not sound and not used ({}){aside}", stats.rejected(), causes.join(", "))
    })
}
