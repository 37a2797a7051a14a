//! The toy's memory: a file for each allocation, mapped into a window as the client asks.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use gpu::{AllocId, DevAddr, GpuError, HostMemory, MapAccess, MemoryKind};
use hostmem::{HostRange, Memfd, Protection, Window};

use crate::ToyMachine;

/// The window of a client's addresses.
#[derive(Debug, Clone)]
pub(crate) struct Space {
    lo: u64,
    window: Arc<Window>,
}

fn invalid(what: impl ToString) -> GpuError {
    GpuError::InvalidValue { what: what.to_string() }
}

impl Space {
    fn offset(&self, at: DevAddr) -> Result<u64, GpuError> {
        at.0.checked_sub(self.lo).ok_or(invalid("below the range"))
    }

    pub(crate) fn write(&self, dst: DevAddr, src: HostRange<'_>) -> Result<(), GpuError> {
        self.window.with(self.offset(dst)?, src.len() as u64, true, |to| to.copy_from(src)).map_err(invalid)
    }

    pub(crate) fn read(&self, dst: HostRange<'_>, src: DevAddr) -> Result<(), GpuError> {
        self.window.with(self.offset(src)?, dst.len() as u64, false, |from| dst.copy_from(from)).map_err(invalid)
    }

    pub(crate) fn copy(&self, dst: DevAddr, src: DevAddr, bytes: u64) -> Result<(), GpuError> {
        self.window.copy(self.offset(dst)?, self.offset(src)?, bytes).map_err(invalid)
    }

    /// A word of at most 8 bytes.
    pub(crate) fn load(&self, src: DevAddr, bytes: usize) -> Result<u64, GpuError> {
        let mut word = [0; 8];
        self.window.read(self.offset(src)?, &mut word[..bytes]).map_err(invalid)?;
        Ok(u64::from_le_bytes(word))
    }

    pub(crate) fn store(&self, dst: DevAddr, data: &[u8]) -> Result<(), GpuError> {
        self.window.write(self.offset(dst)?, data).map_err(invalid)
    }
}

/// What an allocation is.
#[derive(Debug)]
struct File {
    file: Arc<Memfd>,
    kind: MemoryKind,
    /// It is another GPU's, and begins here in its file.
    imported: Option<u64>,
}

impl File {
    /// Bytes that are charged for it.
    fn bytes(&self) -> u64 {
        if self.imported.is_some() { 0 } else { self.file.bytes() }
    }
}

#[derive(Debug)]
pub(crate) struct Memory {
    machine: Arc<ToyMachine>,
    space: Option<Space>,
    files: HashMap<AllocId, File>,
}

impl Memory {
    pub(crate) fn new(machine: Arc<ToyMachine>) -> Memory {
        Memory { machine, space: None, files: HashMap::new() }
    }

    pub(crate) fn window(&self) -> Result<Space, GpuError> {
        self.space.clone().ok_or(invalid("no address range"))
    }

    pub(crate) fn reserve(&mut self, lo: u64, bytes: u64) -> Result<(), GpuError> {
        let window = Arc::new(Window::reserve(bytes).map_err(invalid)?);
        self.space = Some(Space { lo, window });
        Ok(())
    }

    pub(crate) fn vram_bytes(&self) -> u64 {
        self.files.values().filter(|found| found.kind == MemoryKind::Vram).map(File::bytes).sum()
    }

    pub(crate) fn allocate(&mut self, id: AllocId, bytes: u64, kind: MemoryKind, limit: u64) -> Result<(), GpuError> {
        let free = limit.saturating_sub(self.vram_bytes());
        if kind == MemoryKind::Vram && bytes > free {
            return Err(GpuError::OutOfMemory { wanted: bytes, free, limit });
        }
        let file = Memfd::create("toy-memory", bytes).map_err(invalid)?;
        self.machine.bytes.fetch_add(file.bytes(), Ordering::SeqCst);
        self.files.insert(id, File { file: Arc::new(file), kind, imported: None });
        Ok(())
    }

    pub(crate) fn import(&mut self, id: AllocId, from: &HostMemory) {
        let file = File { file: Arc::clone(&from.file), kind: MemoryKind::Host, imported: Some(from.offset) };
        self.files.insert(id, file);
    }

    fn file(&self, id: AllocId) -> Result<&File, GpuError> {
        self.files.get(&id).ok_or(GpuError::InvalidId { what: "allocation".into(), id: id.0.into() })
    }

    pub(crate) fn free(&mut self, id: AllocId) -> Result<(), GpuError> {
        let bytes = self.file(id)?.bytes();
        self.files.remove(&id);
        self.machine.bytes.fetch_sub(bytes, Ordering::SeqCst);
        Ok(())
    }

    pub(crate) fn clear(&mut self) {
        for (_, file) in self.files.drain() {
            self.machine.bytes.fetch_sub(file.bytes(), Ordering::SeqCst);
        }
    }

    pub(crate) fn map(
        &mut self,
        at: DevAddr,
        id: AllocId,
        offset: u64,
        bytes: u64,
        access: MapAccess,
    ) -> Result<(), GpuError> {
        let space = self.window()?;
        let protection = match access {
            MapAccess::Read => Protection::Read,
            MapAccess::ReadWrite => Protection::ReadWrite,
        };
        let found = self.file(id)?;
        let offset = offset + found.imported.unwrap_or(0);
        space.window.map(space.offset(at)?, &found.file, offset, bytes, protection).map_err(invalid)
    }

    pub(crate) fn unmap(&mut self, at: DevAddr, bytes: u64) -> Result<(), GpuError> {
        let space = self.window()?;
        space.window.unmap(space.offset(at)?, bytes).map_err(invalid)
    }

    pub(crate) fn host_file(&self, id: AllocId) -> Result<Arc<Memfd>, GpuError> {
        match self.file(id)? {
            File { file, kind: MemoryKind::Host, .. } => Ok(Arc::clone(file)),
            _ => Err(GpuError::InvalidId { what: "host allocation".into(), id: id.0.into() }),
        }
    }
}
