//! Keys and values in pages, for attention kernels that read one page table: a kernel that puts both tables into one,
//! and looks whether each sequence can be read, in front of the one that lists the sequences.

use std::fmt::Write as _;

use qkvault_graph::{Role, Storage, Valid};

use crate::params::Params;
use crate::recipe::LaunchValue;

const PAGES: &str = include_str!("../cuda/pages.cu");

/// The pools of keys and values.
pub(super) struct Pages {
    /// Rows of a page.
    rows: i64,
    /// Pages of the pool of keys, and of that of values.
    counts: [i64; 2],
    /// Pages of the longest sequence.
    table: i64,
}

impl Pages {
    /// Those of an attention, if its keys are in pages.
    pub(super) fn for_attention(a: &Valid) -> Option<Pages> {
        let pool = |storage| match storage {
            Storage::Paged { pages, page_size } => Some((pages, page_size)),
            Storage::Dense | Storage::Varlen { .. } => None,
        };
        let ((of_keys, rows), (of_values, _)) = (pool(a.k.storage)?, pool(a.v.storage)?);
        Some(Pages { rows, counts: [of_keys, of_values], table: a.k.pages_per_sequence()? })
    }

    /// Numbers of the table of all sequences.
    pub(super) fn entries(&self, batch: u64) -> u64 {
        batch * self.table.unsigned_abs() * 2
    }

    /// What the kernel reads; it writes a number for each sequence at `at`, and the table at `tables`.
    pub(super) fn params(&self, params: &mut Params, at: u64, tables: u64) {
        params.pointer("const int", "table_k", LaunchValue::Address(Role::PageTableK));
        params.pointer("const int", "table_v", LaunchValue::Address(Role::PageTableV));
        params.pointer("int", "pages_good", LaunchValue::Scratch(at));
        params.pointer("int", "tables", LaunchValue::Scratch(tables));
    }

    /// The kernel, and what stands for the rows of keys.
    pub(super) fn source(&self) -> String {
        let mut text = String::new();
        let [keys, values] = self.counts;
        for (name, value) in [("PAGE", self.rows), ("KEY_PAGES", keys), ("VALUE_PAGES", values), ("TABLE", self.table)]
        {
            let _ = writeln!(text, "#define {name} {value}");
        }
        text + PAGES
    }
}
