//! Code that outlives processes.
//!
//! [`Store`] is a directory of images, one file each, and belongs to the control process: nobody else of ours can open
//! files. A thread there ([`Store::serve`]) answers one [`Shelf`], the device process's end of a socket.
//!
//! **Who can write there can run code in the device process**, so: the directory is the daemon's user's alone (0700, owned
//! by it, no link), files that are not its user's or that others can write to are not read, and no tenant has a hand in
//! any name: a file is named by the hash (SHA-256) of all that the code depends on, the whole text of the module included,
//! so no tenant can make a kernel that is taken for another's. Each file carries a hash of its own content, which tells
//! torn and rotten files; they count as missing. Files appear by rename, complete. When they become more than the bound,
//! those not used for longest go.

mod shelf;
mod store;

use std::collections::HashMap;

use parking_lot::Mutex;
use ptx_jit::ENGINE_VERSION;
use ptx_jit::compiler::{Request, Source};
use sha2::{Digest, Sha256};

pub use shelf::Shelf;
pub use store::Store;

/// Names an image: a hash of all that it depends on, but for the kind of processor, which the image itself knows.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Key([u8; 32]);

/// Bytes of a key.
const KEY_BYTES: usize = 32;

/// Makes keys, and remembers what it has read already.
#[derive(Debug, Default)]
pub(crate) struct Keys {
    /// Hashes of modules, by their numbers.
    modules: Mutex<HashMap<u64, [u8; 32]>>,
}

/// More modules than that are forgotten, all at once.
const MOST_MODULES: usize = 4096;

impl Keys {
    pub(crate) fn of(&self, request: &Request) -> Key {
        let mut hash = Sha256::new();
        for part in [ENGINE_VERSION.as_bytes(), &self.module(&request.source), request.entry.as_bytes()] {
            add(&mut hash, part);
        }
        for number in request.block.into_iter().chain([request.stack_bytes]) {
            hash.update(number.to_le_bytes());
        }
        Key(hash.finalize().into())
    }

    /// Of the text and of where its variables lie: both are in the code.
    fn module(&self, source: &Source) -> [u8; 32] {
        if let Some(known) = self.modules.lock().get(&source.id) {
            return *known;
        }
        let mut hash = Sha256::new();
        add(&mut hash, source.text.as_bytes());
        let mut symbols: Vec<(&str, u64)> = source.symbols.iter().map(|(name, &at)| (name.as_str(), at)).collect();
        symbols.sort_unstable();
        for (name, address) in symbols {
            add(&mut hash, name.as_bytes());
            hash.update(address.to_le_bytes());
        }
        let result: [u8; 32] = hash.finalize().into();
        let mut modules = self.modules.lock();
        if modules.len() >= MOST_MODULES {
            modules.clear();
        }
        modules.insert(source.id, result);
        result
    }
}

/// Adds bytes and how many they are, so that no two lists of parts look the same.
fn add(hash: &mut Sha256, bytes: &[u8]) {
    hash.update((bytes.len() as u64).to_le_bytes());
    hash.update(bytes);
}

/// Hash of an image's bytes, which stands before them in a file.
fn checksum(bytes: &[u8]) -> [u8; 32] {
    Sha256::digest(bytes).into()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use ptx_jit::EngineKind;
    use ptx_jit::compiler::Bounds;

    use super::*;

    fn request(id: u64, text: &str, symbols: &[(&str, u64)], entry: &str, block: [u32; 3]) -> Request {
        let symbols = symbols.iter().map(|&(name, at)| (name.to_owned(), at)).collect();
        Request {
            tenant: 1,
            owner: id,
            source: Arc::new(Source { id, text: text.into(), symbols }),
            entry: entry.into(),
            block,
            stack_bytes: 0,
            engine: EngineKind::Jit,
            bounds: Bounds { memory_bytes: 1, time: Duration::ZERO, threads: 1 },
        }
    }

    #[test]
    fn all_that_code_depends_on_is_in_its_key() {
        let keys = Keys::default();
        let base = [("a", 1), ("b", 2)];
        let key = keys.of(&request(1, "text", &base, "k", [1, 2, 3]));
        assert_eq!(key, keys.of(&request(2, "text", &[("b", 2), ("a", 1)], "k", [1, 2, 3])), "the same, by another");
        for (id, other) in [
            request(3, "texu", &base, "k", [1, 2, 3]),
            request(4, "text", &[("a", 1), ("b", 3)], "k", [1, 2, 3]),
            request(5, "text", &[("a", 1)], "k", [1, 2, 3]),
            request(6, "text", &base, "kk", [1, 2, 3]),
            request(7, "text", &base, "k", [1, 3, 2]),
        ]
        .into_iter()
        .enumerate()
        {
            assert_ne!(key, keys.of(&other), "{id}");
        }
    }
}
