//! What needs processes of its own: being driven by another one, and faults that are not ours.
#![cfg(target_arch = "x86_64")]
#![expect(unsafe_code, reason = "tests of signals, and of memory that cannot be written")]
#![expect(clippy::unwrap_used, reason = "tests")]

use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use hostmem::{Mapping, Memfd, PAGE};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
};
use write_trap::{
    Decode, DecodeParts, Fault, FaultParts, Kind, RemoteDecode, Tracker, TrackerParts, WriteTrap, Written, available,
};

const SIZE: usize = PAGE as usize;
const PAGES: u64 = 40;
/// Longer than any machine is busy.
const ANSWER_WITHIN: Duration = Duration::from_secs(60);

/// Names what a child is to do; the test of that name is started in it.
const ROLE: &str = "WRITE_TRAP_ROLE";

/// Whether this process is a child with that role.
fn is(role: &str) -> bool {
    std::env::var(ROLE).is_ok_and(|is| is == role)
}

/// Starts the test `test` once more, in a process of its own, as that role; its standard input is a socket.
fn start(test: &str, role: &str) -> (Child, UnixStream) {
    let (ours, its) = UnixStream::pair().unwrap();
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture", "--test-threads=1"])
        .env(ROLE, role)
        .stdin(Stdio::from(OwnedFd::from(its)))
        .spawn();
    (child.unwrap(), ours)
}

fn run(test: &str, role: &str) -> ExitStatus {
    let (mut child, socket) = start(test, role);
    let status = child.wait().unwrap();
    drop(socket);
    status
}

fn send(socket: &UnixStream, words: &[u64], fds: &[BorrowedFd<'_>]) {
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    assert!(control.push(SendAncillaryMessage::ScmRights(fds)));
    let sent = rustix::net::sendmsg(socket, &[IoSlice::new(&bytes)], &mut control, SendFlags::empty());
    assert_eq!(sent.unwrap(), bytes.len());
}

fn receive(socket: &UnixStream, words: usize) -> (Vec<u64>, Vec<OwnedFd>) {
    let mut bytes = vec![0; words * 8];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::WAITALL;
    let got = rustix::net::recvmsg(socket, &mut [IoSliceMut::new(&mut bytes)], &mut control, flags).unwrap();
    assert_eq!(got.bytes, bytes.len(), "the other process has ended");
    let fds = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(fds) => Some(fds),
        _ => None,
    });
    let fds = fds.flatten().collect();
    let words = bytes.chunks(8).map(|word| u64::from_ne_bytes(word.try_into().unwrap())).collect();
    (words, fds)
}

/// A guest: maps memory, hands over how to watch it, and then stores to whatever words it is told, a number in each.
fn guest(kind: Kind) {
    let socket = UnixStream::from(io::stdin().as_fd().try_clone_to_owned().unwrap());
    let file = Memfd::create("watched", PAGES * PAGE).unwrap();
    let mapping = Arc::new(file.map().unwrap());
    let mut _servant = None;
    match kind {
        Kind::Decode => {
            let (parts, servant) = DecodeParts::new(&mapping, file.map().unwrap()).unwrap();
            let DecodeParts { written, control, address, bytes } = parts;
            send(&socket, &[address, bytes], &[file.as_fd(), written.as_fd(), control.as_fd()]);
            _servant = Some(servant);
        }
        Kind::Fault => {
            let FaultParts { userfault, address, bytes } = FaultParts::new(&mapping).unwrap();
            send(&socket, &[address, bytes], &[file.as_fd(), userfault.as_fd()]);
        }
        Kind::Tracker => {
            let TrackerParts { userfault, page_map, address, bytes } = TrackerParts::new(&mapping).unwrap();
            send(&socket, &[address, bytes], &[file.as_fd(), userfault.as_fd(), page_map.as_fd()]);
        }
    }
    let mut socket = socket;
    let mut message = [0; 16];
    while socket.read_exact(&mut message).is_ok() {
        let [word, number] = [0, 8].map(|at| u64::from_ne_bytes(message[at..at + 8].try_into().unwrap()));
        mapping.u64_at((word * 8) as usize).store(number, Ordering::Relaxed);
        socket.write_all(&[1]).unwrap();
    }
}

/// Drives a kind from a process that may do no more than the one which does it for virtual GPUs.
fn driven_from_another_process(kind: Kind, test: &str) {
    if is("guest") {
        return guest(kind);
    }
    if let Err(why) = available(kind) {
        eprintln!("SKIPPED: {kind:?}: {why}");
        return;
    }
    let Some((_child, mut socket)) = is("driver").then(|| start(test, "guest")) else {
        assert!(run(test, "driver").success(), "{kind:?}");
        return;
    };
    assert_eq!(sandbox::seal(sandbox::Role::Device).holds, sandbox::Holds::Yes);
    let (words, fds) = receive(&socket, 2);
    let mut fds = fds.into_iter();
    let mut fd = || fds.next().unwrap();
    let file = Memfd::from_fd(fd()).unwrap();
    let (first, address, bytes) = (fd(), words[0], words[1]);
    let mut trap: Box<dyn WriteTrap> = match kind {
        Kind::Decode => {
            let parts = DecodeParts { written: first, control: fd(), address, bytes };
            Box::new(RemoteDecode::from_parts(parts, ANSWER_WITHIN).unwrap())
        }
        Kind::Fault => Box::new(Fault::from_parts(FaultParts { userfault: first, address, bytes }).unwrap()),
        Kind::Tracker => {
            let parts = TrackerParts { userfault: first, page_map: fd(), address, bytes };
            Box::new(Tracker::from_parts(parts).unwrap())
        }
    };
    let memory = file.map().unwrap();
    let store = |socket: &mut UnixStream, word: u64, number: u64| {
        let message = [word.to_ne_bytes(), number.to_ne_bytes()].concat();
        socket.write_all(&message).unwrap();
    };
    let done = |socket: &mut UnixStream| socket.read_exact(&mut [0]).unwrap();
    let take = |trap: &mut dyn WriteTrap| {
        let mut pages = Vec::new();
        trap.take_written(&mut pages).unwrap();
        let mut stores = Vec::new();
        trap.take_stores(&mut |word| stores.push(word));
        assert!(if kind.names_stores() { pages.is_empty() } else { stores.is_empty() });
        pages.extend(stores.into_iter().map(|word| word / PAGE));
        pages
    };
    let watched: Vec<u64> = (0..PAGES).filter(|page| page % 5 != 4).collect();
    trap.protect(&watched).unwrap();
    let mut number = 0;
    for round in 0..20 {
        let pages: Vec<u64> = (0..PAGES).filter(|page| (page * 7 + round) % 3 == 0).collect();
        for page in &pages {
            number += 1;
            store(&mut socket, page * 512 + 17, number);
            done(&mut socket);
            assert_eq!(memory.u64_at((page * PAGE + 17 * 8) as usize).load(Ordering::Relaxed), number);
        }
        let expect: Vec<u64> = pages.into_iter().filter(|page| watched.contains(page)).collect();
        assert_eq!(take(&mut *trap), expect, "{kind:?} in round {round}");
        if !kind.stays_protected() {
            trap.protect(&expect).unwrap();
        }
        // What this process stores is its own affair.
        memory.u64_at(0).store(0, Ordering::Relaxed);
        assert_eq!(take(&mut *trap), [0; 0]);
    }
    // Stores, without a word in between, while pages are taken and protected: the last number is known in the end.
    let mut known = vec![0; PAGES as usize];
    let mut update = |trap: &mut dyn WriteTrap| {
        let pages = take(trap);
        if !kind.stays_protected() {
            trap.protect(&pages).unwrap();
        }
        for page in pages {
            known[page as usize] = memory.u64_at((page * PAGE) as usize).load(Ordering::Relaxed);
        }
        known.clone()
    };
    for count in 1..=500 {
        let page = watched[count as usize * 11 % watched.len()];
        store(&mut socket, page * 512, count);
        update(&mut *trap);
        done(&mut socket);
        assert_eq!(update(&mut *trap)[page as usize], count, "{kind:?}");
    }
    // Its end is an error, or silence, and no more. (Waiting for a process is not for this one: it hangs up when it is gone.)
    socket.shutdown(std::net::Shutdown::Write).unwrap();
    assert_eq!(socket.read(&mut [0]).unwrap(), 0);
    let mut pages = Vec::new();
    let gone = (trap.protect(&watched), trap.take_written(&mut pages), trap.release(&watched));
    eprintln!("{kind:?}: afterwards {gone:?}, {pages:?}");
    assert!(gone.0.is_err() && gone.2.is_err() && pages.is_empty());
}

#[test]
fn a_tracker_is_driven_from_another_process() {
    driven_from_another_process(Kind::Tracker, "a_tracker_is_driven_from_another_process");
}

#[test]
fn single_stores_are_noticed_in_another_process() {
    driven_from_another_process(Kind::Decode, "single_stores_are_noticed_in_another_process");
}

#[test]
fn faults_are_heard_in_another_process() {
    driven_from_another_process(Kind::Fault, "faults_are_heard_in_another_process");
}

/// When whoever hears of the faults is gone, the guest's stores go through.
#[test]
fn faults_go_through_when_nobody_hears_of_them_any_more() {
    const TEST: &str = "faults_go_through_when_nobody_hears_of_them_any_more";
    if is("guest") {
        return guest(Kind::Fault);
    }
    if available(Kind::Fault).is_err() {
        return eprintln!("SKIPPED: no faults");
    }
    // The thread that hears ends first; or the descriptor does, with all that it protected.
    for leave in [false, true] {
        let (mut child, mut socket) = start(TEST, "guest");
        let (words, fds) = receive(&socket, 2);
        let userfault = fds.into_iter().nth(1).unwrap();
        let mut fault = Fault::from_parts(FaultParts { userfault, address: words[0], bytes: words[1] }).unwrap();
        fault.protect(&[1, 2]).unwrap();
        let mut fault = Some(fault);
        if leave {
            fault = None;
        }
        socket.write_all(&[512_u64.to_ne_bytes(), 1_u64.to_ne_bytes()].concat()).unwrap();
        if !leave {
            // With the store under way, or done.
            fault = None;
        }
        assert!(fault.is_none());
        socket.read_exact(&mut [0]).unwrap();
        drop(socket);
        assert!(child.wait().unwrap().success());
    }
}

/// Descriptors of other kinds are refused, and wrong places are errors.
#[test]
fn what_cannot_be_right_is_refused() {
    if available(Kind::Tracker).is_err() {
        return eprintln!("SKIPPED: no tracker");
    }
    let file = Memfd::create("some", PAGE).unwrap();
    let mapping = file.map().unwrap();
    let parts = || TrackerParts::new(&file.map().unwrap()).unwrap();
    let other = || file.as_fd().try_clone_to_owned().unwrap();
    let kind = |parts| Tracker::from_parts(parts).unwrap_err().kind();
    assert_eq!(kind(TrackerParts { userfault: other(), ..parts() }), io::ErrorKind::InvalidData);
    assert_eq!(kind(TrackerParts { page_map: other(), ..parts() }), io::ErrorKind::InvalidData);
    assert_eq!(kind(TrackerParts { address: 1, ..parts() }), io::ErrorKind::InvalidInput);
    assert_eq!(kind(TrackerParts { bytes: 0, ..parts() }), io::ErrorKind::InvalidInput);
    let fault = FaultParts { userfault: other(), address: PAGE, bytes: PAGE };
    assert_eq!(Fault::from_parts(fault).unwrap_err().kind(), io::ErrorKind::InvalidData);
    // It is of the kernel's own kinds, and yet none.
    let waits = rustix::fs::inotify::init(rustix::fs::inotify::CreateFlags::empty()).unwrap();
    let fault = FaultParts { userfault: waits, address: PAGE, bytes: PAGE };
    assert_eq!(Fault::from_parts(fault).unwrap_err().raw_os_error(), Some(Errno::NOTTY.raw_os_error()));
    // The page map is of the right file system, and yet none; the address is not registered.
    let status = OwnedFd::from(std::fs::File::open("/proc/self/status").unwrap());
    let mut tracker = Tracker::from_parts(TrackerParts { page_map: status, ..TrackerParts::new(&mapping).unwrap() });
    let tracker = tracker.as_mut().unwrap();
    tracker.protect(&[0]).unwrap();
    assert!(tracker.take_written(&mut Vec::new()).is_err());
    let mut elsewhere = Tracker::from_parts(TrackerParts { address: 1 << 40, ..parts() }).unwrap();
    assert!(elsewhere.protect(&[0]).is_err());
}

/// A userfaultfd that tells of forks as well hands its reader a descriptor with each: such a one is not used any more, and nobody
/// waits for it.
#[test]
fn one_that_tells_of_forks_ends_at_the_first() {
    // The features need a privilege.
    const FEATURES: u64 = 1 << 0 | 1 << 1 | 1 << 12;
    let fd = rustix::mm::UserfaultfdFlags::CLOEXEC | rustix::mm::UserfaultfdFlags::NONBLOCK;
    // SAFETY: it protects pages of the test's own mapping against writes.
    let Ok(fd) = (unsafe { rustix::mm::userfaultfd(fd) }) else { return eprintln!("SKIPPED: no userfaultfd") };
    let file = Memfd::create("some", 4 * PAGE).unwrap();
    let mapping = file.map().unwrap();
    let mut api = [0xaa, FEATURES, 0_u64];
    // SAFETY: UFFDIO_API, and its structure.
    if unsafe { libc::ioctl(fd.as_raw_fd(), 0xc018_aa3f, api.as_mut_ptr()) } != 0 {
        return eprintln!("SKIPPED: no events of forks");
    }
    let mut register = [mapping.address() as u64, 4 * PAGE, 2, 0];
    // SAFETY: UFFDIO_REGISTER, and its structure; the range is a mapping.
    assert_eq!(unsafe { libc::ioctl(fd.as_raw_fd(), 0xc020_aa00, register.as_mut_ptr()) }, 0);
    let parts = FaultParts { userfault: fd, address: mapping.address() as u64, bytes: 4 * PAGE };
    let mut fault = Fault::from_parts(parts).unwrap();
    fault.protect(&[0]).unwrap();
    // Past the library, which holds locks over a fork that the reader may want: it is of this very process.
    // SAFETY: the child does nothing but end.
    let child = unsafe { libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) };
    if child == 0 {
        // SAFETY: as above.
        unsafe { libc::_exit(0) };
    }
    assert!(child > 0);
    let child = rustix::process::Pid::from_raw(i32::try_from(child).unwrap());
    rustix::process::waitpid(child, rustix::process::WaitOptions::empty()).unwrap();
    while fault.take_written(&mut Vec::new()).is_ok() {
        std::thread::yield_now();
    }
    assert!(fault.protect(&[1]).is_err());
    for page in 0..4 {
        mapping.u64_at((page * PAGE) as usize).store(1, Ordering::Relaxed);
    }
}

fn watched() -> (Arc<Mapping>, Decode) {
    let file = Memfd::create("watched", PAGES * PAGE).unwrap();
    let mapping = Arc::new(file.map().unwrap());
    let written = Arc::new(Written::create(PAGES).unwrap().0);
    let decode = Decode::new(&mapping, file.map().unwrap(), written).unwrap();
    (mapping, decode)
}

fn stores(decode: &Decode) -> Vec<u64> {
    let mut stores = Vec::new();
    decode.written().take_stores(|word| stores.push(word));
    stores
}

/// A page that cannot be written.
fn read_only() -> *mut u8 {
    // SAFETY: fresh memory, which nobody else knows.
    let page = unsafe {
        libc::mmap(std::ptr::null_mut(), SIZE, libc::PROT_READ, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0)
    };
    assert_ne!(page, libc::MAP_FAILED);
    page.cast()
}

static FOREIGN: AtomicUsize = AtomicUsize::new(0);
/// The instruction whose fault it was asked about last.
static INSTRUCTION: AtomicUsize = AtomicUsize::new(0);

/// Somebody's handler: makes the page writable, and counts.
extern "C" fn foreign(_: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel passes a valid context.
    let state = unsafe { &*context.cast::<libc::ucontext_t>() };
    INSTRUCTION.store(state.uc_mcontext.gregs[libc::REG_RIP as usize] as usize, Ordering::Relaxed);
    // SAFETY: the kernel passes a valid siginfo.
    let info = unsafe { &*info };
    // SAFETY: it is that of a fault, which has an address.
    let address = unsafe { info.si_addr() };
    let page = address.wrapping_sub(address.addr() % SIZE);
    // SAFETY: the tests' own page.
    unsafe { libc::mprotect(page, SIZE, libc::PROT_READ | libc::PROT_WRITE) };
    FOREIGN.fetch_add(1, Ordering::Relaxed);
}

fn install_foreign() {
    // SAFETY: an all-zero sigaction is a valid one.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = foreign as *const () as usize;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
    // SAFETY: the handler is async-signal-safe.
    assert_eq!(unsafe { libc::sigaction(libc::SIGSEGV, &raw const action, std::ptr::null_mut()) }, 0);
}

fn poke(page: *mut u8) {
    // SAFETY: the tests' own page; the write may be refused, which is what is tested.
    unsafe { page.write_volatile(1) };
}

#[test]
fn faults_of_others_reach_them() {
    if !is("others") {
        assert!(run("faults_of_others_reach_them", "others").success());
        return;
    }
    // Before ours.
    install_foreign();
    let (mapping, mut decode) = watched();
    decode.protect(&[3]).unwrap();
    mapping.u64_at(3 * SIZE).store(1, Ordering::Relaxed);
    assert_eq!((stores(&decode), FOREIGN.load(Ordering::Relaxed)), (vec![3 * PAGE], 0));
    poke(read_only());
    assert_eq!(FOREIGN.load(Ordering::Relaxed), 1);
    // And after ours, without passing on: the next one that is protected is noticed all the same.
    install_foreign();
    decode.protect(&[4]).unwrap();
    mapping.u64_at(4 * SIZE).store(1, Ordering::Relaxed);
    mapping.u64_at(3 * SIZE + 8).store(1, Ordering::Relaxed);
    assert_eq!((stores(&decode), FOREIGN.load(Ordering::Relaxed)), (vec![3 * PAGE + 8, 4 * PAGE], 1));
    poke(read_only());
    assert_eq!(FOREIGN.load(Ordering::Relaxed), 2);
    // Two of a kind, of which the first goes.
    let (other, mut second) = watched();
    second.protect(&[0]).unwrap();
    drop(decode);
    other.u64_at(0).store(1, Ordering::Relaxed);
    mapping.u64_at(0).store(1, Ordering::Relaxed);
    assert_eq!(stores(&second), [0]);
}

/// What is copied may end in a page that is not there yet: that fault is the copying instruction's, not the handler's.
#[test]
fn what_is_copied_is_read_by_the_program() {
    if !is("source") {
        assert!(run("what_is_copied_is_read_by_the_program", "source").success());
        return;
    }
    install_foreign();
    let (mapping, mut decode) = watched();
    decode.protect(&[0, 1, 2, 3]).unwrap();
    // SAFETY: fresh memory, which nobody else knows.
    let source = unsafe {
        let (rights, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        libc::mmap(std::ptr::null_mut(), 3 * SIZE, rights, flags, -1, 0)
    };
    assert_ne!(source, libc::MAP_FAILED);
    let bytes: Vec<u8> = (0..3 * SIZE).map(|at| (at * 7 / 3) as u8).collect();
    // SAFETY: that memory, of that size.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), source.cast(), bytes.len()) };
    // SAFETY: the second page of it.
    assert_eq!(unsafe { libc::mprotect(source.wrapping_add(SIZE), SIZE, libc::PROT_NONE) }, 0);
    let (from, count) = (100, 2 * SIZE + 50);
    let instruction: usize;
    // SAFETY: copies from that memory into the mapping, both large enough; the handlers see to the rest.
    unsafe {
        std::arch::asm!(
            "lea {instruction}, [rip + 2f]",
            "2:",
            "rep movsb",
            instruction = out(reg) instruction,
            inout("rcx") count => _,
            inout("rsi") source.wrapping_add(from) => _,
            inout("rdi") mapping.address() + 30 => _,
        );
    }
    let mut seen = vec![0; count];
    mapping.read(30, &mut seen);
    assert!(seen == bytes[from..from + count]);
    assert_eq!(FOREIGN.load(Ordering::Relaxed), 1);
    assert_eq!(INSTRUCTION.load(Ordering::Relaxed), instruction);
    let told = stores(&decode);
    assert_eq!(told, (24..30 + count as u64).step_by(8).collect::<Vec<_>>());
}

/// A fault of the program's own ends it, as it would have.
#[test]
fn faults_of_the_program_end_it() {
    const TEST: &str = "faults_of_the_program_end_it";
    if std::env::var(ROLE).is_err() {
        for role in ["elsewhere", "unwatched", "nothing", "reads"] {
            let status = run(TEST, role);
            assert_eq!(status.signal(), Some(libc::SIGSEGV), "{role}: {status}");
        }
        return;
    }
    let (mapping, mut decode) = watched();
    decode.protect(&[3, 4]).unwrap();
    decode.release(&[4]).unwrap();
    mapping.u64_at(3 * SIZE).store(1, Ordering::Relaxed);
    assert_eq!(stores(&decode), [3 * PAGE]);
    let page = |page: usize| std::ptr::with_exposed_provenance_mut::<u8>(mapping.address() + page * SIZE);
    if is("elsewhere") {
        poke(read_only());
    }
    if is("unwatched") {
        // Of the mapping, but it is the program that has taken the right away.
        // SAFETY: the tests' own page.
        unsafe { libc::mprotect(page(4).cast(), SIZE, libc::PROT_READ) };
        poke(page(4));
    }
    if is("nothing") {
        poke(std::ptr::without_provenance_mut(8));
    }
    if is("reads") {
        // SAFETY: the tests' own page.
        unsafe { libc::mprotect(page(3).cast(), SIZE, libc::PROT_NONE) };
        // SAFETY: the read is refused, which is what is tested.
        unsafe { page(3).read_volatile() };
    }
    std::process::exit(0);
}

/// Where the memory map has no entry left, pages cannot be protected one by one, nor released; no store hangs or is lost.
#[test]
fn without_entries_of_the_memory_map_stores_go_on() {
    if !is("entries") {
        assert!(run("without_entries_of_the_memory_map_stores_go_on", "entries").success());
        return;
    }
    // Every other page is an entry of its own, and so are those between.
    let pages = 1 << 20;
    let file = Memfd::create("watched", pages * PAGE).unwrap();
    let mapping = Arc::new(file.map().unwrap());
    let written = Arc::new(Written::create(pages).unwrap().0);
    let mut decode = Decode::new(&mapping, file.map().unwrap(), written).unwrap();
    decode.protect(&(0..9).collect::<Vec<_>>()).unwrap();
    let scattered: Vec<u64> = (10..pages).step_by(2).collect();
    match decode.protect(&scattered) {
        Ok(()) => return eprintln!("SKIPPED: this machine lets a process have {pages} entries"),
        Err(error) => assert_eq!(error.kind(), io::ErrorKind::OutOfMemory),
    }
    // Known, and not known.
    mapping.u64_at(4 * SIZE).store(1, Ordering::Relaxed);
    assert_eq!(stores(&decode), [4 * PAGE]);
    let to = mapping.u64_at(4 * SIZE + 8);
    // SAFETY: stores the control word of the floating-point unit, two bytes of the mapping.
    unsafe { std::arch::asm!("fnstcw [{}]", in(reg) to.as_ptr()) };
    assert_ne!(to.load(Ordering::Relaxed), 0);
    let mut released = Vec::new();
    decode.take_written(&mut released).unwrap();
    assert!(released.contains(&4) && stores(&decode).is_empty(), "{released:?}");
    decode.protect(&[4]).unwrap();
    mapping.u64_at(4 * SIZE).store(2, Ordering::Relaxed);
    assert_eq!(stores(&decode), [4 * PAGE]);
}
