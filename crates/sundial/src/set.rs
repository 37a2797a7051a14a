//! `sundial set`: changes what holds while the daemon runs.

use std::io::Write;

use anyhow::{Result, bail};
use fair_share::Priority;

use crate::admin::{self, AdminReply, AdminRequest};
use crate::size::{Percent, Scheduler, Size};

/// What `sundial set` takes.
#[derive(Debug, clap::Args)]
#[group(required = true, multiple = true)]
pub(crate) struct Args {
    /// How GPU time is shared: default, fifo, credit, band.
    #[arg(long)]
    scheduler: Option<Scheduler>,
    /// The tenant that is to have something else, by its name in `ps`.
    #[arg(requires = "else")]
    tenant: Option<String>,
    /// Its share of GPU time while others want it, as 30%.
    #[arg(long, requires = "tenant", group = "else")]
    share: Option<Percent>,
    /// Its priority in time that nobody was promised: low, normal, high. With the schedulers fifo, credit and band it means nothing.
    #[arg(long, requires = "tenant", group = "else")]
    priority: Option<Priority>,
    /// Its limit of GPU memory, as 512m: more, or less, down to what it has. What its programs were told of the GPU when they began
    /// stays; `cuMemGetInfo` and what they get is as it is now.
    #[arg(long, requires = "tenant", group = "else")]
    mem: Option<Size>,
}

/// `sundial reload`.
pub(crate) fn reload() -> Result<()> {
    admin::ask(&admin::reach()?, &AdminRequest::Reload).map(drop)
}

pub(crate) fn main(args: &Args) -> Result<()> {
    let socket = admin::reach()?;
    let share = args.tenant.clone().zip(args.share).map(|(tenant, share)| AdminRequest::Share { tenant, share });
    if let Some((tenant, Size(bytes))) = args.tenant.clone().zip(args.mem) {
        let request = AdminRequest::Memory { tenant: tenant.clone(), bytes };
        let AdminReply::Limit { bytes: came_to } = admin::ask(&socket, &request)? else {
            bail!("the daemon gave an unexpected answer");
        };
        if came_to != bytes {
            writeln!(std::io::stdout(), "{tenant} has {}, and may not have less than that now", Size(came_to))?;
        }
    }
    if let Some((tenant, priority)) = args.tenant.clone().zip(args.priority) {
        let request = AdminRequest::Prioritize { tenant: tenant.clone(), priority };
        admin::prioritize(&socket, &request, (&tenant, priority))?;
    }
    let schedule = args.scheduler.map(|scheduler| AdminRequest::Schedule { scheduler });
    for request in [share, schedule].into_iter().flatten() {
        let AdminReply::Done = admin::ask(&socket, &request)? else {
            bail!("the daemon gave an unexpected answer");
        };
    }
    Ok(())
}
