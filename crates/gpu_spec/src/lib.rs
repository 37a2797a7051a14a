//! What a GPU and its driver agree on: registers, memory structures, methods and packets, as constants and typed values
//! without behaviour. The device model, the driver, the page-table code and the mediator of a vGPU all build on it.
//!
//! The chip is modelled on NVIDIA's TU104 (Turing), the generation with the most complete public documentation (NVIDIA
//! open-gpu-doc); each module names the file it follows. Where Sundial needs something that is not public (the program
//! container, accounting), the module says that the layout is Sundial's own.
//!
//! - [`mmu`]: page table entries.
//! - [`tlb`]: invalidation of translations.
//! - [`haswell_ppgtt`]: page table entries of another maker's, for the shadow engine.
//! - [`fault`]: MMU fault packets.
//! - [`regs`]: registers in BAR0 and the space of a virtual function.
//! - [`host`]: GP entries, pushbuffer headers, methods of the host engine.
//! - [`userd`], [`ramfc`], [`runlist`]: a channel's words that the CPU writes, its instance block, and the list of what runs.
//! - [`copy`]: class C5B5.
//! - [`compute`], [`qmd`]: class C5C0 and the launch descriptor.
//! - [`program`]: the container with a module's PTX, and the driver's part of constant bank 0.
//! - [`notifier`]: why a channel was stopped.
//!
//! A method or register is its byte offset; a bit field is a [`Field`]. Structures in memory are little-endian words with
//! named accessors, converted from bytes and back by `zerocopy`: any bytes are a valid value, and unknown values are kept,
//! never rejected here.

pub mod balloon;
pub mod compute;
pub mod copy;
pub mod fault;
mod field;
pub mod haswell_ppgtt;
pub mod host;
pub mod mmu;
pub mod notifier;
pub mod program;
pub mod pv;
pub mod qmd;
pub mod ramfc;
pub mod regs;
pub mod runlist;
pub mod tlb;
pub mod userd;

pub use field::Field;
