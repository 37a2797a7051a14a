//! The daemon's side of a session: one client's frames, checked and handed to that client's GPU.
//!
//! - [`Session::begin`] makes the shared memory (rings, staging area), and tells the client so; [`Session::run`] serves it
//!   on the calling thread until the client is gone or breaks the protocol, then gives everything back.
//! - [`MemoryBroker`] is the GPU's memory between all sessions. A request that has to wait for some stands in line there, and no
//!   thread waits with it: its client is told to ask again.
//! - [`Monitor`] watches the sockets of all sessions, and so notices a dead client even while its thread is busy.
//!
//! ```text
//!  frame from the ring (private copy) → wire: a value, or the end of the session
//!      → tenancy: known names, quotas  → gpu: the tenant's own client of the driver → answer to the other ring
//! ```
//! [`Manner`] is how it is served: frames in rings or over a socket, with or without answers to commands, with which blocks.
//!
//! Commands have no answer, unless the session is one in which all have. If one is refused, its context has failed: the client finds the reason as with any
//! asynchronous error.
//!
//! **Invariant:** nothing that a client writes is looked at twice, and nothing that it does blocks another session.
//!
//! Not here: who may open a session (`sundial serve`), how GPU time is shared (`fair_share`).

mod broker;
mod holdings;
mod host_files;
mod imports;
mod incoming;
mod manner;
mod memory;
mod monitor;
mod serve;
mod waits;

pub use broker::{MemoryBroker, reserve};
pub use holdings::{Charges, OWN, SessionMemory, SharedAccount};
pub use manner::Manner;
pub use memory::Remoting;
pub use monitor::Monitor;
pub use serve::{Backend, Ended, Session, SessionHandle};
