//! Modules, as compilers read them.
//!
//! A module may be as long as a tenant likes, and many processes may compile from it. So there is one memory file of it, which
//! all of them get, while one of them has not answered yet; it is sealed, because what one of them changed the others would
//! read. Its bytes are charged with the module itself, by whoever made the [`Source`].
//!
//! The file: length of the text (8 bytes, little-endian), the text, the variables (postcard).

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, OnceLock, Weak};

use parking_lot::Mutex;
use ptx_jit::compiler::Source;

use crate::protocol;

/// Bytes of the text's length.
const LENGTH_BYTES: usize = 8;

/// The files that there are.
#[derive(Debug, Default)]
pub(crate) struct Modules {
    /// By number of the source; held for some instructions only.
    files: Mutex<HashMap<u64, Weak<ModuleFile>>>,
}

/// One of them; made by who needs it first, who needs it meanwhile waits.
#[derive(Debug, Default)]
pub(crate) struct ModuleFile {
    making: Mutex<()>,
    file: OnceLock<OwnedFd>,
}

impl Modules {
    /// The module's file, as long as somebody holds it.
    pub(crate) fn file(&self, source: &Source) -> io::Result<Arc<ModuleFile>> {
        let file = self.find(source.id);
        file.make(source)?;
        Ok(file)
    }

    fn find(&self, id: u64) -> Arc<ModuleFile> {
        let mut files = self.files.lock();
        if let Some(known) = files.get(&id).and_then(Weak::upgrade) {
            return known;
        }
        // No more than processes have not answered yet.
        files.retain(|_, file| file.strong_count() > 0);
        let new = Arc::<ModuleFile>::default();
        files.insert(id, Arc::downgrade(&new));
        new
    }
}

impl ModuleFile {
    /// The file, once it was made.
    pub(crate) fn fd(&self) -> Option<&OwnedFd> {
        self.file.get()
    }

    fn make(&self, source: &Source) -> io::Result<()> {
        let _making = self.making.lock();
        if self.file.get().is_none() {
            let _ = self.file.set(write(source)?);
        }
        Ok(())
    }
}

fn write(source: &Source) -> io::Result<OwnedFd> {
    let variables: Vec<(&str, u64)> = source.symbols.iter().map(|(name, &at)| (name.as_str(), at)).collect();
    let variables = postcard::to_extend(&variables, Vec::new()).map_err(io::Error::other)?;
    let text = source.text.as_bytes();
    let length = (text.len() as u64).to_le_bytes();
    let file = protocol::memory_file(&format!("module-{}", source.id), &[&length, text, &variables])?;
    protocol::seal(&file)?;
    Ok(file)
}

/// A module that was handed over: its file's bytes.
#[derive(Debug)]
pub(crate) struct Handed(Vec<u8>);

impl Handed {
    pub(crate) fn read(file: impl AsFd) -> io::Result<Handed> {
        let size = protocol::size(file.as_fd())?;
        protocol::read_file(file, size).map(Handed)
    }

    /// Its text, and where its variables lie; `None` if it is garbled.
    pub(crate) fn parts(&self) -> Option<(&[u8], HashMap<String, u64>)> {
        let (length, rest) = self.0.split_first_chunk::<LENGTH_BYTES>()?;
        let (text, variables) = rest.split_at_checked(usize::try_from(u64::from_le_bytes(*length)).ok()?)?;
        let variables: Vec<(String, u64)> = postcard::from_bytes(variables).ok()?;
        Some((text, variables.into_iter().collect()))
    }
}

#[cfg(test)]
mod tests {
    use rustix::fs::fstat;

    use super::*;

    fn source(id: u64, text: &str) -> Source {
        Source { id, text: text.into(), symbols: HashMap::from([("v".to_owned(), 7)]) }
    }

    #[test]
    fn one_sealed_file_is_shared_while_somebody_holds_it() {
        let modules = Modules::default();
        let (a, b) = (source(1, "text of a"), source(2, ""));
        let held: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(|| modules.file(&a).unwrap())).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        let inode = |file: &ModuleFile| fstat(file.fd().unwrap()).unwrap().st_ino;
        assert!(held.iter().all(|file| inode(file) == inode(&held[0])));
        let other = modules.file(&b).unwrap();
        assert_ne!(inode(&other), inode(&held[0]));

        let fd = held[0].fd().unwrap();
        assert_eq!(rustix::io::pwrite(fd, b"x", 8), Err(rustix::io::Errno::PERM));
        assert!(rustix::fs::ftruncate(fd, 0).is_err());
        for (file, source) in [(&held[0], &a), (&other, &b)] {
            let handed = Handed::read(file.fd().unwrap()).unwrap();
            let (text, variables) = handed.parts().unwrap();
            assert_eq!((text, &variables), (source.text.as_bytes(), &source.symbols));
        }
        drop(held);
        assert!(modules.files.lock()[&1].upgrade().is_none(), "nobody holds it");
        drop(modules.file(&a).unwrap());
        assert!(modules.files.lock().len() <= 2);
    }

    #[test]
    fn garbled_files_are_no_modules() {
        for bytes in [&b""[..], &[1; 7], &[9, 0, 0, 0, 0, 0, 0, 0, b'x'], &[0xff; 20]] {
            let file = protocol::memory_file("garbled", &[bytes]).unwrap();
            assert!(Handed::read(&file).unwrap().parts().is_none(), "{bytes:?}");
        }
    }
}
