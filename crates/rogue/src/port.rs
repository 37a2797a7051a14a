//! A guest's device: registers and memory, over a vfio-user socket.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use gpu_spec::regs::{self, identity};
use hostmem::{Mapping, Memfd};
use rustix::event::{EventfdFlags, eventfd};
use vfio_user::{Client, ClientOptions, pci};

/// A virtual GPU from its guest's side. What a server that is gone would have said is nothing, or ones.
#[derive(Debug)]
pub struct Port {
    /// The connection.
    pub client: Client,
    vram_bytes: u64,
    vram: Option<Arc<Mapping>>,
    _line: OwnedFd,
}

impl Port {
    /// Greets the server at the other end of a socket.
    ///
    /// # Errors
    /// It is not there, or has no virtual GPU.
    pub fn over(socket: UnixStream) -> io::Result<Port> {
        let client = Client::over(socket, &ClientOptions::default()).map_err(io::Error::other)?;
        let word = |offset: u32| {
            let mut word = [0; 4];
            client.read(pci::BAR0, offset.into(), &mut word).map_err(io::Error::other)?;
            Ok::<u64, io::Error>(u32::from_le_bytes(word).into())
        };
        let vram_bytes = word(identity::VRAM_LO)? | word(identity::VRAM_HI)? << 32;
        let aperture = client.region(pci::BAR1).map_err(io::Error::other)?;
        let whole = aperture.areas.iter().any(|area| area.start == 0 && area.end >= vram_bytes);
        let vram = match aperture.file.filter(|_| whole) {
            Some((file, offset)) => Some(Arc::new(Memfd::from_fd(file)?.map_part(offset, vram_bytes)?)),
            None => None,
        };
        let line = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?;
        client.connect_irqs(pci::MSIX, 0, &[line.as_fd()]).map_err(io::Error::other)?;
        Ok(Port { client, vram_bytes, vram, _line: line })
    }

    /// Size of VRAM, bytes.
    #[must_use]
    pub fn vram_bytes(&self) -> u64 {
        self.vram_bytes
    }

    /// VRAM, where it may be mapped.
    #[must_use]
    pub fn vram(&self) -> Option<&Arc<Mapping>> {
        self.vram.as_ref()
    }

    /// Reads a register.
    #[must_use]
    pub fn read32(&self, offset: u32) -> u32 {
        let mut word = [0xff; 4];
        let _ = self.client.read(pci::BAR0, offset.into(), &mut word);
        u32::from_le_bytes(word)
    }

    /// True if nobody answers any more.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        self.read32(regs::PMC_BOOT_0) == u32::MAX
    }

    /// Writes a register, and waits for no answer.
    pub fn write32(&self, offset: u32, value: u32) {
        let _ = self.client.write_posted(pci::BAR0, offset.into(), &value.to_le_bytes());
    }

    /// Copies bytes out of VRAM.
    pub fn read_vram(&self, offset: u64, out: &mut [u8]) {
        match &self.vram {
            Some(vram) => vram.read(offset as usize, out),
            None => drop(self.client.read(pci::BAR1, offset, out)),
        }
    }

    /// Copies bytes into VRAM.
    pub fn write_vram(&self, offset: u64, data: &[u8]) {
        match &self.vram {
            Some(vram) => vram.write(offset as usize, data),
            None => drop(self.client.write_posted(pci::BAR1, offset, data)),
        }
    }
}
