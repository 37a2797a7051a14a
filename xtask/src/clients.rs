//! Packages from PyPI, crates.io and Debian that run on the product as they are: set up, checked, told of in docs/compatibility.md.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};

use crate::apt::{self, Apt};
use crate::run::{cargo, checked, say, target};
use crate::{own_tests, samples, toolkit};

/// A virtual environment, which several clients may share.
pub(crate) struct Environment {
    pub(crate) name: &'static str,
    /// What pip installs, step by step, with its options.
    pub(crate) steps: &'static [&'static [&'static str]],
    /// About how much it is on disk, MB.
    pub(crate) megabytes: u64,
}

/// What a client is, and what checks it.
#[derive(Clone, Copy)]
enum Kind {
    /// Packages for Python, by `xtask/clients/check_NAME.py`.
    Python(&'static Environment),
    /// Crates, by the program in `xtask/clients/NAME`, which has versions of its own and is no part of the workspace. They find CUDA's
    /// headers by CUDA_PATH, and NVRTC as any library.
    Crates,
    /// A program of this name in Debian, with its package's, by `xtask/clients/check_NAME.py` with these packages. It looks at what other
    /// programs of its tenant do.
    Debian(&'static Environment, &'static str),
}

/// A client and what is checked of it.
#[derive(Clone, Copy)]
struct Client {
    name: &'static str,
    kind: Kind,
    /// Packages whose versions are told.
    packages: &'static [&'static str],
    /// What was not checked, because it is known.
    note: &'static str,
}

const CORE: Environment = Environment {
    name: "core",
    steps: &[&[
        "--no-deps",
        "cuda-core==1.2.2",
        "cuda-bindings==13.5.0",
        "cuda-pathfinder==1.9.0",
        "numpy==2.4.6",
        "nvidia-cuda-nvrtc==13.5.37",
        "nvidia-nvjitlink==13.5.37",
    ]],
    megabytes: 450,
};
pub(crate) const NUMBA: Environment = Environment {
    name: "numba",
    steps: &[&[
        "numba-cuda==0.30.4",
        "numba==0.68.1",
        "cuda-core==1.2.2",
        "cuda-bindings==13.5.0",
        "numpy==2.4.6",
        "nvidia-cuda-nvrtc==13.5.37",
        "nvidia-nvjitlink==13.5.37",
        "nvidia-nvvm==13.5.37",
        "nvidia-cuda-runtime==13.5.37",
        "nvidia-cuda-crt==13.5.37",
        "nvidia-cuda-cccl==13.3.5.0.6",
    ]],
    megabytes: 830,
};
const CUPY: Environment = Environment {
    name: "cupy",
    steps: &[&[
        "--no-deps",
        "cupy-cuda13x==14.2.0",
        "numpy==2.4.6",
        "cuda-pathfinder==1.9.0",
        "nvidia-cuda-nvrtc==13.5.37",
        "nvidia-cuda-runtime==13.5.37",
        "nvidia-cuda-crt==13.5.37",
        "nvidia-cuda-cccl==13.3.5.0.6",
    ]],
    megabytes: 480,
};
/// NVIDIA's libraries of ready kernels, by way of CuPy.
pub(crate) const LIBRARIES: Environment = Environment {
    name: "libraries",
    steps: &[
        CUPY.steps[0],
        &[
            "--no-deps",
            "nvidia-cublas==13.10.0.20",
            "nvidia-cufft==12.5.0.14",
            "nvidia-curand==10.4.5.25",
            "nvidia-cusolver==12.4.1.2",
            "nvidia-cusparse==12.9.4.2",
            "nvidia-nvjitlink==13.5.37",
            "scipy==1.17.1",
        ],
    ],
    megabytes: 2_900,
};
pub(crate) const LIGHT: Environment = Environment {
    name: "light",
    steps: &[&["warp-lang==1.19.0", "taichi==1.7.4", "tinygrad==0.14.0", "numpy==2.4.6", "nvidia-cuda-nvrtc==13.5.37"]],
    megabytes: 900,
};
/// JAX's plugin finds the libraries that torch brings.
pub(crate) const TORCH: Environment = Environment {
    name: "torch",
    steps: &[
        &["torch==2.15.0", "triton==3.9.0", "numpy==2.4.6"],
        &[
            "--no-deps",
            "jax==0.10.2",
            "jaxlib==0.10.2",
            "jax-cuda13-plugin==0.10.2",
            "jax-cuda13-pjrt==0.10.2",
            "ml_dtypes",
            "opt_einsum",
            "scipy",
            "nvidia-cuda-nvcc==13.2.*",
            "nvidia-nvvm==13.2.*",
        ],
    ],
    megabytes: 6_600,
};
/// A terminal, to look at what programs draw in one.
const TERMINAL: Environment =
    Environment { name: "terminal", steps: &[&["pyte==0.8.2", "wcwidth==0.9.4"]], megabytes: 15 };

const CLIENTS: [Client; 12] = [
    Client {
        name: "cuda_core",
        kind: Kind::Python(&CORE),
        packages: &["cuda-core", "cuda-bindings", "nvidia-cuda-nvrtc", "nvidia-nvjitlink"],
        note: "",
    },
    Client {
        name: "numba",
        kind: Kind::Python(&NUMBA),
        packages: &["numba-cuda", "numba", "nvidia-cuda-nvrtc", "nvidia-nvjitlink"],
        note: "",
    },
    Client { name: "cupy", kind: Kind::Python(&CUPY), packages: &["cupy-cuda13x", "nvidia-cuda-nvrtc"], note: "" },
    Client {
        name: "libraries",
        kind: Kind::Python(&LIBRARIES),
        packages: &[
            "nvidia-cublas",
            "nvidia-curand",
            "nvidia-cufft",
            "nvidia-cusparse",
            "nvidia-cusolver",
            "cupy-cuda13x",
        ],
        note: "NVIDIA's libraries of ready kernels, called by CuPy. They bring each kernel as machine code and as PTX, and take the latter, since to them \
               the GPU is a later one than they know. cuBLAS has products of f16 matrices, larger ones, as Tile IR only: refused, and said.",
    },
    Client { name: "warp", kind: Kind::Python(&LIGHT), packages: &["warp-lang"], note: "" },
    Client { name: "taichi", kind: Kind::Python(&LIGHT), packages: &["taichi"], note: "" },
    Client { name: "tinygrad", kind: Kind::Python(&LIGHT), packages: &["tinygrad", "nvidia-cuda-nvrtc"], note: "" },
    Client { name: "triton", kind: Kind::Python(&TORCH), packages: &["triton", "torch"], note: "" },
    Client {
        name: "torch_compile",
        kind: Kind::Python(&TORCH),
        packages: &["torch", "triton"],
        note: "PyTorch's own kernels, of which its wheels have machine code only, do not run: eager operations but copies, products of matrices and fills, \
               for which there are kernels of ours. So what a program computes has to be compiled, its optimizer's steps too.",
    },
    Client {
        name: "jax",
        kind: Kind::Python(&TORCH),
        packages: &["jax", "jaxlib", "jax-cuda13-plugin", "jax-cuda13-pjrt"],
        note: "It asks NVML (`libnvidia-ml.so.1`) which GPUs there are, before the driver. Of matrix products XLA tries many kernels first.",
    },
    Client {
        name: "rust",
        kind: Kind::Crates,
        packages: &["cubecl", "cubecl-cuda", "burn", "burn-cuda", "cudarc"],
        note: "CubeCL writes C++ of kernels in Rust and has NVRTC make PTX of that. CubeCL 0.11 and Burn 0.22, with an LLVM of their own that their \
               build fetches from the network, were not tried; nor were Burn's fusion and autotuning.",
    },
    Client {
        name: "nvtop",
        kind: Kind::Debian(&TERMINAL, "nvtop"),
        packages: &["nvtop"],
        note: "Debian's package; its program, beside one that uses the tenant's GPU. Natively each program has a GPU of its own, and there is \
               nothing to see of others'.",
    },
];

/// Memory of the tenant that a program in Debian looks at, MiB.
const SEEN_MIB: u32 = 256;

/// The release of Debian that programs are taken from.
const RELEASE: &[&str] = &["trixie"];

/// How long its packages may take.
const DEBIAN_WITHIN: Duration = Duration::from_secs(300);

/// Seconds for one client's checks.
const CHECKS_WITHIN: u32 = 900;

/// What the tests spend on packages at most: time, and of what is free on disk, unpacked and packed. Then they go on without the rest.
const TESTS_WAIT: Duration = Duration::from_secs(420);
const TESTS_LEAVE_MEGABYTES: u64 = 10_000;

impl Client {
    /// Too large to be set up by anyone who did not ask for it.
    fn huge(&self) -> bool {
        match self.kind {
            Kind::Crates => true,
            Kind::Python(of) => [TORCH.name, LIBRARIES.name].contains(&of.name),
            Kind::Debian(..) => false,
        }
    }
}

/// How one check went: `Ok`, or what was wrong.
type Outcome = std::result::Result<(), String>;

/// Checks by name, in order.
type Outcomes = Vec<(String, Outcome)>;

/// Sets up and checks the clients of these names, or those that are not huge, and tells of them in docs/compatibility.md.
///
/// # Errors
/// A name that is none; what pip says; a check that failed, after all were made.
pub(crate) fn all(root: &Path, names: &[String]) -> Result<()> {
    let mut chosen: Vec<&Client> = Vec::new();
    for name in names {
        let known = || CLIENTS.map(|client| client.name).join(", ");
        let client = CLIENTS.iter().find(|client| client.name == name.replace('-', "_"));
        chosen.push(client.with_context(|| format!("there is no client {name}; there are: {}", known()))?);
    }
    if names.is_empty() {
        chosen = CLIENTS.iter().filter(|client| !client.huge()).collect();
        let [torch, libraries] = [TORCH, LIBRARIES].map(|environment| environment.megabytes);
        say(&format!("left out, unless named: triton, torch_compile and jax, which need {torch} MB of packages"));
        say(&format!("left out, unless named: libraries, which needs {libraries} MB"));
        say("left out, unless named: rust, which is built for many minutes");
    }
    let mut sections = Vec::new();
    let mut failed = Vec::new();
    let home = folder(root, "home");
    for client in chosen {
        let checks = checks(root, client, None)?;
        say(&format!("checking {}", client.name));
        let mut native = Outcomes::new();
        if !matches!(client.kind, Kind::Debian(..)) {
            native = checks.run(root, client, &["--native"], &home)?;
        }
        let tenant = checks.run(root, client, &[], &home)?;
        if native.iter().chain(&tenant).any(|(_, outcome)| outcome.is_err()) {
            failed.push(client.name);
        }
        sections.push((client.name.to_owned(), section(client, &checks.versions, &native, &tenant)?));
    }
    write(&root.join("docs/compatibility.md"), sections)?;
    if !failed.is_empty() {
        bail!("not all checks passed: {}; docs/compatibility.md tells which", failed.join(", "));
    }
    Ok(())
}

/// Waits until nobody else runs clients here, as long as the file is kept: each run empties the homes that they share.
///
/// # Errors
/// No file can be made or locked.
pub(crate) fn alone(root: &Path) -> Result<fs::File> {
    let folder = target(root).join("clients");
    fs::create_dir_all(&folder)?;
    let file = fs::File::create(folder.join("lock"))?;
    if file.try_lock().is_err() {
        say("waiting for another run of clients");
        file.lock()?;
    }
    Ok(file)
}

/// Clients that were set up, and what runs their short checks.
pub(crate) struct Prepared(Vec<(Client, Checks)>);

/// Sets clients up for [`quick`], as far as they can be had; says which cannot.
pub(crate) fn prepare(root: &Path) -> Prepared {
    let end = Instant::now() + TESTS_WAIT;
    let (mut found, mut missing) = (Vec::new(), Vec::new());
    for client in CLIENTS {
        let (Kind::Python(of) | Kind::Debian(of, _)) = client.kind else {
            say(&format!("skipped: {}, which is built for many minutes (cargo xtask clients {0})", client.name));
            continue;
        };
        if missing.contains(&of.name) {
            say(&format!("skipped: {}, which needs the same packages", client.name));
            continue;
        }
        match room(root, of).and_then(|()| checks(root, &client, Some(end))) {
            Ok(mut checks) => {
                checks.command.push("--short".into());
                found.push((client, checks));
            }
            Err(error) => {
                say(&format!("skipped: {}: {error:#}", client.name));
                missing.push(of.name);
            }
        }
    }
    Prepared(found)
}

/// Short checks, part of the tests.
///
/// # Errors
/// Checks that failed.
pub(crate) fn quick(root: &Path, prepared: &Prepared) -> Result<()> {
    let mut runs: Vec<(&Client, &Checks, &[&str])> = Vec::new();
    for (client, checks) in &prepared.0 {
        let modes: &[&[&str]] = match client.kind {
            Kind::Python(_) if !client.huge() => &[&["--native"], &[]],
            _ => &[&[]],
        };
        runs.extend(modes.iter().map(|mode| (client, checks, *mode)));
    }
    // A program that begins is busy on one processor, and waits for files.
    let (next, failed) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let work = |home: &Path| -> Result<()> {
        while let Some((client, checks, mode)) = runs.get(next.fetch_add(1, Ordering::Relaxed)) {
            let outcomes = checks.run(root, client, mode, home)?;
            let wrong = outcomes.into_iter().filter_map(|(name, outcome)| outcome.err().map(|error| (name, error)));
            let wrong = wrong.map(|(name, error)| format!("{}: {name}: {error}", client.name));
            failed.lock().unwrap_or_else(PoisonError::into_inner).extend(wrong);
        }
        Ok(())
    };
    thread::scope(|scope| -> Result<()> {
        let beside = scope.spawn(|| work(&folder(root, "home-beside")));
        work(&folder(root, "home"))?;
        beside.join().map_err(|_| anyhow!("checking clients panicked"))?
    })?;
    let failed = failed.into_inner().unwrap_or_else(PoisonError::into_inner);
    if !failed.is_empty() {
        bail!("{}", failed.join("\n"));
    }
    Ok(())
}

/// An error unless the packages are there, or the tests may take what they need of the disk.
fn room(root: &Path, environment: &Environment) -> Result<()> {
    let needed = TESTS_LEAVE_MEGABYTES + 2 * environment.megabytes;
    let free = free_megabytes(root)?;
    if free < needed && !environment.is_there(root) {
        bail!("{free} MB are free on disk, {needed} are wanted");
    }
    Ok(())
}

/// What is free on the disk with the folder.
fn free_megabytes(root: &Path) -> Result<u64> {
    let told = Command::new("df").args(["--output=avail", "--block-size=1MB"]).arg(root).output()?;
    let told = String::from_utf8_lossy(&told.stdout).into_owned();
    told.lines().last().and_then(|line| line.trim().parse().ok()).with_context(|| format!("df says {told:?}"))
}

/// Where a client's packages, or those of several, are.
fn folder(root: &Path, name: &str) -> PathBuf {
    target(root).join("clients").join(name)
}

impl Environment {
    /// What a complete one says of itself.
    fn wanted(&self) -> String {
        self.steps.concat().join("\n")
    }

    /// Has [`set_up`] been done?
    fn is_there(&self, root: &Path) -> bool {
        let complete = folder(root, self.name).join("complete");
        fs::read_to_string(complete).is_ok_and(|there| there == self.wanted())
    }
}

/// The environment's python, installed by this call unless it is there; until `end`, if any is given.
pub(crate) fn set_up(root: &Path, environment: &Environment, end: Option<Instant>) -> Result<PathBuf> {
    let folder = folder(root, environment.name);
    let python = folder.join("bin/python");
    if environment.is_there(root) {
        return Ok(python);
    }
    toolkit::host_packages(&folder)?;
    say(&format!("installing packages into {} (about {} MB)", folder.display(), environment.megabytes));
    fs::create_dir_all(folder.parent().context("it lies in a folder")?)?;
    checked(Command::new("python3").args(["-m", "venv", "--clear"]).arg(&folder))
        .context("python3 with its venv module is needed: apt-get install python3-venv")?;
    for step in environment.steps {
        let pip = folder.join("bin/pip");
        let mut command = match end {
            None => Command::new(&pip),
            Some(end) => {
                let seconds = end.saturating_duration_since(Instant::now()).as_secs().max(1);
                let mut command = Command::new("timeout");
                command.arg(seconds.to_string()).arg(&pip);
                command
            }
        };
        command.args(["install", "--quiet", "--disable-pip-version-check"]).args(*step);
        checked(&mut command).context("the packages cannot be had from PyPI, or not in time")?;
    }
    fs::write(folder.join("complete"), environment.wanted())?;
    Ok(python)
}

/// Installs more packages for an environment's python.
pub(crate) fn add_packages(python: &Path, packages: &[&str]) -> Result<()> {
    let mut pip = Command::new(python);
    checked(pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]).args(packages))
        .context("the packages cannot be had from PyPI")
}

/// What runs a client's checks.
struct Checks {
    /// A program with its arguments.
    command: Vec<OsString>,
    /// What a program of this kind finds in its environment wherever it is installed.
    environment: Vec<(&'static str, OsString)>,
    /// What `sundial run` is told as well.
    options: Vec<String>,
    /// Packages with their versions.
    versions: BTreeMap<String, String>,
}

/// Sets a client up, until `end`, if any is given and it has a bound.
fn checks(root: &Path, client: &Client, end: Option<Instant>) -> Result<Checks> {
    let script = || root.join("xtask/clients").join(format!("check_{}.py", client.name)).into_os_string();
    match client.kind {
        Kind::Python(environment) => {
            let python = set_up(root, environment, end)?;
            let versions = python_versions(&python)?;
            let command = vec![python.into_os_string(), "-B".into(), script()];
            Ok(Checks { command, environment: Vec::new(), options: Vec::new(), versions })
        }
        Kind::Crates => {
            let cuda = toolkit::cuda_home(root)?;
            let sources = root.join("xtask/clients").join(client.name);
            let built = folder(root, client.name);
            say(&format!(
                "building {} in {} (1.2 GB, many minutes at the first time)",
                sources.display(),
                built.display()
            ));
            checked(cargo(root).current_dir(&sources).args(["build", "--locked"]).env("CARGO_TARGET_DIR", &built))?;
            let locked = fs::read_to_string(sources.join("Cargo.lock"))?;
            Ok(Checks {
                command: vec![built.join("debug").join(format!("{}-client", client.name)).into_os_string()],
                environment: vec![
                    ("LD_LIBRARY_PATH", cuda.join("lib").into_os_string()),
                    ("CUDA_PATH", cuda.into_os_string()),
                ],
                options: Vec::new(),
                versions: locked_versions(&locked),
            })
        }
        Kind::Debian(environment, name) => {
            let python = set_up(root, environment, end)?;
            let home = folder(root, name);
            let versions = from_debian(&home, name, end)?;
            Ok(Checks {
                command: vec![python.into_os_string(), "-B".into(), script()],
                environment: vec![
                    ("PROGRAM", home.join(name).into_os_string()),
                    ("TENANT", product(root).join("sundial-tenant").into_os_string()),
                    ("MEMORY", SEEN_MIB.to_string().into()),
                ],
                options: vec!["--mem".into(), format!("{SEEN_MIB}m")],
                versions,
            })
        }
    }
}

impl Checks {
    /// Runs them with the product as it is, nothing else set but the home folder; says how they went.
    fn run(&self, root: &Path, client: &Client, mode: &[&str], home: &Path) -> Result<Outcomes> {
        // What clients and we keep of earlier runs would be checked instead.
        if home.exists() {
            fs::remove_dir_all(home)?;
        }
        let [runtime, temporary] = ["run", "tmp"].map(|name| home.join(name));
        for folder in [&runtime, &temporary] {
            fs::create_dir_all(folder)?;
        }
        let output = Command::new(product(root).join("sundial"))
            .arg("run")
            .args(mode)
            .args(&self.options)
            .args(["--", "timeout", &CHECKS_WITHIN.to_string()])
            .args(&self.command)
            .env("HOME", home)
            .env("SUNDIAL_RUNTIME_DIR", &runtime)
            .env("TMPDIR", &temporary)
            .envs(self.environment.iter().cloned())
            .env_remove("XDG_CACHE_HOME")
            .env_remove("XDG_STATE_HOME")
            .stderr(fs::File::create(home.join("stderr"))?)
            .output()
            .context("cannot start sundial")?;
        let mut outcomes = read(&String::from_utf8_lossy(&output.stdout));
        if outcomes.is_empty() {
            outcomes.push(("start".into(), Err(last_line(&home.join("stderr")))));
        } else if outcomes.iter().all(|(_, outcome)| outcome.is_ok()) && !output.status.success() {
            outcomes.push(("end".into(), Err(output.status.to_string())));
        }
        // At once: others may run beside it.
        let mut told = format!("{}, {}", client.name, if mode.is_empty() { "as a tenant" } else { "native" });
        for (name, outcome) in &outcomes {
            told += &match outcome {
                Ok(()) => format!("\n==>   passed: {name}"),
                Err(error) => format!("\n==>   FAILED: {name}: {error}"),
            };
        }
        if outcomes.iter().any(|(_, outcome)| outcome.is_err()) {
            // The next run empties the home.
            let kept = home.with_file_name(format!("{}.stderr", client.name));
            fs::copy(home.join("stderr"), &kept)?;
            told += &format!("\n==>   {} has more", kept.display());
        }
        say(&told);
        Ok(outcomes)
    }
}

/// What pip has installed for a python.
fn python_versions(python: &Path) -> Result<BTreeMap<String, String>> {
    let list = Command::new(python).args(["-m", "pip", "list", "--format=freeze"]).output()?;
    let list = String::from_utf8_lossy(&list.stdout).into_owned();
    Ok(list
        .lines()
        .filter_map(|line| line.split_once("=="))
        .map(|(name, version)| (name.into(), version.into()))
        .collect())
}

/// What a Cargo.lock says.
fn locked_versions(lock: &str) -> BTreeMap<String, String> {
    let quoted = |line: &str, key: &str| Some(line.strip_prefix(key)?.trim_matches('"').to_owned());
    let mut versions = BTreeMap::new();
    let mut package = None;
    for line in lock.lines() {
        if let Some(name) = quoted(line, "name = ") {
            package = Some(name);
        } else if let (Some(version), Some(name)) = (quoted(line, "version = "), package.take()) {
            versions.insert(name, version);
        }
    }
    versions
}

/// Fetches a program of Debian with its libraries into a folder, if it is not there, until `end`, if any is given; tells the packages' versions.
fn from_debian(home: &Path, name: &str, end: Option<Instant>) -> Result<BTreeMap<String, String>> {
    let complete = home.join("complete");
    if !complete.exists() {
        if home.exists() {
            fs::remove_dir_all(home)?;
        }
        say(&format!("fetching {name} from Debian's archive into {}", home.display()));
        let apt = Apt::new(&home.join("apt"), end.unwrap_or(Instant::now() + DEBIAN_WITHIN), RELEASE)?;
        apt.download(&[name])?;
        let mut names = String::new();
        for package in apt.packages()? {
            checked(Command::new("dpkg-deb").arg("-x").arg(&package).arg(home.join("root")))?;
            names = names + &package.file_name().unwrap_or_default().to_string_lossy() + "\n";
        }
        apt::launcher(home, name, "")?;
        fs::remove_dir_all(home.join("apt"))?;
        fs::write(&complete, names)?;
    }
    Ok(debian_versions(&fs::read_to_string(complete)?))
}

/// What names of packages' files say: `NAME_VERSION_ARCHITECTURE.deb`, with colons as `%3a`.
fn debian_versions(files: &str) -> BTreeMap<String, String> {
    let split = |file: &str| {
        let (name, rest) = file.split_once('_')?;
        Some((name.to_owned(), rest.split('_').next()?.replace("%3a", ":")))
    };
    files.lines().filter_map(split).collect()
}

/// The folder with the product: `$SUNDIAL_BIN_DIR`, or what was built last.
pub(crate) fn product(root: &Path) -> PathBuf {
    given_product().unwrap_or_else(|| target(root).join("release"))
}

/// `$SUNDIAL_BIN_DIR`: a product that is there already.
pub(crate) fn given_product() -> Option<PathBuf> {
    std::env::var_os("SUNDIAL_BIN_DIR").map(PathBuf::from)
}

fn last_line(path: &Path) -> String {
    let text = fs::read_to_string(path).unwrap_or_default();
    text.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("it said nothing").trim().to_owned()
}

/// What a script says: `check NAME`, then `passed` or `failed REASON`, unless the process ends there.
fn read(said: &str) -> Outcomes {
    let mut outcomes = Outcomes::new();
    for line in said.lines() {
        if let Some(name) = line.strip_prefix("check ") {
            outcomes.push((name.to_owned(), Err("the process ended".into())));
        } else if let Some((_, outcome)) = outcomes.last_mut() {
            if line == "passed" {
                *outcome = Ok(());
            } else if let Some(reason) = line.strip_prefix("failed ") {
                *outcome = Err(reason.to_owned());
            }
        }
    }
    outcomes
}

/// What docs/compatibility.md says of a client, below its heading.
fn section(
    client: &Client,
    versions: &BTreeMap<String, String>,
    native: &Outcomes,
    tenant: &Outcomes,
) -> Result<String> {
    let version = |package: &&str| {
        let version = versions.get(*package).map_or("(not installed)", String::as_str);
        format!("{package} {version}")
    };
    let versions = client.packages.iter().map(version).collect::<Vec<_>>().join(", ");
    let date = Command::new("date").args(["-u", "+%F"]).output()?;
    let mut text = format!("{versions}; checked on {}.\n", String::from_utf8_lossy(&date.stdout).trim());
    if !client.note.is_empty() {
        text += client.note;
        text.push('\n');
    }
    text += "\n| check | native | tenant |\n|---|---|---|\n";
    let of = |outcomes: &Outcomes, name: &str| match outcomes.iter().find(|(one, _)| one == name) {
        None => "–".to_owned(),
        Some((_, Ok(()))) => "passed".to_owned(),
        Some((_, Err(reason))) => format!("failed: {}", reason.replace('|', "\\|")),
    };
    let mut names: Vec<&String> = native.iter().map(|(name, _)| name).collect();
    names.extend(tenant.iter().map(|(name, _)| name).filter(|name| !native.iter().any(|(one, _)| one == *name)));
    for name in names {
        text += &format!("| {name} | {} | {} |\n", of(native, name), of(tenant, name));
    }
    Ok(text)
}

const PAGE: &str = "\
# Compatibility

Packages from PyPI, crates.io and Debian as they are, checked by `cargo xtask clients [NAME…]` with `sundial run -- …`, native and as a tenant,
nothing else set; the checks are in `xtask/clients`. Packages' own tests, of some, are run by `cargo xtask clients --own-tests [NAME…]`, NVIDIA's
cuda-samples by `cargo xtask clients samples [NAME…]`. Made by those commands; what they are not run for stays as it was.
";

/// Puts sections into the page, in place of those of the same names.
pub(crate) fn write(path: &Path, new: Vec<(String, String)>) -> Result<()> {
    let mut sections = sections(&fs::read_to_string(path).unwrap_or_default());
    sections.extend(new);
    let mut text = PAGE.to_owned();
    for name in CLIENTS
        .iter()
        .map(|client| client.name.to_owned())
        .chain(own_tests::headings())
        .chain([samples::HEADING.to_owned()])
    {
        if let Some(section) = sections.get(&name) {
            text += &format!("\n## {name}\n\n{}\n", section.trim());
        }
    }
    fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}

fn sections(page: &str) -> BTreeMap<String, String> {
    let parts = page.split("\n## ").skip(1);
    parts.filter_map(|part| part.split_once('\n')).map(|(name, text)| (name.trim().into(), text.into())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read() {
        let lock =
            "version = 4\n\n[[package]]\nname = \"burn\"\nversion = \"0.21.0\"\ndependencies = [\n \"burn\",\n]\n";
        assert_eq!(locked_versions(lock), BTreeMap::from([("burn".to_owned(), "0.21.0".to_owned())]));
        let files = "nvtop_3.2.0-1_amd64.deb\nlibcap2_1%3a2.75-10+b3_amd64.deb\n";
        let of = |name: &str| debian_versions(files).remove(name).unwrap();
        assert_eq!((of("nvtop"), of("libcap2")), ("3.2.0-1".to_owned(), "1:2.75-10+b3".to_owned()));
    }

    #[test]
    fn what_scripts_say_is_read() {
        let said = "noise\ncheck a\npassed\ncheck b c\nnoise\nfailed ValueError: x\ncheck d\n";
        let expected = [
            ("a".to_owned(), Ok(())),
            ("b c".to_owned(), Err("ValueError: x".to_owned())),
            ("d".to_owned(), Err("the process ended".to_owned())),
        ];
        assert_eq!(read(said), expected);
    }

    #[test]
    fn sections_that_are_not_made_again_stay() {
        let path = std::env::temp_dir().join(format!("sundial-clients-{}.md", std::process::id()));
        write(&path, vec![("cupy".into(), "old\n".into()), ("numba".into(), "\n| a |\n".into())]).unwrap();
        write(&path, vec![("cupy".into(), "new\n".into())]).unwrap();
        let page = fs::read_to_string(&path).unwrap();
        fs::remove_file(&path).unwrap();
        assert!(page.starts_with(PAGE) && page.ends_with("\n## numba\n\n| a |\n\n## cupy\n\nnew\n"), "{page}");
    }

    #[test]
    fn each_client_has_its_checks() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("clients");
        for client in &CLIENTS {
            let checks = match client.kind {
                Kind::Python(_) | Kind::Debian(..) => format!("check_{}.py", client.name),
                Kind::Crates => format!("{}/Cargo.lock", client.name),
            };
            assert!(folder.join(checks).exists(), "{}", client.name);
        }
    }
}
