//! What the kernel offers: `userfaultfd` for protecting pages against writes, `PAGEMAP_SCAN` for asking which were written.
//!
//! Numbers and layouts are those of `linux/userfaultfd.h` and `linux/fs.h`; older headers lack some.

use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use hostmem::{PAGE, strangers};
use rustix::fs::{Mode, OFlags};
use rustix::io::{Errno, ReadWriteFlags};
use rustix::mm::UserfaultfdFlags;

use crate::{Area, Why};

const UFFD_API: u64 = 0xaa;
/// Faults of writes to protected pages are told.
const PAGEFAULT_FLAG_WP: u64 = 1 << 0;
/// As well in memory files.
const WP_HUGETLBFS_SHMEM: u64 = 1 << 12;
/// The kernel lifts the protection itself.
const WP_ASYNC: u64 = 1 << 15;

const REGISTER_MODE_WP: u64 = 1 << 1;
const WRITEPROTECT_MODE_WP: u64 = 1 << 0;
const EVENT_PAGEFAULT: u64 = 0x12;
const EVENT_FORK: u64 = 0x13;

/// `struct uffdio_api`.
#[repr(C)]
#[derive(Default)]
struct Api {
    api: u64,
    features: u64,
    ioctls: u64,
}

/// `struct uffdio_register`.
#[repr(C)]
#[derive(Default)]
struct Register {
    start: u64,
    bytes: u64,
    mode: u64,
    ioctls: u64,
}

/// `struct uffdio_writeprotect`; its beginning is `struct uffdio_range`.
#[repr(C)]
#[derive(Default)]
struct Protect {
    start: u64,
    bytes: u64,
    mode: u64,
}

/// `struct pm_scan_arg`.
#[repr(C)]
#[derive(Default)]
struct Scan {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    walk_end: u64,
    regions: u64,
    regions_len: u64,
    max_pages: u64,
    category_inverted: u64,
    category_mask: u64,
    category_anyof_mask: u64,
    return_mask: u64,
}

/// `struct page_region`: addresses, and what holds of the pages there.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Region {
    start: u64,
    end: u64,
    categories: u64,
}

const READ: u64 = 2;
const WRITE: u64 = 1;

/// Number of a request, as `_IOC` of `asm-generic/ioctl.h` makes it.
const fn request(direction: u64, group: u8, number: u8, bytes: usize) -> u64 {
    direction << 30 | (bytes as u64) << 16 | (group as u64) << 8 | number as u64
}

const USERFAULTFD_NEW: u64 = request(0, 0xaa, 0x00, 0);
const UFFDIO_API: u64 = request(READ | WRITE, 0xaa, 0x3f, size_of::<Api>());
const UFFDIO_REGISTER: u64 = request(READ | WRITE, 0xaa, 0x00, size_of::<Register>());
const UFFDIO_WAKE: u64 = request(READ, 0xaa, 0x02, 16);
const UFFDIO_WRITEPROTECT: u64 = request(READ | WRITE, 0xaa, 0x06, size_of::<Protect>());
const PAGEMAP_SCAN: u64 = request(READ | WRITE, b'f', 16, size_of::<Scan>());

const SCAN_WP_MATCHING: u64 = 1 << 0;
const SCAN_CHECK_WPASYNC: u64 = 1 << 1;
const PAGE_IS_WRITTEN: u64 = 1 << 1;

/// Regions that one scan names.
const REGIONS: usize = 64;
/// Messages that are read at once.
const MESSAGES: usize = 16;

/// Magic number of the file system of memory files.
pub(crate) const TMPFS: u64 = 0x0102_1994;

/// Makes a request.
///
/// # Safety
/// `T` is what the request reads and writes, and what is inside it is valid for that.
unsafe fn control<T>(fd: BorrowedFd<'_>, request: u64, argument: &mut T) -> io::Result<i32> {
    // SAFETY: as the caller promises.
    let result = unsafe { libc::ioctl(fd.as_raw_fd(), request as _, std::ptr::from_mut(argument)) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// Who resolves a fault.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Resolved {
    /// Who reads the descriptor.
    ByReader,
    /// The kernel, at once.
    ByKernel,
}

/// A `userfaultfd`: of this process's memory, or of another's who has sent it.
#[derive(Debug)]
pub(crate) struct Userfault {
    fd: OwnedFd,
    /// Whoever sent it shares it, and may have it wait.
    sent: bool,
}

impl Userfault {
    /// One for this process.
    pub(crate) fn open(resolved: Resolved) -> Result<Userfault, Why> {
        let userfault = Userfault { fd: open()?, sent: false };
        let mut wanted = PAGEFAULT_FLAG_WP | WP_HUGETLBFS_SHMEM;
        if resolved == Resolved::ByKernel {
            wanted |= WP_ASYNC;
        }
        let mut api = Api { api: UFFD_API, features: wanted, ioctls: 0 };
        // SAFETY: the request and its structure belong together.
        if unsafe { control(userfault.fd.as_fd(), UFFDIO_API, &mut api) }.is_ok() {
            return Ok(userfault);
        }
        // What it has, a fresh one says.
        let asked = open()?;
        let mut api = Api { api: UFFD_API, ..Api::default() };
        // SAFETY: the request and its structure belong together.
        unsafe { control(asked.as_fd(), UFFDIO_API, &mut api) }.map_err(Why::Userfaultfd)?;
        Err(match wanted & !api.features {
            missing if missing & (PAGEFAULT_FLAG_WP | WP_HUGETLBFS_SHMEM) != 0 => Why::NoWriteProtect,
            _ => Why::NoAsync,
        })
    }

    /// One that somebody sent.
    pub(crate) fn from_fd(fd: OwnedFd) -> io::Result<Userfault> {
        check_anonymous(&fd)?;
        Ok(Userfault { fd, sent: true })
    }

    pub(crate) fn into_fd(self) -> OwnedFd {
        self.fd
    }

    /// The addresses may be protected from now on.
    pub(crate) fn register(&self, area: Area) -> io::Result<()> {
        let mut register =
            Register { start: area.address(), bytes: area.bytes(), mode: REGISTER_MODE_WP, ..Register::default() };
        // SAFETY: the request and its structure belong together. It changes no memory: only what is to happen at writes to
        // pages that are protected later.
        unsafe { control(self.fd.as_fd(), UFFDIO_REGISTER, &mut register) }?;
        Ok(())
    }

    /// Protects a run of pages, or lifts that; who waits for it goes on.
    pub(crate) fn protect(&self, area: Area, pages: &Range<u64>, on: bool) -> io::Result<()> {
        let mode = if on { WRITEPROTECT_MODE_WP } else { 0 };
        let mut protect =
            Protect { start: area.address_of(pages.start), bytes: (pages.end - pages.start) * PAGE, mode };
        /// Whoever sent the descriptor can have its memory map be changed for ever.
        const TRIES: u32 = 1000;
        for _ in 1..TRIES {
            // SAFETY: the request and its structure belong together; memory keeps what it holds.
            match unsafe { control(self.fd.as_fd(), UFFDIO_WRITEPROTECT, &mut protect) } {
                // The memory map is being changed: once more.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => std::thread::yield_now(),
                done => return done.map(drop),
            }
        }
        Err(io::ErrorKind::WouldBlock.into())
    }

    /// Lets who waits for a page try again, whatever became of the page.
    pub(crate) fn wake(&self, area: Area, page: u64) {
        let mut range = [area.address_of(page), PAGE];
        // SAFETY: the request reads a range: two words. Failing means that nobody waits.
        let _ = unsafe { control(self.fd.as_fd(), UFFDIO_WAKE, &mut range) };
    }

    /// Takes the faults that have come, as addresses; never waits.
    pub(crate) fn read(&self, mut fault: impl FnMut(u64)) -> io::Result<()> {
        /// `struct uffd_msg`: the event in the lowest byte; flags; the address; the thread.
        type Message = [u64; 4];
        let mut messages = [[0_u64; 4]; MESSAGES];
        // SAFETY: a view of words as bytes, which all values are valid for; it ends before `messages` is used again.
        let bytes = unsafe { std::slice::from_raw_parts_mut(messages.as_mut_ptr().cast(), size_of_val(&messages)) };
        let got = match read_now(self.fd.as_fd(), bytes, self.sent) {
            Err(Errno::AGAIN | Errno::INTR) => return Ok(()),
            got => got?,
        };
        let mut foreign = false;
        for message in &messages[..got / size_of::<Message>()] {
            match message[0] & 0xff {
                EVENT_PAGEFAULT => fault(message[2]),
                EVENT_FORK => {
                    // SAFETY: the kernel has made this descriptor for whoever reads the message, and nobody else knows of it.
                    drop(unsafe { <OwnedFd as std::os::fd::FromRawFd>::from_raw_fd(message[1] as i32) });
                    foreign = true;
                }
                _ => foreign = true,
            }
        }
        // Ours asks for no such events.
        if foreign { Err(io::ErrorKind::InvalidData.into()) } else { Ok(()) }
    }
}

impl AsFd for Userfault {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// A bare `userfaultfd`.
fn open() -> Result<OwnedFd, Why> {
    /// `UFFD_USER_MODE_ONLY`: faults of the kernel, in system calls, are not told. Anybody may have such a one.
    const USER_MODE_ONLY: UserfaultfdFlags = UserfaultfdFlags::from_bits_retain(1);
    let flags = UserfaultfdFlags::CLOEXEC | UserfaultfdFlags::NONBLOCK;
    if let Ok(device) = rustix::fs::open("/dev/userfaultfd", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()) {
        // SAFETY: the request takes flags and gives a descriptor.
        let fd = unsafe { libc::ioctl(device.as_raw_fd(), USERFAULTFD_NEW as _, libc::c_ulong::from(flags.bits())) };
        if fd >= 0 {
            // SAFETY: the kernel has just made this descriptor for us.
            return Ok(unsafe { std::os::fd::FromRawFd::from_raw_fd(fd) });
        }
    }
    // SAFETY: the descriptor is used for protecting pages against writes, which are let through in the end: nobody reads
    // other values than without.
    let all = unsafe { rustix::mm::userfaultfd(flags) };
    // SAFETY: as above.
    let own = all.or_else(|_| unsafe { rustix::mm::userfaultfd(flags | USER_MODE_ONLY) });
    own.map_err(|error| Why::Userfaultfd(error.into()))
}

/// Reads without waiting, whatever mode the descriptor's other owner, if there is one, has put it in.
///
/// # Errors
/// `OPNOTSUPP` if the kernel, or that kind of descriptor, cannot do that.
fn read_now(fd: BorrowedFd<'_>, bytes: &mut [u8], shared: bool) -> rustix::io::Result<usize> {
    let parts = &mut [io::IoSliceMut::new(bytes)];
    match rustix::io::preadv2(fd, parts, u64::MAX, ReadWriteFlags::NOWAIT) {
        // Ours does not wait.
        Err(Errno::OPNOTSUPP) if !shared => rustix::io::readv(fd, parts),
        got => got,
    }
}

/// Is a descriptor that somebody sent one of the kernel's own kinds, as a `userfaultfd` is?
fn check_anonymous(fd: &OwnedFd) -> io::Result<()> {
    check_same(strangers::is_anonymous(fd)?, true)
}

fn check_same<T: PartialEq>(found: T, wanted: T) -> io::Result<()> {
    if found == wanted {
        return Ok(());
    }
    Err(io::Error::new(io::ErrorKind::InvalidData, "a descriptor of another kind"))
}

/// Is a descriptor that somebody sent at least one of the file system that it should be of? What is asked of it is unknown
/// there to all others.
pub(crate) fn check(fd: BorrowedFd<'_>, magic: u64) -> io::Result<()> {
    check_same(u64::try_from(rustix::fs::fstatfs(fd)?.f_type).ok(), Some(magic))
}

/// The page map of a process.
#[derive(Debug)]
pub(crate) struct PageMap(OwnedFd);

impl PageMap {
    /// This process's.
    pub(crate) fn open() -> Result<PageMap, Why> {
        let fd = rustix::fs::open("/proc/self/pagemap", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
        Ok(PageMap(fd.map_err(|error| Why::PageMap(error.into()))?))
    }

    /// This process's, if it can be asked for written pages.
    pub(crate) fn open_to_scan() -> Result<PageMap, Why> {
        let map = PageMap::open()?;
        // An empty range, to learn whether it knows the request.
        let mut scan = Scan { size: size_of::<Scan>() as u64, return_mask: PAGE_IS_WRITTEN, ..Scan::default() };
        // SAFETY: the request and its structure belong together; there is no room for regions.
        match unsafe { control(map.0.as_fd(), PAGEMAP_SCAN, &mut scan) } {
            Ok(_) => Ok(map),
            Err(error) => Err(Why::NoScan(error)),
        }
    }

    /// One that somebody sent.
    pub(crate) fn from_fd(fd: OwnedFd) -> io::Result<PageMap> {
        check_same(strangers::is_of_proc(&fd)?, true)?;
        Ok(PageMap(fd))
    }

    pub(crate) fn into_fd(self) -> OwnedFd {
        self.0
    }

    /// Adds the pages of a run that are protected by a `userfaultfd`, whether there are any or not.
    pub(crate) fn protected(&self, area: Area, pages: Range<u64>, out: &mut Vec<u64>) -> io::Result<()> {
        /// Bytes of a page's entry, and the bit that says so (`PM_UFFD_WP`).
        const ENTRY: u64 = 8;
        const PROTECTED: u64 = 1 << 57;
        let mut entries = [0; PAGE as usize];
        let mut at = pages.start;
        while at < pages.end {
            let most = ((pages.end - at) * ENTRY).min(PAGE) as usize;
            let place = area.address_of(at) / PAGE * ENTRY;
            let got = match rustix::io::pread(&self.0, &mut entries[..most], place) {
                Err(Errno::INTR) => continue,
                got => got?,
            };
            let (entries, _) = entries[..got].as_chunks();
            if entries.is_empty() {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            let protected = |entry: &[u8; 8]| u64::from_ne_bytes(*entry) & PROTECTED != 0;
            out.extend((at..).zip(entries).filter(|(_, entry)| protected(entry)).map(|(page, _)| page));
            at += entries.len() as u64;
        }
        Ok(())
    }

    /// Names the pages of a run that were written since they were protected, and protects these again, each at the moment
    /// in which it is found written.
    pub(crate) fn take(&self, area: Area, pages: &Range<u64>, out: &mut Vec<u64>) -> io::Result<()> {
        let end = area.address_of(pages.end);
        let mut at = area.address_of(pages.start);
        while at < end {
            let mut regions = [Region::default(); REGIONS];
            let mut scan = Scan {
                size: size_of::<Scan>() as u64,
                flags: SCAN_WP_MATCHING | SCAN_CHECK_WPASYNC,
                start: at,
                end,
                regions: regions.as_mut_ptr().expose_provenance() as u64,
                regions_len: REGIONS as u64,
                category_mask: PAGE_IS_WRITTEN,
                return_mask: PAGE_IS_WRITTEN,
                ..Scan::default()
            };
            // SAFETY: the request and its structure belong together; `regions` has room for as many as it says.
            let found = unsafe { control(self.0.as_fd(), PAGEMAP_SCAN, &mut scan) }?;
            // Whoever sent the descriptor may have sent one that answers anything.
            let wrong = || io::Error::new(io::ErrorKind::InvalidData, "no answer of a page map");
            let found = usize::try_from(found).ok().and_then(|found| regions.get(..found)).ok_or_else(wrong)?;
            for region in found {
                let inside = at <= region.start && region.start < region.end && region.end <= end;
                let first = area.page_of(region.start).filter(|_| inside).ok_or_else(wrong)?;
                out.extend(first..first + (region.end - region.start).div_ceil(PAGE));
            }
            if scan.walk_end <= at || scan.walk_end > end {
                return Err(wrong());
            }
            at = scan.walk_end;
        }
        Ok(())
    }
}
