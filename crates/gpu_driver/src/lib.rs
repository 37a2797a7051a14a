//! The native driver: `trait Gpu` over any device that [`device_io::DeviceBacking`] reaches.
//!
//! A [`Driver`] owns one device: its VRAM, its channels, its runlist, its interrupts. It hands out [`Client`]s, each with an
//! address space, a semaphore area and contexts of its own; what one does, or has done to it, the others do not notice.
//! Registers, the BAR1 aperture and DMA memory are all it uses, so the same driver runs beside the device model in one
//! process, inside the daemon, and in a virtual machine.
//!
//! # Parts
//! - `mmio`: registers, and noticing that the device is gone. `vram`: which pages are whose. `scheduling`: channel numbers,
//!   TSGs, the runlist, stopping, invalidation of translations. `driver`: start and interrupts.
//! - `paging`, `balloon`: what differs in a guest: hypercalls, and VRAM that its host asks for.
//! - `budget`: what a tenant may cost the host. `host`: host memory in few files.
//! - `space`, `tables`: a client's address space: mappings, page tables, the driver's own part. `client`: requests, waits, CPU
//!   copies. `memory`: limits. `aperture`: allocations that another process sees. `module`: PTX text to memory.
//! - `contexts`, `context`: life, scheduling and errors of contexts. `queues`: streams of commands. `channels`: which they
//!   share. `parking`: queues that wait for what nobody has promised yet. `crowding`: queues whose
//!   channels are full.
//! - `channel`: the rings of a channel. `encode`: commands as methods. `submit`: checks, then both. `signals`: the semaphore
//!   areas.
//!
//! # Life of a launch
//! `submit` checks the command, writes a launch descriptor and constant bank 0 into the channel's data ring, methods that
//! name them into the pushbuffer, a GP entry that names these, and GP_PUT; then it rings the doorbell. No memory of the
//! GPU is allocated, and nobody is asked. Commands of a queue take effect in order: before another engine begins, the host
//! engine waits for the first. Copies between ranges that overlap give unspecified bytes.
//!
//! # What counts against a client's memory limit
//! Allocations in VRAM, module variables, programs. Not: page tables (a bound of their own), instance blocks, notifiers, and
//! the host memory of channels and of what parked queues keep ([`Budget::driver_bytes`]).
//!
//! # Promises
//! - A page is zero when anybody first sees it: freed VRAM is scrubbed before it can be taken again, also by the client that
//!   freed it.
//! - Memory is freed only after the device has let go of it: channels disabled, preempted and out of the runlist,
//!   translations invalidated. What it does not let go of within two seconds (a TSG, its channels, their memory) is never used
//!   again; everybody else goes on. Only a device that answers nothing at all is given up ([`gpu::GpuError::Lost`]).
//! - Commands are checked against the part of the address space that the client may name; the driver's own structures lie
//!   outside. A kernel can still reach its own client's, and gains nothing: channels are unprivileged, and the driver
//!   believes nothing that it reads there.
//! - A client waits for nobody else: no lock that another needs is held over a wait or a loop whose length a tenant chooses
//!   (`driver::Device` lists the locks and their order). Closing a client releases all its waiters.
//!
//! Changed page tables reach the device in batches: with the next submission, wait, release or flush, or before memory is freed.

mod aperture;
mod balloon;
mod budget;
mod channel;
mod channels;
mod client;
mod context;
mod contexts;
mod crowding;
mod driver;
mod encode;
mod host;
mod lease;
mod memory;
mod metering;
mod mmio;
mod module;
mod paging;
mod parking;
mod queues;
mod scheduling;
mod signals;
mod space;
mod submit;
mod tables;
mod vram;

pub use budget::{Budget, HostCost};
pub use client::{Client, ClientConfig};
pub use contexts::Usage;
pub use driver::{Counts, Driver, StartError};
pub use lease::{Lease, ListedChannel, Mediator, NotLetGo, VramRange};
pub use metering::{Metered, Unused, WAITS};
