//! Sharing of GPU time between tenants, sessions and guests alike: pure, events in, decisions out, in the time that it is
//! told.
//!
//! A [`Policy`] is one of four. How it is enforced depends on what the device can do ([`Policy::means`]):
//!
//! | policy | device that preempts | device that does not |
//! |---|---|---|
//! | default | [`FairShare`]: weighted slices | as BAND |
//! | FIFO, CREDIT, BAND | [`Turns`] | [`Turns`] |
//!
//! **Slices** ([`FairShare`]). The device gives each tenant's channels a time slice in every round of its runlist. Once a
//! period [`FairShare::period`] is told what each tenant used and whether it wanted more, and says which slices to program
//! next. It compares what each was entitled to with what it got and corrects the slices by the difference, so that shares come
//! out right even where the device cannot stop work at the end of a slice.
//!
//! - *Entitlement.* A tenant with a share of P % is entitled to P % while others want the rest; tenants without one divide
//!   equally what the shares leave, at least [`LEAST_PERCENT`] each, so nobody starves. Time that somebody does not want is
//!   divided among those who do, by weight: sharing never leaves the GPU idle.
//! - *Priority* ([`Priority`]) is about what is promised to nobody. Where tenants of several priorities want time, each with a share
//!   has its share, those without one [`LEAST_PERCENT`] each, and all else goes to those of the highest priority, by weight. Where
//!   all who want time have one priority, it is as if there were none.
//! - *Lag* is entitlement minus use, of tenants who wanted more. It is bounded, and a tenant who wants nothing keeps no
//!   credit: an idle tenant cannot save time up and then lock others out. What it overdrew, it still owes for a while.
//! - *Windows.* What tenants received is also kept over the last second for people to see ([`Standing`]).
//!
//! **Turns** ([`Turns`]). Commands that run to their end once they are begun, one at a time: what GPUvm and Gdev have to
//! schedule. [`Turns`] hears of commands that were submitted and of those that have ended, and says whose command is next, or
//! until when the device is kept for somebody who has none yet. It knows shares, and no priorities, as in the literature.
//!
//! It does not decide who is let in (`tenancy`), nor how a slice or a turn is enforced (the device).

mod policy;
mod priority;
mod slices;
mod turns;
mod weights;

pub use policy::{Means, Policy, UnknownPolicy};
pub use priority::{Priority, UnknownPriority};
pub use slices::{Demand, FairShare, Standing, Tuning};
pub use turns::{Next, Pace, Rule, Turns};
pub use weights::LEAST_PERCENT;

/// Who shares. The caller's number for a tenant.
pub type Key = u64;
