//! The GPU behind the library. The environment chooses; the library is the same everywhere, in a guest too:
//!
//! - `SUNDIAL_VGPU`: a virtual GPU, with its driver in this process. `unix:<path>`: over the vfio-user socket at that path.
//!   `pci`: the first one on this machine's PCI bus; `pci:<address>`: the one there, as `pci:0000:00:04.0`.
//! - else `SUNDIAL_NATIVE=1`: the software GPU in this process, with its driver.
//! - else: a session with the daemon for each of the program's GPUs.
//!
//! The daemon's address and the tenant's credential are the session's affair (`remote_gpu`: `SUNDIAL_SOCKET`,
//! `SUNDIAL_CREDENTIAL`). The native GPU is shaped by `SUNDIAL_GPU` (`soft:<memory>`, as the daemon's; several, separated by commas,
//! are several GPUs), `SUNDIAL_VRAM` (bytes, or with k, m, g behind; of each), `SUNDIAL_WORKERS` (threads) and `SUNDIAL_ENGINE`
//! (`jit` or `interpreter`); what its kernels do is checked by [`check`]. Of the GPUs that there are, [`visible`] picks.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use checker::Checker;
use gpu::{Gpu, Properties};
use gpu_driver::{Client, ClientConfig, Driver, HostCost, StartError};
use pci_gpu::{OpenError, SysfsGpu, VfioUserGpu};
use remote_gpu::{Address, ConnectError, RemoteGpu};
use softgpu::{Config, EngineKind, SoftGpu};

use crate::check;
use crate::standing::Own;
use crate::visible::{First, first, visible};

/// Why there is no GPU.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BackendError {
    /// No session.
    #[error(transparent)]
    Session(#[from] ConnectError),
    /// No virtual GPU.
    #[error(transparent)]
    Vgpu(#[from] OpenError),
    /// The device's driver did not start.
    #[error(transparent)]
    Driver(#[from] StartError),
    /// The operating system refused memory or threads.
    #[error("the software GPU cannot be made")]
    System(#[from] io::Error),
    /// The environment asks for something that cannot be.
    #[error("{variable} is {value:?}, not {wanted}")]
    Variable {
        /// Its name.
        variable: &'static str,
        /// What it is set to.
        value: String,
        /// What it could be set to.
        wanted: &'static str,
    },
}

/// Open GPUs.
pub(crate) struct Backend {
    /// Those that the program is to see, by ordinal.
    pub(crate) gpus: Vec<Arc<dyn Gpu>>,
    /// Where the daemon wants to see what it is spared.
    pub(crate) spared: Option<Spared>,
    /// All GPUs that are in this process, seen or not.
    pub(crate) own: Vec<Own>,
    /// Who checks what their kernels do.
    pub(crate) checker: Option<Arc<Checker>>,
}

/// Counts calls that the daemon did not hear of.
#[derive(Clone, Debug)]
pub(crate) struct Spared {
    /// Its session is the one that counts calls, whichever GPU they are about.
    first: Arc<RemoteGpu>,
    others: Vec<Arc<RemoteGpu>>,
}

impl Spared {
    /// Nobody is spared anything if there is no session.
    fn of(sessions: &[Arc<RemoteGpu>]) -> Option<Spared> {
        let (first, others) = sessions.split_first()?;
        Some(Spared { first: Arc::clone(first), others: others.to_vec() })
    }

    /// Messages to the daemon so far, in all sessions.
    pub(crate) fn messages(&self) -> u64 {
        let messages = |session: &Arc<RemoteGpu>| session.calls_remote().load(Ordering::Relaxed);
        messages(&self.first) + self.others.iter().map(messages).sum::<u64>()
    }

    /// The count of calls answered without a message.
    pub(crate) fn local(&self) -> &AtomicU64 {
        self.first.calls_local()
    }

    /// The count of the others.
    pub(crate) fn sent(&self) -> &AtomicU64 {
        self.first.calls_sent()
    }
}

/// Opens the GPUs that the environment asks for.
pub(crate) fn open() -> Result<Backend, BackendError> {
    let variable = |name: &str| std::env::var(name).ok();
    if let Some(value) = std::env::var_os("SUNDIAL_VGPU").filter(|value| !value.is_empty()) {
        let client = drive(&match vgpu(value)? {
            Vgpu::Socket(path) => Driver::start(Arc::new(VfioUserGpu::connect(&path)?))?,
            Vgpu::Pci(address) => Driver::start(Arc::new(SysfsGpu::open(address.as_deref())?))?,
        })?;
        let there = shown(&[client.properties().uuid]);
        let gpus = there.into_iter().map(|_| Arc::clone(&client) as Arc<dyn Gpu>).collect();
        return Ok(Backend { gpus, spared: None, own: vec![Own::new(Some(client))], checker: None });
    }
    if is_native() {
        // It is this program's alone.
        hostmem::want_huge_pages();
        let mut configs = configs(variable)?;
        let checker = check::of_environment()?;
        for config in &mut configs {
            config.checker = checker.clone().map(|checker| checker as Arc<dyn softgpu::Checker>);
        }
        let uuids: Vec<[u8; 16]> = configs.iter().map(|config| config.uuid).collect();
        let there = shown(&uuids);
        let open = |at: &usize| drive(&Driver::start(SoftGpu::new(&configs[*at])?)?);
        let clients: Vec<Arc<Client>> = there.iter().map(open).collect::<Result<_, _>>()?;
        let own = |at| Own::new(there.iter().position(|shown| *shown == at).map(|shown| Arc::clone(&clients[shown])));
        let own = (0..configs.len()).map(own).collect();
        let gpus = clients.iter().map(|client| Arc::clone(client) as Arc<dyn Gpu>).collect();
        return Ok(Backend { gpus, spared: None, own, checker });
    }
    let sessions = sessions(wanted().as_deref())?;
    let spared = Spared::of(&sessions);
    let gpus = sessions.into_iter().map(|session| session as Arc<dyn Gpu>).collect();
    Ok(Backend { gpus, spared, own: Vec::new(), checker: None })
}

fn is_native() -> bool {
    std::env::var("SUNDIAL_NATIVE").is_ok_and(|value| value != "0")
}

/// The native GPUs that the environment asks for, seen or not; none if it asks for others. Nothing is left of having looked.
///
/// # Errors
/// There is none of such a shape.
pub(crate) fn native_properties() -> Result<Vec<Properties>, BackendError> {
    if std::env::var_os("SUNDIAL_VGPU").is_some_and(|value| !value.is_empty()) || !is_native() {
        return Ok(Vec::new());
    }
    configs(|name| std::env::var(name).ok())?.iter().map(look).collect()
}

/// What a native GPU of a shape is.
fn look(config: &Config) -> Result<Properties, BackendError> {
    Ok(drive(&Driver::start(SoftGpu::new(config)?)?)?.properties().clone())
}

/// `CUDA_VISIBLE_DEVICES`.
fn wanted() -> Option<String> {
    std::env::var_os("CUDA_VISIBLE_DEVICES").map(|list| list.to_string_lossy().into_owned())
}

/// Indices of those GPUs that the program is to see.
fn shown(uuids: &[[u8; 16]]) -> Vec<usize> {
    visible(wanted().as_deref(), uuids)
}

/// Sessions with the daemon's GPUs that the program is to see, in order: all, or none if one cannot be had. GPUs are known by numbers
/// before there is a session with them; who names them by UUIDs has one with each for as long as it takes to choose.
fn sessions(wanted: Option<&str>) -> Result<Vec<Arc<RemoteGpu>>, ConnectError> {
    let (first, by_uuid) = match first(wanted) {
        First::Nothing => return Ok(Vec::new()),
        First::Number(number) => (number, false),
        First::SomeUuid => (0, true),
    };
    let Ok(number) = u32::try_from(first) else { return Ok(Vec::new()) };
    let address = Address::of_environment()?;
    if by_uuid {
        let all = address.open_all()?;
        let uuids: Vec<[u8; 16]> = all.iter().map(|session| session.properties().uuid).collect();
        return Ok(visible(wanted, &uuids).into_iter().map(|at| Arc::clone(&all[at])).collect());
    }
    let session = address.open(number)?;
    let there = visible(wanted, &vec![[0; 16]; session.gpus() as usize]);
    let open = |at: usize| match u32::try_from(at) {
        Ok(gpu) if gpu != number => address.open(gpu),
        _ => Ok(Arc::clone(&session)),
    };
    there.into_iter().map(open).collect()
}

/// The only client of a driver in this process.
fn drive(driver: &Arc<Driver>) -> Result<Arc<Client>, BackendError> {
    // The process is the program's: it may use up what the host gives, but for what the engine needs.
    let budget = driver.budget(HostCost { bytes: u64::MAX, maps: 49_152, files: 512 }).ok();
    Ok(driver.open(ClientConfig { name: "native".to_owned(), budget, ..ClientConfig::default() })?)
}

/// Where a virtual GPU is.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Vgpu {
    /// Behind a socket.
    Socket(PathBuf),
    /// On the PCI bus; without an address, the first one.
    Pci(Option<String>),
}

/// What `SUNDIAL_VGPU` says.
fn vgpu(value: OsString) -> Result<Vgpu, BackendError> {
    if let Some(path) = value.as_bytes().strip_prefix(b"unix:").filter(|path| !path.is_empty()) {
        return Ok(Vgpu::Socket(OsStr::from_bytes(path).into()));
    }
    let value = value.to_string_lossy().into_owned();
    match value.strip_prefix("pci") {
        Some("") => Ok(Vgpu::Pci(None)),
        Some(rest) if rest.len() > 1 && rest.starts_with(':') => Ok(Vgpu::Pci(Some(rest[1..].to_owned()))),
        _ => {
            let wanted = "unix:<path of a socket>, pci, or pci:<address>";
            Err(BackendError::Variable { variable: "SUNDIAL_VGPU", value, wanted })
        }
    }
}

/// Most native GPUs: each has threads, and addresses of its own.
const MOST_GPUS: usize = 16;

/// The native GPUs' shapes.
fn configs(variable: impl Fn(&str) -> Option<String>) -> Result<Vec<Config>, BackendError> {
    let mut config = Config::default();
    let wrong = |variable, value, wanted| BackendError::Variable { variable, value, wanted };
    let mut memories = vec![None];
    if let Some(value) = variable("SUNDIAL_GPU") {
        let memory = |gpu: &str| match gpu.strip_prefix("soft:") {
            Some(memory) => size(memory).map(Some),
            None => (gpu == "soft").then_some(None),
        };
        let all: Option<Vec<_>> = value.split(',').map(|gpu| memory(gpu.trim())).collect();
        let wanted = "soft:<memory>, as soft:4g, or several, as soft:4g,soft:2g (16 at most)";
        memories = all.filter(|all| all.len() <= MOST_GPUS).ok_or_else(|| wrong("SUNDIAL_GPU", value, wanted))?;
    }
    if let Some(value) = variable("SUNDIAL_VRAM") {
        let wanted = "a size such as 536870912, 512m or 4g";
        memories.fill(None);
        config.vram_bytes = size(&value).ok_or_else(|| wrong("SUNDIAL_VRAM", value, wanted))?;
    }
    if let Some(value) = variable("SUNDIAL_WORKERS") {
        config.workers = value.parse().map_err(|_| wrong("SUNDIAL_WORKERS", value, "a number of threads"))?;
    }
    if let Some(value) = variable("SUNDIAL_ENGINE") {
        config.engine = match value.as_str() {
            "jit" => EngineKind::Jit,
            "interpreter" => EngineKind::Interpreter,
            _ => return Err(wrong("SUNDIAL_ENGINE", value, "jit or interpreter")),
        };
    }
    let shape = |(number, memory): (u8, Option<u64>)| {
        let vram_bytes = memory.unwrap_or(config.vram_bytes);
        Config { vram_bytes, ..config.clone() }.numbered(number)
    };
    Ok((0..).zip(memories).map(shape).collect())
}

/// Bytes, or with k, m or g behind: units of 2^10, 2^20, 2^30.
fn size(text: &str) -> Option<u64> {
    let digits = text.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
    let shift = match text[digits.len()..].to_ascii_lowercase().as_str() {
        "" => 0,
        "k" => 10,
        "m" => 20,
        "g" => 30,
        _ => return None,
    };
    digits.parse::<u64>().ok()?.checked_mul(1 << shift).filter(|bytes| *bytes > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        assert_eq!(size("512m"), Some(512 << 20));
        assert_eq!(size("4G"), Some(4 << 30));
        assert_eq!(size("4096"), Some(4096));
        for wrong in ["", "0", "m", "1x", "-1", "99999999999g"] {
            assert_eq!(size(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn virtual_gpus_have_places() {
        let of = |value: &str| vgpu(value.into()).map_err(|error| error.to_string());
        assert_eq!(of("unix:/run/a b"), Ok(Vgpu::Socket("/run/a b".into())));
        assert_eq!(of("pci"), Ok(Vgpu::Pci(None)));
        assert_eq!(of("pci:0000:00:04.0"), Ok(Vgpu::Pci(Some("0000:00:04.0".into()))));
        for wrong in ["unix:", "/run/a", "pci:", "pcie", "PCI", "soft:4g"] {
            assert_eq!(
                of(wrong),
                Err(format!("SUNDIAL_VGPU is {wrong:?}, not unix:<path of a socket>, pci, or pci:<address>"))
            );
        }
        // A path is whatever the file system allows.
        let path = OsStr::from_bytes(b"/\xff");
        assert_eq!(vgpu(OsString::from_iter([OsStr::new("unix:"), path])).ok(), Some(Vgpu::Socket(path.into())));
    }

    #[test]
    fn the_environment_shapes_the_native_gpus() {
        let all =
            |name: &'static str, value: &'static str| configs(move |asked| (asked == name).then(|| value.to_owned()));
        let of = |name, value| all(name, value).map(|mut all| all.remove(0));
        let two = all("SUNDIAL_GPU", "soft:64m, soft:32m").unwrap();
        assert_eq!(two.iter().map(|gpu| gpu.vram_bytes).collect::<Vec<_>>(), [64 << 20, 32 << 20]);
        assert_eq!(two.iter().map(|gpu| gpu.pci).collect::<Vec<_>>(), [[0, 1, 0], [0, 2, 0]]);
        assert_eq!(two[0].uuid, Config::default().uuid);
        assert_ne!(two[0].uuid, two[1].uuid);
        assert_eq!(all("SUNDIAL_GPU", ["soft"; 16].join(",").leak()).unwrap().len(), 16);
        for wrong in ["soft:4g,", "", "soft,hard", ["soft"; 17].join(",").leak()] {
            assert!(all("SUNDIAL_GPU", wrong).is_err(), "{wrong}");
        }
        assert_eq!(of("SUNDIAL_VRAM", "64m").unwrap().vram_bytes, 64 << 20);
        assert_eq!(of("SUNDIAL_GPU", "soft:64m").unwrap().vram_bytes, 64 << 20);
        assert!(of("SUNDIAL_GPU", "cuda:0").is_err());
        assert_eq!(of("SUNDIAL_WORKERS", "3").unwrap().workers, 3);
        assert_eq!(of("SUNDIAL_ENGINE", "interpreter").unwrap().engine, EngineKind::Interpreter);
        let error = of("SUNDIAL_ENGINE", "steam").err().map(|error| error.to_string());
        assert_eq!(error.as_deref(), Some("SUNDIAL_ENGINE is \"steam\", not jit or interpreter"));
    }
}
