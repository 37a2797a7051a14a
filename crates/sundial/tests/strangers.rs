//! Descriptors of a file system whose server does not answer: to close one is to wait for ever, and whoever does that is beyond
//! any signal.
//!
//! The server is a process of its own, in a mount namespace of its own, that ends with the test's thread, or by itself after
//! [`LONGEST`]; its end is the end of all waits for it. Who holds such descriptors is another process, which starts none: the test's
//! own would be stuck when they close what they are not to have.
#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use gpu::{AllocId, Gpu, GpuError, Request};
use hostmem::Memfd;
use rustix::process::{Signal, kill_process};
use serde_json::Value;
use support::{Installation, stderr, until};
use transport::{Consumer, Producer, unix};
use vfio_user::{CallError, Client, ClientOptions, Errno, pci, wire as vfio_wire};
use wire::handshake::features;
use wire::limits::MAX_REPLY_BYTES;
use wire::{Credential, Hello, Import, Process, Reply, decode_answer, frame, parse_answer};

mod support;

/// Where the file system is, in its server's namespace.
const MOUNTED: &str = "SUNDIAL_TEST_MOUNTED";
/// A file of it, as others reach it; the runtime directory; the socket of a virtual GPU.
const STRANGE: &str = "SUNDIAL_TEST_STRANGE";
const RUN: &str = "SUNDIAL_TEST_RUN";
const GUEST: &str = "SUNDIAL_TEST_GUEST";
/// No server lives longer.
const LONGEST: Duration = Duration::from_secs(240);

/// Not a test: a file system, over standard input, with one file. Once that is open, nothing is answered any more.
#[test]
fn server() {
    if std::env::var_os(MOUNTED).is_none() {
        return;
    }
    std::thread::spawn(|| {
        std::thread::sleep(LONGEST);
        std::process::exit(0);
    });
    const LOOKUP: u32 = 1;
    const GETATTR: u32 = 3;
    const OPEN: u32 = 14;
    const INIT: u32 = 26;
    let device = std::io::stdin();
    let attributes = |node: u64| {
        let mode: u32 = if node == 1 { 0o40755 } else { 0o100_666 };
        let words = [0, 0, 0, mode, 1, 0, 0, 0, 4096, 0];
        let longs = [node, 1 << 20, 2048, 0, 0, 0];
        let longs = longs.iter().flat_map(|long: &u64| long.to_ne_bytes());
        longs.chain(words.iter().flat_map(|word: &u32| word.to_ne_bytes())).collect::<Vec<u8>>()
    };
    let mut message = vec![0; 1 << 20];
    loop {
        let length = rustix::io::read(device.as_fd(), &mut message[..]).unwrap();
        let word = |at: usize| u32::from_ne_bytes(message[at..at + 4].try_into().unwrap());
        let long = |at: usize| u64::from_ne_bytes(message[at..at + 8].try_into().unwrap());
        assert!(length >= 40);
        let (what, unique, node) = (word(4), long(8), long(16));
        let longs = |longs: &[u64]| longs.iter().flat_map(|long| long.to_ne_bytes()).collect::<Vec<u8>>();
        let body = match what {
            // Version 7.31, and transfers of a page.
            INIT => [7, 31, 0, 0, 1 | 1 << 16, 4096, 1]
                .into_iter()
                .chain([0; 9])
                .flat_map(|word: u32| word.to_ne_bytes())
                .collect(),
            LOOKUP => [longs(&[2, 0, 0, 0, 0]), attributes(2)].concat(),
            GETATTR => [longs(&[0, 0]), attributes(node)].concat(),
            OPEN => longs(&[1, 0]),
            // Not known, and nobody waits for a word about what is forgotten.
            _ => Vec::new(),
        };
        let error: i32 = if body.is_empty() { -Errno::NOSYS.raw_os_error() } else { 0 };
        let size = u32::try_from(16 + body.len()).unwrap();
        let answer = [&size.to_ne_bytes()[..], &error.to_ne_bytes(), &unique.to_ne_bytes(), &body].concat();
        let _ = rustix::io::write(device.as_fd(), &answer);
        if what == OPEN {
            loop {
                rustix::io::read(device.as_fd(), &mut message[..]).unwrap();
            }
        }
    }
}

/// Not a test: sends a file of that file system to whoever takes descriptors.
#[test]
fn sender() {
    let Some(strange) = std::env::var_os(STRANGE) else { return };
    let strange = File::options().read(true).write(true).open(strange).unwrap();
    let fd = strange.as_fd();
    // Its hello has one with it, and is no less of a hello for that; what comes after is refused.
    let run = PathBuf::from(std::env::var_os(RUN).unwrap());
    for (socket, message) in [("session.sock", &b"hello?"[..]), ("admin.sock", &br#"{"Usage":{"since":null}}"#[..])] {
        let socket = unix::connect(&run.join(socket)).unwrap();
        unix::send(&socket, message, &[fd], true).unwrap();
        // It is answered, or made to leave.
        let _ = unix::receive(&socket, &mut [0; 4096]);
    }
    import(&run, fd);
    let socket = UnixStream::connect(std::env::var_os(GUEST).unwrap()).unwrap();
    let client = Client::over(socket, &ClientOptions::default()).unwrap();
    let refused = Err(CallError::Refused(Errno::INVAL));
    assert_eq!(client.map_dma(0, 1 << 20, (true, true), Some((fd, 0))), refused);
    assert_eq!(client.connect_irqs(pci::MSIX, 0, &[fd]), refused);
    for kind in [vfio_wire::WATCH_TRACKER, vfio_wire::WATCH_DECODE] {
        let both: &[BorrowedFd<'_>] = &[fd, fd];
        assert_eq!(client.watch_stores((kind, pci::BAR1), (1 << 30, 1 << 20), both), refused);
    }
    println!("sent");
    // Until it is ended. It cannot end by itself: that would be to close the file.
    std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
    std::mem::forget(strange);
    std::thread::park();
}

/// Has a session in which the file is to be imported, which is refused; and leaves one more in its socket, for nobody.
fn import(run: &Path, fd: BorrowedFd<'_>) {
    let socket = unix::connect(&run.join("session.sock")).unwrap();
    let hello =
        Hello { credential: Credential::default(), features: features::ALL, gpu: 0, process: Process::default() };
    unix::send(&socket, &hello.encode(), &[], true).unwrap();
    let mut buffer = vec![0; MAX_REPLY_BYTES];
    let received = unix::receive(&socket, &mut buffer).unwrap();
    let Ok(Reply::Welcome(welcome)) = Reply::decode(&buffer[..received.length]) else { panic!("not welcome") };
    let area = Arc::new(Memfd::from_fd(received.fds.into_iter().next().unwrap()).unwrap().map().unwrap());
    let (to, from) = (welcome.command_ring, welcome.answer_ring);
    let mut commands = Producer::new(Arc::clone(&area), to.0 as usize, to.1 as usize);
    let mut answers = Consumer::new(area, from.0 as usize, from.1 as usize);
    let wanted = Import { id: AllocId(1), offset: 0, bytes: 4096 };
    for number in 0..2 {
        unix::send(&socket, &frame::import_message(number), &[fd], true).unwrap();
        commands.push(&[&frame::import(number, wanted)], &|| !unix::hung_up(&socket)).unwrap();
        let mut answer = Vec::new();
        answers.pop(&mut answer, &|| !unix::hung_up(&socket)).unwrap();
        let (of, _, body) = parse_answer(&answer).unwrap();
        let refused = decode_answer(body).unwrap();
        assert!(of == number && matches!(refused, Err(GpuError::InvalidValue { .. })), "{refused:?}");
    }
    unix::send(&socket, &frame::import_message(2), &[fd], true).unwrap();
}

/// A process of the test's, ended before it is gone.
struct Helper(Child);

impl Drop for Helper {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The file system, and a file of it as others reach it; none where this process may not mount.
fn strange_file(folder: &Path) -> Option<(Helper, PathBuf)> {
    let at = folder.join("mounted");
    std::fs::create_dir_all(&at).unwrap();
    let mut command = Command::new("unshare");
    let script = "exec <>/dev/fuse && mount -i -t fuse -o fd=0,rootmode=40000,user_id=0,group_id=0 sundial-test \"$1\" \
                  && touch \"$1.there\" && exec \"$0\" server --exact --nocapture";
    command.args(["-m", "sh", "-c", script]).arg(std::env::current_exe().unwrap()).arg(&at).env(MOUNTED, &at);
    sandbox::end_with_parent(command.stdin(Stdio::null()).stdout(Stdio::null()));
    let mut server = Helper(command.spawn().ok()?);
    let there = at.with_extension("there");
    let there = until("the file system", || match server.0.try_wait().unwrap() {
        Some(_) => Some(false),
        None => there.exists().then_some(true),
    });
    let pid = server.0.id();
    there.then(|| (server, PathBuf::from(format!("/proc/{pid}/root{}", at.join("file").display()))))
}

fn send(installation: &Installation, strange: &Path, guest: &str) -> Helper {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["sender", "--exact", "--nocapture"]).stdin(Stdio::piped()).stdout(Stdio::piped());
    command.env(STRANGE, strange).env(RUN, installation.folder.join("run")).env(GUEST, guest);
    let mut child = sandbox::end_with_parent(&mut command).spawn().unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let sent = lines.map(Result::unwrap).any(|line| line.contains("sent"));
    let helper = Helper(child);
    assert!(sent, "all were refused, and none had to be waited for");
    helper
}

#[test]
fn nobody_waits_for_what_others_send_to_be_closed() {
    let installation = Installation::new("");
    let daemon = installation.serve();
    let Some((server, strange)) = strange_file(&installation.folder) else {
        eprintln!("SKIPPED: no file system in user space can be mounted here");
        return;
    };
    let output = installation.output(&["vgpu", "create", "one", "--mem", "16m"]);
    assert!(output.status.success(), "{}", stderr(&output));
    let guest = String::from_utf8(output.stdout).unwrap();
    let sender = send(&installation, &strange, guest.trim());
    let sessions = || {
        let output = installation.output(&["ps", "--json"]);
        Some(serde_json::from_slice::<Value>(&output.stdout).ok()?["sessions"].as_array()?.len())
    };
    until("the session to be forgotten", || sessions().filter(|count| *count == 0));

    let output = installation.output(&["vgpu", "destroy", "one"]);
    assert!(output.status.success(), "{}", stderr(&output));
    let (tenant, gpu) = installation.tenant(&["--name", "beside"]);
    assert!(gpu.request(Request::MemoryInfo).is_ok());
    drop(gpu);
    tenant.end();

    // It does not go, and the next one does not wait for that.
    let deaths = || {
        let output = installation.output(&["ps", "--json"]);
        serde_json::from_slice::<Value>(&output.stdout).ok()?["device_deaths"].as_u64()
    };
    let device = until("a device process", || daemon.device());
    kill_process(device, Signal::KILL).unwrap();
    until("the daemon to know", || deaths().filter(|deaths| *deaths == 1));
    let there = || Path::new(&format!("/proc/{}", device.as_raw_nonzero())).exists();
    assert!(there(), "the kernel waits for an answer");
    let (tenant, gpu) = installation.tenant(&["--name", "next"]);
    assert!(gpu.request(Request::MemoryInfo).is_ok());
    drop(gpu);
    tenant.end();

    drop(server);
    until("the one that was left behind to go", || (!there()).then_some(()));
    drop(sender);
    drop(daemon);
}
