//! Gives the crate a number for what compiled code depends on: its own sources, the IR's, and the libraries' versions.

use std::path::{Path, PathBuf};
use std::{env, fs, io};

fn main() -> io::Result<()> {
    let here = PathBuf::from(env::var("CARGO_MANIFEST_DIR").map_err(io::Error::other)?);
    let mut files = Vec::new();
    for sources in [here.join("src"), here.join("../ptx/src"), here.join("../texture/src")] {
        println!("cargo::rerun-if-changed={}", sources.display());
        collect(&sources, &mut files)?;
    }
    let lock = here.join("../../Cargo.lock");
    if lock.exists() {
        println!("cargo::rerun-if-changed={}", lock.display());
        files.push(lock);
    }
    files.sort();
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for file in files {
        for byte in fs::read(file)? {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
        }
    }
    println!("cargo::rustc-env=PTX_JIT_SOURCES={hash:016x}");
    Ok(())
}

/// All files in a folder and those in it.
fn collect(folder: &Path, files: &mut Vec<PathBuf>) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            collect(&path, files)?;
        } else {
            files.push(path);
        }
    }
    Ok(())
}
