//! Bare readers to compare with: threads that claim blocks of a file in order and read them into their own aligned memory.

use std::{
    fs::{File, OpenOptions},
    os::unix::fs::{FileExt, OpenOptionsExt},
    path::Path,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Instant,
};

use memmap2::MmapMut;

pub(crate) fn open_direct(path: &Path) -> File {
    OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_DIRECT)
        .open(path)
        .expect("the file opens for direct reads")
}

/// Memory for `threads` readers of blocks, touched.
pub(crate) fn buffers(threads: usize, block_bytes: usize) -> Vec<MmapMut> {
    let buffer = || {
        let mut map = MmapMut::map_anon(block_bytes).expect("memory");
        map.fill(1);
        map
    };
    (0..threads).map(|_| buffer()).collect()
}

/// Bytes a second of reading the whole blocks of a file, each thread into its one buffer.
pub(crate) fn rate(file: &File, buffers: &mut [MmapMut]) -> f64 {
    let block = buffers[0].len() as u64;
    let blocks = file.metadata().expect("a length").len() / block;
    let next = AtomicU64::new(0);
    let began = Instant::now();
    std::thread::scope(|scope| {
        for buffer in buffers {
            scope.spawn(|| {
                loop {
                    let number = next.fetch_add(1, Relaxed);
                    if number >= blocks {
                        return;
                    }
                    file.read_exact_at(buffer, number * block).expect("a block");
                }
            });
        }
    });
    (blocks * block) as f64 / began.elapsed().as_secs_f64()
}

/// Bytes a second of reading the whole slots of a file into slots, one after the other, as leases do: each byte of memory
/// is written once for every time the slots go round.
pub(crate) fn rate_into_slots(file: &File, slots: &mut MmapMut, slot_bytes: usize, threads: usize) -> f64 {
    let records = file.metadata().expect("a length").len() / slot_bytes as u64;
    let places: Vec<_> = slots.chunks_exact_mut(slot_bytes).map(std::sync::Mutex::new).collect();
    let next = AtomicU64::new(0);
    let began = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let number = next.fetch_add(1, Relaxed);
                    if number >= records {
                        return;
                    }
                    let mut place = places[number as usize % places.len()].lock().expect("no reader panics");
                    file.read_exact_at(&mut place, number * slot_bytes as u64).expect("a record");
                }
            });
        }
    });
    (records * slot_bytes as u64) as f64 / began.elapsed().as_secs_f64()
}
