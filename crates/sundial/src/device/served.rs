//! What stands behind the socket of a virtual GPU: a mediator on the device that everybody uses, or the whole device.

use std::io;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use gmmu::Policy;
use gpu_driver::{Metered, Usage};
use vfio_user::{Ended, Server};
use vgpu::{Counts, PassThrough, Port, Vgpu};

/// A virtual GPU, however it is virtualized.
pub(super) enum Served {
    /// A part of the device.
    Mediated(Arc<Vgpu>),
    /// All of it: there is nobody else to be measured against, and nothing to be held back.
    Whole(Arc<PassThrough>),
}

impl Served {
    /// Serves a guest to its end.
    pub(super) fn serve(&self, server: Server) -> Ended {
        match self {
            Served::Mediated(vgpu) => server.serve(&Port::new(Arc::clone(vgpu))),
            Served::Whole(whole) => server.serve(&**whole),
        }
    }

    /// The work of the thread that attends to it, until [`Served::end`].
    pub(super) fn attend(&self) {
        match self {
            Served::Mediated(vgpu) => vgpu.attend(),
            Served::Whole(whole) => whole.attend(),
        }
    }

    /// What its guest has in store for the thread that serves it is not done any more, so that this ends soon.
    pub(super) fn hurry(&self) {
        match self {
            Served::Mediated(vgpu) => vgpu.end(),
            // It has nothing that takes long: the device does it.
            Served::Whole(_) => {}
        }
    }

    pub(super) fn end(&self) {
        match self {
            Served::Mediated(vgpu) => vgpu.end(),
            Served::Whole(whole) => whole.end(),
        }
    }

    /// Records what its guest does to its page tables.
    pub(super) fn record(&self, to: UnixStream) -> io::Result<()> {
        match self {
            Served::Mediated(vgpu) => vgpu.record(to),
            Served::Whole(_) => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    /// Shadows its guest's page tables in another way.
    pub(super) fn set_policy(&self, policy: Policy) {
        match self {
            Served::Mediated(vgpu) => vgpu.set_policy(policy),
            // Its guest's tables are the device's.
            Served::Whole(_) => {}
        }
    }

    /// Changes how much memory it has.
    pub(super) fn resize(&self, bytes: u64, bound: Duration) -> Result<(), String> {
        match self {
            Served::Mediated(vgpu) => vgpu.resize(bytes, bound).map_err(|error| error.to_string()),
            Served::Whole(_) => Err("pass-through is all of the GPU, and its memory with it".into()),
        }
    }

    /// Why no guest has a device any more, if that is so.
    pub(super) fn ended(&self) -> Option<String> {
        match self {
            Served::Mediated(vgpu) => vgpu.ended().map(str::to_owned),
            Served::Whole(whole) => whole.ended(),
        }
    }

    /// Memory of its guest's, bytes.
    pub(super) fn vram_used(&self) -> u64 {
        match self {
            Served::Mediated(vgpu) => vgpu.vram_used(),
            Served::Whole(whole) => whole.vram_bytes(),
        }
    }

    /// Memory that serving it takes besides, bytes.
    pub(super) fn vram_overhead(&self) -> u64 {
        match self {
            Served::Mediated(vgpu) => vgpu.vram_overhead(),
            Served::Whole(_) => 0,
        }
    }

    pub(super) fn counts(&self) -> Counts {
        match self {
            Served::Mediated(vgpu) => vgpu.counts(),
            Served::Whole(whole) => whole.counts(),
        }
    }

    pub(super) fn channels(&self) -> u32 {
        match self {
            Served::Mediated(vgpu) => vgpu.channels(),
            Served::Whole(_) => 0,
        }
    }

    /// What its guests have had of the GPU, as far as somebody measures it.
    pub(super) fn usage(&self) -> Usage {
        match self {
            Served::Mediated(vgpu) => vgpu.usage(),
            Served::Whole(_) => Usage::default(),
        }
    }

    /// The same in full.
    pub(super) fn metered(&self) -> Metered {
        match self {
            Served::Mediated(vgpu) => vgpu.metered(),
            Served::Whole(_) => Metered::default(),
        }
    }

    /// Whether its guest has work, as far as somebody looks.
    pub(super) fn is_busy(&self) -> bool {
        match self {
            Served::Mediated(vgpu) => vgpu.is_busy(),
            Served::Whole(_) => false,
        }
    }

    pub(super) fn set_runnable(&self, run: bool) {
        if let Served::Mediated(vgpu) = self {
            vgpu.set_runnable(run);
        }
    }

    pub(super) fn set_time_slice(&self, ns: u64) {
        if let Served::Mediated(vgpu) = self {
            vgpu.set_time_slice(ns);
        }
    }
}
