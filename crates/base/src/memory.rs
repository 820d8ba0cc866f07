//! Whether there is room for memory whose size a file, a text or a caller decides, before it is taken. Rust ends the
//! process when memory runs out, and a library must not do that to the program around it.

/// What is left for everything else while a large piece of memory is taken. It is more than the largest piece that
/// glibc's allocator ever takes from its heap, so that asking for it does not move the bounds of that heap.
const MARGIN: u64 = 40 << 20;

/// Bytes from which on the machine's memory counts too. Less is only asked of the allocator, which takes microseconds.
const LARGE: u64 = 64 << 20;

/// More memory is needed than this process gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "it takes {needed} bytes of memory, and this process gets at most {most}; make it smaller, or give the process more \
     memory"
)]
pub struct NoMemory {
    /// The bytes that are needed.
    pub needed: u64,
    /// The most that the process gets now: what the machine has left, or what the limit of the address space
    /// (`ulimit -v`) allows.
    pub most: u64,
}

/// Checks that so many bytes can be taken now, all at once.
///
/// Another thread may take them in the meantime, and the limit of a container is not seen. It takes microseconds.
///
/// # Errors
///
/// [`NoMemory`] if the machine has fewer bytes left, or the allocator does not give them.
pub fn room_for(bytes: u64) -> Result<(), NoMemory> {
    let most = || left().unwrap_or(u64::MAX).min(address_space());
    let refused = || NoMemory { needed: bytes, most: most() };
    if bytes > LARGE && left().is_some_and(|left| bytes > left) {
        return Err(refused());
    }
    let whole = bytes.checked_add(MARGIN).and_then(|whole| usize::try_from(whole).ok()).ok_or_else(refused)?;
    // The pages are reserved and never touched.
    Vec::<u8>::new().try_reserve_exact(whole).map_err(|_| refused())
}

/// The bytes of memory that the machine has left.
#[cfg(target_os = "linux")]
fn left() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim().trim_end_matches("kB").trim().parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(not(target_os = "linux"))]
fn left() -> Option<u64> {
    None
}

/// The limit of the address space.
#[cfg(unix)]
fn address_space() -> u64 {
    rustix::process::getrlimit(rustix::process::Resource::As).current.unwrap_or(u64::MAX)
}

#[cfg(not(unix))]
fn address_space() -> u64 {
    u64::MAX
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn audit_6_more_memory_than_there_is_is_refused_before_it_is_taken() {
        room_for(0).expect("nothing is needed");
        room_for(1 << 20).expect("a megabyte");
        for bytes in [1 << 50, u64::MAX] {
            let refused = room_for(bytes).expect_err("no machine has it");
            assert_eq!(refused.needed, bytes);
            assert!(refused.most < bytes || cfg!(not(target_os = "linux")), "{refused}");
            assert!(refused.to_string().contains(&bytes.to_string()), "{refused}");
        }
    }
}
