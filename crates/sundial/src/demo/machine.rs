//! The guest that is a virtual machine.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use qemu::{Event, Qemu, Running};
use serde_json::Value;

use super::cast::{Role, virtual_gpu};
use crate::stage::Stage;

/// Longest that it may take to boot, and to be through when all should be: QEMU may do without the processor's help, and the
/// others want the processor as well.
const BOUND: Duration = Duration::from_secs(120);
/// Memory of the machine, MiB: its system has no disk.
const MEMORY: u32 = 768;
/// How its GPU is virtualized. A hypercall is for many changes at once, and leaving a machine takes long.
const SCHEME: &str = "pv";

/// Where a QEMU is, and what programs in its machines are run with.
#[derive(Debug)]
pub(super) struct Place {
    qemu: Qemu,
    archive: PathBuf,
}

impl Place {
    /// What the user has named; nothing, if one of it was not.
    ///
    /// # Errors
    /// There is nothing like it.
    pub(super) fn find(qemu: Option<&Path>, archive: Option<&Path>) -> Result<Option<Place>> {
        let (Some(home), Some(archive)) = (qemu, archive) else { return Ok(None) };
        let Some(qemu) = Qemu::at(home) else {
            bail!("there is no QEMU in {}: `cargo xtask qemu` fetches one", home.display());
        };
        if !archive.is_file() {
            bail!("there is no {}: `cargo xtask guest` packs it", archive.display());
        }
        Ok(Some(Place { qemu, archive: archive.to_owned() }))
    }

    /// Boots a machine for a role, which plays as soon as it [may](Machine::begin).
    pub(super) fn boot(&self, stage: &Stage, role: &Role, seconds: u64) -> Result<Machine> {
        let gpu = PathBuf::from(virtual_gpu(stage, role.name, role.memory, role.share, SCHEME)?);
        let files = [("guest.tar".into(), self.archive.clone()), ("program".into(), stage.beside("sundial-tenant")?)];
        let script = format!(
            "set -e\nmkdir /opt\ntar -xf /guest.tar -C /opt\nrm /guest.tar\ntell up\n\
             /opt/sundial/sundial-guest /program {} --seconds {seconds}\n",
            role.program
        );
        let machine = qemu::Machine { gpus: &[gpu], memory: MEMORY, files: &files, preload: None, script: &script };
        let mut running = self.qemu.start(&machine)?;
        match running.next(Instant::now() + BOUND)? {
            Event::Told(_) => Ok(Machine { running }),
            Event::Through(said) => bail!("the virtual machine is through before it has begun:\n{said}"),
        }
    }
}

/// A virtual machine that has booted.
#[derive(Debug)]
pub(super) struct Machine {
    running: Running,
}

impl Machine {
    /// Lets its program begin.
    pub(super) fn begin(&mut self) {
        self.running.go_on();
    }

    /// Waits until it is off; what its program reported.
    pub(super) fn finish(mut self) -> Result<Value> {
        match self.running.next(Instant::now() + BOUND)? {
            Event::Through(said) => {
                let last = said.lines().last().context("the program said nothing")?;
                serde_json::from_str(last).with_context(|| format!("the program said:\n{said}"))
            }
            Event::Told(words) => bail!("the virtual machine waits: {words}"),
        }
    }
}
