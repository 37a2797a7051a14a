//! `sundial vgpu`: virtual GPUs.
//!
//! A virtual GPU is a tenant without a program: it is there from `create` to `destroy`, whoever uses it, and lives with the
//! daemon. Its socket speaks vfio-user. A socket at a path of the user's choice is made here and handed over, since the daemon
//! may write nowhere but in its own directory.

use std::io::Write;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::Subcommand;
use fair_share::Priority;
use tenancy::Terms;
use vfio_user::Listener;

use crate::admin::{self, AdminReply, AdminRequest, VgpuListing};
use crate::run::reach_daemon;
use crate::scheme::Scheme;
use crate::shadowing::{Rebuild, Shadow, Trap, Wish};
use crate::size::{GpuName, GpuWish, Percent, Size, specs};

mod trace;

const EXAMPLES: &str = "\
Examples:
  sundial vgpu create one --mem 1g --share 30%     prints the path of its socket
  sundial vgpu create two --profile small          memory, share and scheme from config.toml
  sundial vgpu list --json                         virtual GPUs, for programs
  sundial vgpu set one --share 50%                 another share, while it is used
  sundial vgpu set one --priority high             before others in time that nobody was promised
  sundial vgpu set one --mem 512m                  less memory, or more again, while it is used
  sundial vgpu create three --mem 1g --trap auto   stores into its guest's page tables are noticed, not announced
  sundial vgpu set three --rebuild dynamic         another way to follow them, while it is used
  sundial vgpu trace one tables.txt --seconds 10   what its guest does to its page tables
  sundial vgpu destroy one                         takes it away, from a guest as well

A virtual machine has the GPU as a PCI device (QEMU from 10.1 on, with its memory in a shared memory file):
  SOCKET=$(sundial vgpu create one --mem 1g)
  qemu-system-x86_64 ... -object memory-backend-memfd,id=ram,size=2G,share=on -machine memory-backend=ram \\
    -device '{\"driver\":\"vfio-user-pci\",\"socket\":{\"type\":\"unix\",\"path\":\"'$SOCKET'\"}}'

With --trap tracker, stores of a virtual machine are noticed if its QEMU is started with the library that lies beside sundial:
  LD_PRELOAD=.../sundial-lib/libsundial_qemu.so qemu-system-x86_64 ...

Memory that a guest has is changed with its driver's help. That is a part of the programs that use the GPU, so in a virtual
machine one of them has to run while `set --mem` asks.

A virtual GPU serves one guest at a time, and is as new for the next. It stays until it is destroyed, or the daemon is
stopped; a daemon that was started by `vgpu create` or `run` stays as long as there is one.";

/// What `sundial vgpu` takes.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Make one, and print the path of its socket; starts a daemon if none runs.
    Create(Create),
    /// List them.
    List {
        /// For programs.
        #[arg(long)]
        json: bool,
    },
    /// Change one.
    #[command(group = clap::ArgGroup::new("change").required(true).multiple(true))]
    Set {
        /// Its name.
        name: String,
        /// Share of GPU time while others want it, as 30%.
        #[arg(long, group = "change")]
        share: Option<Percent>,
        /// Priority in time that nobody was promised: low, normal, high. With the schedulers fifo, credit and band it means nothing.
        #[arg(long, group = "change")]
        priority: Option<Priority>,
        /// GPU memory, as 512m or 2g: at most what it was created with. A guest has to give back what it has too much, and
        /// keeps what it uses.
        #[arg(long, group = "change")]
        mem: Option<Size>,
        /// Which pages of its guest's page tables are protected against stores. Its trap stays what it is.
        #[arg(long, group = "change")]
        shadow: Option<Shadow>,
        /// Which pages of them are compared: full, static:<pages>, dynamic or segmented.
        #[arg(long, group = "change")]
        rebuild: Option<Rebuild>,
    },
    /// Record what its guest does to its page tables, for `sundial bench shadow --trace`; ends with the virtual GPU, or when it is
    /// interrupted. With --trap bar or decode each store is recorded as it happens, else what has changed from one look of the
    /// mediator's to the next.
    Trace {
        /// Its name.
        name: String,
        /// Where the trace goes [default: standard output].
        file: Option<PathBuf>,
        /// Ends after so many seconds.
        #[arg(long)]
        seconds: Option<f64>,
    },
    /// Take one away; a guest that uses it finds its device gone.
    Destroy {
        /// Its name.
        name: String,
    },
}

#[derive(Debug, clap::Args)]
struct Create {
    /// Name, among those of all tenants.
    name: String,
    /// GPU memory: whole 2m, as 512m or 1g; needed, unless a profile says it or the scheme is pass-through, which has all.
    #[arg(long)]
    mem: Option<Size>,
    /// Share of GPU time while others want it, as 30%; without one, an equal part of what the others leave.
    #[arg(long)]
    share: Option<Percent>,
    /// Of the time that nobody was promised, those of the highest priority have all that they want: low, normal, high [default:
    /// normal]. With the schedulers fifo, credit and band it means nothing.
    #[arg(long)]
    priority: Option<Priority>,
    /// How it is virtualized [default: fv]. With pass-through there can be nobody else on the GPU.
    #[arg(long)]
    scheme: Option<Scheme>,
    /// How stores into the guest's page tables are noticed, in scheme fv [default: announced; with --shadow or --rebuild
    /// auto, or decode if it is strict].
    #[arg(long)]
    trap: Option<Trap>,
    /// Which pages of them are protected against stores, with tracker, fault, decode or auto [default: hybrid].
    #[arg(long)]
    shadow: Option<Shadow>,
    /// Which pages that were let go are compared when work is submitted: full (all pages), static:<pages> (so many, those
    /// with most stores), dynamic (those that were ever let go), or segmented (those since the last time)
    /// [default: segmented].
    #[arg(long)]
    rebuild: Option<Rebuild>,
    /// Where its socket is to be [default: in the runtime directory].
    #[arg(long)]
    socket: Option<PathBuf>,
    /// What is not said here is as in `[profiles.<PROFILE>]` of the daemon's config.toml.
    #[arg(long)]
    profile: Option<String>,
    /// Most memory of the host that the daemon may take for it, as 2g.
    #[arg(long)]
    host_mem: Option<Size>,
    /// Of which GPU it is a part: by number, as 0, or soft:<memory>, as soft:4g, which a daemon has that is started now; of several
    /// it is one.
    #[arg(long, env = "SUNDIAL_GPU", value_delimiter = ',')]
    gpu: Vec<GpuName>,
}

pub(crate) fn main(args: Args) -> Result<()> {
    match args.what {
        What::Create(create) => self::create(create),
        What::List { json } => list(json),
        What::Set { name, share, priority, mem, shadow, rebuild } => {
            set(&name, (share, priority), mem, (shadow, rebuild))
        }
        What::Trace { name, file, seconds } => trace::record(name, file.as_deref(), seconds),
        What::Destroy { name } => destroy(name),
    }
}

fn create(create: Create) -> Result<()> {
    let terms = Terms {
        name: create.name,
        memory_bytes: create.mem.map(|size| size.0),
        host_bytes: create.host_mem.map(|size| size.0),
        share_percent: create.share.map(|share| share.0),
        on_full: None,
        priority: create.priority,
    };
    let listener = create.socket.as_deref().map(listen).transpose()?;
    let path = listener.as_ref().map(|listener| listener.path().to_owned());
    let fds = listener.as_ref().map(AsFd::as_fd);
    let Create { gpu, scheme, trap, shadow, rebuild, profile, .. } = create;
    let shadowing = Wish { trap, shadow, rebuild };
    let (connection, _starting) = reach_daemon(&specs(&gpu))?;
    let gpu = if gpu.len() > 1 { GpuWish::default() } else { GpuWish::new(None, &gpu) };
    let request = AdminRequest::CreateVgpu { terms, gpu, scheme, shadowing, profile, path };
    let AdminReply::Vgpu { socket, .. } = admin::ask_with(&connection, &request, fds.as_slice())? else {
        bail!("the daemon gave an unexpected answer");
    };
    // The name is the virtual GPU's from now on: `destroy` removes it.
    std::mem::forget(listener);
    Ok(writeln!(std::io::stdout(), "{}", socket.display())?)
}

/// Listens at a path that is the same wherever it is looked at.
fn listen(path: &Path) -> Result<Listener> {
    let path = std::path::absolute(path).context("there is no such path")?;
    Listener::bind(&path, 0o600).with_context(|| format!("cannot listen at {}", path.display()))
}

fn connect() -> Result<OwnedFd> {
    admin::reach()
}

fn list(json: bool) -> Result<()> {
    let AdminReply::Vgpus(listing) = admin::ask(&connect()?, &AdminRequest::ListVgpus)? else {
        bail!("the daemon gave an unexpected answer");
    };
    let mut out = std::io::stdout().lock();
    if json {
        serde_json::to_writer(&mut out, &listing)?;
        writeln!(out)?;
    } else {
        out.write_all(table(&listing).as_bytes())?;
    }
    Ok(())
}

fn set(
    name: &str,
    (share, priority): (Option<Percent>, Option<Priority>),
    mem: Option<Size>,
    (shadow, rebuild): (Option<Shadow>, Option<Rebuild>),
) -> Result<()> {
    let socket = connect()?;
    let share = share.map(|share| AdminRequest::ShareVgpu { name: name.into(), share });
    if let Some(priority) = priority {
        admin::prioritize(&socket, &AdminRequest::PrioritizeVgpu { name: name.into(), priority }, (name, priority))?;
    }
    let policy = (shadow.is_some() || rebuild.is_some()).then(|| AdminRequest::ShadowVgpu {
        name: name.into(),
        shadow,
        rebuild,
    });
    let resize = mem.map(|Size(bytes)| AdminRequest::ResizeVgpu { name: name.into(), bytes });
    for request in [share, policy, resize].into_iter().flatten() {
        let AdminReply::Done = admin::ask(&socket, &request)? else {
            bail!("the daemon gave an unexpected answer");
        };
    }
    Ok(())
}

fn destroy(name: String) -> Result<()> {
    let AdminReply::Vgpu { socket, theirs } = admin::ask(&connect()?, &AdminRequest::DestroyVgpu { name })? else {
        bail!("the daemon gave an unexpected answer");
    };
    if theirs {
        remove(&socket);
    }
    Ok(())
}

/// Removes the name of a socket where nobody listens any more: if it is one.
fn remove(path: &Path) {
    // Whoever listens there now keeps it; a dead one is replaced, and that one goes with its name.
    drop(Listener::bind(path, 0o600));
}

fn table(listing: &VgpuListing) -> String {
    let mut text = format!(
        "{:<20} {:<12} {:>8} {:>10} {:>10} {:>10} {:>9} {:>9} {:>8} {:>10} {:>10} {:>10} {:>10}  {:<10}  {}\n",
        "NAME",
        "SCHEME",
        "GUEST",
        "MEMORY",
        "LIMIT",
        "OVERHEAD",
        "ENTITLED",
        "RECEIVED",
        "CHANNELS",
        "TRAPS",
        "UPDATES",
        "SCANNED",
        "HYPERCALLS",
        "STATE",
        "SOCKET"
    );
    for line in &listing.vgpus {
        text.push_str(&format!(
            "{:<20} {:<12} {:>8} {:>10} {:>10} {:>10} {:>8.1}% {:>8.1}% {:>8} {:>10} {:>10} {:>10} {:>10}  {:<10}  {}\n",
            line.name,
            line.scheme,
            line.guest.map_or_else(|| "-".into(), |pid| pid.to_string()),
            Size(line.memory_used),
            Size(line.memory_limit),
            Size(line.memory_overhead),
            line.share_entitled,
            line.share_received,
            line.channels,
            line.traps,
            line.shadow_updates,
            line.entries_scanned,
            line.hypercalls,
            line.state,
            line.socket.display()
        ));
    }
    for line in &listing.vgpus {
        if let Some(reason) = &line.reason {
            text.push_str(&format!("`{}` has to be destroyed: {reason}\n", line.name));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admin::VgpuLine;

    #[test]
    fn columns_line_up() {
        let line = VgpuLine {
            gpu: 0,
            name: "one".into(),
            scheme: Scheme::FvNaive,
            socket: "/run/one.sock".into(),
            guest: Some(4711),
            memory_used: 1 << 30,
            memory_limit: 1 << 30,
            memory_overhead: 8 << 20,
            share_entitled: 30.0,
            share_received: 29.97,
            priority: Priority::Normal,
            gpu_time_ns: 0,
            channels: 12,
            traps: 123_456,
            looks: 0,
            shadow_updates: 1,
            entries_scanned: 2,
            hypercalls: 3,
            trap: None,
            trap_in_effect: None,
            shadow: None,
            rebuild: None,
            pages: crate::shadowing::TablePages::default(),
            state: "attached".into(),
            reason: None,
        };
        let text = table(&VgpuListing { vgpus: vec![line.clone()] });
        let [head, body] = text.lines().collect::<Vec<_>>()[..] else { panic!("{text}") };
        assert_eq!(head.find("STATE"), body.find("attached"));
        assert_eq!(head.find("SOCKET"), body.find("/run/one.sock"));
        assert!(body.contains("fv-naive") && body.contains("30.0%"), "{body}");
        let ended = VgpuLine { state: "ended".into(), reason: Some("it does not stop".into()), ..line };
        let text = table(&VgpuListing { vgpus: vec![ended] });
        assert_eq!(text.lines().nth(2), Some("`one` has to be destroyed: it does not stop"));
    }
}
