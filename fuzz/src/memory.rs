//! Watches how much memory a thread asks for at once.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
};

thread_local! {
    static LARGEST_BYTES: Cell<usize> = const { Cell::new(0) };
}

struct Watched;

// SAFETY: every call goes to the system's allocator unchanged; the thread-local needs no allocation and no destructor.
unsafe impl GlobalAlloc for Watched {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LARGEST_BYTES.with(|largest| largest.set(largest.get().max(layout.size())));
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        LARGEST_BYTES.with(|largest| largest.set(largest.get().max(layout.size())));
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise is passed on.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        LARGEST_BYTES.with(|largest| largest.set(largest.get().max(new_size)));
        // SAFETY: the caller's promise is passed on.
        unsafe { System.realloc(pointer, layout, new_size) }
    }
}

#[global_allocator]
static ALLOCATOR: Watched = Watched;

/// What `action` gives.
///
/// # Panics
/// If it asks for more than `limit_bytes` at once.
pub(crate) fn at_most<T>(limit_bytes: usize, action: impl FnOnce() -> T) -> T {
    LARGEST_BYTES.set(0);
    let result = action();
    let largest = LARGEST_BYTES.get();
    assert!(largest <= limit_bytes, "{largest} B asked for at once; {limit_bytes} B are enough");
    result
}
