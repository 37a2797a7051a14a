//! `sundial ps`: who is there.

use std::io::Write;

use anyhow::Result;

use crate::admin::{self, AdminRequest, Listing, SessionLine};
use crate::size::Size;

/// What `sundial ps` takes.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// For programs.
    #[arg(long)]
    json: bool,
}

pub(crate) fn main(args: &Args) -> Result<()> {
    let socket = admin::reach()?;
    let listing: Listing = admin::fetch(&socket, &AdminRequest::List)?;
    let mut out = std::io::stdout().lock();
    if args.json {
        serde_json::to_writer(&mut out, &listing)?;
        writeln!(out)?;
    } else {
        out.write_all(table(&listing).as_bytes())?;
    }
    Ok(())
}

fn table(listing: &Listing) -> String {
    let mut text = format!(
        "{:<24} {:>3} {:>8} {:>10} {:>10} {:>10} {:>10} {:>9} {:>9} {:>12} {:>10}  {}\n",
        "TENANT",
        "GPU",
        "PID",
        "MEMORY",
        "LIMIT",
        "HOST",
        "LIMIT",
        "ENTITLED",
        "RECEIVED",
        "CALLS LOCAL",
        "REMOTE",
        "STATE"
    );
    for line in &listing.sessions {
        text.push_str(&format!(
            "{:<24} {:>3} {:>8} {:>10} {:>10} {:>10} {:>10} {:>8.1}% {:>8.1}% {:>12} {:>10}  {}\n",
            line.tenant,
            line.gpu,
            line.pid,
            Size(line.memory_used),
            Size(line.memory_limit),
            Size(line.host_memory_used),
            Size(line.host_memory_limit),
            line.share_entitled,
            line.share_received,
            line.calls_local,
            line.calls_remote,
            state(line)
        ));
    }
    for reason in &listing.silent {
        text.push_str(&format!("({reason})\n"));
    }
    text
}

/// What a session does; and for what, and how long, it waits.
fn state(line: &SessionLine) -> String {
    match line.memory_waiting_bytes {
        0 => line.state.clone(),
        bytes => format!("{} for {} ({:.0} s)", line.state, Size(bytes), line.memory_waiting_seconds),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up() {
        let line = SessionLine {
            tenant: "vectorAdd-4711".into(),
            gpu: 1,
            pid: 4711,
            memory_used: 96 << 20,
            memory_limit: 2 << 30,
            memory_reserved: 96 << 20,
            memory_waiting_bytes: 32 << 20,
            memory_waiting_seconds: 61.5,
            host_memory_used: 7 << 20,
            host_memory_limit: 4 << 30,
            share_entitled: 30.0,
            share_received: 29.97,
            priority: fair_share::Priority::Normal,
            gpu_time_ns: 0,
            session_gpu_time_ns: 0,
            calls_local: 123_456,
            calls_remote: 789,
            calls_sent: 0,
            round_trips: 0,
            copy_seconds: 0.0,
            wait_seconds: 0.0,
            kernels: 12,
            kernels_interpreted: 0,
            compiling: 1,
            state: "waiting".into(),
        };
        let text = table(&Listing { sessions: vec![line], ..Listing::default() });
        let [head, body] = text.lines().collect::<Vec<_>>()[..] else { panic!("{text}") };
        assert_eq!(head.find("STATE"), body.find("waiting for 32 MiB (62 s)"));
        let silent = Listing { silent: vec!["GPU 1: it does not answer".into()], ..Listing::default() };
        assert!(table(&silent).ends_with("(GPU 1: it does not answer)\n"));
        assert!(body.contains("96 MiB") && body.contains("30.0%"), "{body}");
    }
}
