//! Virtual machines with virtual GPUs: the QEMU that `cargo xtask qemu` fetches, with the kernel of Debian's cloud images.
//!
//! A machine runs one script and is gone. It begins with the archive that came with QEMU (`/init`, busybox, lspci, libraries);
//! an archive with the script, and with what the script runs, is put behind it. The script may [tell](Event::Told) how far it
//! has come.
//!
//! What a GPU is, and who serves it, is nobody's business here: a machine is given sockets.

use std::fs::{self, DirBuilder, File};
use std::io::{self, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// What `/init` says before and after the script.
const BEGINS: &str = "=== the guest's script begins";
const ENDS: &str = "=== the guest's script ends: ";
/// What `tell` says before its words.
const TELLS: &str = "=== the script tells: ";
/// Between two looks at the console.
const LOOK: Duration = Duration::from_millis(20);

/// A QEMU with what its machines need.
#[derive(Clone, Debug)]
pub struct Qemu {
    home: PathBuf,
}

/// A machine to be.
#[derive(Clone, Copy, Debug)]
pub struct Machine<'a> {
    /// Sockets of the virtual GPUs on its bus, in the order of their slots.
    pub gpus: &'a [PathBuf],
    /// Memory, MiB.
    pub memory: u32,
    /// What the archive holds beside the script: path in the machine, path here.
    pub files: &'a [(PathBuf, PathBuf)],
    /// A library that QEMU is started with, before its own.
    pub preload: Option<&'a Path>,
    /// What its shell runs. `tell WORDS` there waits until the machine is told to [go on](Running::go_on).
    pub script: &'a str,
}

/// How far a machine has come.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// The words of the next `tell WORDS` in the script.
    Told(String),
    /// The script has ended well, and the machine is off; all that the script said.
    Through(String),
}

/// What went wrong with a machine; `said` is all that came over its console.
#[derive(Debug, thiserror::Error)]
pub enum MachineError {
    /// Its archive cannot be made, QEMU cannot be started, or the console not be read.
    #[error("a virtual machine cannot be run")]
    Io(#[from] io::Error),
    /// It goes on, but has been waited for long enough.
    #[error("the virtual machine was not through in time:\n{said}")]
    Late {
        /// The console.
        said: String,
    },
    /// QEMU failed.
    #[error("QEMU: {status}:\n{said}")]
    Qemu {
        /// As it ended.
        status: ExitStatus,
        /// The console.
        said: String,
    },
    /// The script failed, or the machine was off before it had ended.
    #[error("the script of the virtual machine failed:\n{said}")]
    Script {
        /// The console.
        said: String,
    },
}

impl Qemu {
    /// What `cargo xtask qemu` has made at `home`, if it has.
    #[must_use]
    pub fn at(home: &Path) -> Option<Qemu> {
        let home = home.canonicalize().ok()?;
        home.join("complete").exists().then_some(Qemu { home })
    }

    /// The folder, by its absolute path.
    #[must_use]
    pub fn home(&self) -> &Path {
        &self.home
    }

    /// Switches a machine on, which ends with the calling thread at the latest. `SUNDIAL_QEMU_ACCEL` says what runs its
    /// processors, if not TCG.
    ///
    /// # Errors
    /// [`MachineError::Io`].
    pub fn start(&self, machine: &Machine<'_>) -> Result<Running, MachineError> {
        let scratch = Scratch::new()?;
        let initramfs = self.initramfs(machine, &scratch.0)?;
        let console = scratch.0.join("console");
        let qemu = self.command(machine, &initramfs, &console)?;
        Ok(Running { qemu, console, heard: 0, _scratch: scratch })
    }

    fn command(&self, machine: &Machine<'_>, initramfs: &Path, console: &Path) -> io::Result<Child> {
        let console = File::create(console)?;
        let memory = machine.memory;
        let mut command = Command::new(self.home.join("qemu-system-x86_64"));
        if let Some(library) = machine.preload {
            command.env("LD_PRELOAD", library);
        }
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
        command.stdin(Stdio::piped()).stdout(console.try_clone()?).stderr(console);
        sandbox::end_with_parent(&mut command).spawn()
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

/// A machine that is on. It ends with the value.
#[derive(Debug)]
pub struct Running {
    qemu: Child,
    console: PathBuf,
    /// How many tellings were heard.
    heard: usize,
    _scratch: Scratch,
}

impl Running {
    /// Waits, `until` then at most, for what the script tells next, or for the end.
    ///
    /// # Errors
    /// It does not come to that.
    pub fn next(&mut self, until: Instant) -> Result<Event, MachineError> {
        loop {
            // Its end first: nothing is said after it.
            let ended = self.qemu.try_wait()?;
            let said = String::from_utf8_lossy(&fs::read(&self.console)?).replace('\r', "");
            if let Some(words) = said.split_inclusive('\n').filter_map(telling).nth(self.heard) {
                self.heard += 1;
                return Ok(Event::Told(words.to_owned()));
            }
            if let Some(status) = ended {
                return through(status, said);
            }
            if Instant::now() >= until {
                return Err(MachineError::Late { said });
            }
            std::thread::sleep(LOOK);
        }
    }

    /// Lets the script go on after what it has told.
    pub fn go_on(&mut self) {
        if let Some(keys) = &mut self.qemu.stdin {
            // A machine that is gone by now is found to be.
            let _ = keys.write_all(b"\n");
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.qemu.kill();
        let _ = self.qemu.wait();
    }
}

/// What a line tells, if it is one that does, and whole.
fn telling(line: &str) -> Option<&str> {
    line.strip_suffix('\n')?.strip_prefix(TELLS)
}

/// What came of a machine that is off.
fn through(status: ExitStatus, said: String) -> Result<Event, MachineError> {
    if !status.success() {
        return Err(MachineError::Qemu { status, said });
    }
    let script = said.split_once(BEGINS).and_then(|(_, rest)| rest.split_once(ENDS));
    match script {
        Some((text, rest)) if rest.lines().next() == Some("0") => Ok(Event::Through(text.trim().to_owned())),
        _ => Err(MachineError::Script { said }),
    }
}

/// A folder that goes with the value.
#[derive(Debug)]
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> io::Result<Scratch> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        loop {
            let number = COUNT.fetch_add(1, Ordering::Relaxed);
            let folder = std::env::temp_dir().join(format!("sundial-vm-{}-{number}", std::process::id()));
            match DirBuilder::new().mode(0o700).create(&folder) {
                // Somebody of the same number could not clean up.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                made => return made.map(|()| Scratch(folder)),
            }
        }
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;

    use super::*;

    #[test]
    fn only_whole_lines_tell() {
        assert_eq!(telling("=== the script tells: half a"), None);
        assert_eq!(telling("=== the script tells: a whole line\n"), Some("a whole line"));
        assert_eq!(telling("it is said that === the script tells: nothing\n"), None);
    }

    #[test]
    fn a_machine_is_through_when_its_script_has_ended_well() {
        let end = |status, said: &str| through(ExitStatus::from_raw(status), said.to_owned());
        let said =
            "Linux\n=== the guest's script begins\none\ntwo\n=== the guest's script ends: 0\nreboot: Power down\n";
        assert_eq!(end(0, said).unwrap(), Event::Through("one\ntwo".into()));
        assert!(matches!(end(0, &said.replace(": 0", ": 1")), Err(MachineError::Script { .. })));
        assert!(matches!(end(0, &said.replace(": 0", ": 01")), Err(MachineError::Script { .. })));
        // It went off in the middle.
        assert!(matches!(end(0, said.split("two").next().unwrap()), Err(MachineError::Script { .. })));
        assert!(matches!(end(0x100, said), Err(MachineError::Qemu { .. })));
    }

    #[test]
    fn nobody_is_there_where_nothing_complete_is() {
        assert!(Qemu::at(&std::env::temp_dir()).is_none());
    }
}
