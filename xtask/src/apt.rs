//! Packages of Debian in a folder of their own: taken with this machine's apt from the archive that it is set up with. Nothing is installed,
//! and nobody needs to be root. Their programs run with the libraries they came with.

use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};

use crate::run::{checked, say};

/// Where the packages have their libraries; and, below `usr`, the loader that programs name.
pub(crate) const LIBRARY_FOLDER: &str = "usr/lib/x86_64-linux-gnu";
pub(crate) const LOADER: &str = "lib64/ld-linux-x86-64.so.2";

/// apt with lists, sources and a status of its own, in which nothing is installed.
pub(crate) struct Apt {
    folder: PathBuf,
    until: Instant,
    suites: &'static [&'static str],
}

impl Apt {
    /// For packages of these suites, the last of which comes first, in such a folder, within such a time.
    ///
    /// # Errors
    /// What is missing: apt, an archive with the suites, time.
    pub(crate) fn new(folder: &Path, until: Instant, suites: &'static [&'static str]) -> Result<Apt> {
        for program in ["apt-get", "dpkg-deb"] {
            let there = Command::new(program).arg("--version").stdout(Stdio::null()).status();
            ensure!(there.is_ok_and(|status| status.success()), "{program} is not there: this needs a Debian machine");
        }
        for part in ["lists/partial", "archives/partial"] {
            fs::create_dir_all(folder.join(part))?;
        }
        let apt = Apt { folder: folder.to_owned(), until, suites };
        fs::write(folder.join("status"), "")?;
        fs::write(folder.join("apt.conf"), apt.settings())?;
        apt.update()?;
        Ok(apt)
    }

    /// What differs from the machine's own settings; how the archive is reached, and whom it is trusted from, does not.
    fn settings(&self) -> String {
        let (folder, release) = (self.folder.display(), self.first());
        format!(
            r#"Dir::State "{folder}";
Dir::State::status "{folder}/status";
Dir::State::lists "{folder}/lists";
Dir::Cache "{folder}";
Dir::Cache::archives "{folder}/archives";
Dir::Etc::sourcelist "{folder}/sources.list";
Dir::Etc::sourceparts "/dev/null";
Dir::Etc::preferences "/dev/null";
Dir::Etc::preferencesparts "/dev/null";
APT::Architecture "amd64";
#clear APT::Architectures;
APT::Architectures {{ "amd64"; }};
APT::Default-Release "{release}";
APT::Install-Recommends "false";
APT::Sandbox::User "root";
APT::Update::Error-Mode "any";
Acquire::Languages "none";
Acquire::Retries "1";
Acquire::http::Timeout "20";
Acquire::https::Timeout "20";
#clear Acquire::IndexTargets::deb::DEP-11;
#clear APT::Update::Pre-Invoke;
#clear APT::Update::Post-Invoke;
#clear APT::Update::Post-Invoke-Success;
#clear DPkg::Post-Invoke;
"#
        )
    }

    /// One of apt's programs with these settings, ended when the time is over.
    pub(crate) fn command(&self, program: &str, release: &str) -> Command {
        let left = self.until.saturating_duration_since(Instant::now()).as_secs().max(1);
        let mut command = Command::new("timeout");
        command.arg(left.to_string()).arg(program).arg("-c").arg(self.folder.join("apt.conf"));
        command.args(["-q", "-o", "APT::Get::Assume-Yes=true", "-o", &format!("APT::Default-Release={release}")]);
        command.current_dir(self.folder.join("archives"));
        command
    }

    fn first(&self) -> &'static str {
        self.suites.last().copied().unwrap_or_default()
    }

    /// Reads the lists of the first archive known to this machine that has all suites.
    fn update(&self) -> Result<()> {
        let suites = self.suites.join(" and ");
        let archives = archives()?;
        ensure!(!archives.is_empty(), "apt knows no archive on this machine");
        for archive in &archives {
            say(&format!("looking for {suites} in {archive}"));
            fs::write(self.folder.join("sources.list"), sources(archive, self.suites)?)?;
            if checked(self.command("apt-get", self.first()).arg("update")).is_ok() {
                return Ok(());
            }
        }
        bail!("no archive that apt knows on this machine can be reached and has {suites}")
    }

    /// Downloads packages with all they depend on.
    pub(crate) fn download(&self, packages: &[&str]) -> Result<()> {
        checked(self.command("apt-get", self.first()).args(["install", "--download-only"]).args(packages))
    }

    /// What was downloaded, as files; apt has checked them.
    pub(crate) fn packages(&self) -> Result<Vec<PathBuf>> {
        let files = fs::read_dir(self.folder.join("archives"))?.collect::<Result<Vec<_>, _>>()?;
        let files = files.iter().map(fs::DirEntry::path);
        Ok(files.filter(|path| path.extension().is_some_and(|extension| extension == "deb")).collect())
    }
}

/// Addresses of the archives that this machine's apt is set up with, each once.
fn archives() -> Result<Vec<String>> {
    let mut command = Command::new("apt-get");
    command.args(["indextargets", "--format", "$(REPO_URI)", "Created-By: Packages"]);
    let output = command.output().context("cannot start apt-get")?;
    let mut archives = Vec::<String>::new();
    for line in String::from_utf8_lossy(&output.stdout).lines() {
        if !archives.iter().any(|there| there == line) {
            archives.push(line.to_owned());
        }
    }
    Ok(archives)
}

/// A sources.list. Debian's own key, where it has a place of its own; else any that apt trusts.
fn sources(archive: &str, suites: &[&str]) -> Result<String> {
    const KEY: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";
    let signed = if Path::new(KEY).exists() { format!("[signed-by={KEY}] ") } else { String::new() };
    let mut list = String::new();
    for suite in suites {
        writeln!(list, "deb {signed}{archive} {suite} main")?;
    }
    Ok(list)
}

/// Writes a script `home/PROGRAM` that starts the program of the packages in `home/root` with the libraries they came with, and those
/// that its user names where the packages have none, wherever the folder is.
///
/// # Errors
/// The file cannot be written.
pub(crate) fn launcher(home: &Path, program: &str, arguments: &str) -> Result<()> {
    let script = format!(
        r#"#!/bin/sh
root=$(dirname "$(realpath "$0")")/root
exec "$root/usr/{LOADER}" --library-path "$root/{LIBRARY_FOLDER}${{LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}}" "$root/usr/bin/{program}"{arguments} "$@"
"#
    );
    write_program(&home.join(program), &script)
}

/// Writes a script that can be started.
///
/// # Errors
/// The file cannot be written.
pub(crate) fn write_program(path: &Path, script: &str) -> Result<()> {
    fs::write(path, script)?;
    Ok(fs::set_permissions(path, PermissionsExt::from_mode(0o755))?)
}
