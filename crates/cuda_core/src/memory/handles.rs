//! What says where another process's memory is: 64 bytes, signed by who has made them.
//!
//! ```text
//!   exporter: place in a file ─► signed ─► 64 bytes ═══► importer: the exporter's key, through /proc ─► is it signed with that? ─► the file
//! ```
//! The bytes name two descriptors of the exporter's ([`MemfdName`]): of the memory, and of the key. Whether these may be opened the
//! operating system decides, by the importer's rights. That is not enough: who hands the bytes over may be somebody without such rights, who
//! would have a file opened that nobody has meant for him. Nobody but processes of the exporter's user can read its key and so sign.

use std::hash::Hasher;
use std::io::ErrorKind;
use std::sync::{Arc, OnceLock};

use gpu::PAGE_BYTES;
use hostmem::{Memfd, MemfdName};
use siphasher::sip::SipHasher24;

use crate::error::{CudaError, Result};

/// A handle that programs send to each other.
pub(crate) type Bytes = [u8; 64];

/// The bytes of a handle that are signed; the signature is behind them.
const SIGNED: usize = 56;

/// What handles begin with, before their kind.
const MAGIC: [u8; 3] = *b"SDL";

/// What the files of keys are called, and no others.
const KEY_FILE: &str = "sundial handle key";

/// What a handle is of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Shared {
    Memory = 1,
    Event = 2,
    /// What was made by `cuMemCreate`.
    Physical = 3,
    Pool = 4,
    /// An allocation in a pool.
    PoolMemory = 5,
    /// As `Physical`, of the host.
    PhysicalHost = 6,
}

/// Where memory of a process is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Exported {
    pub(crate) file: MemfdName,
    /// Of its first byte in the file.
    pub(crate) offset: u64,
    pub(crate) bytes: u64,
    /// The allocation's number, which tells it from a later one at the same place.
    pub(crate) number: u64,
    /// The pool that it is of, or 0.
    pub(crate) pool: u32,
}

/// Which driver of which process: that which has this key.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Exporter(MemfdName);

/// What a driver signs its handles with.
#[derive(Debug, Default)]
pub(crate) struct HandleKey(OnceLock<Key>);

/// A key, in a file of its own.
#[derive(Debug)]
struct Key {
    _file: Memfd,
    name: MemfdName,
    secret: [u8; 16],
}

/// Why a handle is none.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Refused {
    /// It is no handle of this kind, or whom it names has not signed it.
    Nonsense,
    /// Who has made it has gone, or what it names.
    Gone,
    /// Who has made it is another user's.
    Forbidden,
    /// This process has no descriptors left, or the operating system no memory.
    Failed,
}

impl Refused {
    /// The error for bytes that programs send to each other.
    pub(crate) fn of_handle(self) -> CudaError {
        match self {
            Refused::Nonsense => CudaError::INVALID_VALUE,
            Refused::Gone | Refused::Forbidden => CudaError::INVALID_HANDLE,
            Refused::Failed => CudaError::OPERATING_SYSTEM,
        }
    }

    /// The error for descriptors, and for pools that came by one.
    pub(crate) fn of_descriptor(self) -> CudaError {
        match self {
            Refused::Nonsense | Refused::Gone => CudaError::INVALID_VALUE,
            Refused::Forbidden => CudaError::NOT_PERMITTED,
            Refused::Failed => CudaError::OPERATING_SYSTEM,
        }
    }

    fn of(error: &std::io::Error, process: u32) -> Refused {
        tracing::warn!(process, %error, "memory of another process cannot be opened");
        // A process that is just going.
        const ESRCH: i32 = 3;
        match error.kind() {
            ErrorKind::PermissionDenied => Refused::Forbidden,
            ErrorKind::NotFound | ErrorKind::InvalidInput | ErrorKind::InvalidData | ErrorKind::Unsupported => {
                Refused::Gone
            }
            _ if error.raw_os_error() == Some(ESRCH) => Refused::Gone,
            _ => Refused::Failed,
        }
    }
}

impl Key {
    fn new() -> Result<Key> {
        let failed = |_| CudaError::OPERATING_SYSTEM;
        let mut secret = [0; 16];
        getrandom::fill(&mut secret).map_err(|_| CudaError::OPERATING_SYSTEM)?;
        let file = Memfd::create(KEY_FILE, PAGE_BYTES).map_err(failed)?;
        file.map().map_err(failed)?.write(0, &secret);
        Ok(Key { name: file.name().map_err(failed)?, _file: file, secret })
    }
}

fn signature(secret: &[u8; 16], signed: &[u8]) -> u64 {
    let mut hasher = SipHasher24::new_with_key(secret);
    hasher.write(signed);
    hasher.finish()
}

/// What is read from the beginning of a handle, piece by piece.
struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn number(&mut self, bytes: usize) -> u64 {
        let mut value = [0; 8];
        let (taken, rest) = self.0.split_at(bytes);
        value[..bytes].copy_from_slice(taken);
        self.0 = rest;
        u64::from_le_bytes(value)
    }

    fn word(&mut self) -> u32 {
        self.number(4) as u32
    }
}

impl HandleKey {
    fn get(&self) -> Result<&Key> {
        if let Some(key) = self.0.get() {
            return Ok(key);
        }
        let made = Key::new()?;
        Ok(self.0.get_or_init(|| made))
    }

    /// The file of the key, for what has no memory.
    ///
    /// # Errors
    /// `OPERATING_SYSTEM`.
    pub(crate) fn file(&self) -> Result<MemfdName> {
        self.get().map(|key| key.name)
    }

    /// A handle of what this driver has.
    ///
    /// # Errors
    /// `OPERATING_SYSTEM`; `NOT_SUPPORTED` if the place is too far in its file to be written down.
    pub(crate) fn sign(&self, what: &Exported, kind: Shared) -> Result<Bytes> {
        let key = self.get()?;
        let Exported { file, offset, bytes, number, pool } = *what;
        let mut out = Vec::with_capacity(size_of::<Bytes>());
        out.extend(MAGIC);
        out.push(kind as u8);
        for word in [file.process, file.descriptor, key.name.descriptor, pool] {
            out.extend(word.to_le_bytes());
        }
        for inode in [file.inode, key.name.inode] {
            out.extend(inode.to_le_bytes());
        }
        for length in [offset, bytes] {
            if length >> 48 != 0 {
                return Err(CudaError::NOT_SUPPORTED);
            }
            out.extend(&length.to_le_bytes()[..6]);
        }
        out.extend(number.to_le_bytes());
        out.extend(signature(&key.secret, &out).to_le_bytes());
        Bytes::try_from(out).map_err(|_| CudaError::NOT_SUPPORTED)
    }

    /// What a handle is of, and whose it is.
    ///
    /// # Errors
    /// As [`Refused`] says.
    pub(crate) fn verify(&self, handle: &Bytes, kind: Shared) -> std::result::Result<(Exported, Exporter), Refused> {
        let own = self.get().map_err(|_| Refused::Failed)?;
        let (signed, signed_with) = handle.split_at(SIGNED);
        let Some((&[a, b, c, of_kind], rest)) = signed.split_first_chunk() else { return Err(Refused::Nonsense) };
        if [a, b, c] != MAGIC || of_kind != kind as u8 {
            return Err(Refused::Nonsense);
        }
        let mut rest = Reader(rest);
        let [process, descriptor, key, pool] = std::array::from_fn(|_| rest.word());
        let [inode, key_inode] = std::array::from_fn(|_| rest.number(8));
        let [offset, bytes] = std::array::from_fn(|_| rest.number(6));
        let number = rest.number(8);
        // Memory files are all of one device.
        let file = MemfdName { process, descriptor, device: own.name.device, inode };
        let key = MemfdName { descriptor: key, inode: key_inode, ..file };
        let secret = if key == own.name { own.secret } else { secret_of(&key)? };
        if signature(&secret, signed) != Reader(signed_with).number(8) || bytes == 0 {
            tracing::warn!(process, "a handle that the process which it names has not made");
            return Err(Refused::Nonsense);
        }
        Ok((Exported { file, offset, bytes, number, pool }, Exporter(key)))
    }

    /// Whether that is this driver.
    pub(crate) fn is_of(&self, exporter: &Exporter) -> bool {
        self.0.get().is_some_and(|own| own.name == exporter.0)
    }
}

/// The secret of another driver. A file that is of another user, or called otherwise, may have been filled by anybody.
fn secret_of(key: &MemfdName) -> std::result::Result<[u8; 16], Refused> {
    let read = || {
        let mut secret = [0; 16];
        Memfd::open_own(key, KEY_FILE)?.map_part(0, PAGE_BYTES)?.read(0, &mut secret);
        Ok(secret)
    };
    read().map_err(|error| Refused::of(&error, key.process))
}

impl Exported {
    /// Opens the file that it is in.
    ///
    /// # Errors
    /// As [`Refused`] says.
    pub(crate) fn open(&self) -> std::result::Result<Arc<Memfd>, Refused> {
        Memfd::open(&self.file).map(Arc::new).map_err(|error| Refused::of(&error, self.file.process))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exported(key: &HandleKey) -> Exported {
        let file = MemfdName { descriptor: 9, inode: 0x0fed_cba9_8765_4321, ..key.file().unwrap() };
        Exported { file, offset: 0x12_3456_7890, bytes: 0x9876_5432, number: u64::MAX, pool: 0x1234_5678 }
    }

    #[test]
    fn handles_are_read_as_they_were_written_by_every_driver() {
        let [one, other] = [HandleKey::default(), HandleKey::default()];
        let what = exported(&one);
        let handle = one.sign(&what, Shared::PoolMemory).unwrap();
        for (reader, own) in [(&one, true), (&other, false)] {
            let (read, exporter) = reader.verify(&handle, Shared::PoolMemory).unwrap();
            assert_eq!((read, reader.is_of(&exporter)), (what, own));
            assert_eq!(reader.verify(&handle, Shared::Memory), Err(Refused::Nonsense));
            assert_eq!(reader.verify(&[0; 64], Shared::Memory), Err(Refused::Nonsense));
        }
        for far in [Exported { offset: 1 << 48, ..what }, Exported { bytes: 1 << 48, ..what }] {
            assert_eq!(one.sign(&far, Shared::Memory), Err(CudaError::NOT_SUPPORTED));
        }
    }

    #[test]
    fn whatever_is_changed_is_not_signed() {
        let [one, other] = [HandleKey::default(), HandleKey::default()];
        let handle = one.sign(&exported(&one), Shared::Memory).unwrap();
        for bit in 0..8 * handle.len() {
            let mut wrong = handle;
            wrong[bit / 8] ^= 1 << (bit % 8);
            for reader in [&one, &other] {
                assert!(reader.verify(&wrong, Shared::Memory).is_err(), "{bit}");
            }
        }
    }

    #[test]
    fn a_process_without_descriptors_is_not_told_that_the_memory_has_gone() {
        let refused = |code| Refused::of(&std::io::Error::from_raw_os_error(code), 1);
        // ENOENT, ESRCH, EACCES, EMFILE, ENFILE, ENOMEM.
        let codes = [2, 3, 13, 24, 23, 12].map(refused);
        let failed = Refused::Failed;
        assert_eq!(codes, [Refused::Gone, Refused::Gone, Refused::Forbidden, failed, failed, failed]);
        assert_eq!([failed.of_handle(), failed.of_descriptor()], [CudaError::OPERATING_SYSTEM; 2]);
    }

    #[test]
    fn a_key_is_believed_only_of_a_file_that_is_called_so() {
        let own = HandleKey::default();
        let secret = [7; 16];
        for (called, good) in [("cuda memory", false), ("sundial handle key ", false), (KEY_FILE, true)] {
            let file = Memfd::create(called, PAGE_BYTES).unwrap();
            file.map().unwrap().write(0, &secret);
            let forger = HandleKey::default();
            let _ = forger.0.set(Key { name: file.name().unwrap(), _file: file, secret });
            let handle = forger.sign(&exported(&own), Shared::Memory).unwrap();
            assert_eq!(own.verify(&handle, Shared::Memory).is_ok(), good, "{called:?}");
        }
    }
}
