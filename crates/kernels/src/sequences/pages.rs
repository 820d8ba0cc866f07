//! Keys and values in pages, for attention kernels that read one page table for both: a kernel that looks whether each
//! sequence can be read so, in front of the one that lists the sequences.

use std::fmt::Write as _;

use qkvault_graph::{Role, Storage, Valid};

use crate::params::Params;
use crate::recipe::Value;

const PAGES: &str = include_str!("../cuda/pages.cu");

/// The pools of keys and values.
pub(super) struct Pages {
    /// Rows of a page.
    rows: i64,
    /// Pages that both pools have.
    count: i64,
    /// Pages of the longest sequence.
    table: i64,
}

impl Pages {
    /// Those of an attention, if its keys are in pages.
    pub(super) fn of(a: &Valid) -> Option<Pages> {
        let pool = |storage| match storage {
            Storage::Paged { pages, page_size } => Some((pages, page_size)),
            Storage::Dense | Storage::Varlen { .. } => None,
        };
        let ((of_keys, rows), (of_values, _)) = (pool(a.k.storage)?, pool(a.v.storage)?);
        Some(Pages { rows, count: of_keys.min(of_values), table: a.k.pages_per_sequence()? })
    }

    /// What the kernel reads; `at` is where it writes a number for each sequence.
    pub(super) fn params(&self, params: &mut Params, at: u64) {
        params.pointer("const int", "table_k", Value::Address(Role::PageTableK));
        params.pointer("const int", "table_v", Value::Address(Role::PageTableV));
        params.pointer("int", "pages_good", Value::Scratch(at));
    }

    /// The kernel, and what stands for the rows of keys.
    pub(super) fn source(&self) -> String {
        let mut text = String::new();
        for (name, value) in [("PAGE", self.rows), ("PAGES", self.count), ("TABLE", self.table)] {
            let _ = writeln!(text, "#define {name} {value}");
        }
        text + PAGES
    }
}
