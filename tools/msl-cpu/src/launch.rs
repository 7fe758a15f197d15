//! Running a compiled kernel.

use std::ffi::c_void;

use crate::compile::Kernel;

/// How a kernel is run.
#[derive(Clone, Copy, Debug)]
pub struct Launch {
    /// Threads in all, as MLX counts them. Default: none.
    pub grid: [u32; 3],
    /// Threads of one threadgroup. Default: 32 × 1 × 1.
    pub threadgroup: [u32; 3],
    /// Order of the fibers: 0 is their natural order, any other a random one; odd seeds also run the threadgroups
    /// backwards. Default: 0.
    pub seed: u64,
    /// OS threads that share the threadgroups; the checked build takes 1. Default: 1.
    pub os_threads: u32,
}

impl Default for Launch {
    fn default() -> Self {
        Self { grid: [0; 3], threadgroup: [32, 1, 1], seed: 0, os_threads: 1 }
    }
}

/// What a launch reported. Its messages go to stderr.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Faults found. In a fast build: divergent barriers, inactive lanes and limits alone.
    pub errors: u64,
    /// Simdgroup operations that not all lanes of a simdgroup took part in.
    pub divergent: u64,
    /// Threadgroup memory used.
    pub threadgroup_bytes: u64,
    /// Switches between fibers.
    pub switches: u64,
}

#[repr(C)]
struct Buffer {
    pointer: *mut c_void,
    bytes: u64,
    writable: u32,
}

type Entry = unsafe extern "C" fn();
type LaunchFunction = unsafe extern "C" fn(
    *const c_void,
    *mut Buffer,
    u32,
    *const u32,
    *const u32,
    u32,
    u64,
    *mut Stats,
) -> u64;

/// Bytes before and after each buffer. A reported access out of bounds still happens: this keeps it off the heap.
const PADDING_BYTES: usize = 1 << 16;

/// The alignment of every buffer, as the allocators of GPUs give it.
const ALIGNMENT_BYTES: usize = 256;

/// A buffer between two paddings, all of them filled with 0xFF: not a number in every float type.
struct Padded {
    bytes: Vec<u8>,
    start: usize,
    len: usize,
}

impl Padded {
    fn new(len: usize) -> Self {
        let bytes = vec![0xFF; len + 2 * PADDING_BYTES + ALIGNMENT_BYTES];
        let aligned = bytes.as_ptr().align_offset(ALIGNMENT_BYTES);
        Self { bytes, start: PADDING_BYTES + aligned, len }
    }

    fn part(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..self.start + self.len]
    }

    fn buffer(&mut self, writable: bool) -> Buffer {
        let part = self.part();
        Buffer { pointer: part.as_mut_ptr().cast(), bytes: part.len() as u64, writable: u32::from(writable) }
    }
}

impl Kernel {
    /// Runs the kernel. `inputs` are the buffers in the order of the signature, each followed by those of its shape (i32),
    /// strides (i64) and ndim (i32) that the body names. Returns the outputs, of `output_bytes` each, which
    /// held 0xFF bytes before.
    ///
    /// # Panics
    /// If the compiled library lacks its entry points, which this crate's own shim always has.
    #[must_use]
    pub fn launch(&self, inputs: &[&[u8]], output_bytes: &[usize], launch: &Launch) -> (Vec<Vec<u8>>, Stats) {
        let mut padded: Vec<Padded> = inputs
            .iter()
            .map(|input| {
                let mut padded = Padded::new(input.len());
                padded.part().copy_from_slice(input);
                padded
            })
            .collect();
        padded.extend(output_bytes.iter().map(|&bytes| Padded::new(bytes)));
        let mut buffers: Vec<Buffer> =
            padded.iter_mut().enumerate().map(|(index, each)| each.buffer(index >= inputs.len())).collect();
        let stats = self.call(&mut buffers, launch);
        let outputs = padded.iter_mut().skip(inputs.len()).map(|output| output.part().to_vec()).collect();
        (outputs, stats)
    }

    fn call(&self, buffers: &mut [Buffer], launch: &Launch) -> Stats {
        let mut stats = Stats::default();
        // SAFETY: the trampoline defines this symbol; it is only passed on, never called with this type.
        let entry = unsafe { self.library.get::<Entry>(b"msl_entry") }.expect("the trampoline is there");
        // SAFETY: the runtime defines this symbol with this signature.
        let run = unsafe { self.library.get::<LaunchFunction>(b"msl_launch") }.expect("the runtime is there");
        let count = u32::try_from(buffers.len()).expect("a kernel has few buffers");
        // SAFETY: the buffers, the two triples and the statistics live through the call, which keeps none of them. The
        // kernel itself may be wrong: that is what is tested, and the paddings absorb what near misses write.
        unsafe {
            run(
                *entry as *const c_void,
                buffers.as_mut_ptr(),
                count,
                launch.grid.as_ptr(),
                launch.threadgroup.as_ptr(),
                launch.os_threads,
                launch.seed,
                &mut stats,
            )
        };
        stats
    }
}
