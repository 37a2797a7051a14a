//! The memory files that a client has been sent for its host memory.

use std::collections::HashMap;
use std::sync::Arc;

use gpu::{AllocId, HostMemory};
use hostmem::Memfd;
use wire::HostPlace;

/// A file that the client has.
#[derive(Debug)]
struct Sent {
    /// Keeps its address, by which it is known, from being used again.
    _file: Arc<Memfd>,
    number: u32,
    allocations: u32,
}

/// Memory files by address, and the files of allocations. A file is forgotten with the last allocation in it, as the client
/// does; should it be needed again, it is sent again.
#[derive(Debug, Default)]
pub(crate) struct HostFiles {
    files: HashMap<usize, Sent>,
    file_of: HashMap<AllocId, usize>,
    next: u32,
}

impl HostFiles {
    /// What to tell the client of a new allocation, and whether its file has to go with it.
    pub(crate) fn add(&mut self, id: AllocId, memory: &HostMemory) -> (HostPlace, bool) {
        let address = Arc::as_ptr(&memory.file).addr();
        let next = self.next;
        let sent = self.files.entry(address).or_insert_with(|| Sent {
            _file: Arc::clone(&memory.file),
            number: next,
            allocations: 0,
        });
        sent.allocations += 1;
        let (file, is_new) = (sent.number, sent.allocations == 1);
        self.next = if is_new { next.wrapping_add(1) } else { next };
        self.file_of.insert(id, address);
        (HostPlace { id, file, offset: memory.offset }, is_new)
    }

    /// Forgets an allocation, if it is one of host memory.
    pub(crate) fn remove(&mut self, id: AllocId) {
        let Some(address) = self.file_of.remove(&id) else { return };
        if let Some(sent) = self.files.get_mut(&address) {
            sent.allocations -= 1;
            if sent.allocations == 0 {
                self.files.remove(&address);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_sent_once_while_it_is_needed() {
        let memory = |file: &Arc<Memfd>, offset| HostMemory { file: Arc::clone(file), offset };
        let [a, b] = ["a", "b"].map(|name| Arc::new(Memfd::create(name, 8192).expect("memory")));
        let mut files = HostFiles::default();
        let place = |id, file, offset| HostPlace { id: AllocId(id), file, offset };
        assert_eq!(files.add(AllocId(1), &memory(&a, 0)), (place(1, 0, 0), true));
        assert_eq!(files.add(AllocId(2), &memory(&a, 4096)), (place(2, 0, 4096), false));
        assert_eq!(files.add(AllocId(3), &memory(&b, 0)), (place(3, 1, 0), true));
        files.remove(AllocId(1));
        files.remove(AllocId(9));
        assert_eq!(files.add(AllocId(1), &memory(&a, 0)), (place(1, 0, 0), false));
        files.remove(AllocId(1));
        files.remove(AllocId(2));
        assert_eq!(files.add(AllocId(2), &memory(&a, 0)), (place(2, 2, 0), true), "the client has forgotten it, too");
    }
}
