//! What the end-to-end tests share: the built product, a daemon of their own, tenants in it.
//!
//! The tests run `target/release/sundial` and programs that know nothing of it. `cargo xtask test` builds all of them and
//! says where they are; run alone, the tests look in `target/release` and `target/cuda-examples`.

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use qemu::Qemu;
use serde_json::Value;

/// Folder of the built product.
#[must_use]
pub fn bin_dir() -> PathBuf {
    std::env::var_os("SUNDIAL_BIN_DIR").map_or_else(|| workspace().join("target/release"), PathBuf::from)
}

/// Folder of the programs that nvcc compiled, if there is one.
#[must_use]
pub fn cuda_examples() -> Option<PathBuf> {
    let folder = std::env::var_os("SUNDIAL_CUDA_EXAMPLES")
        .map_or_else(|| workspace().join("target/cuda-examples"), PathBuf::from);
    folder.exists().then_some(folder)
}

/// The QEMU that `cargo xtask qemu` fetched, if it did.
#[must_use]
pub fn qemu() -> Option<Qemu> {
    let home = std::env::var_os("SUNDIAL_QEMU").map_or_else(|| workspace().join("target/qemu"), PathBuf::from);
    Qemu::at(&home)
}

/// What programs in a virtual machine are run with: the archive that `cargo xtask guest` packs, if it was packed.
#[must_use]
pub fn guest_archive() -> Option<PathBuf> {
    let archive = std::env::var_os("SUNDIAL_GUEST").map_or_else(|| workspace().join("target/guest.tar"), PathBuf::from);
    archive.exists().then_some(archive)
}

/// Folder of programs that show GPUs, from PyPI, if they could be had.
#[must_use]
pub fn monitors() -> Option<PathBuf> {
    let folder =
        std::env::var_os("SUNDIAL_MONITORS").map_or_else(|| workspace().join("target/monitors/bin"), PathBuf::from);
    folder.join("nvitop").exists().then_some(folder)
}

fn workspace() -> &'static Path {
    let own = Path::new(env!("CARGO_MANIFEST_DIR"));
    own.parent().and_then(Path::parent).unwrap_or(own)
}

/// Waits until `condition` gives a value.
///
/// # Panics
/// When `bound` is over.
pub fn wait_for<T>(what: &str, bound: Duration, mut condition: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + bound;
    loop {
        if let Some(value) = condition() {
            return value;
        }
        assert!(Instant::now() < end, "waited {bound:?} for: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// A daemon of its own, with its own runtime folder; ends with the value.
#[derive(Debug)]
pub struct Daemon {
    child: Child,
    folder: PathBuf,
    arguments: Vec<String>,
}

impl Daemon {
    /// Starts `sundial serve` with `arguments` and waits until it answers.
    ///
    /// # Panics
    /// If it does not.
    #[must_use]
    pub fn start(arguments: &[&str]) -> Daemon {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let folder = std::env::temp_dir().join(format!("sundial-e2e-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder for the daemon");
        set_private(&folder);
        let arguments = arguments.iter().map(|&argument| argument.to_owned()).collect::<Vec<_>>();
        let child = serve(&folder, &arguments);
        Daemon { child, folder, arguments }
    }

    /// Kills it, and starts another in its place.
    ///
    /// # Panics
    /// If that does not answer.
    pub fn restart(&mut self) {
        self.child.kill().expect("the daemon was there");
        self.child.wait().expect("its end");
        self.child = serve(&self.folder, &self.arguments);
    }

    /// Its process.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// `sundial` as a client of this daemon.
    #[must_use]
    pub fn sundial(&self) -> Command {
        let mut command = Command::new(bin_dir().join("sundial"));
        command.env("SUNDIAL_RUNTIME_DIR", &self.folder);
        command
    }

    /// The daemon's runtime folder.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// What `sundial ps --json` says.
    ///
    /// # Panics
    /// If it fails, or says no JSON.
    #[must_use]
    pub fn ps(&self) -> Vec<Value> {
        let output = self.sundial().args(["ps", "--json"]).output().expect("sundial ps");
        assert!(output.status.success(), "{}", text(&output));
        sessions(&output).expect("sessions")
    }

    /// Makes a virtual GPU; the path of its socket.
    ///
    /// # Panics
    /// If it is refused.
    #[must_use]
    pub fn vgpu(&self, name: &str, options: &[&str]) -> PathBuf {
        let made = self.sundial().args(["vgpu", "create", name]).args(options).output().expect("sundial vgpu create");
        assert!(made.status.success(), "{}", text(&made));
        PathBuf::from(String::from_utf8_lossy(&made.stdout).trim())
    }

    /// What `sundial vgpu list --json` says of each.
    ///
    /// # Panics
    /// If it fails, or says no JSON.
    #[must_use]
    pub fn vgpus(&self) -> Vec<Value> {
        let output = self.sundial().args(["vgpu", "list", "--json"]).output().expect("sundial vgpu list");
        assert!(output.status.success(), "{}", text(&output));
        let value: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        value["vgpus"].as_array().expect("virtual GPUs").clone()
    }

    /// What [`Daemon::ps`] says, from a daemon that may not answer at the moment.
    #[must_use]
    pub fn try_ps(&self) -> Option<Vec<Value>> {
        let output = self.sundial().args(["ps", "--json"]).output().ok()?;
        output.status.success().then(|| sessions(&output))?
    }

    /// Starts one of the demonstration's programs as a tenant.
    ///
    /// # Panics
    /// If it cannot be started.
    #[must_use]
    pub fn tenant(&self, options: &[&str], program: &[&str]) -> Tenant {
        self.program(options, &bin_dir().join("sundial-tenant"), program)
    }

    /// Starts a program as a tenant, whose output is JSON.
    ///
    /// # Panics
    /// If it cannot be started.
    #[must_use]
    pub fn program(&self, options: &[&str], program: &Path, arguments: &[&str]) -> Tenant {
        let mut child = self
            .sundial()
            .arg("run")
            .args(options)
            .arg("--")
            .arg(program)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("sundial run");
        let lines = BufReader::new(child.stdout.take().expect("piped"));
        Tenant { child, lines }
    }
}

/// Starts `sundial serve`, and waits until it answers.
fn serve(folder: &Path, arguments: &[String]) -> Child {
    let mut child = Command::new(bin_dir().join("sundial"))
        .arg("serve")
        .args(arguments)
        .env("SUNDIAL_RUNTIME_DIR", folder)
        // What it compiles is compiled, not found.
        .env("XDG_CACHE_HOME", folder)
        .env("XDG_STATE_HOME", folder)
        .stdin(Stdio::null())
        .spawn()
        .expect("sundial serve (build it with: cargo xtask build)");
    wait_for("the daemon to answer", Duration::from_secs(20), || {
        if let Ok(Some(status)) = child.try_wait() {
            panic!("the daemon ended: {status}");
        }
        let ps = Command::new(bin_dir().join("sundial"))
            .args(["ps", "--json"])
            .env("SUNDIAL_RUNTIME_DIR", folder)
            .output()
            .ok()?;
        ps.status.success().then_some(())
    });
    child
}

fn sessions(output: &Output) -> Option<Vec<Value>> {
    let value: Value = serde_json::from_slice(&output.stdout).ok()?;
    Some(value["sessions"].as_array()?.clone())
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// A running tenant.
#[derive(Debug)]
pub struct Tenant {
    /// `sundial run`.
    pub child: Child,
    lines: BufReader<ChildStdout>,
}

impl Tenant {
    /// The next line of its output, which is JSON.
    ///
    /// # Panics
    /// If there is none.
    pub fn line(&mut self) -> Value {
        let mut line = String::new();
        self.lines.read_line(&mut line).expect("a line");
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line:?}"))
    }

    /// Waits for its end; its last line.
    ///
    /// # Panics
    /// If it fails, or says nothing.
    #[must_use]
    pub fn finish(mut self) -> Value {
        drop(self.child.stdin.take());
        let mut rest = String::new();
        self.lines.read_to_string(&mut rest).expect("its output");
        let status = self.child.wait().expect("its end");
        assert!(status.success(), "{status}: {rest}");
        let last = rest.lines().last().expect("a line");
        serde_json::from_str(last).unwrap_or_else(|error| panic!("{error}: {last:?}"))
    }
}

impl Drop for Tenant {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Both outputs of a process, for messages.
#[must_use]
pub fn text(output: &Output) -> String {
    format!("{}\n{}{}", output.status, String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

fn set_private(folder: &Path) {
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(folder, std::fs::Permissions::from_mode(0o700)).expect("permissions");
}
