//! `sundial run --check`: a program whose kernels are checked.
//!
//! The program has a software GPU of its own, in its process, whose interpreter tells a checker of every access; what is found
//! goes to standard error where it happens, and to a file. This process waits for the program, reads that file, and says how many errors
//! there were.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Seek};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};

use anyhow::{Context, Result, ensure};
use clap::ValueEnum;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
use signal_hook::iterator::Signals;

/// What can be checked.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum Check {
    /// Accesses to memory that is not allocated, is freed, or is not aligned; outside of shared and local memory.
    Memory,
    /// Reads of device memory that nobody has written.
    Init,
    /// Hazards in shared memory: two threads, a write, and no barrier between.
    Race,
}

impl Check {
    fn name(self) -> &'static str {
        match self {
            Check::Memory => "memory",
            Check::Init => "init",
            Check::Race => "race",
        }
    }
}

/// What `run` is asked about checks.
#[derive(Debug, Default, clap::Args)]
pub(crate) struct Checking {
    /// Check what kernels do: memory (accesses lie in allocations), init (what is read was written), race (hazards in shared memory);
    /// several with commas, or again. The program has a software GPU of its own for that, not the daemon's, and is slower.
    #[arg(long, value_delimiter = ',', value_name = "CHECK", conflicts_with_all = ["mem", "host_mem", "share", "priority", "on_full", "profile", "name", "gpus", "vgpu"])]
    check: Vec<Check>,
    /// What the checks find, as a line of JSON for each event, into this file.
    #[arg(long, value_name = "FILE", requires = "check")]
    check_json: Option<PathBuf>,
    /// The exit code, if the checks find something and the program itself succeeds.
    #[arg(long, value_name = "CODE", requires = "check", default_value_t = 0)]
    check_exit_code: u8,
}

impl Checking {
    /// Whether anything is to be checked.
    pub(crate) fn is_some(&self) -> bool {
        !self.check.is_empty()
    }
}

/// What was found, of all processes of a program.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Found {
    /// Processes that have used the GPU.
    processes: u64,
    /// Errors, and places of kernels where they were made.
    errors: u64,
    places: u64,
}

impl Found {
    /// A process that has told of nothing.
    const PROCESS: Found = Found { processes: 1, errors: 0, places: 0 };

    /// What the file of events says. A process that was killed has told of places only; what the program has written there is nothing.
    fn read(mut file: &File) -> io::Result<Found> {
        let mut found = Found::default();
        // Those that have begun and not ended yet.
        let mut told: HashMap<u64, Found> = HashMap::new();
        file.rewind()?;
        for line in BufReader::new(file).split(b'\n') {
            let Ok(line) = serde_json::from_slice::<Value>(&line?) else { continue };
            let Some(process) = line["process"].as_u64() else { continue };
            match line["event"].as_str() {
                // Its number may have been another's, or another program's in the same process.
                Some("start") => found.add(told.insert(process, Found::PROCESS)),
                Some("error") => {
                    let of = told.entry(process).or_insert(Found::PROCESS);
                    of.errors += 1;
                    of.places += 1;
                }
                Some("end") => {
                    let mut of = told.remove(&process).unwrap_or(Found::PROCESS);
                    of.errors = line["errors"].as_u64().unwrap_or(of.errors);
                    of.places = line["places"].as_u64().unwrap_or(of.places);
                    found.add(Some(of));
                }
                _ => {}
            }
        }
        told.into_values().for_each(|of| found.add(Some(of)));
        Ok(found)
    }

    fn add(&mut self, of: Option<Found>) {
        let Some(of) = of else { return };
        self.processes += of.processes;
        self.errors = self.errors.saturating_add(of.errors);
        self.places = self.places.saturating_add(of.places);
    }

    /// In a line.
    fn says(&self) -> String {
        let count = |number: u64, what: &str| format!("{number} {what}{}", if number == 1 { "" } else { "s" });
        match (self.processes, self.errors) {
            (0, _) => "nothing was checked: the program has not used the GPU".to_owned(),
            (_, 0) => "no errors".to_owned(),
            _ => format!("{}, at {} in kernels", count(self.errors, "error"), count(self.places, "place")),
        }
    }
}

/// Runs a program checked, and ends as it does.
///
/// # Errors
/// There is no place for the file of events, or it cannot be read.
pub(crate) fn run(mut command: Command, wish: &Checking) -> Result<()> {
    let names: Vec<&str> = wish.check.iter().map(|check| check.name()).collect();
    let (events, path) = match &wish.check_json {
        Some(path) => {
            let path = std::path::absolute(path).context("which file?")?;
            (file_at(&path).with_context(|| format!("cannot write {}", path.display()))?, path)
        }
        None => temporary_file().context("cannot make a file in the folder of temporary ones")?,
    };
    let temporary = wish.check_json.is_none().then(|| Removed(path.clone()));
    command.env("SUNDIAL_NATIVE", "1").env("SUNDIAL_CHECK", names.join(",")).env("SUNDIAL_CHECK_LOG", &path);
    eprintln!("sundial: checking {}, on a software GPU of the program's own", names.join(", "));
    // What a terminal sends, it sends to both; the program decides what comes of it.
    let signals = Signals::new([SIGINT, SIGQUIT, SIGTERM, SIGHUP])?;
    let child = match command.spawn() {
        Ok(child) => child,
        Err(error) => {
            drop(temporary);
            crate::run::cannot_run(&command, &error);
        }
    };
    let status = wait(child, signals)?;
    // The file that was made, whatever the program has put in its place.
    let found = Found::read(&events).with_context(|| format!("cannot read {}", path.display()))?;
    drop(temporary);
    eprintln!("sundial: check summary: {}", found.says());
    std::process::exit(match code(status) {
        0 if found.errors > 0 => wish.check_exit_code.into(),
        code => code,
    });
}

/// Opens an ordinary file, and empties it: from others nothing can be read again.
fn file_at(path: &Path) -> Result<File> {
    let file = OpenOptions::new().read(true).write(true).create(true).truncate(true).open(path)?;
    ensure!(file.metadata()?.is_file(), "it is no ordinary file");
    Ok(file)
}

/// Makes an empty file that was not there: whatever others have put into that folder, nothing of theirs is written. It is this user's
/// alone: what it says of a program concerns nobody else.
fn temporary_file() -> io::Result<(File, PathBuf)> {
    for number in 0.. {
        let path = std::env::temp_dir().join(format!("sundial-check-{}-{number}", std::process::id()));
        match OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(&path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            made => return made.map(|file| (file, path)),
        }
    }
    Err(io::ErrorKind::AlreadyExists.into())
}

/// A file that goes with the value.
struct Removed(PathBuf);

impl Drop for Removed {
    fn drop(&mut self) {
        // In a folder that is swept anyway.
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Waits for the program; what ends programs is handed on to it.
fn wait(mut child: Child, mut signals: Signals) -> Result<ExitStatus> {
    let program = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    let handle = signals.handle();
    let forwarding = std::thread::spawn(move || {
        for signal in signals.forever() {
            let signal = match signal {
                SIGTERM => Signal::TERM,
                SIGHUP => Signal::HUP,
                _ => continue,
            };
            // It may have ended by itself.
            let _ = program.map(|program| kill_process(program, signal));
        }
    });
    let status = child.wait().context("cannot wait for the program");
    handle.close();
    let _ = forwarding.join();
    status
}

/// As shells say it.
fn code(status: ExitStatus) -> i32 {
    status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_temporary_file_is_nobody_elses() {
        let [first, second] = [(); 2].map(|()| temporary_file().unwrap());
        let _ours = [&first, &second].map(|(_, path)| Removed(path.clone()));
        std::fs::write(&first.1, "theirs").unwrap();
        assert_ne!(first.1, second.1);
        assert_eq!(std::fs::read(&first.1).unwrap(), b"theirs");
        assert_eq!(std::fs::read(&second.1).unwrap(), b"");
        assert_eq!(first.0.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn what_the_program_puts_in_the_files_place_is_not_read() {
        let (file, path) = temporary_file().unwrap();
        std::fs::write(&path, "{\"event\":\"error\",\"process\":1}\n").unwrap();
        std::fs::remove_file(&path).unwrap();
        // Opening one to read waits for whoever writes.
        let pipe = Removed(path);
        rustix::fs::mkfifoat(rustix::fs::CWD, &pipe.0, rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR).unwrap();
        assert_eq!(Found::read(&file).unwrap().errors, 1);
        assert!(file_at(&pipe.0).unwrap_err().to_string().contains("no ordinary file"));
    }

    #[test]
    fn the_summary_is_of_all_processes() {
        let (file, path) = temporary_file().unwrap();
        let ours = Removed(path);
        let says = |text: &[u8]| {
            std::fs::write(&ours.0, text).unwrap();
            Found::read(&file).unwrap().says()
        };
        assert_eq!(says(b""), "nothing was checked: the program has not used the GPU");
        let start = r#"{"event":"start","process":1}"#;
        assert_eq!(says(format!("{start}\n").as_bytes()), "no errors");
        let error = r#"{"event":"error","process":1,"error":{}}"#;
        assert_eq!(says(format!("{start}\n{error}\n").as_bytes()), "1 error, at 1 place in kernels", "it was killed");
        let end = r#"{"event":"end","process":1,"errors":32,"places":1}"#;
        let other = r#"{"event":"error","process":2,"error":{}}"#;
        let all = format!("{start}\n{error}\n{other}\n{end}\nrubbish\n");
        assert_eq!(says(all.as_bytes()), "33 errors, at 2 places in kernels");
        // Another program in the same process, or in one of the same number.
        let none = r#"{"event":"end","process":1,"errors":0,"places":0}"#;
        let ended = format!("{all}{start}\n{none}\n");
        assert_eq!(says(ended.as_bytes()), "33 errors, at 2 places in kernels", "it ended before");
        let did_not = format!("{start}\n{error}\n{start}\n{none}\n");
        assert_eq!(says(did_not.as_bytes()), "1 error, at 1 place in kernels", "it did not");
        let strange = [b"\xff\xfe\n", all.as_bytes()].concat();
        assert_eq!(says(&strange), "33 errors, at 2 places in kernels", "of a program that writes there, too");
        let most =
            |process| format!("{{\"event\":\"end\",\"process\":{process},\"errors\":{0},\"places\":{0}}}\n", u64::MAX);
        let all = u64::MAX;
        assert_eq!(says((most(1) + &most(2)).as_bytes()), format!("{all} errors, at {all} places in kernels"));
    }
}
