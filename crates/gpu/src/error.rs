//! What goes wrong.

use std::fmt;

/// Why a context is dead.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ContextError {
    /// Access to an address without a page, or against its rights.
    #[error("{} an illegal address, {address:#x}{}", if *write { "write to" } else { "read of" }, Site(site))]
    IllegalAddress {
        /// The first address of the access that faulted.
        address: u64,
        /// A write or atomic.
        write: bool,
        /// Who made it, and where in which kernel, in words for the log; empty if nothing is known of that.
        site: String,
    },
    /// Access not aligned to its size.
    #[error("misaligned access at {address:#x}{}", Site(site))]
    Misaligned {
        /// The address that is no multiple of the access's size.
        address: u64,
        /// As of an illegal address.
        site: String,
    },
    /// `trap`, or an engine's refusal at run time.
    #[error("launch failed: {reason}")]
    LaunchFailed {
        /// What the kernel or the engine said, for the log.
        reason: String,
    },
    /// A device-side assertion.
    #[error("assertion failed{}", Site(site))]
    Assert {
        /// As of an illegal address.
        site: String,
    },
    /// A kernel could not be compiled at its first launch.
    #[error("{}: {log}", if *unsupported { "kernel not supported" } else { "invalid kernel" })]
    InvalidKernel {
        /// The JIT error log.
        log: String,
        /// Not malformed, but not supported.
        unsupported: bool,
    },
    /// A malformed command reached the device.
    #[error("illegal command: {reason}")]
    IllegalCommand {
        /// What the device found, for the log.
        reason: String,
    },
    /// A launch needs more of the host's memory than the tenant's limit allows at all.
    #[error("out of resources: {reason}")]
    OutOfResources {
        /// What of it, and how much.
        reason: String,
    },
}

impl ContextError {
    /// The address of a refused access.
    #[must_use]
    pub fn address(&self) -> Option<u64> {
        match self {
            ContextError::IllegalAddress { address, .. } | ContextError::Misaligned { address, .. } => Some(*address),
            _ => None,
        }
    }
}

/// A site behind what happened there.
struct Site<'a>(&'a str);

impl fmt::Display for Site<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() { Ok(()) } else { write!(f, ", {}", self.0) }
    }
}

/// Why a request or submission failed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum GpuError {
    /// The limit, or the memory, is used up.
    #[error("out of memory: {wanted} bytes wanted, {free} free of {limit}")]
    OutOfMemory {
        /// Bytes asked for.
        wanted: u64,
        /// Available to this client.
        free: u64,
        /// Bytes that this client may have at most.
        limit: u64,
    },
    /// Not now: others have the memory. The request stands in line ([`crate::Deferring`]).
    #[error("waiting for memory")]
    Deferred,
    /// Too many objects of a kind.
    #[error("too many {what} (limit {limit})")]
    TooMany {
        /// What there are too many of, in the plural.
        what: String,
        /// How many there may be.
        limit: u64,
    },
    /// An identifier that means nothing here, or is taken already.
    #[error("invalid {what} identifier {id}")]
    InvalidId {
        /// What it should have named, in the singular.
        what: String,
        /// The number as the client passed it.
        id: u64,
    },
    /// A value that cannot be.
    #[error("invalid value: {what}")]
    InvalidValue {
        /// Which and why.
        what: String,
    },
    /// PTX that does not follow the language, or uses what is not supported.
    #[error("PTX rejected: {log}")]
    InvalidPtx {
        /// Line and reason.
        log: String,
        /// Not malformed, but not supported.
        unsupported: bool,
    },
    /// A request, or a form of code, that this GPU or session does not have.
    #[error("not supported: {what}")]
    Unsupported {
        /// The request, or the form of code, that was asked for.
        what: String,
    },
    /// The context is dead.
    #[error("context failed: {0}")]
    Context(ContextError),
    /// The GPU or the session is gone.
    #[error("GPU lost: {reason}")]
    Lost {
        /// Why, in words for the log.
        reason: String,
    },
    /// Time ran out ([`crate::Gpu::wait`]).
    #[error("timed out")]
    TimedOut,
}
