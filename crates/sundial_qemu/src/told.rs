//! Which files are VRAM, on which sockets they came, and what the device at the other end is told.

use std::collections::VecDeque;
use std::io::{IoSlice, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use rustix::fs::fstat;
use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
use vfio_user::wire::{self, Command, Header, WatchStores};
use vfio_user::{WATCHED_MEMORY, pci};
use write_trap::TrackerParts;
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

/// Most files that are remembered: GPUs of one machine, with those that it had before.
const MOST: usize = 64;

/// What a descriptor stands for, whatever its number: device and inode.
type Identity = (u64, u64);

/// A file of VRAM, and the socket on which it came.
#[derive(Debug)]
struct Known {
    file: Identity,
    socket: RawFd,
    /// The program may have closed it since, and something else have its number.
    socket_is: Identity,
}

static KNOWN: Mutex<VecDeque<Known>> = Mutex::new(VecDeque::new());
/// There is something in it: most programs that map something have no GPU.
static ANY: AtomicBool = AtomicBool::new(false);

/// `struct cmsghdr`.
#[derive(Clone, Copy, FromBytes, Immutable, KnownLayout)]
#[repr(C)]
struct ControlHeader {
    bytes: usize,
    level: i32,
    kind: i32,
}

/// Something came on a socket that begins with `start`, with control messages: takes note of the file, if it is VRAM.
pub(crate) fn received(socket: RawFd, start: &[u8], control: &[u8]) {
    let Ok((header, _)) = Header::read_from_prefix(start) else { return };
    let describes = header.command == Command::DEVICE_GET_REGION_INFO.0 && header.flags == wire::REPLY;
    let (true, Some(file)) = (describes, descriptor(control)) else { return };
    // SAFETY: it has just come, and the program does not know of it yet.
    let file = unsafe { BorrowedFd::borrow_raw(file) };
    // SAFETY: the program receives from it.
    let socket_fd = unsafe { BorrowedFd::borrow_raw(socket) };
    let (true, Ok(file), Ok(socket_is)) = (is_vram(file), identity(file), identity(socket_fd)) else { return };
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    known.retain(|known| known.file != file);
    if known.len() == MOST {
        known.pop_front();
    }
    known.push_back(Known { file, socket, socket_is });
    ANY.store(true, Ordering::Release);
}

/// The program has mapped a file from its beginning on, and stores there later: if it is VRAM, the device hears how to notice
/// that.
pub(crate) fn mapped(file: RawFd, address: u64, bytes: u64) {
    if !ANY.load(Ordering::Acquire) {
        return;
    }
    // SAFETY: the program has just mapped it.
    let file = unsafe { BorrowedFd::borrow_raw(file) };
    let (Ok(file), true) = (identity(file), is_vram(file)) else { return };
    let known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(Known { socket, socket_is, .. }) = known.iter().find(|known| known.file == file) else { return };
    // SAFETY: only used if it is still what it was; the program does not close the socket of a device while it maps that.
    let socket = unsafe { BorrowedFd::borrow_raw(*socket) };
    if identity(socket) != Ok(*socket_is) {
        return;
    }
    if let Err(why) = tell(socket, address, bytes) {
        // Whether anybody reads it is nobody's business here.
        let _ = writeln!(
            std::io::stderr(),
            "sundial: what is stored into a GPU's memory is not noticed: {why}; it compares"
        );
    }
}

/// Sends what the kernel's tracker of written pages needs.
fn tell(socket: BorrowedFd<'_>, address: u64, bytes: u64) -> Result<(), String> {
    let parts = TrackerParts::at(address, bytes).map_err(|why| {
        let cause = std::error::Error::source(&why).map(|cause| format!(": {cause}"));
        format!("{why}{}", cause.unwrap_or_default())
    })?;
    let argsz = size_of::<WatchStores>() as u32;
    let watch = WatchStores { argsz, kind: wire::WATCH_TRACKER, region: pci::BAR1, reserved: 0, address, size: bytes };
    let header = Header {
        command: Command::WATCH_STORES.0,
        size: wire::HEADER as u32 + argsz,
        flags: wire::COMMAND | wire::NO_REPLY,
        ..Header::new_zeroed()
    };
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let fds = [parts.userfault.as_fd(), parts.page_map.as_fd()];
    control.push(SendAncillaryMessage::ScmRights(&fds));
    let message = [IoSlice::new(header.as_bytes()), IoSlice::new(watch.as_bytes())];
    loop {
        return match rustix::net::sendmsg(socket, &message, &mut control, SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
            Err(Errno::INTR) => continue,
            Err(error) => Err(format!("it cannot be told: {error}")),
            // So short a message goes whole.
            Ok(_) => Ok(()),
        };
    }
}

/// The descriptor in control messages, if there is one and no other.
fn descriptor(control: &[u8]) -> Option<RawFd> {
    let (header, _) = ControlHeader::read_from_prefix(control).ok()?;
    if (header.level, header.kind) != (libc::SOL_SOCKET, libc::SCM_RIGHTS) {
        return None;
    }
    let data = control.get(size_of::<ControlHeader>()..header.bytes)?;
    RawFd::read_from_bytes(data).ok().filter(|fd| *fd >= 0)
}

fn identity(fd: BorrowedFd<'_>) -> Result<Identity, Errno> {
    fstat(fd).map(|stat| (stat.st_dev, stat.st_ino))
}

/// Is it a memory file of that name, as the kernel says?
fn is_vram(file: BorrowedFd<'_>) -> bool {
    let link = std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd()));
    link.is_ok_and(|link| link.as_os_str() == format!("/memfd:{WATCHED_MEMORY} (deleted)").as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_messages_hold_one_descriptor_or_none_that_counts() {
        let control = |bytes: usize, level: i32, kind: i32, data: &[i32]| {
            let mut all = bytes.to_ne_bytes().to_vec();
            all.extend([level, kind].iter().chain(data).flat_map(|word| word.to_ne_bytes()));
            all
        };
        let (level, kind) = (libc::SOL_SOCKET, libc::SCM_RIGHTS);
        assert_eq!(descriptor(&control(20, level, kind, &[7, 0])), Some(7));
        assert_eq!(descriptor(&control(24, level, kind, &[7, 8])), None);
        assert_eq!(descriptor(&control(28, level, kind, &[7, 8])), None);
        assert_eq!(descriptor(&control(20, level, kind, &[-1, 0])), None);
        assert_eq!(descriptor(&control(20, level, libc::SCM_CREDENTIALS, &[7, 0])), None);
        assert_eq!(descriptor(&control(8, level, kind, &[7, 0])), None);
        assert_eq!(descriptor(&control(usize::MAX, level, kind, &[7, 0])), None);
        for short in 0..16 {
            assert_eq!(descriptor(&control(20, level, kind, &[7, 0])[..short]), None);
        }
    }
}
