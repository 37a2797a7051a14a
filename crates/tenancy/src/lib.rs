//! Who may have how much, and what belongs to whom: pure bookkeeping, no I/O, no clock, no thread.
//!
//! - [`Admission`] decides whether a tenant is let in at all, on which [`Terms`]: shares of GPU time add up to at most
//!   100 %, a memory limit is at most the GPU's memory, one of host memory at most what the policy allows.
//! - [`Account`] counts what a tenant uses, over all its sessions together, against its [`Limits`]; with the device, which
//!   counts what work costs the host, it keeps one limit of host memory ([`DeviceCosts`]). Every tenant has its own: nobody
//!   waits for another's.
//! - [`Session`] is one client's table of handles. Every request passes [`Session::check`] before the GPU sees it: names
//!   must be free or known, ranges inside the announced addresses, and what is asked for is charged to the tenant's
//!   account *before* it is given, so that two sessions at once cannot exceed a limit. [`Session::settle`] then keeps the
//!   charge or takes it back, as the GPU answered. [`Session::close`] ends the charges, when the GPU has given back and
//!   scrubbed what they were for. Only memory of the GPU is charged by whoever takes it ([`gpu::VramLedger`],
//!   [`Account::take_vram`]), since nobody else knows how much that is.
//! - [`grant`] decides who gets GPU memory where limits together exceed it, and who waits. Accounts take what they charge from
//!   it ([`GpuMemory`]).
//!
//! - [`placement`] says on which GPUs a tenant goes, where there are several.
//! - [`metering::Ledger`] keeps what tenants have had, and what became of the GPU's time.
//!
//! The GPU's driver has limits of its own behind these; this crate is why one tenant's numbers cannot name another's
//! objects and why its memory comes back.

mod account;
mod admission;
pub mod grant;
pub mod metering;
pub mod placement;
mod session;

pub use account::{
    Account, AccountAccess, DeviceCosts, GpuMemory, HostCost, Limits, NoDeviceCosts, NotNow, TenantId, Used,
    most_upkeep,
};
pub use admission::{Admission, AdmissionError, LEAST_HOST_MEMORY, LEAST_MEMORY, LEAST_SHARE, Terms, is_name};
pub use session::{Session, Settled, Ticket};
