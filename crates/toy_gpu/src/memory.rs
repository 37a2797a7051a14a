//! The toy's memory: a file for each allocation, mapped into a window as the client asks.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use gpu::{
    AllocId, ContextId, DevAddr, GpuError, HostMemory, MapAccess, MemoryKind, ModuleId, PAGE_BYTES, VramLedger, VramUse,
};
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
    /// Who is asked first.
    ledger: Option<Arc<dyn VramLedger>>,
    space: Option<Space>,
    files: HashMap<AllocId, File>,
    /// Bytes of modules, and contexts, of which each takes a page.
    modules: HashMap<ModuleId, u64>,
    contexts: HashSet<ContextId>,
}

impl Memory {
    pub(crate) fn new(machine: Arc<ToyMachine>, ledger: Option<Arc<dyn VramLedger>>) -> Memory {
        let (modules, contexts) = (HashMap::new(), HashSet::new());
        Memory { machine, ledger, space: None, files: HashMap::new(), modules, contexts }
    }

    /// Takes memory of the machine.
    fn take(&self, bytes: u64, what: VramUse) -> Result<(), GpuError> {
        if let Some(ledger) = &self.ledger {
            ledger.take(bytes, what)?;
        }
        self.machine.vram.fetch_add(bytes, Ordering::SeqCst);
        Ok(())
    }

    fn give(&self, bytes: u64, what: VramUse) {
        self.machine.vram.fetch_sub(bytes, Ordering::SeqCst);
        if let Some(ledger) = &self.ledger {
            ledger.give(bytes, what);
        }
    }

    /// A module whose text has so many bytes is there.
    pub(crate) fn load(&mut self, id: ModuleId, bytes: u64) -> Result<(), GpuError> {
        let bytes = bytes.next_multiple_of(PAGE_BYTES);
        self.take(bytes, VramUse::Asked)?;
        self.unload(id);
        self.modules.insert(id, bytes);
        Ok(())
    }

    pub(crate) fn unload(&mut self, id: ModuleId) {
        if let Some(bytes) = self.modules.remove(&id) {
            self.give(bytes, VramUse::Asked);
        }
    }

    pub(crate) fn add_context(&mut self, id: ContextId) -> Result<(), GpuError> {
        self.take(PAGE_BYTES, VramUse::Upkeep)?;
        if !self.contexts.insert(id) {
            self.give(PAGE_BYTES, VramUse::Upkeep);
        }
        Ok(())
    }

    pub(crate) fn remove_context(&mut self, id: ContextId) {
        if self.contexts.remove(&id) {
            self.give(PAGE_BYTES, VramUse::Upkeep);
        }
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
        if kind == MemoryKind::Vram {
            self.take(bytes, VramUse::Asked)?;
        }
        self.machine.bytes.fetch_add(file.bytes(), Ordering::SeqCst);
        self.files.insert(id, File { file: Arc::new(file), kind, imported: None });
        Ok(())
    }

    /// Where an allocation lies, of whatever kind.
    pub(crate) fn any_file(&self, id: AllocId) -> Result<Arc<Memfd>, GpuError> {
        self.file(id).map(|file| Arc::clone(&file.file))
    }

    pub(crate) fn import(&mut self, id: AllocId, from: &HostMemory, bytes: u64) -> Result<(), GpuError> {
        let end = from.offset.checked_add(bytes).filter(|_| from.offset.is_multiple_of(PAGE_BYTES));
        if end.is_none_or(|end| end > from.file.bytes()) {
            return Err(GpuError::InvalidValue { what: "a part that the file does not have".into() });
        }
        let file = File { file: Arc::clone(&from.file), kind: MemoryKind::Host, imported: Some(from.offset) };
        self.files.insert(id, file);
        Ok(())
    }

    fn file(&self, id: AllocId) -> Result<&File, GpuError> {
        self.files.get(&id).ok_or(GpuError::InvalidId { what: "allocation".into(), id: id.0.into() })
    }

    pub(crate) fn free(&mut self, id: AllocId) -> Result<(), GpuError> {
        self.file(id)?;
        self.remove(id);
        Ok(())
    }

    fn remove(&mut self, id: AllocId) {
        let Some(file) = self.files.remove(&id) else { return };
        self.machine.bytes.fetch_sub(file.bytes(), Ordering::SeqCst);
        if file.kind == MemoryKind::Vram {
            self.give(file.bytes(), VramUse::Asked);
        }
    }

    pub(crate) fn clear(&mut self) {
        let files: Vec<AllocId> = self.files.keys().copied().collect();
        files.into_iter().for_each(|id| self.remove(id));
        let modules: Vec<ModuleId> = self.modules.keys().copied().collect();
        modules.into_iter().for_each(|id| self.unload(id));
        let contexts: Vec<ContextId> = self.contexts.iter().copied().collect();
        contexts.into_iter().for_each(|id| self.remove_context(id));
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
