//! The way to the GPU: requests, what its answers mean for CUDA, and whether there is a GPU any more.

pub(crate) mod slots;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering};

use gpu::{GiveBack, Gpu, GpuError, Properties, Request, Response};

use crate::error::{CudaError, Result};

/// What all GPUs of a process have in common.
#[derive(Debug)]
pub(crate) struct Common {
    /// The next name: it tells objects of one GPU from those of another.
    next_id: AtomicU32,
    /// GPUs that may be asked.
    usable: AtomicU32,
}

impl Common {
    /// For so many GPUs.
    pub(crate) fn new(gpus: u32) -> Arc<Common> {
        Arc::new(Common { next_id: AtomicU32::new(1), usable: AtomicU32::new(gpus) })
    }

    /// Whether there is any GPU to ask.
    pub(crate) fn any_is_usable(&self) -> bool {
        self.usable.load(Ordering::Acquire) != 0
    }
}

/// Whether the GPU may be asked: states of [`GpuLink`], which only grow.
const USABLE: u8 = 0;
const LOST: u8 = 1;
const SHUT_DOWN: u8 = 2;

/// The GPU, and what this process has learned of its being there.
pub(crate) struct GpuLink {
    gpu: Arc<dyn Gpu>,
    common: Arc<Common>,
    state: AtomicU8,
    /// Work is waited for where it is submitted.
    immediate: AtomicBool,
}

impl std::fmt::Debug for GpuLink {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("GpuLink").field("state", &self.state).finish_non_exhaustive()
    }
}

impl GpuLink {
    pub(crate) fn new(gpu: Arc<dyn Gpu>, common: &Arc<Common>) -> GpuLink {
        let immediate = AtomicBool::new(gpu.is_immediate());
        GpuLink { gpu, common: Arc::clone(common), state: AtomicU8::new(USABLE), immediate }
    }

    /// From now on work is waited for where it is submitted.
    pub(crate) fn be_immediate(&self) {
        self.immediate.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_immediate(&self) -> bool {
        self.immediate.load(Ordering::Relaxed)
    }

    /// The GPU itself; what it answers goes through [`GpuLink::outcome`].
    pub(crate) fn gpu(&self) -> &dyn Gpu {
        &*self.gpu
    }

    pub(crate) fn properties(&self) -> &Properties {
        self.gpu.properties()
    }

    /// A number for a new object on the GPU, never given before.
    pub(crate) fn fresh_id(&self) -> u32 {
        self.common.next_id.fetch_add(1, Ordering::Relaxed)
    }

    /// The process ends: nothing is asked of the GPU any more.
    pub(crate) fn shut_down(&self) {
        self.change(SHUT_DOWN);
    }

    /// Refuses once there is no GPU to ask.
    ///
    /// # Errors
    /// `DEINITIALIZED` after `shut_down`, `DEVICE_UNAVAILABLE` once the GPU is lost.
    pub(crate) fn usable(&self) -> Result<()> {
        match self.state.load(Ordering::Acquire) {
            USABLE => Ok(()),
            LOST => Err(CudaError::DEVICE_UNAVAILABLE),
            _ => Err(CudaError::DEINITIALIZED),
        }
    }

    /// The only place where the state changes.
    fn change(&self, to: u8) {
        if self.state.fetch_max(to, Ordering::AcqRel) == USABLE && to != USABLE {
            self.common.usable.fetch_sub(1, Ordering::AcqRel);
        }
    }

    /// Turns the GPU's answer into CUDA's, remembering that the GPU is lost if it is.
    pub(crate) fn outcome<T>(&self, answer: std::result::Result<T, GpuError>) -> Result<T> {
        answer.map_err(|error| {
            if matches!(error, GpuError::Lost { .. }) {
                self.change(LOST);
            }
            tracing::debug!(%error, "refused by the GPU");
            error.into()
        })
    }

    pub(crate) fn request(&self, request: Request) -> Result<Response> {
        self.usable()?;
        self.outcome(self.gpu.request(request))
    }

    /// Gives something back to the GPU: a request whose failure nobody can act on.
    pub(crate) fn give_back(&self, request: Request) {
        if self.usable().is_ok() {
            // `outcome` has logged it.
            let _ = self.outcome(self.gpu.request(request));
        }
    }

    /// As [`GpuLink::give_back`], and does not wait for it.
    pub(crate) fn post(&self, what: GiveBack) {
        if self.usable().is_ok() {
            let _ = self.outcome(self.gpu.post(what));
        }
    }

    /// Sends on what was submitted.
    pub(crate) fn flush(&self) -> Result<()> {
        self.outcome(self.gpu.flush())
    }
}
