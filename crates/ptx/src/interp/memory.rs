//! State spaces as one thread sees them.

use super::Cta;
use crate::ir::{Address, Space};
use crate::launch::{
    Access, AccessError, CLUSTER_WINDOW_BYTES, Exception, GlobalMemory, LOCAL_WINDOW, LOCAL_WINDOW_BYTES,
    SHARED_WINDOW, SHARED_WINDOW_BYTES,
};

/// Where an access goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Place {
    /// GPU virtual address.
    Global(u64),
    /// Offset in the CTA's shared memory.
    Shared(u64),
    /// The rank of another CTA of the cluster, and an offset in its shared memory.
    Peer(u32, u64),
    /// Offset in the thread's local memory.
    Local(u64),
    /// Offset in the parameter block.
    Param(u64),
}

/// Splits a generic address by window, as the CTA with this rank sees it.
pub(super) fn generic(address: u64, rank: u32) -> Place {
    if (SHARED_WINDOW..SHARED_WINDOW + CLUSTER_WINDOW_BYTES).contains(&address) {
        let offset = address - SHARED_WINDOW;
        let (window, offset) = ((offset / SHARED_WINDOW_BYTES) as u32, offset % SHARED_WINDOW_BYTES);
        if window == 0 || window - 1 == rank { Place::Shared(offset) } else { Place::Peer(window - 1, offset) }
    } else if (LOCAL_WINDOW..LOCAL_WINDOW + LOCAL_WINDOW_BYTES).contains(&address) {
        Place::Local(address - LOCAL_WINDOW)
    } else {
        Place::Global(address)
    }
}

fn fault(address: u64, access: Access, error: AccessError) -> Exception {
    Exception::Access { address, access, error }
}

/// The bytes at `offset`, if there are so many.
fn within(space: &[u8], offset: u64, length: usize) -> Option<&[u8]> {
    let start = usize::try_from(offset).ok()?;
    space.get(start..start.checked_add(length)?)
}

fn within_mut(space: &mut [u8], offset: u64, length: usize) -> Option<&mut [u8]> {
    let start = usize::try_from(offset).ok()?;
    space.get_mut(start..start.checked_add(length)?)
}

impl Cta {
    /// Resolves an operand of `thread` and checks its alignment. Gives the place and the address for a fault.
    pub(super) fn locate(
        &self,
        thread: usize,
        space: Space,
        at: &Address,
        bytes: usize,
        access: Access,
    ) -> Result<(Place, u64), Exception> {
        let address = self.operand(thread, at.base).wrapping_add(at.offset.cast_unsigned());
        let offset = u64::from(address as u32);
        let (place, address) = match space {
            Space::Generic => (generic(address, self.rank), address),
            Space::Global | Space::Const => (Place::Global(address), address),
            Space::Shared => (Place::Shared(offset), offset),
            Space::Local => (Place::Local(offset), offset),
            Space::Param => (Place::Param(offset), offset),
        };
        if !address.is_multiple_of(bytes as u64) {
            return Err(fault(address, access, AccessError::Misaligned));
        }
        Ok((place, address))
    }

    fn local(&self, thread: usize) -> &[u8] {
        let bytes = self.kernel.local_bytes as usize;
        &self.local[thread * bytes..][..bytes]
    }

    /// Shared memory of another CTA of the cluster; empty if there is none, or it has ended.
    fn peer(&self, rank: u32) -> &[u8] {
        self.peers.get(rank as usize).map_or(&[], |shared| shared)
    }

    fn peer_mut(&mut self, rank: u32) -> &mut [u8] {
        self.peers.get_mut(rank as usize).map_or(&mut [], |shared| shared)
    }

    /// Reads; `address` is for the fault.
    pub(super) fn load(
        &self,
        memory: &dyn GlobalMemory,
        thread: usize,
        (place, address): (Place, u64),
        out: &mut [u8],
    ) -> Result<(), Exception> {
        let refused = |error| fault(address, Access::Read, error);
        let (space, offset, error) = match place {
            Place::Global(address) => return memory.read(address, out).map_err(refused),
            Place::Shared(offset) => (&self.shared[..], offset, AccessError::Shared),
            Place::Peer(rank, offset) => (self.peer(rank), offset, AccessError::Shared),
            Place::Local(offset) => (self.local(thread), offset, AccessError::Local),
            Place::Param(offset) => (&self.launch.params[..], offset, AccessError::Param),
        };
        out.copy_from_slice(within(space, offset, out.len()).ok_or_else(|| refused(error))?);
        Ok(())
    }

    /// Writes; `address` is for the fault.
    pub(super) fn store(
        &mut self,
        memory: &dyn GlobalMemory,
        thread: usize,
        (place, address): (Place, u64),
        data: &[u8],
    ) -> Result<(), Exception> {
        let refused = |error| fault(address, Access::Write, error);
        let (space, offset, error) = match place {
            Place::Global(address) => return memory.write(address, data).map_err(refused),
            Place::Shared(offset) => (&mut self.shared[..], offset, AccessError::Shared),
            Place::Peer(rank, offset) => (self.peer_mut(rank), offset, AccessError::Shared),
            Place::Local(offset) => {
                let bytes = self.kernel.local_bytes as usize;
                (&mut self.local[thread * bytes..][..bytes], offset, AccessError::Local)
            }
            Place::Param(_) => return Err(refused(AccessError::ReadOnly)),
        };
        within_mut(space, offset, data.len()).ok_or_else(|| refused(error))?.copy_from_slice(data);
        Ok(())
    }

    /// Replaces a value of 2, 4 or 8 bytes; gives the old one. `address` is for the fault.
    pub(super) fn modify(
        &mut self,
        memory: &dyn GlobalMemory,
        (place, address): (Place, u64),
        bytes: u32,
        f: &mut dyn FnMut(u64) -> u64,
    ) -> Result<u64, Exception> {
        let refused = |error| fault(address, Access::Atomic, error);
        match place {
            Place::Global(address) => memory.update(address, bytes, f).map_err(refused),
            Place::Shared(_) | Place::Peer(..) => {
                let (space, offset) = match place {
                    Place::Peer(rank, offset) => (self.peer_mut(rank), offset),
                    Place::Shared(offset) => (&mut self.shared[..], offset),
                    _ => return Err(Exception::Illegal),
                };
                let slot = within_mut(space, offset, bytes as usize).ok_or_else(|| refused(AccessError::Shared))?;
                let mut value = [0; 8];
                value[..slot.len()].copy_from_slice(slot);
                let old = u64::from_le_bytes(value);
                slot.copy_from_slice(&f(old).to_le_bytes()[..bytes as usize]);
                Ok(old)
            }
            Place::Local(_) => Err(refused(AccessError::Local)),
            Place::Param(_) => Err(refused(AccessError::Param)),
        }
    }
}

/// Generic addresses as one thread sees them, for [`crate::builtins`]: reads everywhere, changes to global memory only.
pub(super) struct ThreadView<'a> {
    pub(super) cta: &'a Cta,
    pub(super) memory: &'a dyn GlobalMemory,
    pub(super) thread: usize,
}

impl GlobalMemory for ThreadView<'_> {
    fn read(&self, address: u64, out: &mut [u8]) -> Result<(), AccessError> {
        self.cta.load(self.memory, self.thread, (generic(address, self.cta.rank), address), out).map_err(|e| match e {
            Exception::Access { error, .. } => error,
            _ => AccessError::OutOfWindow,
        })
    }
    fn write(&self, address: u64, data: &[u8]) -> Result<(), AccessError> {
        self.memory.write(address, data)
    }
    fn update(&self, address: u64, bytes: u32, f: &mut dyn FnMut(u64) -> u64) -> Result<u64, AccessError> {
        self.memory.update(address, bytes, f)
    }
}
