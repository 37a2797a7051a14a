//! The way to the GPU: requests, what its answers mean for CUDA, and whether there is a GPU any more.

pub(crate) mod slots;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use gpu::{GiveBack, Gpu, GpuError, Properties, Request, Response};

use crate::error::{CudaError, Result};

/// The GPU, and what this process has learned of its being there.
pub(crate) struct GpuLink {
    gpu: Arc<dyn Gpu>,
    /// Of all GPUs of the process: a name tells objects of one from those of another.
    next_id: Arc<AtomicU32>,
    lost: AtomicBool,
    shut_down: AtomicBool,
    /// Work is waited for where it is submitted.
    immediate: AtomicBool,
}

impl std::fmt::Debug for GpuLink {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("GpuLink").field("lost", &self.lost).field("shut_down", &self.shut_down).finish_non_exhaustive()
    }
}

impl GpuLink {
    pub(crate) fn new(gpu: Arc<dyn Gpu>, next_id: &Arc<AtomicU32>) -> GpuLink {
        let immediate = AtomicBool::new(gpu.is_immediate());
        let [lost, shut_down] = [false; 2].map(AtomicBool::new);
        GpuLink { gpu, next_id: Arc::clone(next_id), lost, shut_down, immediate }
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
        self.next_id.fetch_add(1, Ordering::Relaxed)
    }

    /// The process ends: nothing is asked of the GPU any more.
    pub(crate) fn shut_down(&self) {
        self.shut_down.store(true, Ordering::Release);
    }

    /// Refuses once there is no GPU to ask.
    ///
    /// # Errors
    /// `DEINITIALIZED` after `shut_down`, `DEVICE_UNAVAILABLE` once the GPU is lost.
    pub(crate) fn usable(&self) -> Result<()> {
        if self.shut_down.load(Ordering::Acquire) {
            return Err(CudaError::DEINITIALIZED);
        }
        if self.lost.load(Ordering::Acquire) {
            return Err(CudaError::DEVICE_UNAVAILABLE);
        }
        Ok(())
    }

    /// Turns the GPU's answer into CUDA's, remembering that the GPU is lost if it is.
    pub(crate) fn outcome<T>(&self, answer: std::result::Result<T, GpuError>) -> Result<T> {
        answer.map_err(|error| {
            if matches!(error, GpuError::Lost { .. }) {
                self.lost.store(true, Ordering::Release);
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
