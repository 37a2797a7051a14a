//! An installation with its daemon and tenants, for tests.
#![allow(dead_code, clippy::allow_attributes, reason = "not every test uses all of it")]

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use gpu::{
    AllocId, CodeImage, Command as GpuCommand, ContextId, DevAddr, Gpu, MapAccess, MemoryKind, ModuleId, QueueId,
    Request, RuntimeMemory,
};
use remote_gpu::RemoteGpu;
use rustix::process::Pid;
use serde_json::Value;
use wire::Credential;

pub(crate) const BOUND: Duration = Duration::from_secs(30);

/// Where the memory of [`prepare`] lies.
pub(crate) const LO: u64 = 1 << 40;

pub(crate) fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(start.elapsed() < BOUND, "waited in vain for {what}");
        std::thread::park_timeout(Duration::from_millis(10));
    }
}

/// An installation of its own: the binary, something in the library's place, a runtime directory, a policy.
pub(crate) struct Installation {
    pub(crate) folder: PathBuf,
}

impl Installation {
    pub(crate) fn new(config: &str) -> Installation {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("sundial-daemon-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::SeqCst));
        let folder = std::env::temp_dir().join(name);
        // Of a process of the same number that could not clean up: its `sundial` may be a link to what was built.
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(folder.join("sundial-lib")).unwrap();
        let built = Path::new(env!("CARGO_BIN_EXE_sundial"));
        std::fs::hard_link(built, folder.join("sundial"))
            .or_else(|_| std::fs::copy(built, folder.join("sundial")).map(drop))
            .unwrap();
        std::fs::write(folder.join("sundial-lib/libcuda.so.1"), "").unwrap();
        std::fs::write(folder.join("config.toml"), config).unwrap();
        Installation { folder }
    }

    pub(crate) fn sundial(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(self.folder.join("sundial"));
        command
            .args(arguments)
            .env("SUNDIAL_RUNTIME_DIR", self.folder.join("run"))
            .env("XDG_CACHE_HOME", self.folder.join("cache"))
            .env("XDG_STATE_HOME", self.folder.join("state"))
            .env("SUNDIAL_CONFIG", self.folder.join("config.toml"))
            .env_remove("SUNDIAL_GPU");
        command
    }

    pub(crate) fn output(&self, arguments: &[&str]) -> Output {
        self.sundial(arguments).output().unwrap()
    }

    pub(crate) fn sessions(&self) -> Option<Vec<Value>> {
        let output = self.output(&["ps", "--json"]);
        let value: Value = serde_json::from_slice(&output.stdout).ok()?;
        output.status.success().then(|| value["sessions"].as_array().unwrap().clone())
    }

    pub(crate) fn serve(&self) -> Daemon<'_> {
        self.serve_with(|_| {})
    }

    /// A daemon whose start `change` may change.
    pub(crate) fn serve_with(&self, change: impl FnOnce(&mut Command)) -> Daemon<'_> {
        let mut command = self.sundial(&["serve", "--gpu", "soft:256m"]);
        change(&mut command);
        let child = command.stdin(Stdio::null()).spawn().unwrap();
        until("the daemon to answer", || self.sessions());
        Daemon { child, installation: self }
    }

    /// A program that is a tenant until its input ends.
    pub(crate) fn register(&self, options: &[&str]) -> Tenant {
        let script = "echo $SUNDIAL_CREDENTIAL; echo $SUNDIAL_SOCKET; read end; true";
        let all = [&["run"], options, &["--", "sh", "-c", script]].concat();
        let mut child = self.sundial(&all).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let credential = Credential::from_hex(&lines.next().unwrap().unwrap()).unwrap();
        let socket = lines.next().unwrap().unwrap().into();
        Tenant { child, credential, socket }
    }

    /// A tenant, and a session of it.
    pub(crate) fn tenant(&self, options: &[&str]) -> (Tenant, Arc<RemoteGpu>) {
        let tenant = self.register(options);
        let gpu = tenant.connect().unwrap();
        (tenant, gpu)
    }
}

impl Drop for Installation {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

pub(crate) struct Daemon<'a> {
    child: Child,
    installation: &'a Installation,
}

impl Daemon<'_> {
    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Until it has ended by itself.
    pub(crate) fn wait(&mut self) -> std::process::ExitStatus {
        until("the daemon to end", || self.child.try_wait().unwrap())
    }

    pub(crate) fn pid(&self) -> i32 {
        self.child.id().cast_signed()
    }

    /// The device process.
    pub(crate) fn device(&self) -> Option<Pid> {
        self.children("device").first().copied()
    }

    /// Those of its children that run a subcommand.
    pub(crate) fn children(&self, subcommand: &str) -> Vec<Pid> {
        let pid = self.child.id();
        let Ok(threads) = std::fs::read_dir(format!("/proc/{pid}/task")) else { return Vec::new() };
        let text = threads
            .filter_map(|thread| std::fs::read_to_string(thread.ok()?.path().join("children")).ok())
            .collect::<Vec<_>>()
            .join(" ");
        let runs = |pid: &i32| {
            let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            line.split(|&byte| byte == 0).nth(1) == Some(subcommand.as_bytes())
        };
        text.split_whitespace().filter_map(|word| word.parse().ok()).filter(runs).filter_map(Pid::from_raw).collect()
    }
}

impl Drop for Daemon<'_> {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        assert!(self.installation.folder.exists());
    }
}

pub(crate) struct Tenant {
    child: Child,
    credential: Credential,
    socket: PathBuf,
}

impl Tenant {
    /// A session.
    pub(crate) fn connect(&self) -> Result<Arc<RemoteGpu>, remote_gpu::ConnectError> {
        remote_gpu::connect_as(&self.socket, self.credential)
    }

    /// Where it is, and as whom it comes.
    pub(crate) fn address(&self) -> remote_gpu::Address {
        remote_gpu::Address { path: self.socket.clone(), credential: self.credential }
    }

    pub(crate) fn end(mut self) {
        drop(self.child.stdin.take());
        assert!(self.child.wait().unwrap().success());
    }
}

pub(crate) fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// `fill(p, v)` stores `v + i` into word i of `p`; `forever()` does not end.
pub(crate) const PTX: &str = "
.version 8.0
.target sm_75
.address_size 64
.visible .entry fill(.param .u64 p, .param .u32 v)
{
    .reg .u64 %rd<4>;
    .reg .u32 %r<4>;
    ld.param.u64 %rd1, [p];
    ld.param.u32 %r1, [v];
    mov.u32 %r2, %tid.x;
    add.u32 %r3, %r1, %r2;
    mul.wide.u32 %rd2, %r2, 4;
    add.u64 %rd3, %rd1, %rd2;
    st.global.u32 [%rd3], %r3;
    ret;
}
.visible .entry forever()
{
L:  bra L;
}
";

/// Context, queue, module, and 1 MiB of memory at `LO`.
pub(crate) fn prepare(gpu: &RemoteGpu, ptx: &str) {
    prepare_on(gpu, ptx);
}

/// As [`prepare`], on any GPU.
pub(crate) fn prepare_on(gpu: &dyn Gpu, ptx: &str) {
    let bytes = 1 << 20;
    for request in [
        Request::SetAddressRange { lo: LO, bytes: 1 << 30 },
        Request::CreateContext { id: ContextId(1), runtime: RuntimeMemory::default() },
        Request::CreateQueue { id: QueueId(1), context: ContextId(1), priority: 0 },
        Request::Alloc { id: AllocId(1), bytes, kind: MemoryKind::Vram },
        Request::Map { at: DevAddr(LO), id: AllocId(1), offset: 0, bytes, access: MapAccess::ReadWrite },
        Request::LoadModule { id: ModuleId(1), code: CodeImage::ptx(ptx), placed: vec![] },
    ] {
        gpu.request(request).unwrap();
    }
}

pub(crate) fn launch(kernel: u32, params: &[u8]) -> GpuCommand<'_> {
    let (grid, block) = ([1; 3], [64, 1, 1]);
    GpuCommand::Launch {
        module: ModuleId(1),
        kernel,
        grid,
        block,
        shared_bytes: 0,
        cooperative: false,
        cluster: [1; 3],
        params,
    }
}
