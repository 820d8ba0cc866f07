//! A memory allocator that counts bytes and refuses to give more than a bound, so that an input that takes too much
//! memory ends the process at once and not the machine.
//!
//! What libraries in C take for themselves is not counted.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Bytes in use.
static LIVE: AtomicUsize = AtomicUsize::new(0);
/// Most bytes in use since the last [`bound`].
static PEAK: AtomicUsize = AtomicUsize::new(0);
/// More are not given.
static MOST: AtomicUsize = AtomicUsize::new(usize::MAX);
/// Whether more were asked for since the last [`bound`].
static BEYOND: AtomicBool = AtomicBool::new(false);

/// The allocator. A program or test that counts makes it its global one.
#[derive(Debug)]
pub struct Counting;

/// Allows `more` bytes beside those that are in use, and begins to count anew. Returns the bytes in use.
pub fn bound(more: usize) -> usize {
    let live = LIVE.load(Ordering::Relaxed);
    PEAK.store(live, Ordering::Relaxed);
    BEYOND.store(false, Ordering::Relaxed);
    MOST.store(live.saturating_add(more), Ordering::Relaxed);
    live
}

/// Takes the bound away. Returns the most bytes that were in use, and whether more than the bound were asked for.
pub fn unbound() -> (usize, bool) {
    MOST.store(usize::MAX, Ordering::Relaxed);
    (PEAK.load(Ordering::Relaxed), BEYOND.load(Ordering::Relaxed))
}

/// Counts bytes that are asked for; whether they are given.
fn takes(bytes: usize) -> bool {
    let live = LIVE.fetch_add(bytes, Ordering::Relaxed).saturating_add(bytes);
    if live > MOST.load(Ordering::Relaxed) {
        LIVE.fetch_sub(bytes, Ordering::Relaxed);
        BEYOND.store(true, Ordering::Relaxed);
        return false;
    }
    PEAK.fetch_max(live, Ordering::Relaxed);
    true
}

fn gives_back(bytes: usize) {
    LIVE.fetch_sub(bytes, Ordering::Relaxed);
}

// SAFETY: every call goes to the system's allocator with the same arguments, or returns null, which says that there is
// no memory.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if !takes(layout.size()) {
            return std::ptr::null_mut();
        }
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if !takes(layout.size()) {
            return std::ptr::null_mut();
        }
        // SAFETY: the caller's promise.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        gives_back(layout.size());
        // SAFETY: the caller's promise; the system's allocator gave it.
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        let (more, less) = (size.saturating_sub(layout.size()), layout.size().saturating_sub(size));
        if !takes(more) {
            return std::ptr::null_mut();
        }
        // SAFETY: the caller's promise; the system's allocator gave it.
        let new = unsafe { System.realloc(at, layout, size) };
        gives_back(if new.is_null() { more } else { less });
        new
    }
}
