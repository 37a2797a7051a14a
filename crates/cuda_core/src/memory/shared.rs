//! Host memory that a GPU has made, for the other GPUs of the process to see at the same addresses.
//!
//! It is imported wherever the process's addresses are announced, at once or when they are ([`Shared::announced`]). A GPU that cannot
//! import does not see it: copies by that GPU go through the process then, and its kernels fault there.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use gpu::{AllocId, DevAddr, GiveBack, GpuError, HostMemory, MapAccess, Request};
use parking_lot::Mutex;

use crate::error::{CudaError, Result};
use crate::gpu_link::GpuLink;

/// Where a piece of host memory is mapped, and what it is.
#[derive(Debug)]
pub(crate) struct Piece {
    /// Its name, on every GPU.
    pub(crate) id: AllocId,
    pub(crate) bytes: u64,
    /// The GPU that made it.
    pub(crate) gpu: u32,
    pub(crate) memory: HostMemory,
}

/// All such memory of a process.
#[derive(Debug, Default)]
pub(crate) struct Shared {
    known: Mutex<Known>,
    /// There is more than one GPU in `known`.
    several: AtomicBool,
}

#[derive(Debug, Default)]
struct Known {
    /// GPUs that know the addresses, by ordinal.
    gpus: BTreeMap<u32, Arc<GpuLink>>,
    /// By address, with the ordinals of the GPUs that see it, as bits.
    pieces: BTreeMap<u64, (Piece, u32)>,
}

impl Piece {
    /// Has a GPU see it. False if that GPU cannot, or is not there any more.
    ///
    /// # Errors
    /// `OUT_OF_MEMORY`.
    fn import(&self, at: u64, link: &GpuLink) -> Result<bool> {
        if link.usable().is_err() {
            return Ok(false);
        }
        let outcome = |answer: std::result::Result<(), GpuError>| match answer {
            Ok(()) => Ok(true),
            Err(GpuError::Unsupported { .. } | GpuError::Lost { .. }) => {
                link.outcome(answer).map(|()| true).or(Ok(false))
            }
            Err(error) => {
                tracing::debug!(%error, "host memory cannot be imported");
                Err(CudaError::OUT_OF_MEMORY)
            }
        };
        let imported = outcome(link.gpu().import(self.id, &self.memory, self.bytes))?;
        let (id, bytes, access) = (self.id, self.bytes, MapAccess::ReadWrite);
        let map = Request::Map { at: DevAddr(at), id, offset: 0, bytes, access };
        let seen = imported && outcome(link.gpu().request(map).map(drop)).inspect_err(|_| self.free(link))?;
        if imported && !seen {
            self.free(link);
        }
        Ok(seen)
    }

    fn free(&self, link: &GpuLink) {
        link.give_back(Request::Free { id: self.id });
    }

    fn withdraw(&self, at: u64, link: &GpuLink) {
        link.post(GiveBack::Unmap { at: DevAddr(at), bytes: self.bytes });
        link.post(GiveBack::Free { id: self.id });
    }
}

fn bit(gpu: u32) -> u32 {
    1 << gpu
}

impl Shared {
    /// A GPU knows the addresses: it sees what is there from now on.
    pub(crate) fn announced(&self, gpu: u32, link: &Arc<GpuLink>) {
        let known = &mut *self.known.lock();
        for (at, (piece, seen)) in &mut known.pieces {
            match piece.import(*at, link) {
                Ok(true) => *seen |= bit(gpu),
                Ok(false) => {}
                Err(_) => tracing::warn!(gpu, bytes = piece.bytes, "host memory is not seen by this GPU"),
            }
        }
        known.gpus.insert(gpu, Arc::clone(link));
        self.several.store(known.gpus.len() > 1, Ordering::Release);
    }

    /// Memory has been made: all other GPUs see it.
    ///
    /// # Errors
    /// `OUT_OF_MEMORY`: nobody sees it then but the GPU that made it.
    pub(crate) fn add(&self, at: u64, piece: Piece) -> Result<()> {
        let known = &mut *self.known.lock();
        let mut seen = bit(piece.gpu);
        for (gpu, link) in known.gpus.iter().filter(|(gpu, _)| **gpu != piece.gpu) {
            match piece.import(at, link) {
                Ok(true) => seen |= bit(*gpu),
                Ok(false) => {}
                Err(error) => {
                    known.withdraw(at, &piece, seen);
                    return Err(error);
                }
            }
        }
        known.pieces.insert(at, (piece, seen));
        Ok(())
    }

    /// It is about to be given back by the GPU that made it: no other sees it any more.
    pub(crate) fn remove(&self, at: u64) {
        let known = &mut *self.known.lock();
        if let Some((piece, seen)) = known.pieces.remove(&at) {
            known.withdraw(at, &piece, seen);
        }
    }

    /// Whether a GPU sees all of a range.
    pub(crate) fn sees(&self, gpu: u32, at: u64, bytes: u64) -> bool {
        if !self.several.load(Ordering::Acquire) {
            return false;
        }
        let known = self.known.lock();
        let (mut at, end) = (at, at.saturating_add(bytes));
        loop {
            let Some((base, (piece, seen))) = known.pieces.range(..=at).next_back() else { return false };
            if at - base >= piece.bytes || seen & bit(gpu) == 0 {
                return false;
            }
            at = base + piece.bytes;
            if at >= end {
                return true;
            }
        }
    }
}

impl Known {
    /// Takes a piece away from all that see it but the GPU that made it.
    fn withdraw(&self, at: u64, piece: &Piece, seen: u32) {
        let others = self.gpus.iter().filter(|(gpu, _)| **gpu != piece.gpu && seen & bit(**gpu) != 0);
        others.for_each(|(_, link)| piece.withdraw(at, link));
    }
}
