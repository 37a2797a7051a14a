//! Structures of the interface before CUDA 3.2, whose sizes and device addresses have 32 bits, and what they are today.

use crate::{
    CUDA_ARRAY_DESCRIPTOR, CUDA_ARRAY3D_DESCRIPTOR, CUDA_MEMCPY2D, CUDA_MEMCPY3D, CUarray, CUarray_format,
    CUdeviceptr_v1, CUmemorytype, HostAddr,
};

layout! {
    /// A copy of two dimensions.
    CUDA_MEMCPY2D_v1: 96 {
        0: src_x_in_bytes: u32,
        4: src_y: u32,
        8: src_memory_type: CUmemorytype,
        16: src_host: HostAddr,
        24: src_device: CUdeviceptr_v1,
        32: src_array: CUarray,
        40: src_pitch: u32,
        44: dst_x_in_bytes: u32,
        48: dst_y: u32,
        52: dst_memory_type: CUmemorytype,
        56: dst_host: HostAddr,
        64: dst_device: CUdeviceptr_v1,
        72: dst_array: CUarray,
        80: dst_pitch: u32,
        84: width_in_bytes: u32,
        88: height: u32,
    }
    /// A copy of three dimensions.
    CUDA_MEMCPY3D_v1: 144 {
        0: src_x_in_bytes: u32,
        4: src_y: u32,
        8: src_z: u32,
        12: src_lod: u32,
        16: src_memory_type: CUmemorytype,
        24: src_host: HostAddr,
        32: src_device: CUdeviceptr_v1,
        40: src_array: CUarray,
        48: reserved0: HostAddr,
        56: src_pitch: u32,
        60: src_height: u32,
        64: dst_x_in_bytes: u32,
        68: dst_y: u32,
        72: dst_z: u32,
        76: dst_lod: u32,
        80: dst_memory_type: CUmemorytype,
        88: dst_host: HostAddr,
        96: dst_device: CUdeviceptr_v1,
        104: dst_array: CUarray,
        112: reserved1: HostAddr,
        120: dst_pitch: u32,
        124: dst_height: u32,
        128: width_in_bytes: u32,
        132: height: u32,
        136: depth: u32,
    }
    /// Shape of an array of one or two dimensions.
    CUDA_ARRAY_DESCRIPTOR_v1: 16 {
        0: width: u32,
        4: height: u32,
        8: format: CUarray_format,
        12: num_channels: u32,
    }
    /// Shape of an array.
    CUDA_ARRAY3D_DESCRIPTOR_v1: 24 {
        0: width: u32,
        4: height: u32,
        8: depth: u32,
        12: format: CUarray_format,
        16: num_channels: u32,
        20: flags: u32,
    }
}

impl From<CUDA_MEMCPY2D_v1> for CUDA_MEMCPY2D {
    fn from(old: CUDA_MEMCPY2D_v1) -> CUDA_MEMCPY2D {
        CUDA_MEMCPY2D {
            src_x_in_bytes: old.src_x_in_bytes as usize,
            src_y: old.src_y as usize,
            src_memory_type: old.src_memory_type,
            src_host: old.src_host,
            src_device: old.src_device.into(),
            src_array: old.src_array,
            src_pitch: old.src_pitch as usize,
            dst_x_in_bytes: old.dst_x_in_bytes as usize,
            dst_y: old.dst_y as usize,
            dst_memory_type: old.dst_memory_type,
            dst_host: old.dst_host,
            dst_device: old.dst_device.into(),
            dst_array: old.dst_array,
            dst_pitch: old.dst_pitch as usize,
            width_in_bytes: old.width_in_bytes as usize,
            height: old.height as usize,
        }
    }
}

impl From<CUDA_MEMCPY3D_v1> for CUDA_MEMCPY3D {
    fn from(old: CUDA_MEMCPY3D_v1) -> CUDA_MEMCPY3D {
        CUDA_MEMCPY3D {
            src_x_in_bytes: old.src_x_in_bytes as usize,
            src_y: old.src_y as usize,
            src_z: old.src_z as usize,
            src_lod: old.src_lod as usize,
            src_memory_type: old.src_memory_type,
            src_host: old.src_host,
            src_device: old.src_device.into(),
            src_array: old.src_array,
            reserved0: old.reserved0,
            src_pitch: old.src_pitch as usize,
            src_height: old.src_height as usize,
            dst_x_in_bytes: old.dst_x_in_bytes as usize,
            dst_y: old.dst_y as usize,
            dst_z: old.dst_z as usize,
            dst_lod: old.dst_lod as usize,
            dst_memory_type: old.dst_memory_type,
            dst_host: old.dst_host,
            dst_device: old.dst_device.into(),
            dst_array: old.dst_array,
            reserved1: old.reserved1,
            dst_pitch: old.dst_pitch as usize,
            dst_height: old.dst_height as usize,
            width_in_bytes: old.width_in_bytes as usize,
            height: old.height as usize,
            depth: old.depth as usize,
        }
    }
}

impl From<CUDA_ARRAY_DESCRIPTOR_v1> for CUDA_ARRAY_DESCRIPTOR {
    fn from(old: CUDA_ARRAY_DESCRIPTOR_v1) -> CUDA_ARRAY_DESCRIPTOR {
        CUDA_ARRAY_DESCRIPTOR {
            width: old.width as usize,
            height: old.height as usize,
            format: old.format,
            num_channels: old.num_channels,
        }
    }
}

impl From<CUDA_ARRAY3D_DESCRIPTOR_v1> for CUDA_ARRAY3D_DESCRIPTOR {
    fn from(old: CUDA_ARRAY3D_DESCRIPTOR_v1) -> CUDA_ARRAY3D_DESCRIPTOR {
        CUDA_ARRAY3D_DESCRIPTOR {
            width: old.width as usize,
            height: old.height as usize,
            depth: old.depth as usize,
            format: old.format,
            num_channels: old.num_channels,
            flags: old.flags,
        }
    }
}
