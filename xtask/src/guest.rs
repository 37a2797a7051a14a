//! What a virtual machine with a virtual GPU is given: an archive with our library and what starts programs with it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;

use crate::run::{checked, say, target};

/// What stands in the archive beside the library, from `xtask/guest`.
const FILES: [&str; 2] = ["sundial-guest", "README.md"];

/// What programs find there: the very files that those on the host are given.
const LIBRARIES: [&str; 2] = ["libcuda.so.1", "libnvidia-ml.so.1"];

/// Packs `target/guest.tar` from the built product.
///
/// # Errors
/// What is missing.
pub(crate) fn pack(root: &Path) -> Result<PathBuf> {
    let archive = target(root).join("guest.tar");
    say(&format!("packing {}", archive.display()));
    let mut tar = Command::new("tar");
    tar.arg("-cf").arg(&archive).args(["--owner=0", "--group=0", "--numeric-owner", "--transform=s,^,sundial/,"]);
    tar.arg("-C").arg(root.join("xtask/guest")).args(FILES);
    tar.arg("-C").arg(target(root).join("release/sundial-lib")).args(LIBRARIES);
    checked(&mut tar)?;
    Ok(fs::canonicalize(archive)?)
}
