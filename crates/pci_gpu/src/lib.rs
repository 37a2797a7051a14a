//! A GPU on a PCI bus, as a driver in a guest reaches it: the driver's side of [`device_io`] where the device is in no process
//! of ours.
//!
//! - [`VfioUserGpu`]: over a vfio-user socket, without a virtual machine. The guest is a process; what it cannot map it reads
//!   and writes by messages, and its memory files are its system memory.
//! - [`SysfsGpu`]: in a virtual machine (or on bare metal) the BARs that Linux shows in sysfs, and memory whose physical
//!   addresses are the bus's.
//!
//! To the driver they are the same device as the software GPU in its own process is: the register map of `gpu_spec`, with the
//! identity block that says how much VRAM there is ([`gpu_spec::regs::identity`]).
//!
//! # When the device goes
//! A server that ends, or a device that is unplugged, reads as all ones from then on, in registers and VRAM; the driver takes
//! this for what it is, and all who wait are told. Nothing here panics for it.
//!
//! # What is not here
//! No IOMMU: [`SysfsGpu`] needs bus addresses that are physical ones, and a process that may know them. A process that is killed
//! leaves the device running on pages that are others' soon; so whoever opens it next resets it first, and in between only the
//! device keeps to what it was told. In a virtual machine that is the guest's own memory, never the host's.

mod sysfs;
mod vfio;
mod watch;

use std::io;
use std::path::PathBuf;

use gpu_spec::regs::identity;

pub use sysfs::SysfsGpu;
pub use vfio::VfioUserGpu;

/// Why a GPU cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Nobody listens at the socket, or not in our language.
    #[error("no virtual GPU answers at {}", .path.display())]
    Connect {
        /// The socket.
        path: PathBuf,
        /// What went wrong.
        #[source]
        error: vfio_user::CallError,
    },
    /// The device is none that the driver could use.
    #[error("the device is no GPU of ours: {0}")]
    Foreign(&'static str),
    /// The server refused something that a GPU needs.
    #[error("the virtual GPU refused its {what}")]
    Refused {
        /// What was asked for.
        what: &'static str,
        /// What went wrong.
        #[source]
        error: vfio_user::CallError,
    },
    /// There is no such device on the bus.
    #[error("no GPU {wanted} on the PCI bus")]
    NotFound {
        /// Its address, or its vendor and device.
        wanted: String,
    },
    /// A file of the device cannot be used.
    #[error("{} cannot be used", .path.display())]
    File {
        /// The file or folder, below `/sys` or `/proc`.
        path: PathBuf,
        /// What the operating system says.
        #[source]
        error: io::Error,
    },
    /// Memory for the device, or what it is called on the bus, is not to be had.
    #[error("no memory that the GPU can address")]
    Memory(#[source] io::Error),
    /// The operating system refused a descriptor or a mapping.
    #[error("the GPU cannot be reached")]
    System(#[source] io::Error),
}

/// Size of BAR0: registers.
const BAR0_BYTES: u64 = 16 << 20;

/// Bytes of VRAM behind an aperture of `aperture` bytes, by the device's own word.
fn vram_bytes(read32: impl Fn(u32) -> u32, aperture: u64) -> Result<u64, OpenError> {
    if read32(identity::MAGIC_WORD) != identity::MAGIC {
        return Err(OpenError::Foreign("it does not say who it is"));
    }
    let said = u64::from(read32(identity::VRAM_LO)) | u64::from(read32(identity::VRAM_HI)) << 32;
    if said == 0 || said > aperture {
        return Err(OpenError::Foreign("its aperture does not show its VRAM"));
    }
    Ok(said)
}
