//! What a virtual machine with a virtual GPU is given: an archive with our library and what starts programs with it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;

use crate::run::{checked, say, target};

/// What stands in the archive beside the library, from `xtask/guest`.
const FILES: [&str; 2] = ["sundial-guest", "README.md"];

/// Packs `target/guest.tar` from the built product. The library is the very file that programs on the host are given.
///
/// # Errors
/// What is missing.
pub(crate) fn pack(root: &Path) -> Result<PathBuf> {
    let archive = target(root).join("guest.tar");
    say(&format!("packing {}", archive.display()));
    let mut tar = Command::new("tar");
    tar.arg("-cf").arg(&archive).args(["--owner=0", "--group=0", "--numeric-owner", "--transform=s,^,sundial/,"]);
    tar.arg("-C").arg(root.join("xtask/guest")).args(FILES);
    tar.arg("-C").arg(target(root).join("release/sundial-lib")).arg("libcuda.so.1");
    checked(&mut tar)?;
    Ok(fs::canonicalize(archive)?)
}
