//! Dynamic parallelism: what kernels launch while they run.
//!
//! A thread that launches asks for a parameter buffer, fills it, and launches it (the device runtime's
//! `cudaGetParameterBufferV2` and `cudaLaunchDeviceV2`, which nvcc makes of `<<<…>>>`). The buffer lies in the thread's own local memory, behind
//! a header that says what to launch; the front end makes the former call of stores and the latter a builtin, which copies it all out at once
//! and gives it to the [`Launcher`]. What a thread may do to its own local memory is not trusted: everything is checked here.
//!
//! ```text
//!   +0   u32   the thread's last error
//!   +16  header, HEADER bytes: u64 kernel, u32 grid[3], u32 block[3], u32 shared, u32 bytes of parameters,
//!              u32 index of the kernel that launches, u32 kernels of the module
//!   +64  parameters: as many bytes as the largest block of the module's kernels
//!   +…   two texts of ERROR_TEXT bytes: of cudaGetErrorString and cudaGetErrorName
//! ```
//!
//! Named streams and events need nothing here: a launcher runs what a grid launched one after another, in the order of the launches,
//! which is more than any stream or event asks for.
//!
//! Source: CUDA C++ Programming Guide 13.0, "CUDA Dynamic Parallelism"; `cuda_device_runtime_api.h` of the toolkit 13.5.

use std::fmt::Debug;

use crate::launch::{AccessError, GlobalMemory, MAX_PARAM_BYTES, MAX_SHARED_BYTES, MAX_THREADS_PER_CTA};

/// Bytes of the header before a buffer.
pub(crate) const HEADER: u64 = 48;
/// Where the header lies in the area, and the parameters.
pub(crate) const HEADER_AT: u64 = 16;
pub(crate) const PARAMS_AT: u64 = HEADER_AT + HEADER;
/// Bytes of each of the texts behind the parameters.
pub(crate) const ERROR_TEXT: u64 = 48;

/// What stands for a kernel's address: this, and 16 for each kernel of the module before it.
const KERNELS: u64 = 1 << 40;

/// The stream that a tail launch names.
const STREAM_TAIL: u64 = 3;
/// Streams in whose order a launch may begin before the grid has ended: NULL, legacy, per thread, fire and forget.
const STREAMS: [u64; 4] = [0, 1, 2, 4];
/// What stands for any stream that a kernel has made.
pub(crate) const NAMED_STREAM: u64 = 16;
/// What stands for any event.
pub(crate) const EVENT: u64 = 32;

/// Values of `cudaError_t` that the device runtime gives, their names and texts.
pub(crate) const ERRORS: [(u32, &str, &str); 9] = [
    (0, "cudaSuccess", "no error"),
    (INVALID_VALUE, "cudaErrorInvalidValue", "invalid argument"),
    (MEMORY, "cudaErrorMemoryAllocation", "out of memory"),
    (CONFIGURATION, "cudaErrorInvalidConfiguration", "invalid configuration argument"),
    (PENDING, "cudaErrorLaunchPendingCountExceeded", "too many launches are pending"),
    (FUNCTION, "cudaErrorInvalidDeviceFunction", "invalid device function"),
    (HANDLE, "cudaErrorInvalidResourceHandle", "invalid resource handle"),
    (RESOURCES, "cudaErrorLaunchOutOfResources", "too many resources requested for launch"),
    (UNSUPPORTED, "cudaErrorNotSupported", "operation not supported"),
];

pub(crate) const INVALID_VALUE: u32 = 1;
pub(crate) const MEMORY: u32 = 2;
const CONFIGURATION: u32 = 9;
const PENDING: u32 = 69;
const FUNCTION: u32 = 98;
const HANDLE: u32 = 400;
const RESOURCES: u32 = 701;
const UNSUPPORTED: u32 = 801;

/// Something that a thread has launched.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Work {
    /// A grid.
    Grid {
        /// Which kernel, counted from the one that launches, in the order of the module's text.
        kernel: i64,
        /// CTAs in x, y, z; none is 0.
        grid: [u32; 3],
        /// Threads per CTA in x, y, z; as many as there may be.
        block: [u32; 3],
        /// Dynamic shared memory per CTA, bytes.
        dynamic_shared: u32,
        /// Parameters; perhaps more bytes than the kernel has.
        params: Vec<u8>,
    },
    /// A copy from memory to memory.
    Copy {
        /// To where.
        dst: u64,
        /// From where.
        src: u64,
        /// How much.
        bytes: u64,
    },
    /// Memory is to have a value.
    Fill {
        /// Where.
        dst: u64,
        /// Of every byte.
        value: u8,
        /// How much.
        bytes: u64,
    },
}

impl Work {
    /// Bytes of host memory that it takes until it begins.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        let params = if let Work::Grid { params, .. } = self { params.capacity() } else { 0 };
        (size_of::<Work>() + params) as u64
    }
}

/// Why a launcher takes nothing now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refused {
    /// So many launches wait already.
    TooMany,
    /// There is no memory for one more.
    NoMemory,
}

/// Who takes what the threads of a grid launch.
pub trait Launcher: Debug + Send + Sync {
    /// Takes it: to run before whatever follows the grid. What is `tail` runs after the grid and all else that it launched; the rest
    /// in the order of the calls.
    ///
    /// # Errors
    /// Why it is not taken.
    fn launch(&self, work: Work, tail: bool) -> Result<(), Refused>;
}

/// What stands for the address of a module's kernel.
pub(crate) fn handle(kernel: usize) -> u64 {
    KERNELS + kernel as u64 * 16
}

/// Bytes of a thread's area, for a module whose largest kernel has so many of parameters.
pub(crate) fn area_bytes(params: u32) -> u64 {
    texts_at(params) + 2 * ERROR_TEXT
}

/// Where the texts begin in the area.
pub(crate) fn texts_at(params: u32) -> u64 {
    PARAMS_AT + u64::from(params).next_multiple_of(16)
}

/// `cudaLaunchDeviceV2`: launches what lies in a buffer. `memory` is as the thread sees it. Returns a `cudaError_t`.
///
/// # Errors
/// A buffer that cannot be read.
pub fn launch(
    memory: &dyn GlobalMemory,
    launcher: Option<&dyn Launcher>,
    buffer: u64,
    stream: u64,
) -> Result<u32, (u64, AccessError)> {
    if buffer == 0 {
        return Ok(INVALID_VALUE);
    }
    let Some(tail) = order(stream) else { return Ok(HANDLE) };
    let at = buffer.wrapping_sub(HEADER);
    let mut header = [0; HEADER as usize];
    memory.read(at, &mut header).map_err(|error| (at, error))?;
    let word = |at: usize| u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
    let three = |at: usize| [word(at), word(at + 4), word(at + 8)];
    let kernel = u64::from(word(0)) | u64::from(word(4)) << 32;
    let (grid, block, dynamic_shared) = (three(8), three(20), word(32));
    let (param_bytes, own, kernels) = (word(36), word(40), word(44));
    let index = kernel.wrapping_sub(KERNELS) / 16;
    if !kernel.is_multiple_of(16) || index >= u64::from(kernels) {
        return Ok(FUNCTION);
    }
    let threads = block.iter().try_fold(1u32, |all, side| all.checked_mul(*side)).unwrap_or(0);
    if threads == 0 || threads > MAX_THREADS_PER_CTA || block[2] > 64 {
        return Ok(CONFIGURATION);
    }
    if grid.contains(&0) || grid[0] > i32::MAX as u32 || grid[1..].iter().any(|side| *side > 65535) {
        return Ok(CONFIGURATION);
    }
    if dynamic_shared > MAX_SHARED_BYTES || param_bytes > MAX_PARAM_BYTES {
        return Ok(INVALID_VALUE);
    }
    let mut params = vec![0; param_bytes as usize];
    memory.read(buffer, &mut params).map_err(|error| (buffer, error))?;
    let kernel = index.cast_signed() - i64::from(own);
    Ok(give(launcher, Work::Grid { kernel, grid, block, dynamic_shared, params }, tail))
}

/// `cudaMemcpyAsync`. Returns a `cudaError_t`.
#[must_use]
pub fn copy(launcher: Option<&dyn Launcher>, [dst, src, bytes, kind, stream]: [u64; 5]) -> u32 {
    /// `cudaMemcpyDeviceToDevice` and `cudaMemcpyDefault`: no other kind may be asked for.
    const KINDS: [u64; 2] = [3, 4];
    transfer(launcher, Work::Copy { dst, src, bytes }, bytes, stream, KINDS.contains(&kind))
}

/// `cudaMemsetAsync`. Returns a `cudaError_t`.
#[must_use]
pub fn fill(launcher: Option<&dyn Launcher>, [dst, value, bytes, stream]: [u64; 4]) -> u32 {
    transfer(launcher, Work::Fill { dst, value: value as u8, bytes }, bytes, stream, true)
}

fn transfer(launcher: Option<&dyn Launcher>, work: Work, bytes: u64, stream: u64, known: bool) -> u32 {
    match order(stream) {
        _ if !known => INVALID_VALUE,
        None => HANDLE,
        Some(_) if bytes == 0 => 0,
        Some(tail) => give(launcher, work, tail),
    }
}

/// Is it a tail launch? `None` for what is no stream.
fn order(stream: u64) -> Option<bool> {
    (stream == STREAM_TAIL || stream == NAMED_STREAM || STREAMS.contains(&stream)).then_some(stream == STREAM_TAIL)
}

fn give(launcher: Option<&dyn Launcher>, work: Work, tail: bool) -> u32 {
    match launcher.map(|launcher| launcher.launch(work, tail)) {
        Some(Ok(())) => 0,
        Some(Err(Refused::TooMany)) => PENDING,
        Some(Err(Refused::NoMemory)) => RESOURCES,
        None => UNSUPPORTED,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    /// Memory from address 64 on.
    struct Bytes(Vec<u8>);

    impl GlobalMemory for Bytes {
        fn read(&self, address: u64, out: &mut [u8]) -> Result<(), AccessError> {
            let start = address.wrapping_sub(64) as usize;
            let end = start.checked_add(out.len()).filter(|end| *end <= self.0.len());
            out.copy_from_slice(&self.0[start..end.ok_or(AccessError::Unmapped)?]);
            Ok(())
        }
        fn write(&self, _: u64, _: &[u8]) -> Result<(), AccessError> {
            Err(AccessError::ReadOnly)
        }
        fn update(&self, _: u64, _: u32, _: &mut dyn FnMut(u64) -> u64) -> Result<u64, AccessError> {
            Err(AccessError::ReadOnly)
        }
    }

    #[derive(Debug, Default)]
    struct Taken(Mutex<Vec<(Work, bool)>>);

    impl Launcher for Taken {
        fn launch(&self, work: Work, tail: bool) -> Result<(), Refused> {
            self.0.lock().unwrap().push((work, tail));
            Ok(())
        }
    }

    /// A buffer at 64 + [`HEADER`] with words of its header changed.
    fn buffer(changes: &[(usize, u32)]) -> Bytes {
        let mut words = [0, 0, 2, 3, 4, 32, 2, 1, 100, 8, 5, 7, 0x0403_0201, 0x0807_0605];
        (words[0], words[1]) = (handle(6) as u32, (handle(6) >> 32) as u32);
        for (at, value) in changes {
            words[*at] = *value;
        }
        Bytes(words.iter().flat_map(|word| word.to_le_bytes()).collect())
    }

    type Told = (Result<u32, (u64, AccessError)>, Vec<(Work, bool)>);

    fn launched(memory: &Bytes, stream: u64) -> Told {
        let taken = Taken::default();
        let result = launch(memory, Some(&taken), 64 + HEADER, stream);
        (result, taken.0.into_inner().unwrap())
    }

    #[test]
    fn what_a_buffer_says_is_launched() {
        for (stream, tail) in [(0, false), (2, false), (3, true), (4, false), (NAMED_STREAM, false)] {
            let params = vec![1, 2, 3, 4, 5, 6, 7, 8];
            let work = Work::Grid { kernel: 1, grid: [2, 3, 4], block: [32, 2, 1], dynamic_shared: 100, params };
            assert_eq!(launched(&buffer(&[]), stream), (Ok(0), vec![(work, tail)]));
        }
        assert_eq!(launch(&buffer(&[]), None, 64 + HEADER, 0), Ok(UNSUPPORTED));
    }

    #[test]
    fn what_cannot_be_launched_is_refused() {
        let cases: [(&[(usize, u32)], u32); 11] = [
            (&[(0, handle(7) as u32)], FUNCTION),
            (&[(0, handle(6) as u32 + 8)], FUNCTION),
            (&[(1, 0)], FUNCTION),
            (&[(3, 0)], CONFIGURATION),
            (&[(3, 65536)], CONFIGURATION),
            (&[(2, 1 << 31)], CONFIGURATION),
            (&[(5, 0)], CONFIGURATION),
            (&[(6, 33)], CONFIGURATION),
            (&[(5, 1), (7, 65)], CONFIGURATION),
            (&[(8, MAX_SHARED_BYTES + 1)], INVALID_VALUE),
            (&[(9, MAX_PARAM_BYTES + 1)], INVALID_VALUE),
        ];
        for (changes, error) in cases {
            assert_eq!(launched(&buffer(changes), 0), (Ok(error), vec![]), "{changes:?}");
        }
        for stream in [5, EVENT, 0x0100_0000_0000_0000] {
            assert_eq!(launched(&buffer(&[]), stream), (Ok(HANDLE), vec![]));
        }
        assert_eq!(launched(&buffer(&[(9, 9)]), 0), (Err((64 + HEADER, AccessError::Unmapped)), vec![]));
        assert_eq!(launch(&buffer(&[]), None, 0, 0), Ok(INVALID_VALUE));
        assert_eq!(launch(&buffer(&[]), None, 8, 0), Err((8u64.wrapping_sub(HEADER), AccessError::Unmapped)));
    }

    #[test]
    fn transfers_are_of_the_gpus_own_memory() {
        let taken = Taken::default();
        assert_eq!(copy(Some(&taken), [8, 16, 32, 3, 0]), 0);
        assert_eq!(copy(Some(&taken), [8, 16, 32, 1, 0]), INVALID_VALUE);
        assert_eq!(copy(Some(&taken), [8, 16, 0, 4, 0]), 0);
        assert_eq!(fill(Some(&taken), [8, 0x101, 3, 3]), 0);
        assert_eq!(fill(Some(&taken), [8, 1, 3, 9]), HANDLE);
        let work =
            [(Work::Copy { dst: 8, src: 16, bytes: 32 }, false), (Work::Fill { dst: 8, value: 1, bytes: 3 }, true)];
        assert_eq!(taken.0.into_inner().unwrap(), work);
    }
}
