//! Sessions of the device process, in this process.

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use session::OWN;

use tenancy::grant::OnFull;
use wire::handshake::features;

use super::*;
use crate::size::Size;

/// Opening a session of a tenant with this name panics when all but its last step is done.
const PANICS: &str = "panics";

/// A fault to be found by the tests of its consequences.
pub(super) fn maybe_panic(tenant: &str) {
    assert_ne!(tenant, PANICS, "a fault of the device process");
}

/// A device process without tenants, and its parent's end.
fn device() -> (Arc<Device>, OwnedFd) {
    let (ours, theirs) = unix::pair().unwrap();
    unix::set_timeout(&ours, Some(Duration::from_secs(20))).unwrap();
    let parent = Arc::new(theirs);
    let compilers = compilers::pool(&parent).unwrap();
    let gpu = GpuSpec::Soft { memory: Size(64 << 20) };
    let machine = Machine::start((gpu, 0), Arc::new(compilers.clone())).unwrap();
    (Device::new(machine, compilers, parent, MemoryRules::default()).unwrap(), ours)
}

fn admit(device: &Arc<Device>, id: u64, name: &str, limits: Limits) {
    let (id, name, on_full) = (TenantId(id), name.into(), OnFull::Fail);
    let (spender, priority) = (Spender { user: 7, profile: None }, Default::default());
    let tenant = ToDevice::Tenant { id, name, spender, limits, share_percent: None, priority, on_full };
    device.obey(tenant, vec![]).unwrap();
}

/// Opens a session: the client's socket.
fn open(device: &Arc<Device>, session: u64, tenant: u64) -> OwnedFd {
    let (ours, theirs) = unix::pair().unwrap();
    unix::set_timeout(&ours, Some(Duration::from_secs(20))).unwrap();
    let tenant = TenantId(tenant);
    device
        .obey(
            ToDevice::Open {
                session,
                tenant,
                pid: 1,
                features: features::ALL & !features::ON_DEMAND,
                staging_block: 0,
                gpus: 1,
            },
            vec![theirs],
        )
        .unwrap();
    ours
}

fn reply(socket: &OwnedFd) -> Reply {
    let mut buffer = vec![0; wire::limits::MAX_REPLY_BYTES];
    let length = unix::receive(socket, &mut buffer).unwrap().length;
    Reply::decode(&buffer[..length]).unwrap()
}

/// Waits until a session has ended.
fn ended(parent: &OwnedFd, session: u64) {
    let mut buffer = Vec::new();
    loop {
        match link::receive(parent, &mut buffer).unwrap().unwrap().0 {
            FromDevice::Ended { session: of } => return assert_eq!(of, session),
            // Nobody compiles here.
            FromDevice::Taken { .. } | FromDevice::WantCompiler => {}
            other => panic!("{other:?}"),
        }
    }
}

fn used(device: &Device, tenant: u64) -> Option<Used> {
    let known = device.registry.lock().tenants.get(&TenantId(tenant)).cloned();
    known.map(|tenant| tenant.account.with(|account| account.used()))
}

#[test]
fn a_panic_in_a_sessions_thread_leaves_nothing() {
    let (device, parent) = device();
    admit(&device, 1, PANICS, Limits::default());
    admit(&device, 2, "well", Limits::default());
    let well = open(&device, 1, 2);
    assert!(matches!(reply(&well), Reply::Welcome(_)));
    for session in 2..5 {
        let client = open(&device, session, 1);
        ended(&parent, session);
        assert!(matches!(reply(&client), Reply::Welcome(_)), "it got as far as that");
        assert!(unix::hung_up(client.as_fd()));
        assert_eq!(used(&device, 1), Some(Used::default()));
        let names: Vec<String> = device.report().into_iter().map(|line| line.tenant).collect();
        assert_eq!(names, ["well"]);
    }
    device.obey(ToDevice::Forget { tenant: TenantId(1) }, vec![]).unwrap();
    assert_eq!(used(&device, 1), None);
    assert!(device.shares.standing(TenantId(1)).is_none());
    drop(well);
    ended(&parent, 1);
    assert_eq!(used(&device, 2), Some(Used::default()));
}

#[test]
fn host_memory_is_counted_shown_and_limited() {
    let (device, _parent) = device();
    let limits = Limits { host_bytes: OWN.host_bytes * 2 + (1 << 20), ..Limits::default() };
    admit(&device, 1, "a", limits.clone());
    let sessions = [open(&device, 1, 1), open(&device, 2, 1)];
    for session in &sessions {
        assert!(matches!(reply(session), Reply::Welcome(_)));
    }
    let third = open(&device, 3, 1);
    assert!(matches!(reply(&third), Reply::Refused(reason) if reason.contains("out of memory")));
    let start = Instant::now();
    while device.report().len() < 2 {
        assert!(start.elapsed() < Duration::from_secs(20), "both are welcome");
        std::thread::yield_now();
    }
    for line in device.report() {
        assert_eq!(line.host_memory_limit, limits.host_bytes);
        assert!(line.host_memory_used >= OWN.host_bytes * 2, "{line:?}");
    }
}
