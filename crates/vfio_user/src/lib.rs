//! The vfio-user protocol: a PCI device shown over a unix socket, to a virtual machine or to a process.
//!
//! A device that lives in this process is a [`Device`]: regions that are read and written, interrupts, memory of the client
//! that it may reach. A [`Server`] shows it to one client; QEMU (from 10.1 on, `-device vfio-user-pci`) is one, a [`Client`] of
//! this crate another, and the device cannot tell which. The protocol is the one that QEMU publishes
//! (`docs/interop/vfio-user.rst`), version 0.1; names here are that text's, and behind it those of `<linux/vfio.h>`.
//!
//! ```text
//!  client                                 one socket                                   server
//!  read, write ──▶ Calls: who waits ──▶ header, payload ──▶ Reader ──▶ Connection ──▶ Device
//!                  for which reply  ◀── header, payload ◀───────────── checks, replies    │
//!  eventfds    ◀──────────────────────────────────────────────────────  Interrupts   ◀────┘
//!  mappings of the device's file and of the client's memory: descriptors that came with messages; no traffic afterwards
//! ```
//!
//! - [`wire`]: layouts and numbers, nothing else. `socket`: messages cut out of the stream, with their descriptors.
//! - [`Listener`] waits at a path, [`Server::serve`] serves one client on the calling thread, [`Stopper`] ends that from
//!   outside. `maps` keeps account of DMA maps; [`Interrupts`] of eventfds and masks, and `bell` signals them.
//! - [`Client`] is used by many threads at once; each waits for its own reply only.
//! - Version and capabilities are agreed on first ([`Capabilities`]). Two capabilities of ours are not in the specification:
//!   [`PRIVATE`], a value that the client proposes and the device answers, and posted writes ([`Capabilities::posted_writes`]);
//!   who has agreed on these may have interrupts counted in shared memory as well ([`Client::post_irq`]).
//!   Other implementations ignore them.
//!
//! # Speed
//!
//! A register access is one round trip, and nothing else: one `sendmsg` and one `recvmsg` on each side, no allocation, no
//! thread in between. Both sides may look at the socket for some microseconds before they sleep ([`ServerOptions::spin`],
//! [`ClientOptions::spin`]); whether they do, they learn from what the last waits took either way (`patience`), so that an
//! idle connection costs nothing, and a busy machine is left to those who have work. What is accessed often should be mapped instead ([`Region::mapped`]), or written without a
//! reply ([`Client::write_posted`]): between our own client and server that is a few stores into a ring that the server looks
//! at (`posted`), and a message only if it sleeps.
//!
//! # What a peer can do
//!
//! It can send anything. The stream stays in step whatever a command contains: a message is received whole before it is looked
//! at, and one that asks for the impossible is answered with an errno. What has no header, comes at the wrong time, or is longer
//! than was agreed, ends the connection, which is nobody's but the peer's. It costs memory up to the longest message, and [`MAX_FDS`]
//! descriptors; those that belong to no command are closed. Descriptors are not trusted: a server keeps none of which closing might wait for somebody
//! ([`hostmem::strangers`]), and makes a user leave of whom too many are still being closed; only a thread of this client's own signals its eventfds (`bell`), since that can wait; and
//! what comes as memory is handed to the device as it is, which must look at size and seals before it maps any.
//! A client that takes no replies holds up its own thread.
//!
//! # What is not here
//!
//! `DMA_READ` and `DMA_WRITE`: a device reaches memory that came with a descriptor, and no other; our client refuses them. Twin
//! sockets, which are for these. `DEVICE_GET_REGION_IO_FDS`, and eventfds for mask and unmask: refused, which clients are
//! prepared for. `DEVICE_FEATURE` and the migration commands: refused as by a device that cannot migrate.

mod bell;
mod client;
pub mod device;
mod interrupts;
mod listener;
mod maps;
mod patience;
mod posted;
mod server;
mod socket;
#[cfg(feature = "testing")]
pub mod testing;
mod version;
pub mod wire;

pub use client::{CallError, Client, ClientOptions, DeviceInfo, RegionInfo};
pub use device::{Description, Device, DmaMap, Irq, Region, StoreWatch, pci};
pub use interrupts::Interrupts;
pub use listener::Listener;
pub use posted::{PostedInterrupts, PostedWrite};
pub use rustix::io::Errno;
pub use server::{Server, ServerOptions, Stopper};
pub use socket::MAX_FDS;
pub use version::{Capabilities, EACH_STORE, PRIVATE, WATCH_STORES, WATCHED_MEMORY};

/// Why a connection ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Ended {
    /// The other side closed it, or died; or this side was told to stop.
    #[error("the other side has left")]
    HungUp,
    /// The other side sent what is no message of this protocol.
    #[error("the other side broke the protocol: {0}")]
    Garbage(&'static str),
    /// The other side said nothing for too long.
    #[error("the other side said nothing for too long")]
    Silent,
    /// The operating system failed us.
    #[error("the socket failed")]
    Failed(#[source] Errno),
}

impl From<Errno> for Ended {
    fn from(error: Errno) -> Ended {
        Ended::Failed(error)
    }
}
