//! What is known of an address.

use std::sync::atomic::Ordering;

use crate::driver::Driver;
use crate::error::{CudaError, Result};
use crate::memory::allocation::{Allocation, Kind};
use crate::memory::descriptors::POSIX;
use crate::values::AttributeValue;

/// Numbers of `CUpointer_attribute`.
const CONTEXT: i32 = 1;
const MEMORY_TYPE: i32 = 2;
const DEVICE_POINTER: i32 = 3;
const HOST_POINTER: i32 = 4;
const P2P_TOKENS: i32 = 5;
const SYNC_MEMOPS: i32 = 6;
const BUFFER_ID: i32 = 7;
const IS_MANAGED: i32 = 8;
const DEVICE_ORDINAL: i32 = 9;
const IS_LEGACY_IPC_CAPABLE: i32 = 10;
const RANGE_START: i32 = 11;
const RANGE_SIZE: i32 = 12;
const MAPPED: i32 = 13;
const ALLOWED_HANDLE_TYPES: i32 = 14;
const IS_RDMA_CAPABLE: i32 = 15;
const ACCESS_FLAGS: i32 = 16;
const MEMPOOL_HANDLE: i32 = 17;
const MAPPING_SIZE: i32 = 18;
const MAPPING_BASE: i32 = 19;
const MEMORY_BLOCK_ID: i32 = 20;
const IS_HW_DECOMPRESS_CAPABLE: i32 = 21;

/// `CU_MEMORYTYPE_*`.
const TYPE_HOST: u32 = 1;
const TYPE_DEVICE: u32 = 2;
/// `CU_DEVICE_INVALID`.
const NO_DEVICE: i32 = -2;
/// `CU_POINTER_ATTRIBUTE_ACCESS_FLAG_READWRITE`.
const READ_WRITE: u32 = 3;

impl Driver {
    /// A `CUpointer_attribute`.
    ///
    /// # Errors
    /// `INVALID_VALUE` for addresses that CUDA knows nothing of and attributes that do not apply.
    pub fn pointer_get_attribute(&self, attribute: i32, address: u64) -> Result<AttributeValue> {
        self.ready()?;
        let found = self.memory.find(address).filter(|found| !found.kind.hidden());
        let Some(found) = found else {
            // Two attributes are defined for every address.
            return match attribute {
                MAPPED => Ok(AttributeValue::Bool(false)),
                IS_MANAGED => Ok(AttributeValue::U32(0)),
                _ => Err(CudaError::INVALID_VALUE),
            };
        };
        self.attribute_of(attribute, address, &found)
    }

    fn attribute_of(&self, attribute: i32, address: u64, found: &Allocation) -> Result<AttributeValue> {
        // Another process's memory is its GPU's, whatever way it is seen here.
        let visible = found.kind.host_visible() && found.kind != Kind::Imported || found.kind.registered();
        let managed = found.kind.managed();
        let offset = found.offset(address);
        Ok(match attribute {
            CONTEXT => {
                let contexts = self.contexts.all();
                let owner = contexts.into_iter().find(|context| context.core.id == found.context);
                AttributeValue::U64(owner.map_or(0, |context| context.core.handle.0))
            }
            MEMORY_TYPE => AttributeValue::U32(if visible && !managed { TYPE_HOST } else { TYPE_DEVICE }),
            DEVICE_POINTER if found.kind.on_gpu() => AttributeValue::U64(found.base + offset),
            HOST_POINTER if visible => AttributeValue::U64(found.host_address() + offset),
            P2P_TOKENS => AttributeValue::Pair(0, 0),
            SYNC_MEMOPS => AttributeValue::Bool(found.sync_memops.load(Ordering::Relaxed)),
            BUFFER_ID => AttributeValue::U64(found.number),
            // NVIDIA's runtime reads a whole word.
            IS_MANAGED => AttributeValue::U32(managed.into()),
            DEVICE_ORDINAL => AttributeValue::U32(found.gpu),
            IS_LEGACY_IPC_CAPABLE => AttributeValue::Bool(found.kind == Kind::Device && self.can_be_shared(found)),
            IS_RDMA_CAPABLE | IS_HW_DECOMPRESS_CAPABLE => AttributeValue::Bool(false),
            RANGE_START | MAPPING_BASE => AttributeValue::U64(found.base),
            RANGE_SIZE | MAPPING_SIZE => AttributeValue::U64(found.bytes),
            MAPPED => AttributeValue::Bool(found.kind.on_gpu()),
            ALLOWED_HANDLE_TYPES => AttributeValue::U64(self.handle_types_of(found).into()),
            ACCESS_FLAGS => AttributeValue::U32(READ_WRITE),
            MEMPOOL_HANDLE => AttributeValue::U64(found.pool.0),
            MEMORY_BLOCK_ID => AttributeValue::U64(found.number),
            _ => return Err(CudaError::INVALID_VALUE),
        })
    }

    /// By which types of handles other processes get an allocation.
    fn handle_types_of(&self, found: &Allocation) -> u32 {
        match found.kind {
            Kind::Mapped | Kind::MappedHost => self.virtual_memory.handle_types_at(found.base),
            Kind::Pool if self.pool(found.pool).is_ok_and(|(_, pool)| pool.is_shared()) => POSIX,
            _ => 0,
        }
    }

    /// As `cuPointerGetAttributes` fills it: zero where there is nothing to tell.
    ///
    /// # Errors
    /// `INVALID_VALUE` for unknown attributes.
    pub fn pointer_get_attribute_or_default(&self, attribute: i32, address: u64) -> Result<AttributeValue> {
        match self.pointer_get_attribute(attribute, address) {
            Err(CudaError::INVALID_VALUE) => match attribute {
                MEMORY_TYPE | ACCESS_FLAGS | IS_MANAGED => Ok(AttributeValue::U32(0)),
                DEVICE_ORDINAL => Ok(AttributeValue::U32(NO_DEVICE.cast_unsigned())),
                P2P_TOKENS => Ok(AttributeValue::Pair(0, 0)),
                SYNC_MEMOPS | IS_LEGACY_IPC_CAPABLE | MAPPED | IS_RDMA_CAPABLE | IS_HW_DECOMPRESS_CAPABLE => {
                    Ok(AttributeValue::Bool(false))
                }
                CONTEXT..=MEMORY_BLOCK_ID => Ok(AttributeValue::U64(0)),
                _ => Err(CudaError::INVALID_VALUE),
            },
            other => other,
        }
    }

    /// Sets `CU_POINTER_ATTRIBUTE_SYNC_MEMOPS`. Copies that the host could see to be late wait already.
    ///
    /// # Errors
    /// `INVALID_VALUE` for other attributes and unknown addresses.
    pub fn pointer_set_attribute(&self, attribute: i32, value: bool, address: u64) -> Result<()> {
        self.ready()?;
        let found = self.memory.find(address).ok_or(CudaError::INVALID_VALUE)?;
        if attribute != SYNC_MEMOPS {
            return Err(CudaError::INVALID_VALUE);
        }
        found.sync_memops.store(value, Ordering::Relaxed);
        Ok(())
    }
}
