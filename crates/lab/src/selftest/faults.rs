//! Reads compute-sanitizer's log: the faults, their kernels, and the distance to the nearest allocation.

use serde::Serialize;

/// One distinct fault. The same fault in several threads of a kernel counts once.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub(super) struct Fault {
    /// The sanitizer's words, such as `Invalid __global__ read of size 2 bytes`.
    pub(super) what: String,
    /// The kernel, without parameters and offsets.
    pub(super) kernel: String,
    /// The position of the address, such as `1 bytes after the nearest allocation of size 126 bytes`; empty if the log
    /// has none.
    pub(super) place: String,
}

/// The beginning of each line that the sanitizer writes.
const MARK: &str = "=========";

/// The distinct faults of a log, in order. `None` if the log has no summary, because the tool did not finish.
pub(super) fn faults(log: &str) -> Option<Vec<Fault>> {
    let lines: Vec<&str> = log.lines().filter_map(|line| line.strip_prefix(MARK)).collect();
    lines.iter().find(|line| line.contains(" SUMMARY:"))?;
    let mut found: Vec<Fault> = Vec::new();
    let mut open: Option<Fault> = None;
    for line in lines {
        let depth = line.len() - line.trim_start().len();
        let text = line.trim();
        if depth <= 1 {
            close(&mut found, open.take());
            let own = text.is_empty() || text == "COMPUTE-SANITIZER" || text.contains(" SUMMARY:");
            open = (!own).then(|| heading(text));
        } else if let Some(fault) = &mut open {
            detail(fault, text);
        }
    }
    close(&mut found, open);
    Some(found)
}

/// Reads a fault's first line. racecheck names the kernel there, the other tools on the next line.
fn heading(text: &str) -> Fault {
    let (what, kernel) = match text.split_once(" access at ") {
        Some((what, kernel)) => (format!("{what} access"), kernel_of(kernel)),
        None => (text.to_owned(), String::new()),
    };
    Fault { what, kernel, place: String::new() }
}

fn detail(fault: &mut Fault, text: &str) {
    if let Some(kernel) = text.strip_prefix("at ").filter(|_| fault.kernel.is_empty()) {
        fault.kernel = kernel_of(kernel);
    } else if let Some(place) = text.strip_prefix("and is ") {
        fault.place = without_address(place);
    } else if let Some((access, _)) = text.strip_prefix("and ").and_then(|rest| rest.split_once(" access at ")) {
        let other = format!(", and {access} access");
        if !fault.what.ends_with(&other) {
            fault.what.push_str(&other);
        }
    }
}

fn close(found: &mut Vec<Fault>, fault: Option<Fault>) {
    if let Some(fault) = fault
        && !found.contains(&fault)
    {
        found.push(fault);
    }
}

/// A kernel's name without its parameters, return type and offset.
fn kernel_of(text: &str) -> String {
    let name = text.split_once("+0x").map_or(text, |(name, _)| name);
    // The last parentheses hold the parameters; earlier ones are casts in template arguments, such as `(bool)0`.
    let name = match (name.ends_with(')'), name.rfind('(')) {
        (true, Some(at)) => &name[..at],
        _ => name,
    };
    name.trim_start_matches("void ").to_owned()
}

/// Removes the address from a text such as `1 bytes after the nearest allocation at 0x7f00 of size 126 bytes`, because
/// it differs in each run.
fn without_address(text: &str) -> String {
    text.split(' ')
        .scan(false, |at, word| {
            let address = *at && word.starts_with("0x");
            *at = word == "at";
            Some(if address { "" } else { word })
        })
        .filter(|word| !word.is_empty())
        .collect::<Vec<_>>()
        .join(" ")
        .replace(" at of ", " of ")
}

#[cfg(test)]
mod tests {
    use super::*;

    const INVALID: &str = "\
========= COMPUTE-SANITIZER
========= Invalid __global__ read of size 4 bytes
=========     at cudnn_generated_flash_fprop_kernel0_0+0x2a30
=========     by thread (32,0,0) in block (0,0,0)
=========     Address 0x7f6a0a00047c is out of bounds
=========     and is 1 bytes after the nearest allocation at 0x7f6a0a000400 of size 126 bytes
=========     Saved host backtrace up to driver entry point at kernel launch time
=========         Host Frame: cuLaunchKernelEx [0x39fc2f] in libcuda.so.1
========= 
========= Invalid __global__ read of size 4 bytes
=========     at cudnn_generated_flash_fprop_kernel0_0+0x2a30
=========     by thread (33,0,0) in block (0,0,0)
=========     Address 0x7f6a0a00047c is out of bounds
=========     and is 1 bytes after the nearest allocation at 0x7f6a0a000400 of size 126 bytes
========= 
========= ERROR SUMMARY: 2 errors
";

    #[test]
    fn threads_of_one_kernel_have_one_fault() {
        let fault = Fault {
            what: "Invalid __global__ read of size 4 bytes".into(),
            kernel: "cudnn_generated_flash_fprop_kernel0_0".into(),
            place: "1 bytes after the nearest allocation of size 126 bytes".into(),
        };
        assert_eq!(faults(INVALID), Some(vec![fault]));
    }

    #[test]
    fn a_clean_log_has_no_faults_and_an_incomplete_log_has_no_result() {
        let clean = "========= COMPUTE-SANITIZER\n========= ERROR SUMMARY: 0 errors\n";
        assert_eq!(faults(clean), Some(Vec::new()));
        assert_eq!(faults("========= COMPUTE-SANITIZER\n"), None);
        assert_eq!(faults(""), None);
        assert_eq!(faults(&INVALID.replace("========= ERROR SUMMARY: 2 errors\n", "")), None);
    }

    #[test]
    fn races_and_uninitialized_reads_name_their_kernels() {
        let race = "\
========= COMPUTE-SANITIZER
========= Error: Race reported between Write access at flash_bprop_kernel0_0+0x7830
=========     and Read access at flash_bprop_kernel0_0+0x3150 [336 hazards]
=========     and Read access at flash_bprop_kernel0_0+0x3240 [384 hazards]
========= 
========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)
";
        let found = faults(race).expect("it has a summary");
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].what, "Error: Race reported between Write access, and Read access");
        assert_eq!(found[0].kernel, "flash_bprop_kernel0_0");
        let uninitialized = "\
========= COMPUTE-SANITIZER
========= Uninitialized __global__ memory read of size 16 bytes
=========     at void cudnn::fusion::fmha_reduce_head<(bool)0>(const void *, void *, bool)+0x10f0
=========     by thread (0,0,0) in block (0,1,1)
=========     Address 0x48ea183100
========= ERROR SUMMARY: 1792 errors
========= ERROR SUMMARY: 1772 errors were not printed. Use --print-limit option to adjust the number of printed errors
";
        let found = faults(uninitialized).expect("it has a summary");
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].kernel, "cudnn::fusion::fmha_reduce_head<(bool)0>");
    }
}
