//! The device's end of what notices stores.

use std::sync::{Arc, Mutex};

use vfio_user::{Errno, StoreWatch, WATCH_STORES, wire};
use write_trap::{DecodeParts, Fault, FaultParts, RemoteDecode, Tracker, TrackerParts, WriteTrap};

use crate::pass_through::{Asks, BOUND};

/// Where a device puts what it was told.
pub(crate) type Told = Arc<Mutex<Option<Box<dyn WriteTrap>>>>;

/// A device that wants stores noticed by a kind, and watches nothing before `begin` says so.
pub(crate) fn asks(number: u32, begin: impl Fn(&mut dyn WriteTrap, u64) + Send + Sync + 'static) -> (Asks, Told) {
    let told = Told::default();
    let put = Arc::clone(&told);
    let tell = move |watch: StoreWatch| -> Result<(), Errno> {
        let pages = watch.bytes / hostmem::PAGE;
        let mut trap = trap(watch);
        begin(&mut *trap, pages);
        *put.lock().unwrap() = Some(trap);
        Ok(())
    };
    (Asks { private: Some(serde_json::json!({ WATCH_STORES: number })), told: Box::new(tell) }, told)
}

/// What a client sent, as the trap that it is for.
fn trap(watch: StoreWatch) -> Box<dyn WriteTrap> {
    let StoreWatch { kind, address, bytes, fds, .. } = watch;
    let mut fds = fds.into_iter();
    let mut fd = || fds.next().unwrap();
    let trap: Box<dyn WriteTrap> = match kind {
        wire::WATCH_DECODE => {
            let parts = DecodeParts { written: fd(), control: fd(), address, bytes };
            Box::new(RemoteDecode::from_parts(parts, BOUND).unwrap())
        }
        wire::WATCH_FAULT => Box::new(Fault::from_parts(FaultParts { userfault: fd(), address, bytes }).unwrap()),
        wire::WATCH_TRACKER => {
            let parts = TrackerParts { userfault: fd(), page_map: fd(), address, bytes };
            Box::new(Tracker::from_parts(parts).unwrap())
        }
        kind => panic!("no kind: {kind}"),
    };
    assert!(fds.next().is_none());
    trap
}
