//! The memory files that this client's host memory lies in: as the daemon has sent them, or as they were handed to it.

use std::collections::HashMap;
use std::sync::Arc;

use gpu::{AllocId, HostMemory};
use hostmem::Memfd;
use wire::HostPlace;

/// Memory files by the daemon's numbers, and what lies where in them. A file is forgotten with the last allocation in it, as
/// the daemon does.
#[derive(Debug, Default)]
pub(crate) struct HostFiles {
    /// Number to file, and how many allocations lie in it.
    files: HashMap<u32, (Arc<Memfd>, u32)>,
    places: HashMap<AllocId, HostPlace>,
    /// Another GPU's, imported.
    imported: HashMap<AllocId, HostMemory>,
}

impl HostFiles {
    /// Learns where an allocation lies; `sent`: its file, if it is new. False if the file is neither sent nor known.
    pub(crate) fn add(&mut self, place: HostPlace, sent: Option<Memfd>) -> bool {
        if let Some(file) = sent {
            self.files.insert(place.file, (Arc::new(file), 0));
        }
        let Some((_, allocations)) = self.files.get_mut(&place.file) else { return false };
        *allocations += 1;
        self.places.insert(place.id, place);
        true
    }

    /// Learns where what was imported lies.
    pub(crate) fn add_imported(&mut self, id: AllocId, memory: HostMemory) {
        self.imported.insert(id, memory);
    }

    /// Forgets an allocation.
    pub(crate) fn remove(&mut self, id: AllocId) {
        self.imported.remove(&id);
        let Some(place) = self.places.remove(&id) else { return };
        if let Some((_, allocations)) = self.files.get_mut(&place.file) {
            *allocations -= 1;
            if *allocations == 0 {
                self.files.remove(&place.file);
            }
        }
    }

    /// Where an allocation lies.
    pub(crate) fn get(&self, id: AllocId) -> Option<HostMemory> {
        if let Some(imported) = self.imported.get(&id) {
            return Some(imported.clone());
        }
        let place = self.places.get(&id)?;
        let (file, _) = self.files.get(&place.file)?;
        Some(HostMemory { file: Arc::clone(file), offset: place.offset })
    }
}
