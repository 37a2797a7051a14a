#![expect(
    unsafe_code,
    reason = "protects pages of mappings, makes requests of the kernel, and does stores in a fault handler"
)]
//! Noticing stores to chosen pages of a shared mapping.
//!
//! A mediator of GPUs must know what a guest writes into its page tables, which lie in memory that the guest has mapped. There
//! are several ways to hear of it, behind one trait, [`WriteTrap`]:
//!
//! | kind | what is noticed | what a store costs | what asking costs |
//! |---|---|---|---|
//! | [`Decode`] | every store, by words of 8 bytes | a signal | a look at what was stored |
//! | [`Fault`] | the first store to each page | a message to a thread, which answers | – |
//! | [`Tracker`] | that a page was written | the first to a page: a fault inside the kernel | a system call for each run of pages |
//!
//! What they cost on a machine, [`measure`] says; which of them it has, [`available`].
//!
//! # What is promised
//! When [`WriteTrap::protect`] has returned, every store to these pages is noticed: by the time that the storing thread executes
//! its next instruction, whoever asks hears of it. Asking names too much rather than too little. To know what a page holds,
//! take, protect what is not protected any more ([`Kind::stays_protected`]), and read then, in this order: what is written
//! behind the reader's back is told the next time.
//!
//! # Of whom
//! Stores are noticed where the mapping is used: those of other processes, or through other mappings of the same file, are not.
//! Nor is what changes pages without a store: a hole in the file, of which [`ProtectedPages`] says more.
//! Each kind can be driven from another process, which gets up to two file descriptors for that: a [`Tracker`] and a [`Fault`]
//! ([`TrackerParts`], [`FaultParts`]) by asking the kernel, a [`Decode`] by asking the process whose mapping it is
//! ([`DecodeParts`], [`RemoteDecode`]); what it notices is in memory that both map ([`Written`]). Forked children: `Decode`
//! notices their stores too, as far as it need not release pages there; the others do not.
//!
//! A `Decode` and one of the others can watch the same mapping, each its own pages. A store across the edge between two of them is
//! told by `Decode`, all of it.
//!
//! # Parts
//! - [`Decode`]: faults, decoded and done by hand; on x86-64 only
//! - [`Written`]: what it noticed
//! - [`RemoteDecode`]: that of another process
//! - [`Fault`], [`Tracker`]: by `userfaultfd`
//! - [`ProtectedPages`]: which pages they protect
//! - [`measure`], [`available`]

mod area;
#[cfg(target_arch = "x86_64")]
mod decode;
mod fault;
mod marks;
mod measure;
mod protected;
mod remote;
#[cfg(all(feature = "testing", target_arch = "x86_64"))]
pub mod testing;
mod tracker;
mod userfault;

use std::fmt::Debug;
use std::io;

use area::Area;
#[cfg(target_arch = "x86_64")]
pub use decode::{Decode, DecodeServant};
pub use fault::{Fault, FaultParts};
pub use marks::Written;
pub use measure::{Cost, available, measure};
pub use protected::ProtectedPages;
#[cfg(not(target_arch = "x86_64"))]
pub use remote::DecodeServant;
pub use remote::{DecodeParts, RemoteDecode};
pub use tracker::{Tracker, TrackerParts};

/// Notices stores to pages of one mapping. Pages are numbers: 0 is the mapping's first. Those that are neighbours, and follow
/// each other in a list, cost one call of the kernel.
pub trait WriteTrap: Send + Debug {
    /// Which it is.
    fn kind(&self) -> Kind;

    /// Has stores to these pages noticed from now on. What was stored before may not be told any more: what the pages hold
    /// when this returns is where news begin.
    ///
    /// # Errors
    /// `InvalidInput` if a page is not inside the mapping, and nothing is done; else what the operating system says, which may
    /// have no room to remember so many runs of pages: then some are protected.
    fn protect(&mut self, pages: &[u64]) -> io::Result<()>;

    /// Stores to these pages need not be noticed any more.
    ///
    /// # Errors
    /// As [`WriteTrap::protect`].
    fn release(&mut self, pages: &[u64]) -> io::Result<()>;

    /// Adds the pages that were written since the last time, or since they were protected. Whether they are still protected
    /// then, [`Kind::stays_protected`] says. Some may not have been written.
    ///
    /// # Errors
    /// What the operating system says: the process whose mapping it is may have ended.
    fn take_written(&mut self, out: &mut Vec<u64>) -> io::Result<()>;

    /// Names the words of 8 bytes that were written, wholly or in part, since the last time, as offsets in the mapping and in
    /// increasing order, of kinds that notice each store ([`Kind::names_stores`]); others name none. What is read there afterwards
    /// is what was stored, or newer.
    fn take_stores(&mut self, word: &mut dyn FnMut(u64)) {
        let _ = word;
    }
}

/// A way to notice stores.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Kind {
    /// [`Decode`].
    Decode,
    /// [`Fault`].
    Fault,
    /// [`Tracker`].
    Tracker,
}

impl Kind {
    /// All.
    pub const ALL: [Kind; 3] = [Kind::Decode, Kind::Fault, Kind::Tracker];

    /// Whether a page that [`WriteTrap::take_written`] has named is still protected; else it has to be protected again.
    #[must_use]
    pub fn stays_protected(self) -> bool {
        self == Kind::Tracker
    }

    /// Whether single stores are told by [`WriteTrap::take_stores`]. [`WriteTrap::take_written`] names, then, only pages of
    /// which they could not be.
    #[must_use]
    pub fn names_stores(self) -> bool {
        self == Kind::Decode
    }
}

/// Why a kind cannot be had.
#[derive(thiserror::Error, Debug)]
#[non_exhaustive]
pub enum Why {
    /// `Decode` knows the instructions of x86-64.
    #[error("only for x86-64 processors")]
    Processor,
    /// There is no `userfaultfd`, or not for this process.
    #[error("userfaultfd cannot be used")]
    Userfaultfd(#[source] io::Error),
    /// Before Linux 5.19.
    #[error("this kernel's userfaultfd cannot protect pages of memory files against writes")]
    NoWriteProtect,
    /// Before Linux 6.7.
    #[error("this kernel's userfaultfd cannot let writes through by itself (WP_ASYNC)")]
    NoAsync,
    /// `/proc` may not be there.
    #[error("/proc/self/pagemap cannot be opened")]
    PageMap(#[source] io::Error),
    /// Before Linux 6.7.
    #[error("this kernel's page map cannot be asked for written pages (PAGEMAP_SCAN)")]
    NoScan(#[source] io::Error),
    /// The mapping is watched by another `userfaultfd`, or is not of memory.
    #[error("the mapping cannot be watched")]
    Register(#[source] io::Error),
    /// A trial did not work.
    #[error("a trial failed")]
    Trial(#[source] io::Error),
    /// A trial's store was not noticed.
    #[error("a trial's store was not noticed")]
    Unnoticed,
}
