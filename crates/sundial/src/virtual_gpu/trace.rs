//! `sundial vgpu trace`: what a guest does to its page tables, as it comes.

use std::fs::File;
use std::io::{self, ErrorKind, IsTerminal, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use super::connect;
use crate::admin::{self, AdminReply, AdminRequest};

/// Longest between two looks at the clock.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// How many events have come.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Told {
    stores: u64,
    submissions: u64,
}

pub(super) fn record(name: String, file: Option<&Path>, seconds: Option<f64>) -> Result<()> {
    let bound = seconds.map(Duration::try_from_secs_f64).transpose().context("--seconds")?;
    ensure!(bound.is_none_or(|bound| !bound.is_zero()), "--seconds is more than zero");
    let daemon = connect()?;
    let (mut ours, theirs) = UnixStream::pair()?;
    let request = AdminRequest::TraceVgpu { name: name.clone() };
    let AdminReply::Done = admin::ask_with(&daemon, &request, &[theirs.as_fd()])? else {
        bail!("the daemon gave an unexpected answer");
    };
    drop(theirs);
    let mut out: Box<dyn Write> = match file {
        Some(path) => Box::new(File::create(path).with_context(|| format!("cannot write {}", path.display()))?),
        None => Box::new(io::stdout().lock()),
    };
    let until = bound.map(|bound| Instant::now() + bound);
    ours.set_read_timeout(Some(LOOK_EVERY))?;
    let (told, ended) = copy(&mut ours, &mut *out, until)?;
    let Told { stores, submissions } = told;
    // Where it was shown all the time.
    eprintln!("\r{stores} stores, {submissions} submissions");
    // Without a bound, nothing else ends it.
    if ended && until.is_some() {
        eprintln!("the virtual GPU `{name}` has ended, or somebody else records it now");
    }
    Ok(())
}

/// Copies whole lines until there are no more (then true), or it is time.
fn copy(from: &mut impl Read, to: &mut dyn Write, until: Option<Instant>) -> Result<(Told, bool)> {
    let shows = io::stderr().is_terminal();
    let (mut told, mut lines, mut buffer) = (Told::default(), Vec::new(), vec![0; 64 << 10]);
    let mut shown = Instant::now();
    while until.is_none_or(|until| Instant::now() < until) {
        match from.read(&mut buffer) {
            Ok(0) => return Ok((told, true)),
            Ok(read) => {
                lines.extend_from_slice(&buffer[..read]);
                let whole = lines.iter().rposition(|byte| *byte == b'\n').map_or(0, |last| last + 1);
                for line in lines[..whole].split(|byte| *byte == b'\n') {
                    told.stores += u64::from(line.starts_with(b"u "));
                    told.submissions += u64::from(line.starts_with(b"s "));
                }
                to.write_all(&lines[..whole]).and_then(|()| to.flush()).context("cannot write the trace")?;
                lines.drain(..whole);
            }
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
            Err(error) => return Err(error).context("the daemon's end"),
        }
        if shows && shown.elapsed() >= LOOK_EVERY {
            eprint!("\r{} stores, {} submissions", told.stores, told.submissions);
            shown = Instant::now();
        }
    }
    Ok((told, false))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_lines_are_copied_and_counted() {
        let mut out = Vec::new();
        let text = "# page table trace, version 1\nformat nvidia\nu 1 2 3 4\nu 2 2 4 4\ns 5\nu 6 2";
        let (told, ended) = copy(&mut text.as_bytes(), &mut out, None).unwrap();
        assert_eq!((told, ended), (Told { stores: 2, submissions: 1 }, true));
        assert!(out.ends_with(b"s 5\n"));
        gmmu::Trace::from_text(std::str::from_utf8(&out).unwrap()).unwrap();
    }

    #[test]
    fn it_ends_in_time() {
        let (mut ours, _theirs) = UnixStream::pair().unwrap();
        ours.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
        let (told, ended) = copy(&mut ours, &mut Vec::new(), Some(Instant::now())).unwrap();
        assert_eq!((told, ended), (Told::default(), false));
    }
}
