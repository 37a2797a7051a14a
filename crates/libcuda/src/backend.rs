//! The GPU behind the library. The environment chooses; the library is the same everywhere, in a guest too:
//!
//! - `SUNDIAL_VGPU`: a virtual GPU, with its driver in this process. `unix:<path>`: over the vfio-user socket at that path.
//!   `pci`: the first one on this machine's PCI bus; `pci:<address>`: the one there, as `pci:0000:00:04.0`.
//! - else `SUNDIAL_NATIVE=1`: the software GPU in this process, with its driver.
//! - else: a session with the daemon.
//!
//! The daemon's address and the tenant's credential are the session's affair (`remote_gpu`: `SUNDIAL_SOCKET`,
//! `SUNDIAL_CREDENTIAL`). The native GPU is shaped by `SUNDIAL_GPU` (`soft:<memory>`, as the daemon's), `SUNDIAL_VRAM` (bytes,
//! or with k, m, g behind), `SUNDIAL_WORKERS` (threads) and `SUNDIAL_ENGINE` (`jit` or `interpreter`).

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use gpu::Gpu;
use gpu_driver::{ClientConfig, Driver, HostCost, StartError};
use pci_gpu::{OpenError, SysfsGpu, VfioUserGpu};
use remote_gpu::{ConnectError, RemoteGpu};
use softgpu::{Config, EngineKind, SoftGpu};

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

/// An open GPU.
pub(crate) struct Backend {
    pub(crate) gpu: Arc<dyn Gpu>,
    /// Where the daemon wants to see what it is spared.
    pub(crate) spared: Option<Spared>,
}

/// Counts calls that the daemon did not hear of.
#[derive(Clone, Debug)]
pub(crate) struct Spared(Arc<RemoteGpu>);

impl Spared {
    /// Messages to the daemon so far.
    pub(crate) fn messages(&self) -> u64 {
        self.0.calls_remote().load(Ordering::Relaxed)
    }

    /// The count of calls answered without a message.
    pub(crate) fn local(&self) -> &AtomicU64 {
        self.0.calls_local()
    }

    /// The count of the others.
    pub(crate) fn sent(&self) -> &AtomicU64 {
        self.0.calls_sent()
    }
}

/// Opens the GPU that the environment asks for.
pub(crate) fn open() -> Result<Backend, BackendError> {
    let variable = |name: &str| std::env::var(name).ok();
    if let Some(value) = std::env::var_os("SUNDIAL_VGPU").filter(|value| !value.is_empty()) {
        return drive(&match vgpu(value)? {
            Vgpu::Socket(path) => Driver::start(Arc::new(VfioUserGpu::connect(&path)?))?,
            Vgpu::Pci(address) => Driver::start(Arc::new(SysfsGpu::open(address.as_deref())?))?,
        });
    }
    if variable("SUNDIAL_NATIVE").is_some_and(|value| value != "0") {
        return drive(&Driver::start(SoftGpu::new(&config(variable)?)?)?);
    }
    let session = remote_gpu::connect(None)?;
    Ok(Backend { gpu: Arc::<RemoteGpu>::clone(&session), spared: Some(Spared(session)) })
}

/// The only client of a driver in this process.
fn drive(driver: &Arc<Driver>) -> Result<Backend, BackendError> {
    // The process is the program's: it may use up what the host gives, but for what the engine needs.
    let budget = driver.budget(HostCost { bytes: u64::MAX, maps: 49_152, files: 512 }).ok();
    let client = driver.open(ClientConfig { name: "native".to_owned(), budget, ..ClientConfig::default() })?;
    Ok(Backend { gpu: client, spared: None })
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

/// The native GPU's shape.
fn config(variable: impl Fn(&str) -> Option<String>) -> Result<Config, BackendError> {
    let mut config = Config::default();
    let wrong = |variable, value, wanted| BackendError::Variable { variable, value, wanted };
    if let Some(value) = variable("SUNDIAL_GPU") {
        let memory = value.strip_prefix("soft:").and_then(size);
        config.vram_bytes = match memory {
            Some(bytes) => bytes,
            None if value == "soft" => config.vram_bytes,
            None => return Err(wrong("SUNDIAL_GPU", value, "soft:<memory>, as soft:4g")),
        };
    }
    if let Some(value) = variable("SUNDIAL_VRAM") {
        let wanted = "a size such as 536870912, 512m or 4g";
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
    Ok(config)
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
    fn the_environment_shapes_the_native_gpu() {
        let of =
            |name: &'static str, value: &'static str| config(move |asked| (asked == name).then(|| value.to_owned()));
        assert_eq!(of("SUNDIAL_VRAM", "64m").unwrap().vram_bytes, 64 << 20);
        assert_eq!(of("SUNDIAL_GPU", "soft:64m").unwrap().vram_bytes, 64 << 20);
        assert!(of("SUNDIAL_GPU", "cuda:0").is_err());
        assert_eq!(of("SUNDIAL_WORKERS", "3").unwrap().workers, 3);
        assert_eq!(of("SUNDIAL_ENGINE", "interpreter").unwrap().engine, EngineKind::Interpreter);
        let error = of("SUNDIAL_ENGINE", "steam").err().map(|error| error.to_string());
        assert_eq!(error.as_deref(), Some("SUNDIAL_ENGINE is \"steam\", not jit or interpreter"));
    }
}
