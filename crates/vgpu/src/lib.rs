//! Virtual GPUs: a mediator between a guest and the one device.
//!
//! A guest (a virtual machine, or a process) has a PCI device of its own, shown over vfio-user. It has the registers that the
//! device has, so the guest's driver is the driver. Behind them stands a [`Vgpu`]:
//!
//! ```text
//!   guest's driver                         mediator                                     device
//!   writes page tables, invalidates ─────► remembers; walks them when they are used ──► shadow tables
//!   binds a channel ─────────────────────► copies and audits the instance block ──────► shadow channel
//!   writes a pushbuffer, rings ──────────► copies and audits it ──────────────────────► rings
//!   gives a runlist ─────────────────────► its own channels in it, translated ────────► the merged runlist
//!   maps memory for DMA ─────────────────► the grant of all shadow tables
//!                                          faults, errors, signals ◄─────────────────── interrupts
//! ```
//!
//! The mediator is an ordinary user of the device's registers, beside the driver of sessions: what it runs there it has from a
//! [`gpu_driver::Lease`].
//!
//! # What holds
//! - The device never walks a table, reads an instance block, or fetches a command that the guest can write.
//! - A guest that evades a trap, or never invalidates, has an old shadow, never more than its grant.
//! - What a guest does costs its own threads: the one that serves it, and the one that attends to it. No lock that others need
//!   is held meanwhile, and every loop over what a guest has written has a bound.
//! - VRAM may be taken from a guest while it runs ([`Vgpu::resize`]): what it no longer has is out of its reach before it is
//!   scrubbed and anybody else's.
//! - What is refused ends in an error notifier or a fault of the guest's own, in its own numbers and its own time.
//!
//! [`PassThrough`] is the other way: one guest has the whole device, and nobody mediates.

mod audit;
mod balloon;
mod channel;
mod counts;
mod device;
mod hypercalls;
mod interrupts;
mod lines;
mod mediator;
mod memory;
mod partition;
mod pass_through;
mod pci;
mod record;
mod registers;
mod space;
mod tables;
mod watch;

pub use audit::{Audit, Refused};
pub use balloon::NotResized;
pub use counts::Counts;
pub use device::Port;
pub use mediator::{Config, Vgpu};
pub use pass_through::{PassThrough, Power};
pub use watch::{TrackedPages, Trap, Watching};

/// How a guest is virtualized: GPUvm's schemes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Scheme {
    /// Every access to a BAR is trapped, and all of a guest's tables are scanned at each TLB invalidate.
    FvNaive,
    /// BAR1 is mapped; tables are followed where they were invalidated, when they are used next.
    Fv,
    /// Page table entries come by hypercall.
    Pv,
}

/// Why there is no virtual GPU.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum NoVgpu {
    /// VRAM is dealt out in pieces of 2 MiB.
    #[error("{0} bytes of VRAM are not whole 2 MiB")]
    BadSize(u64),
    /// The device has not as much.
    #[error("there are no {wanted} bytes of VRAM for it: {why}")]
    NoVram {
        /// VRAM asked for, in bytes.
        wanted: u64,
        /// What is missing.
        why: String,
    },
}
