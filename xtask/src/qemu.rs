//! A QEMU that speaks vfio-user, and a Debian kernel with some programs for its guests: used by tests and the demonstration, never
//! shipped.
//!
//! All of it are Debian's packages, taken with this machine's apt from the archive that this machine's apt is set up with, into
//! a folder of their own: nothing is installed, and nobody needs to be root. QEMU runs with the libraries it came with.
//!
//! ```text
//! target/qemu/qemu-system-x86_64    starts QEMU
//! target/qemu/vmlinuz               the kernel of Debian's cloud images
//! target/qemu/initramfs.cpio        /init, busybox, lspci, the C and C++ libraries, uio_pci_generic; another archive
//!                                   with a script /run is to be put behind it
//! target/qemu/busybox               makes such archives: busybox cpio -o -H newc
//! ```

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use crate::apt::{Apt, LIBRARY_FOLDER, LOADER, launcher, write_program};
use crate::run::{checked, say, target};

/// What packages are taken from: the release with its kernel, and where a QEMU is that is new enough (10.1 or later).
const RELEASE: &str = "trixie";
const BACKPORTS: &str = "trixie-backports";
/// What is fetched, with all it depends on.
const PACKAGES: [&str; 4] = ["qemu-system-x86", "busybox-static", "pciutils", "libstdc++6"];
/// Depends on the kernel of the day.
const KERNEL: &str = "linux-image-cloud-amd64";
/// Modules for guests, in the order in which they are loaded.
const MODULES: [&str; 2] = ["uio", "uio_pci_generic"];
/// Programs for guests, beside busybox; and libraries that programs compiled elsewhere want.
const PROGRAMS: [&str; 1] = ["lspci"];
const LIBRARIES: [&str; 7] =
    ["libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1", "libgcc_s.so.1", "libstdc++.so.6"];
/// Where QEMU looks for firmware.
const FIRMWARE: &str = r#" \
    -L "$root/usr/share/qemu" -L "$root/usr/share/seabios" -L "$root/usr/lib/ipxe/qemu""#;
/// The first process of a guest.
const INIT: &str = include_str!("../guest/init");
/// Changes when what is made of the packages changes.
const LAYOUT: &str = "1";

/// Fetches what is not there yet, in `bound` at most. Returns the folder.
///
/// # Errors
/// What is missing: apt, an archive with the release, time.
pub(crate) fn fetch(root: &Path, bound: Duration) -> Result<PathBuf> {
    if let Some(home) = there(root) {
        return Ok(home);
    }
    let home = target(root).join("qemu");
    if home.exists() {
        fs::remove_dir_all(&home)?;
    }
    say(&format!("fetching QEMU and a kernel for its guests into {} (90 MB, once)", home.display()));
    let apt = Apt::new(&home.join("apt"), Instant::now() + bound, &[RELEASE, BACKPORTS])?;
    apt.download(&PACKAGES)?;
    checked(apt.command("apt-get", RELEASE).arg("download").arg(image(&apt)?))?;
    let packages = apt.packages()?;
    say(&format!("unpacking {} packages", packages.len()));
    let tree = home.join("root");
    for package in packages {
        checked(Command::new("dpkg-deb").arg("-x").arg(package).arg(&tree))?;
    }
    launcher(&home, "qemu-system-x86_64", FIRMWARE)?;
    kernel(&home)?;
    initramfs(&home)?;
    for unused in ["apt", "initramfs", "root/boot", "root/usr/lib/modules", "root/usr/share/doc", "root/usr/share/man"]
    {
        fs::remove_dir_all(home.join(unused)).with_context(|| format!("removing {unused}"))?;
    }
    checked(Command::new(home.join("qemu-system-x86_64")).arg("--version"))?;
    fs::write(home.join("complete"), wanted())?;
    Ok(home)
}

/// The folder, if all is there.
pub(crate) fn there(root: &Path) -> Option<PathBuf> {
    let home = target(root).join("qemu");
    fs::read_to_string(home.join("complete")).is_ok_and(|there| there == wanted()).then_some(home)
}

/// All that decides what is in the folder.
fn wanted() -> String {
    format!("{LAYOUT}\n{}\n{KERNEL}\n{INIT}", PACKAGES.join(" "))
}

/// Name of the package that [`KERNEL`] stands for.
fn image(apt: &Apt) -> Result<String> {
    let mut depends = apt.command("apt-cache", RELEASE);
    let output = depends.args(["depends", KERNEL]).stderr(Stdio::inherit()).output()?;
    let said = String::from_utf8_lossy(&output.stdout);
    let mut names = said.lines().filter_map(|line| line.trim().strip_prefix("Depends: "));
    let name = names.find(|name| name.starts_with("linux-image-"));
    Ok(name.with_context(|| format!("{KERNEL} stands for no kernel:\n{said}"))?.to_owned())
}

/// The kernel, and busybox, under names without versions.
fn kernel(home: &Path) -> Result<()> {
    let image = only(&home.join("root/boot"), "vmlinuz-")?;
    fs::copy(image, home.join("vmlinuz"))?;
    fs::copy(home.join("root/usr/bin/busybox"), home.join("busybox"))?;
    Ok(())
}

/// The archive that every guest begins with.
fn initramfs(home: &Path) -> Result<()> {
    let tree = home.join("initramfs");
    let modules = tree.join("modules");
    for folder in ["bin", "lib64", "modules", LIBRARY_FOLDER] {
        fs::create_dir_all(tree.join(folder))?;
    }
    write_program(&tree.join("init"), INIT)?;
    fs::write(modules.join("order"), MODULES.join("\n") + "\n")?;
    let drivers = only(&home.join("root/usr/lib/modules"), "")?.join("kernel/drivers/uio");
    for name in MODULES {
        let out = fs::File::create(modules.join(format!("{name}.ko")))?;
        let packed = drivers.join(format!("{name}.ko.xz"));
        checked(Command::new(home.join("busybox")).arg("xzcat").arg(packed).stdout(out))?;
    }
    fs::copy(home.join("busybox"), tree.join("bin/busybox"))?;
    fs::copy(home.join("root/usr").join(LOADER), tree.join(LOADER))?;
    let mut libraries: Vec<PathBuf> =
        LIBRARIES.iter().map(|name| home.join("root").join(LIBRARY_FOLDER).join(name)).collect();
    for name in PROGRAMS {
        let program = home.join("root/usr/bin").join(name);
        libraries.extend(needed(home, &program)?);
        fs::copy(program, tree.join("bin").join(name))?;
    }
    for library in libraries {
        let name = library.file_name().context("a library's name")?;
        fs::copy(&library, tree.join(LIBRARY_FOLDER).join(name)).with_context(|| format!("{}", library.display()))?;
    }
    archive(home, &tree, &home.join("initramfs.cpio"))
}

/// The libraries that a program of the packages is linked with.
fn needed(home: &Path, program: &Path) -> Result<Vec<PathBuf>> {
    let root = home.join("root");
    let mut list = Command::new(root.join("usr").join(LOADER));
    list.arg("--library-path").arg(root.join(LIBRARY_FOLDER)).arg("--list").arg(program);
    let said = String::from_utf8(list.output()?.stdout)?;
    let paths = said.lines().filter_map(|line| line.split_once("=> ")?.1.split(' ').next().map(PathBuf::from));
    Ok(paths.filter(|path| path.starts_with(&root)).collect())
}

/// Puts a folder's contents into an archive that the kernel unpacks.
fn archive(home: &Path, tree: &Path, archive: &Path) -> Result<()> {
    let mut find = Command::new("find").arg(".").current_dir(tree).stdout(Stdio::piped()).spawn()?;
    let names = find.stdout.take().context("a pipe")?;
    let mut cpio = Command::new(home.join("busybox"));
    cpio.args(["cpio", "-o", "-H", "newc", "-R", "0:0"]).current_dir(tree);
    checked(cpio.stdin(names).stdout(fs::File::create(archive)?))?;
    ensure!(find.wait()?.success(), "find failed in {}", tree.display());
    Ok(())
}

/// The one entry of a folder whose name begins so.
fn only(folder: &Path, prefix: &str) -> Result<PathBuf> {
    let entries = fs::read_dir(folder)?.collect::<Result<Vec<_>, _>>()?;
    let mut found = entries.iter().filter(|entry| entry.file_name().to_string_lossy().starts_with(prefix));
    match (found.next(), found.next()) {
        (Some(entry), None) => Ok(entry.path()),
        _ => bail!("{} should hold one {prefix}*", folder.display()),
    }
}
