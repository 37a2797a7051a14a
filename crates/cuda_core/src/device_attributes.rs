//! Device attributes by `CUdevice_attribute` number: those of a GPU of compute capability 12.0, as far as they are facts of
//! the architecture; abilities are those that there are.

use gpu::Properties;

/// Multiprocessor limits of compute capability 12.0, for occupancy too.
pub(crate) const THREADS_PER_BLOCK: u32 = 1024;
pub(crate) const BLOCK_DIM: [u32; 3] = [1024, 1024, 64];
pub(crate) const GRID_DIM: [u32; 3] = [0x7FFF_FFFF, 65535, 65535];
pub(crate) const SHARED_PER_BLOCK: u32 = 48 << 10;
pub(crate) const SHARED_PER_BLOCK_OPTIN: u32 = 99 << 10;
pub(crate) const SHARED_PER_SM: u32 = 100 << 10;
pub(crate) const SHARED_RESERVED: u32 = 1 << 10;
pub(crate) const REGISTERS: u32 = 64 << 10;
pub(crate) const THREADS_PER_SM: u32 = 1536;
pub(crate) const BLOCKS_PER_SM: u32 = 24;
pub(crate) const WARP: u32 = 32;

/// Highest attribute number of CUDA 13.5, with room for a few more that read as 0.
const LAST: i32 = 160;

/// Whether physical memory can be given to other processes as a file descriptor, and which handles pools have: it depends on the GPU.
pub(crate) const DESCRIPTORS: [i32; 2] = [103, 119];

/// A value, or `None` for a number that is no attribute.
pub(crate) fn value(attribute: i32, properties: &Properties) -> Option<i32> {
    let number = |value: u32| i32::try_from(value).unwrap_or(i32::MAX);
    if !(1..=LAST).contains(&attribute) {
        return None;
    }
    Some(match attribute {
        1 => number(THREADS_PER_BLOCK),
        2..=4 => number(BLOCK_DIM[attribute as usize - 2]),
        5..=7 => number(GRID_DIM[attribute as usize - 5]),
        8 => number(SHARED_PER_BLOCK),
        // Constant memory; maximum pitch; registers.
        9 => 64 << 10,
        10 => number(WARP),
        11 => i32::MAX,
        12 | 82 => number(REGISTERS),
        13 => number(properties.clock_khz),
        // Alignment of textures and surfaces; of pitched textures.
        14 | 30 => 512,
        51 => 32,
        // Copies overlap with kernels; kernels run at once; host memory can be mapped; addresses are unified.
        15 | 19 | 31 | 41 => 1,
        16 => number(properties.multiprocessors),
        // Kernel timeout, integrated, compute mode, ECC, TCC.
        17 | 18 | 20 | 32 | 35 => 0,
        // Largest textures.
        21 | 22 => 131_072,
        23 => 65_536,
        24..=26 => 16_384,
        27 | 28 => 32_768,
        29 | 43 => 2_048,
        33 => number(properties.pci[1]),
        34 => number(properties.pci[2]),
        36 => number(properties.memory_clock_khz),
        37 => number(properties.memory_bus_bits),
        38 => number(properties.l2_bytes),
        39 => number(THREADS_PER_SM),
        // Copy engines.
        40 => 2,
        42 => 32_768,
        44 => 1,
        45 | 46 => 32_768,
        // No alternate size of 3D textures.
        47..=49 => 0,
        50 => number(properties.pci[0]),
        52 | 53 => 32_768,
        54 | 68 => 2_046,
        // Largest surfaces.
        55 => 32_768,
        56 => 131_072,
        57 => 65_536,
        58..=60 => 16_384,
        61 | 63 | 64 => 32_768,
        62 | 65 => 2_048,
        66 | 67 => 32_768,
        // Linear textures; mipmapped textures.
        69 => 268_435_456,
        70 => 131_072,
        71 => 65_000,
        72 => 2_097_120,
        73 | 74 | 77 => 32_768,
        75 => number(properties.compute_capability[0]),
        76 => number(properties.compute_capability[1]),
        // Stream priorities; L1 caches global and local memory.
        78..=80 => 1,
        81 => number(SHARED_PER_SM),
        // Managed memory; not a board of several GPUs.
        83 => 1,
        84 | 85 => 0,
        // Host atomics are not native; ratio of single to double precision.
        86 => 0,
        87 => 64,
        // No access to pageable memory; host and GPU may use managed memory at once; preemption.
        88 => 0,
        89 | 90 => 1,
        // Registered memory has another address on the GPU.
        91 => 0,
        // Stream memory operations, version 1; cooperative launches. Kernels can be launched so on several devices, but have no barrier
        // between those.
        92..=95 => 1,
        96 => 0,
        97 => number(SHARED_PER_BLOCK_OPTIN),
        // Flushing remote writes; registration of host memory; host page tables; direct access to managed memory.
        98 => 0,
        99 => 1,
        100 | 101 => 0,
        // Virtual memory management; no handles of Windows to share it.
        102 => 1,
        104 | 105 => 0,
        106 => number(BLOCKS_PER_SM),
        111 => number(SHARED_RESERVED),
        115 => 1,
        // Launches of clusters.
        120 => 1,
        // Stream memory operations of 64 bits, and NOR.
        122 | 123 => 1,
        // Events that several processes share.
        125 => 1,
        // One memory synchronization domain.
        126 => 1,
        // Tensor maps.
        127 => 1,
        // Virtual memory management of host memory, of a node (there is one, 0) and of any.
        134 => 0,
        141 | 145 => 1,
        // PCI device 0x2B85, vendor 0x10DE; the same as its subsystem.
        139 | 140 => 0x2B85_10DE,
        // Abilities that there are not.
        _ => 0,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_attribute_has_a_value() {
        let properties = Properties {
            name: String::new(),
            uuid: [0; 16],
            pci: [0, 1, 2],
            compute_capability: [12, 0],
            driver_version: 13050,
            multiprocessors: 2,
            memory_bytes: 1 << 30,
            clock_khz: 2_000_000,
            memory_clock_khz: 14_000_000,
            memory_bus_bits: 512,
            l2_bytes: 96 << 20,
        };
        let get = |attribute| value(attribute, &properties);
        assert!((1..=150).all(|attribute| get(attribute).is_some()));
        assert_eq!((get(0), get(-1), get(LAST + 1)), (None, None, None));
        assert_eq!((get(16), get(33), get(34), get(75), get(76)), (Some(2), Some(1), Some(2), Some(12), Some(0)));
        assert_eq!((get(134), get(141), get(142), get(145)), (Some(0), Some(1), Some(0), Some(1)));
        assert_eq!((get(4), get(97), get(106)), (Some(64), Some(101_376), Some(24)));
    }
}
