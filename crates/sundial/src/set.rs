//! `sundial set`: changes what holds while the daemon runs.

use anyhow::{Result, bail};

use crate::admin::{self, AdminReply, AdminRequest};
use crate::size::{Percent, Scheduler};

/// What `sundial set` takes.
#[derive(Debug, clap::Args)]
#[group(required = true, multiple = true)]
pub(crate) struct Args {
    /// How GPU time is shared: default, fifo, credit, band.
    #[arg(long)]
    scheduler: Option<Scheduler>,
    /// The tenant whose share is to change, by its name in `ps`.
    #[arg(requires = "share")]
    tenant: Option<String>,
    /// Its share of GPU time while others want it, as 30%.
    #[arg(long, requires = "tenant")]
    share: Option<Percent>,
}

/// `sundial reload`.
pub(crate) fn reload() -> Result<()> {
    admin::ask(&admin::reach()?, &AdminRequest::Reload).map(drop)
}

pub(crate) fn main(args: &Args) -> Result<()> {
    let socket = admin::reach()?;
    let share = args.tenant.clone().zip(args.share).map(|(tenant, share)| AdminRequest::Share { tenant, share });
    let schedule = args.scheduler.map(|scheduler| AdminRequest::Schedule { scheduler });
    for request in [share, schedule].into_iter().flatten() {
        let AdminReply::Done = admin::ask(&socket, &request)? else {
            bail!("the daemon gave an unexpected answer");
        };
    }
    Ok(())
}
