//! The runtime directory: sockets, locks, the log of a daemon that `run` started.

use std::fs::{DirBuilder, File, OpenOptions};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use rustix::fs::FlockOperation;
use wire::place::{ADMIN_SOCKET, SESSION_SOCKET, runtime_directory};

/// Lets this process open as many files as it may: each session has several.
pub(crate) fn allow_many_files() -> Result<()> {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }).context("cannot raise the limit of open files")
}

/// The directory, checked: ours alone, whoever may have made it before us.
#[derive(Clone, Debug)]
pub(crate) struct RuntimeDirectory {
    path: PathBuf,
    /// It is that of the machine's daemon, for all users.
    is_systems: bool,
}

/// Where the daemon is that serves all users of this machine.
fn of_system() -> PathBuf {
    let named = std::env::var_os("SUNDIAL_SYSTEM_DIR").filter(|value| !value.is_empty());
    named.map_or_else(|| PathBuf::from("/run/sundial"), PathBuf::from)
}

impl RuntimeDirectory {
    /// Makes the directory if needed, and checks that nobody else can write to it.
    pub(crate) fn open() -> Result<RuntimeDirectory> {
        let uid = rustix::process::getuid().as_raw();
        RuntimeDirectory::at(runtime_directory(|name| std::env::var_os(name), uid), uid)
    }

    /// That of the machine's daemon, for the daemon itself.
    pub(crate) fn of_system() -> Result<RuntimeDirectory> {
        let uid = rustix::process::getuid().as_raw();
        let made = RuntimeDirectory::made(of_system(), uid, 0o755)?;
        // Whatever mask this was started with: others find the sockets there.
        std::fs::set_permissions(&made.path, std::fs::Permissions::from_mode(0o755))
            .with_context(|| format!("cannot let others look into {}", made.path.display()))?;
        Ok(RuntimeDirectory { is_systems: true, ..made })
    }

    /// That of the daemon to ask: the machine's if there is one and this user may ask it, unless another is named; else the user's own.
    pub(crate) fn find() -> Result<RuntimeDirectory> {
        let named = std::env::var_os(wire::place::DIRECTORY_VARIABLE).is_some_and(|value| !value.is_empty());
        let systems = RuntimeDirectory { path: of_system(), is_systems: true };
        // To connect is to be let in: what was left there by a daemon that is gone is not asked.
        if !named && transport::unix::connect(&systems.admin_socket()).is_ok() {
            return Ok(systems);
        }
        RuntimeDirectory::open()
    }

    /// Whether it is that of the machine's daemon.
    pub(crate) fn is_systems(&self) -> bool {
        self.is_systems
    }

    /// A directory; it is made if need be.
    pub(crate) fn at(directory: PathBuf, uid: u32) -> Result<RuntimeDirectory> {
        RuntimeDirectory::made(directory, uid, 0o700)
    }

    fn made(directory: PathBuf, uid: u32, mode: u32) -> Result<RuntimeDirectory> {
        let shown = directory.display();
        DirBuilder::new()
            .recursive(true)
            .mode(mode)
            .create(&directory)
            .with_context(|| format!("cannot make the runtime directory {shown}"))?;
        // Not followed: in /tmp somebody may have left a link to a directory of ours.
        let found = std::fs::symlink_metadata(&directory).with_context(|| format!("cannot look at {shown}"))?;
        if !found.is_dir() || found.uid() != uid {
            bail!(
                "the runtime directory {shown} is not a directory of this user; set SUNDIAL_RUNTIME_DIR to one that is"
            );
        }
        if found.mode() & 0o022 != 0 {
            bail!("others can write to the runtime directory {shown}; make it private with: chmod 700 {shown}");
        }
        Ok(RuntimeDirectory { path: directory, is_systems: false })
    }

    pub(crate) fn session_socket(&self) -> PathBuf {
        self.path.join(SESSION_SOCKET)
    }

    pub(crate) fn admin_socket(&self) -> PathBuf {
        self.path.join(ADMIN_SOCKET)
    }

    /// Where the guests of a virtual GPU connect.
    pub(crate) fn vgpu_socket(&self, name: &str) -> PathBuf {
        self.path.join(format!("vgpu-{name}.sock"))
    }

    pub(crate) fn log_path(&self) -> PathBuf {
        self.path.join("daemon.log")
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The daemon's log, for appending; begun anew when it has become long.
    pub(crate) fn open_log(&self) -> Result<File> {
        let path = self.log_path();
        let long = std::fs::metadata(&path).is_ok_and(|found| found.len() > 1 << 20);
        OpenOptions::new()
            .create(true)
            .append(!long)
            .write(true)
            .truncate(long)
            .mode(0o600)
            .open(&path)
            .with_context(|| format!("cannot open {}", path.display()))
    }

    /// Held while a daemon runs. `None`: one does.
    pub(crate) fn lock_daemon(&self) -> Result<Option<File>> {
        self.lock("daemon.lock", false)
    }

    /// Held while a daemon is looked for, started, or ends. `None`: somebody holds it, and `wait` is false.
    pub(crate) fn lock_start(&self, wait: bool) -> Result<Option<File>> {
        self.lock("start.lock", wait)
    }

    fn lock(&self, name: &str, wait: bool) -> Result<Option<File>> {
        let path = self.path.join(name);
        let file = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .mode(0o600)
            .open(&path)
            .with_context(|| format!("cannot open {}", path.display()))?;
        let how = if wait { FlockOperation::LockExclusive } else { FlockOperation::NonBlockingLockExclusive };
        match rustix::fs::flock(&file, how) {
            Ok(()) => Ok(Some(file)),
            Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
            Err(error) => Err(error).with_context(|| format!("cannot lock {}", path.display())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_private_directories_will_do() {
        let base = std::env::temp_dir().join(format!("sundial-place-{}", std::process::id()));
        let uid = rustix::process::getuid().as_raw();
        let directory = RuntimeDirectory::at(base.join("run"), uid).unwrap();
        assert!(directory.lock_daemon().unwrap().is_some());
        let held = directory.lock_start(false).unwrap();
        assert!(held.is_some() && directory.lock_start(false).unwrap().is_none());

        let open = base.join("open");
        std::fs::create_dir(&open).unwrap();
        std::fs::set_permissions(&open, std::fs::Permissions::from_mode(0o777)).unwrap();
        assert!(RuntimeDirectory::at(open, uid).is_err());
        std::os::unix::fs::symlink(base.join("run"), base.join("link")).unwrap();
        assert!(RuntimeDirectory::at(base.join("link"), uid).is_err());
        assert!(RuntimeDirectory::at(base.join("run"), uid + 1).is_err());
        std::fs::remove_dir_all(base).unwrap();
    }
}
