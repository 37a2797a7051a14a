//! A socket with a name, where clients come.

use std::fs::{File, Metadata};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use rustix::fs::FlockOperation;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

/// Clients that may wait to be accepted. A vGPU has one client.
const BACKLOG: i32 = 8;

/// A named socket, removed when this goes.
#[derive(Debug)]
pub struct Listener {
    socket: UnixListener,
    path: PathBuf,
    /// Device and inode of the socket's name: what to remove.
    name: (u64, u64),
}

impl Listener {
    /// Listens at `path` with file mode `mode`. A socket that a dead server left there is replaced; a living server's is not,
    /// nor is anything that is no socket.
    ///
    /// # Errors
    /// `AddrInUse` if somebody listens there; `AlreadyExists` if something else is there; else what the operating system says.
    pub fn bind(path: &Path, mode: u32) -> io::Result<Listener> {
        // Two servers that find the same dead socket would both remove it, the later one the other's new one.
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let folder = File::open(folder)?;
        rustix::fs::flock(&folder, FlockOperation::LockExclusive)?;
        if let Some(there) = there(path)? {
            remove_dead(path, &there)?;
        }
        let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        rustix::net::bind(&socket, &SocketAddrUnix::new(path)?)?;
        // Nobody can connect before `listen`, so nobody does with another mode.
        std::fs::set_permissions(path, PermissionsExt::from_mode(mode))?;
        let there = std::fs::symlink_metadata(path)?;
        rustix::net::listen(&socket, BACKLOG)?;
        Ok(Listener { socket: socket.into(), path: path.to_owned(), name: (there.dev(), there.ino()) })
    }

    /// Waits for a client.
    ///
    /// # Errors
    /// What the operating system says.
    pub fn accept(&self) -> io::Result<UnixStream> {
        loop {
            match self.socket.accept() {
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                other => return Ok(other?.0),
            }
        }
    }

    /// Where it listens.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        // Another server may have taken the name, once this one looked dead.
        if there(&self.path).is_ok_and(|there| there.is_some_and(|there| (there.dev(), there.ino()) == self.name)) {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

fn there(path: &Path) -> io::Result<Option<Metadata>> {
    match std::fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        other => other.map(Some),
    }
}

fn remove_dead(path: &Path, there: &Metadata) -> io::Result<()> {
    if !there.file_type().is_socket() {
        return Err(io::Error::new(io::ErrorKind::AlreadyExists, "there is something that is no socket"));
    }
    match UnixStream::connect(path) {
        Ok(_) => Err(io::Error::new(io::ErrorKind::AddrInUse, "another server listens there")),
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => std::fs::remove_file(path),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("vfio-user-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        folder
    }

    #[test]
    fn a_dead_socket_is_replaced_and_a_living_one_is_not() {
        let folder = folder("listener");
        let path = folder.join("x.sock");
        drop(UnixListener::bind(&path).unwrap());
        assert!(path.exists(), "std leaves the name behind");
        let first = Listener::bind(&path, 0o600).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        assert_eq!(Listener::bind(&path, 0o600).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        // What looked at it has connected and left: that is one client that says nothing.
        drop(first.accept().unwrap());
        let client = UnixStream::connect(&path).unwrap();
        first.accept().unwrap();
        drop((client, first));
        assert!(!path.exists());
        std::fs::write(&path, "data").unwrap();
        assert_eq!(Listener::bind(&path, 0o600).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn only_its_own_name_is_removed() {
        let folder = folder("names");
        let path = folder.join("x.sock");
        let old = Listener::bind(&path, 0o600).unwrap();
        std::fs::remove_file(&path).unwrap();
        let new = Listener::bind(&path, 0o600).unwrap();
        drop(old);
        assert!(path.exists());
        drop(new);
        std::fs::remove_dir_all(folder).unwrap();
    }
}
