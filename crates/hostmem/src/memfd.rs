//! Anonymous memory files of a sealed size.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, FallocateFlags, FlockOperation, MemfdFlags, Mode, OFlags, SealFlags, StatxFlags};
use rustix::mm::MapFlags;

use crate::{Mapping, PAGE};

/// `f_type` of hugetlbfs: a file of it may have no page when it is touched, which would end the process.
const HUGETLBFS_MAGIC: u64 = 0x9584_58f6;

/// An anonymous memory file; its size never changes (sealed), its pages are allocated when first touched.
#[derive(Debug)]
pub struct Memfd {
    fd: OwnedFd,
    bytes: u64,
}

/// A descriptor of a memory file in some process, and which file that is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct MemfdName {
    /// The process, by its number.
    pub process: u32,
    /// The descriptor, by its number.
    pub descriptor: u32,
    /// The file's device.
    pub device: u64,
    /// The file's inode.
    pub inode: u64,
}

impl Memfd {
    /// Creates a zero-filled file of `bytes`, rounded up to whole pages, sealed against change of size.
    ///
    /// # Errors
    /// What the operating system says.
    pub fn create(name: &str, bytes: u64) -> io::Result<Memfd> {
        let bytes = bytes.max(1).next_multiple_of(PAGE);
        Memfd::sealed(rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?, bytes)
    }

    fn sealed(fd: OwnedFd, bytes: u64) -> io::Result<Memfd> {
        rustix::fs::ftruncate(&fd, bytes)?;
        rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        Ok(Memfd { fd, bytes })
    }

    /// Takes a file that another process sent. It must be sealed against shrinking, and have a page wherever it is touched, or a
    /// mapping of it could fault. Memory files alone have seals, and what else is asked of these is answered at once: other file
    /// systems, which may take as long as they like, are not asked.
    ///
    /// # Errors
    /// `InvalidData` if the size is not sealed or is no whole number of pages; `Unsupported` if it is of hugetlbfs; else what the
    /// operating system says, as `InvalidInput` of what is no memory file.
    pub fn from_fd(fd: OwnedFd) -> io::Result<Memfd> {
        let seals = rustix::fs::fcntl_get_seals(&fd)?;
        if rustix::fs::fstatfs(&fd)?.f_type as u64 == HUGETLBFS_MAGIC {
            let text = "a file of hugetlbfs, whose pages may be missing when they are touched";
            return Err(io::Error::new(io::ErrorKind::Unsupported, text));
        }
        let size = rustix::fs::fstat(&fd)?.st_size;
        let bytes = u64::try_from(size).unwrap_or(0);
        if !seals.contains(SealFlags::SHRINK) || bytes == 0 || bytes % PAGE != 0 {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "memory file is not sealed against shrinking"));
        }
        Ok(Memfd { fd, bytes })
    }

    /// Size in bytes: a whole number of pages.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Maps all of it, readable and writable, shared.
    ///
    /// # Errors
    /// What the operating system says.
    pub fn map(&self) -> io::Result<Mapping> {
        Mapping::new(self, 0, self.bytes, MapFlags::NORESERVE)
    }

    /// As [`Memfd::map`], with inaccessible pages on both sides: for memory that a program's own buffers are copied to and from.
    ///
    /// # Errors
    /// As [`Memfd::map`].
    pub fn map_guarded(&self) -> io::Result<Mapping> {
        Mapping::guarded(self, MapFlags::NORESERVE)
    }

    /// As [`Memfd::map`]; all pages exist when this returns, and are never swapped out. They follow each other in the machine's
    /// memory for 2 MiB at a time, if the machine has huge pages for memory files and the file is so large.
    ///
    /// # Errors
    /// What the operating system says: it may have too few pages, or let this process lock fewer.
    pub fn map_resident(&self) -> io::Result<Mapping> {
        let mut mapping = Mapping::new(self, 0, self.bytes, MapFlags::empty())?;
        mapping.lock()?;
        Ok(mapping)
    }

    /// As [`Memfd::map`], for a part of it: whole pages.
    ///
    /// # Errors
    /// `InvalidInput` if the part is not whole pages inside the file; else what the operating system says.
    pub fn map_part(&self, offset: u64, bytes: u64) -> io::Result<Mapping> {
        self.check(offset, bytes)?;
        Mapping::new(self, offset, bytes, MapFlags::NORESERVE)
    }

    /// Whether a range is whole pages inside the file, and not empty.
    pub(crate) fn check(&self, offset: u64, bytes: u64) -> io::Result<()> {
        let inside = offset <= self.bytes && bytes <= self.bytes - offset;
        if bytes == 0 || !inside || !offset.is_multiple_of(PAGE) || !bytes.is_multiple_of(PAGE) {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "not whole pages inside the memory file"));
        }
        Ok(())
    }

    /// Gives the pages of a range back to the operating system; they read as zero afterwards.
    ///
    /// # Errors
    /// What the operating system says.
    pub fn punch(&self, offset: u64, bytes: u64) -> io::Result<()> {
        /// Whoever maps or unmaps the file waits for a punch of mapped pages, and in the same process whoever maps anything waits with him.
        const STEP: u64 = 64 << 20;
        let end = offset.saturating_add(bytes);
        let mut at = offset;
        while at < end {
            let step = STEP.min(end - at);
            rustix::fs::fallocate(&self.fd, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, at, step)?;
            at += step;
        }
        Ok(())
    }

    /// What tells it from all other files that there are at the same time: device and inode.
    ///
    /// # Errors
    /// What the operating system says.
    pub fn identity(&self) -> io::Result<(u64, u64)> {
        let stat = rustix::fs::fstat(&self.fd)?;
        Ok((stat.st_dev, stat.st_ino))
    }

    /// Where another process finds it, as long as this one has it open.
    ///
    /// # Errors
    /// What the operating system says.
    pub fn name(&self) -> io::Result<MemfdName> {
        let (device, inode) = self.identity()?;
        Ok(MemfdName { process: std::process::id(), descriptor: self.fd.as_raw_fd().cast_unsigned(), device, inode })
    }

    /// Opens a file of another process, which the operating system allows to those that could look at that process in any case:
    /// of the same user.
    ///
    /// # Errors
    /// `NotFound` if there is another file by now; as [`Memfd::from_fd`]; else what the operating system says.
    pub fn open(name: &MemfdName) -> io::Result<Memfd> {
        Memfd::reopen(&find(name)?.0)
    }

    /// As [`Memfd::open`], of a file that a process of this user has made under that label. Neither ever changes.
    ///
    /// # Errors
    /// As [`Memfd::open`]; `PermissionDenied` if another user has made it, `NotFound` if it is called otherwise.
    pub fn open_own(name: &MemfdName, label: &str) -> io::Result<Memfd> {
        let (found, owner) = find(name)?;
        if !is_own(owner, rustix::process::geteuid().as_raw(), overflow_user()) {
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, "another user's memory file"));
        }
        // As the operating system calls files of `memfd_create`.
        let called = rustix::fs::readlink(own_path(&found), Vec::new())?;
        if called.to_bytes() != format!("/memfd:{label} (deleted)").as_bytes() {
            return Err(io::Error::new(io::ErrorKind::NotFound, format!("{called:?} is not called {label:?}")));
        }
        Memfd::reopen(&found)
    }

    fn reopen(found: &OwnedFd) -> io::Result<Memfd> {
        Memfd::from_fd(rustix::fs::open(own_path(found), OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?)
    }

    /// The same file for somebody else, by a description of its own, which is locked until the last descriptor of it is closed,
    /// wherever that is ([`Memfd::is_lent`]).
    ///
    /// # Errors
    /// `WouldBlock` if who has it by then has locked it for himself alone; else what the operating system says.
    pub fn lend(&self) -> io::Result<Memfd> {
        let fd = rustix::fs::open(own_path(&self.fd), OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
        rustix::fs::flock(&fd, FlockOperation::NonBlockingLockShared)?;
        Ok(Memfd { fd, bytes: self.bytes })
    }

    /// Whether what was lent is still open anywhere. Who has it may say that it is not.
    #[must_use]
    pub fn is_lent(&self) -> bool {
        let free = rustix::fs::flock(&self.fd, FlockOperation::NonBlockingLockExclusive).is_ok();
        if free {
            let _ = rustix::fs::flock(&self.fd, FlockOperation::Unlock);
        }
        !free
    }

    /// The same file by a description of its own, whose locks are its own, too ([`Memfd::lock_byte`]).
    ///
    /// # Errors
    /// What the operating system says.
    pub fn described_anew(&self) -> io::Result<Memfd> {
        Memfd::reopen(&self.fd)
    }

    /// Locks a byte, which need not lie in the file, for this description alone, until the last descriptor of it is closed, wherever that is: at
    /// the latest when the process has ended, and its children that run the same program. False if another has locked it.
    ///
    /// # Errors
    /// What the operating system says.
    pub fn lock_byte(&self, at: u64) -> io::Result<bool> {
        match self.set_lock(at, libc::F_WRLCK) {
            Ok(()) => Ok(true),
            Err(error) if matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EACCES)) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Lets go of a byte that this description has locked, also where others have descriptors of it.
    ///
    /// # Errors
    /// What the operating system says.
    pub fn unlock_byte(&self, at: u64) -> io::Result<()> {
        self.set_lock(at, libc::F_UNLCK)
    }

    fn set_lock(&self, at: u64, kind: i32) -> io::Result<()> {
        let mut lock = byte(at, kind)?;
        // SAFETY: the lock is valid as long as the call takes.
        match unsafe { libc::fcntl(self.fd.as_raw_fd(), libc::F_OFD_SETLK, &raw mut lock) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Whether another description has locked a byte.
    ///
    /// # Errors
    /// What the operating system says.
    pub fn is_byte_locked(&self, at: u64) -> io::Result<bool> {
        let mut lock = byte(at, libc::F_WRLCK)?;
        // SAFETY: as above; the call says in it who has locked the byte.
        match unsafe { libc::fcntl(self.fd.as_raw_fd(), libc::F_OFD_GETLK, &raw mut lock) } {
            0 => Ok(i32::from(lock.l_type) != libc::F_UNLCK),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Another handle of the same file.
    ///
    /// # Errors
    /// What the operating system says.
    pub fn try_clone(&self) -> io::Result<Memfd> {
        Ok(Memfd { fd: self.fd.try_clone()?, bytes: self.bytes })
    }

    /// The bare descriptor.
    #[must_use]
    pub fn into_fd(self) -> OwnedFd {
        self.fd
    }
}

/// A lock of one byte.
fn byte(at: u64, kind: i32) -> io::Result<libc::flock> {
    let at = at.try_into().map_err(|_| io::ErrorKind::InvalidInput)?;
    let [kind, from] = [kind as i16, libc::SEEK_SET as i16];
    Ok(libc::flock { l_type: kind, l_whence: from, l_start: at, l_len: 1, l_pid: 0 })
}

/// Where a descriptor of this process is found. A process whose first thread has ended has none by its own name.
fn own_path(fd: &OwnedFd) -> String {
    format!("/proc/thread-self/fd/{}", fd.as_raw_fd())
}

/// Threads of another process that are asked for a descriptor.
const THREADS: usize = 16;

/// What another process's descriptor means, not opened.
fn look_up(process: u32, descriptor: u32) -> io::Result<OwnedFd> {
    let open = |of: &Path| {
        let path = of.join("fd").join(descriptor.to_string());
        Ok(rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?)
    };
    let process = PathBuf::from(format!("/proc/{process}"));
    open(&process).or_else(|error: io::Error| {
        // Its first thread may have ended: what is left of that is nobody's, or the superuser's.
        if !matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied) {
            return Err(error);
        }
        let threads = std::fs::read_dir(process.join("task")).into_iter().flatten().flatten().take(THREADS);
        threads.map(|thread| thread.path()).find_map(|thread| open(&thread).ok()).ok_or(error)
    })
}

/// What a name means, not opened: it may be anything; and whose it is. File systems, which may take as long as they like, are not asked.
fn find(name: &MemfdName) -> io::Result<(OwnedFd, u32)> {
    let MemfdName { process, descriptor, device, inode } = *name;
    let found = look_up(process, descriptor)?;
    let known = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let stat = rustix::fs::statx(&found, "", known, StatxFlags::INO | StatxFlags::UID)?;
    if (rustix::fs::makedev(stat.stx_dev_major, stat.stx_dev_minor), stat.stx_ino) != (device, inode) {
        return Err(io::Error::new(io::ErrorKind::NotFound, "the descriptor is another file's by now"));
    }
    Ok((found, stat.stx_uid))
}

/// Whether a file's owner is a process's user. As one user are shown all of those who have no number in the process's user namespace: files
/// of that one are nobody's own.
fn is_own(owner: u32, user: u32, overflow: Option<u32>) -> bool {
    owner == user && Some(owner) != overflow
}

/// What they are shown as; none where all users have numbers.
fn overflow_user() -> Option<u32> {
    let map = std::fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    if has_all_users(&map) {
        return None;
    }
    let said = std::fs::read_to_string("/proc/sys/kernel/overflowuid").ok();
    Some(said.and_then(|said| said.trim().parse().ok()).unwrap_or(65_534))
}

/// Does a user namespace's map give each user his own number?
fn has_all_users(map: &str) -> bool {
    map.split_whitespace().eq(["0", "0", "4294967295"])
}

impl AsFd for Memfd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    fn file(flags: MemfdFlags, bytes: u64, seals: SealFlags) -> io::Result<OwnedFd> {
        let fd = rustix::fs::memfd_create("stranger's", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING | flags)?;
        rustix::fs::ftruncate(&fd, bytes)?;
        rustix::fs::fcntl_add_seals(&fd, seals)?;
        Ok(fd)
    }

    fn kind(fd: impl Into<OwnedFd>) -> io::ErrorKind {
        Memfd::from_fd(fd.into()).expect_err("it is not taken").kind()
    }

    #[test]
    fn only_files_that_cannot_fault_are_taken() -> io::Result<()> {
        let none = MemfdFlags::empty();
        let taken = Memfd::from_fd(file(none, 2 * PAGE, SealFlags::SHRINK)?)?;
        assert_eq!(taken.bytes(), 2 * PAGE);
        for (bytes, seals) in
            [(PAGE, SealFlags::GROW), (0, SealFlags::SHRINK), (PAGE + 1, SealFlags::SHRINK), (PAGE, SealFlags::SEAL)]
        {
            assert_eq!(kind(file(none, bytes, seals)?), io::ErrorKind::InvalidData, "{bytes} {seals:?}");
        }
        for path in ["/dev/null", "/", "/proc/self/status"] {
            assert_eq!(kind(File::open(path)?), io::ErrorKind::InvalidInput, "{path}");
        }
        let (reader, _writer) = io::pipe()?;
        assert_eq!(kind(reader), io::ErrorKind::InvalidInput);
        // It has seals, and may have no pages.
        match file(MemfdFlags::HUGETLB, 2 << 20, SealFlags::SHRINK | SealFlags::GROW) {
            Ok(huge) => assert_eq!(kind(huge), io::ErrorKind::Unsupported),
            Err(error) => eprintln!("SKIPPED: no file of huge pages: {error}"),
        }
        // It cannot be mapped writable.
        let sealed = Memfd::from_fd(file(none, PAGE, SealFlags::SHRINK | SealFlags::WRITE)?)?;
        assert!(sealed.map().is_err());
        Ok(())
    }

    #[test]
    fn files_of_those_who_have_no_number_are_nobodys_own() {
        let some = Some(65_534);
        assert!(is_own(1000, 1000, some) && is_own(0, 0, some));
        assert!(!is_own(1000, 1001, some));
        assert!(!is_own(65_534, 65_534, some), "in the namespace it may be anybody's");
        assert!(is_own(65_534, 65_534, None) && !is_own(65_534, 0, None));
        assert!(has_all_users("         0          0 4294967295\n"));
        assert!(!has_all_users("0 1000 1\n") && !has_all_users("0 1000 1\n1 100000 65536\n") && !has_all_users(""));
        assert!(overflow_user().is_none_or(|user| user > 0));
    }

    #[test]
    fn a_file_is_opened_by_its_name_and_no_other() -> io::Result<()> {
        let [one, other] = [Memfd::create("one", PAGE)?, Memfd::create("other", PAGE)?];
        let name = one.name()?;
        one.map()?.write(8, b"seen");
        let opened = Memfd::open(&name)?;
        let mut seen = [0; 4];
        opened.map()?.read(8, &mut seen);
        assert_eq!((&seen, opened.bytes(), opened.identity()?), (b"seen", PAGE, one.identity()?));
        let missing = |name: MemfdName| Memfd::open(&name).expect_err("it is not opened").kind();
        // The number means another file, none, or one that is no memory file.
        let descriptor = other.name()?.descriptor;
        assert_eq!(missing(MemfdName { descriptor, ..name }), io::ErrorKind::NotFound);
        assert_eq!(missing(MemfdName { descriptor: u32::MAX, ..name }), io::ErrorKind::NotFound);
        assert_eq!(missing(MemfdName { process: u32::MAX, ..name }), io::ErrorKind::NotFound);
        let file = File::open("/proc/self/exe")?;
        let stat = rustix::fs::fstat(&file)?;
        let descriptor = file.as_raw_fd().cast_unsigned();
        assert!(Memfd::open(&MemfdName { descriptor, device: stat.st_dev, inode: stat.st_ino, ..name }).is_err());
        assert_eq!(Memfd::open_own(&name, "one")?.identity()?, one.identity()?);
        for label in ["other", "on", "one ", ""] {
            let error = Memfd::open_own(&name, label).expect_err("it is called otherwise");
            assert_eq!(error.kind(), io::ErrorKind::NotFound, "{label:?}");
        }
        let somebody = rustix::fs::Uid::from_raw(4321);
        match rustix::fs::fchown(&one.fd, Some(somebody), None) {
            Ok(()) => {
                let error = Memfd::open_own(&name, "one").expect_err("another user has made it");
                assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
            }
            Err(error) => eprintln!("SKIPPED: no file can be made another user's: {error}"),
        }
        drop(one);
        assert_eq!(missing(name), io::ErrorKind::NotFound);
        Ok(())
    }

    #[test]
    fn what_is_lent_is_known_until_its_last_descriptor_is_closed() -> io::Result<()> {
        let file = Memfd::create("file", PAGE)?;
        assert!(!file.is_lent());
        let (one, other) = (file.lend()?, file.lend()?);
        assert_eq!(one.identity()?, file.identity()?);
        let again = one.try_clone()?;
        drop((one, other));
        assert!(file.is_lent(), "one of three is open");
        drop(again);
        assert!(!file.is_lent());
        let lent = file.lend()?;
        assert!(file.is_lent());
        // Who has it may do with the lock as he likes: nobody waits for him.
        rustix::fs::flock(&lent.fd, FlockOperation::NonBlockingLockExclusive)?;
        assert_eq!(file.lend().expect_err("it is locked").kind(), io::ErrorKind::WouldBlock);
        assert!(file.is_lent());
        drop(lent);
        assert!(file.lend().is_ok());
        Ok(())
    }

    #[test]
    fn a_file_is_known_by_whatever_handle() -> io::Result<()> {
        let [one, other] = [Memfd::create("one", PAGE)?, Memfd::create("other", PAGE)?];
        assert_eq!(one.identity()?, one.try_clone()?.identity()?);
        assert_ne!(one.identity()?, other.identity()?);
        Ok(())
    }
}
