//! How the device notices what is stored into its VRAM, where this process has it mapped.
//!
//! A virtual GPU has to know what changes in the page tables in its VRAM. If it wants to be told by something better than
//! comparing them, it says so in its private capability, and by what kind; this process then makes what belongs to that
//! kind ([`write_trap`]), and sends it. If it cannot, the device goes on as if it had not asked.
//!
//! Stores are noticed in the one mapping that the driver stores through; nothing else of this process maps VRAM, but for the
//! other mapping that [`Kind::Decode`] needs, and no system call is asked to write there (with some kinds it would fail).

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use hostmem::{Mapping, PAGE};
use serde_json::Value;
use vfio_user::{CallError, Client, WATCH_STORES, pci, wire};
use write_trap::{DecodeParts, DecodeServant, FaultParts, Kind, ProtectedPages, TrackerParts, Why};

/// What has to live as long as the mapping is watched.
#[derive(Debug)]
pub(crate) enum Watch {
    /// The device asks this process, and its threads notice their stores themselves.
    Decode(DecodeServant),
    /// The device asks the kernel.
    Userfaultfd(ProtectedPages),
}

impl Watch {
    /// Tells the device how to notice stores to VRAM, if it wants to know and this process can.
    ///
    /// # Errors
    /// The connection is over.
    pub(crate) fn start(
        client: &Client,
        mapping: &Arc<Mapping>,
        alias: impl FnOnce() -> io::Result<Mapping>,
    ) -> Result<Option<Watch>, CallError> {
        let Some(asked) = client.private().and_then(|private| private.get(WATCH_STORES)) else { return Ok(None) };
        let Some((kind, number)) = known(asked) else {
            tracing::warn!(%asked, "the GPU wants stores to its memory noticed in a way that is not known here");
            return Ok(None);
        };
        let place = (mapping.address() as u64, mapping.len() as u64);
        // What was sent is closed here at once: when the device ends, nobody waits for it.
        let told = make(kind, mapping, alias).map(|(fds, watch)| {
            let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
            client.watch_stores((number, pci::BAR1), place, &fds).map(|()| watch)
        });
        match told {
            Ok(Ok(watch)) => return Ok(Some(watch)),
            Ok(Err(CallError::Refused(errno))) => {
                tracing::warn!(?kind, %errno, "the GPU asked how stores to its memory are noticed, and refused the answer");
            }
            Ok(Err(ended)) => return Err(ended),
            Err(why) => {
                let cause = std::error::Error::source(&why).map(|cause| format!(": {cause}")).unwrap_or_default();
                tracing::warn!(
                    ?kind,
                    "stores to the GPU's memory are not noticed: {why}{cause}; the GPU compares instead"
                );
            }
        }
        Ok(None)
    }

    /// Makes known that a range of whole pages has become zero without a store. What is protected later is read later.
    pub(crate) fn zeroed(&self, mapping: &Mapping, offset: u64, bytes: u64) {
        let range = offset / PAGE..(offset + bytes) / PAGE;
        let mut pages = Vec::new();
        let known = match self {
            Watch::Decode(servant) => servant.protected(range.clone(), &mut pages),
            Watch::Userfaultfd(protected) => protected.among(range.clone(), &mut pages),
        };
        if known.is_err() {
            pages = range.collect();
        }
        for page in pages {
            mapping.fill((page * PAGE) as usize, PAGE as usize, 0);
        }
    }
}

/// What the device needs for a kind, in its order, and what stays here.
fn make(
    kind: Kind,
    mapping: &Arc<Mapping>,
    alias: impl FnOnce() -> io::Result<Mapping>,
) -> Result<(Vec<OwnedFd>, Watch), Why> {
    Ok(match kind {
        Kind::Decode => {
            let (parts, servant) = DecodeParts::new(mapping, alias().map_err(Why::Register)?)?;
            (vec![parts.written, parts.control], Watch::Decode(servant))
        }
        Kind::Fault => {
            let (parts, pages) = (FaultParts::new(mapping)?, ProtectedPages::new(mapping)?);
            (vec![parts.userfault], Watch::Userfaultfd(pages))
        }
        Kind::Tracker => {
            let (parts, pages) = (TrackerParts::new(mapping)?, ProtectedPages::new(mapping)?);
            (vec![parts.userfault, parts.page_map], Watch::Userfaultfd(pages))
        }
    })
}

/// The kind that the device names, and its number.
fn known(asked: &Value) -> Option<(Kind, u32)> {
    let number = u32::try_from(asked.as_u64()?).ok()?;
    let kind = match number {
        wire::WATCH_DECODE => Kind::Decode,
        wire::WATCH_FAULT => Kind::Fault,
        wire::WATCH_TRACKER => Kind::Tracker,
        _ => return None,
    };
    Some((kind, number))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn kinds_are_numbers() {
        assert_eq!(
            [0, 1, 2].map(|number| known(&json!(number)).unwrap().0),
            [Kind::Tracker, Kind::Fault, Kind::Decode]
        );
        for other in [json!(3), json!(-1), json!(1_u64 << 40), json!("0"), json!(null), json!(0.5), json!({})] {
            assert!(known(&other).is_none(), "{other}");
        }
    }
}
