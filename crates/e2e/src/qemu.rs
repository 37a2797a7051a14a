//! Virtual machines for tests: the QEMU that `cargo xtask qemu` fetches, with the kernel of Debian's cloud images.
//!
//! A machine runs one script and is gone. It begins with the archive that came with QEMU (`/init`, busybox, lspci, libraries);
//! an archive with the script, and with what the script runs, is put behind it. The script may [tell](Machine::told) how far it
//! has come.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// What `/init` says before and after the script.
const BEGINS: &str = "=== the guest's script begins";
const ENDS: &str = "=== the guest's script ends: ";
/// What `tell` says before its words.
const TELLS: &str = "=== the script tells: ";

/// A QEMU with what its machines need.
#[derive(Debug)]
pub struct Qemu {
    home: PathBuf,
}

/// What programs in a machine are run with: the archive that `cargo xtask guest` packs, if it was packed.
#[must_use]
pub fn guest_archive() -> Option<PathBuf> {
    let archive =
        std::env::var_os("SUNDIAL_GUEST").map_or_else(|| crate::workspace().join("target/guest.tar"), PathBuf::from);
    archive.exists().then_some(archive)
}

/// A machine to be.
pub struct Machine<'a> {
    /// Sockets of the virtual GPUs on its bus, in the order of their slots.
    pub gpus: &'a [PathBuf],
    /// Memory, MiB.
    pub memory: u32,
    /// What the archive holds beside the script: path in the machine, path here.
    pub files: &'a [(PathBuf, PathBuf)],
    /// What its shell runs.
    pub script: &'a str,
    /// Hears the words of each `tell WORDS` in the script, which waits until that returns.
    pub told: &'a dyn Fn(&str),
    /// When it must be through.
    pub bound: Duration,
}

impl std::fmt::Debug for Machine<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Machine").field("gpus", &self.gpus).field("memory", &self.memory).finish_non_exhaustive()
    }
}

impl Qemu {
    /// The one that was fetched, if one was.
    #[must_use]
    pub fn find() -> Option<Qemu> {
        let home =
            std::env::var_os("SUNDIAL_QEMU").map_or_else(|| crate::workspace().join("target/qemu"), PathBuf::from);
        home.join("complete").exists().then_some(Qemu { home })
    }

    /// Runs a machine to its end; what its script said.
    ///
    /// # Panics
    /// If it does not come to its end, or the script fails: with all that came over the console.
    #[must_use]
    pub fn run(&self, machine: &Machine<'_>) -> String {
        let scratch = Scratch::new();
        let initramfs = self.initramfs(machine, &scratch.0).expect("an archive for the guest");
        let console = scratch.0.join("console");
        let mut qemu = Running(self.command(machine, &initramfs, &console).expect("starting QEMU"));
        let said =
            || String::from_utf8_lossy(&fs::read(&console).expect("what came over the console")).replace('\r', "");
        let (mut ended, mut told) = (None, 0);
        let end = std::time::Instant::now() + machine.bound;
        while ended.is_none() && std::time::Instant::now() < end {
            std::thread::sleep(Duration::from_millis(20));
            for words in said().split_inclusive('\n').filter_map(telling).skip(told) {
                (machine.told)(words);
                told += 1;
                // A machine that is gone by now is found to be.
                let _ = qemu.0.stdin.as_mut().expect("piped").write_all(b"\n");
            }
            ended = qemu.0.try_wait().expect("QEMU's status");
        }
        let said = said();
        let Some(status) = ended else { panic!("the guest was not through after {:?}:\n{said}", machine.bound) };
        assert!(status.success(), "QEMU: {status}:\n{said}");
        let script = said.split_once(BEGINS).and_then(|(_, rest)| rest.split_once(ENDS));
        match script {
            Some((text, rest)) if rest.lines().next() == Some("0") => text.trim().to_owned(),
            _ => panic!("the guest's script failed:\n{said}"),
        }
    }

    fn command(&self, machine: &Machine<'_>, initramfs: &Path, console: &Path) -> io::Result<Child> {
        let console = File::create(console)?;
        let memory = machine.memory;
        let mut command = Command::new(self.home.join("qemu-system-x86_64"));
        command.args(["-nodefaults", "-no-user-config", "-display", "none", "-serial", "stdio", "-no-reboot"]);
        // Whoever serves a GPU maps the memory of the machine.
        command.args(["-machine", "q35,memory-backend=mem", "-object"]);
        command.arg(format!("memory-backend-memfd,id=mem,size={memory}M,share=on"));
        // Two processors: with one, atomic instructions would be none to those outside who share the memory.
        command.args(["-cpu", "max", "-smp", "2", "-accel"]);
        command.arg(std::env::var_os("SUNDIAL_QEMU_ACCEL").unwrap_or_else(|| "tcg".into()));
        command.arg("-kernel").arg(self.home.join("vmlinuz")).arg("-initrd").arg(initramfs);
        command.args(["-append", "console=ttyS0 quiet panic=-1"]);
        for socket in machine.gpus {
            let socket = serde_json::json!({ "type": "unix", "path": socket });
            let device = serde_json::json!({ "driver": "vfio-user-pci", "socket": socket });
            command.arg("-device").arg(device.to_string());
        }
        command.stdin(Stdio::piped()).stdout(console.try_clone()?).stderr(console).spawn()
    }

    /// Both archives, in one file.
    fn initramfs(&self, machine: &Machine<'_>, scratch: &Path) -> io::Result<PathBuf> {
        let tree = scratch.join("tree");
        fs::create_dir(&tree)?;
        // It is answered by a line.
        let tell = format!("stty -echo\ntell() {{ echo \"{TELLS}$*\"; read -r _; }}\n");
        fs::write(tree.join("run"), tell + machine.script)?;
        for (there, here) in machine.files {
            let link = tree.join(there.strip_prefix("/").unwrap_or(there));
            fs::create_dir_all(link.parent().unwrap_or(&tree))?;
            std::os::unix::fs::symlink(fs::canonicalize(here)?, link)?;
        }
        let path = scratch.join("initramfs");
        let mut out = File::create(&path)?;
        io::copy(&mut File::open(self.home.join("initramfs.cpio"))?, &mut out)?;
        let mut find = Command::new("find").arg(".").current_dir(&tree).stdout(Stdio::piped()).spawn()?;
        let mut cpio = Command::new(self.home.join("busybox"));
        cpio.args(["cpio", "-o", "-L", "-H", "newc", "-R", "0:0"]).current_dir(&tree).stderr(Stdio::null());
        let packed = cpio.stdin(find.stdout.take().ok_or(io::ErrorKind::BrokenPipe)?).stdout(out).status()?;
        if !(find.wait()?.success() && packed.success()) {
            return Err(io::Error::other(format!("busybox cpio: {packed}")));
        }
        Ok(path)
    }
}

/// What a line tells, if it is one that does, and whole.
fn telling(line: &str) -> Option<&str> {
    line.strip_suffix('\n')?.strip_prefix(TELLS)
}

/// A process that ends with the value.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A folder that goes with the value.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Scratch {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let folder = std::env::temp_dir().join(format!("sundial-vm-{}-{number}", std::process::id()));
        fs::create_dir_all(&folder).expect("a folder for the machine");
        Scratch(folder)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
