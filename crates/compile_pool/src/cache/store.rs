//! The cache, as the control process keeps it: a directory.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use parking_lot::Mutex;
use rustix::fs::OFlags;
use transport::unix::{self, Received};

use super::shelf::{GET, MAX_ENTRY, PUT};
use super::{KEY_BYTES, Key};
use crate::protocol;

/// Files that were never finished go after so long: their writer is gone.
const ABANDONED: Duration = Duration::from_secs(3600);

/// A directory of images, bounded in bytes. Several daemons may share it.
#[derive(Debug)]
pub struct Store {
    directory: PathBuf,
    most_bytes: u64,
    /// What it holds, as far as this process knows; others may have added to it since it was counted.
    bytes: AtomicU64,
    /// Somebody sweeps. Nobody waits for that: it takes a second where files are many.
    sweeping: Mutex<()>,
}

impl Store {
    /// Opens the directory, or makes it.
    ///
    /// # Errors
    /// It cannot be made, is somebody else's, or others can write to it.
    pub fn open(directory: &Path, most_bytes: u64) -> io::Result<Store> {
        make_private(directory)?;
        let directory = directory.to_path_buf();
        let store = Store { directory, most_bytes, bytes: AtomicU64::new(0), sweeping: Mutex::new(()) };
        store.sweep()?;
        Ok(store)
    }

    /// Answers one shelf until the device process is gone.
    pub fn serve(&self, socket: &OwnedFd) {
        let mut message = [0; 1 + KEY_BYTES];
        loop {
            let Ok(Received { length, fds, fds_lost }) = unix::receive(socket, &mut message) else { return };
            let Some((&what, key)) = message[..length].split_first() else { return };
            let Ok(key) = <[u8; KEY_BYTES]>::try_from(key) else { return };
            let key = Key(key);
            match (what, fds.into_iter().next()) {
                (GET, None) => {
                    let found = self.get(&key);
                    let files: Vec<_> = found.iter().map(|file| file.as_fd()).collect();
                    // Whoever has waited for too long knows an answer that comes late by its key.
                    if unix::send(socket, &key.0, &files, false).is_err() {
                        return;
                    }
                }
                (PUT, Some(file)) => {
                    if let Err(error) = self.put(&key, file) {
                        tracing::debug!(%error, "cannot keep an image");
                    }
                }
                (PUT, None) if fds_lost => tracing::debug!("no descriptor for an image"),
                _ => return,
            }
        }
    }

    /// The file kept under `key`, which has now been used.
    #[must_use]
    pub fn get(&self, key: &Key) -> Option<File> {
        let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed();
        let file = OpenOptions::new().read(true).custom_flags(flags).open(self.path(key)).ok()?;
        let found = file.metadata().ok()?;
        if !found.is_file() || found.uid() != rustix::process::geteuid().as_raw() || found.mode() & 0o022 != 0 {
            return None;
        }
        // The order in which files go. A file system that does not take it forgets in the order of writing.
        let _ = file.set_modified(SystemTime::now());
        Some(file)
    }

    /// Keeps what `file` holds under `key`.
    ///
    /// # Errors
    /// What the file system says, or the file is too large.
    pub fn put(&self, key: &Key, file: impl AsFd) -> io::Result<()> {
        let length = protocol::size(file.as_fd())?;
        if length > (MAX_ENTRY + KEY_BYTES as u64).min(self.most_bytes) {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        let content = protocol::read_file(file, length)?;
        let path = self.path(key);
        let unfinished = path.with_extension(format!("{}-{:?}", std::process::id(), std::thread::current().id()));
        let done = self
            .create(&unfinished)
            .and_then(|mut file| file.write_all(&content))
            .and_then(|()| std::fs::rename(&unfinished, path));
        if done.is_err() {
            let _ = std::fs::remove_file(&unfinished);
        }
        done?;
        if self.bytes.fetch_add(length, Ordering::Relaxed).saturating_add(length) > self.most_bytes {
            self.sweep()?;
        }
        Ok(())
    }

    /// A new file. Somebody may have removed the directory: it is made again.
    fn create(&self, path: &Path) -> io::Result<File> {
        let create = || OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
        match create() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                make_private(&self.directory)?;
                self.bytes.store(0, Ordering::Relaxed);
                create()
            }
            other => other,
        }
    }

    fn path(&self, key: &Key) -> PathBuf {
        let name: String = key.0.iter().map(|byte| format!("{byte:02x}")).collect();
        self.directory.join(name + ".image")
    }

    /// Counts what is there; if it is too much, removes what was not used for longest, until there is some room again. Whoever sweeps
    /// already does it for all.
    fn sweep(&self) -> io::Result<()> {
        let Some(_sweeping) = self.sweeping.try_lock() else { return Ok(()) };
        // What is put from here on is counted beside what is found, and may be among it.
        self.bytes.store(0, Ordering::Relaxed);
        let mut files = Vec::new();
        let now = SystemTime::now();
        for entry in std::fs::read_dir(&self.directory)? {
            let path = entry?.path();
            // Gone meanwhile: another daemon sweeps, too.
            let Ok(found) = std::fs::symlink_metadata(&path) else { continue };
            let used = found.modified().unwrap_or(SystemTime::UNIX_EPOCH);
            let finished = path.extension().is_some_and(|extension| extension == "image");
            if finished {
                files.push((used, found.len(), path));
            } else if now.duration_since(used).is_ok_and(|age| age > ABANDONED) {
                let _ = std::fs::remove_file(path);
            }
        }
        let mut bytes: u64 = files.iter().map(|(_, length, _)| length).sum();
        if bytes > self.most_bytes {
            files.sort();
            for (_, length, path) in files {
                if bytes <= self.most_bytes / 4 * 3 {
                    break;
                }
                let _ = std::fs::remove_file(path);
                bytes -= length;
            }
        }
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        Ok(())
    }
}

/// Makes the directory if it is not there; an error if it is not this user's alone.
fn make_private(directory: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
    // Not followed: what is named must be the directory itself.
    let found = std::fs::symlink_metadata(directory)?;
    if !found.is_dir() || found.uid() != rustix::process::geteuid().as_raw() || found.mode() & 0o077 != 0 {
        let what = format!("{} is not a directory of this user alone", directory.display());
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, what));
    }
    Ok(())
}

#[cfg(test)]
mod tests;
