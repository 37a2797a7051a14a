//! Who may ask for what, and what he is told of others: once for all that the daemon is asked.

use std::collections::BTreeMap;

use anyhow::Result;
use transport::unix::PeerProcess;

use super::tenants::Tenants;
use crate::admin::{AdminRequest, SessionLine, VgpuLine};
use crate::policy::See;
use crate::usage::store::Rows;
use crate::usage::{Snapshot, TenantSnapshot};

/// Whose something is: user and group, as the kernel says.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Owner {
    pub(super) user: u32,
    pub(super) group: u32,
}

impl From<PeerProcess> for Owner {
    fn from(peer: PeerProcess) -> Owner {
        Owner { user: peer.uid, group: peer.gid }
    }
}

impl Owner {
    /// Root, and the daemon's own user.
    pub(super) fn is_administrator(self) -> bool {
        self.user == 0 || self.user == rustix::process::getuid().as_raw()
    }
}

/// Whether somebody may ask for that; `owner_of` knows whose a tenant is.
///
/// # Errors
/// Why not. Of what is another's he is told no more than of what is not there.
pub(super) fn check(who: Owner, request: &AdminRequest, owner_of: impl Fn(&str) -> Option<u32>) -> Result<(), String> {
    if who.is_administrator() {
        return Ok(());
    }
    let own = |what: &str, name: &str| match owner_of(name) {
        Some(owner) if owner == who.user => Ok(()),
        _ => Err(format!("no {what} of yours named `{name}` is present")),
    };
    match request {
        AdminRequest::Register { .. }
        | AdminRequest::CreateVgpu { .. }
        | AdminRequest::List
        | AdminRequest::ListVgpus
        | AdminRequest::Usage { .. }
        | AdminRequest::Snapshot => Ok(()),
        AdminRequest::Share { tenant, .. }
        | AdminRequest::Prioritize { tenant, .. }
        | AdminRequest::Memory { tenant, .. } => own("tenant", tenant),
        AdminRequest::ShareVgpu { name, .. }
        | AdminRequest::PrioritizeVgpu { name, .. }
        | AdminRequest::ResizeVgpu { name, .. }
        | AdminRequest::TraceVgpu { name }
        | AdminRequest::ShadowVgpu { name, .. }
        | AdminRequest::DestroyVgpu { name } => own("virtual GPU", name),
        AdminRequest::Schedule { .. } => Err("only the administrator may change the scheduler".into()),
        AdminRequest::Reload => Err("only the administrator may have the policy read again".into()),
    }
}

/// What one is told.
pub(super) struct View {
    /// Whose things are told in full; `None`: everybody's.
    own: Option<u32>,
    see: See,
    owners: BTreeMap<String, u32>,
}

impl View {
    /// For somebody.
    pub(super) fn of(who: Owner, tenants: &Tenants) -> View {
        let own = (!who.is_administrator()).then_some(who.user);
        View { own, see: tenants.grant(who).see, owners: tenants.owners_by_name() }
    }

    /// For those of whom nobody knows who they are.
    pub(super) fn of_strangers(tenants: &Tenants) -> View {
        let nobody = u32::MAX;
        let see = tenants.grant(Owner { user: nobody, group: nobody }).see;
        View { own: Some(nobody), see, owners: BTreeMap::new() }
    }

    fn sees(&self, owner: Option<u32>) -> See {
        if self.own.is_none() || (owner.is_some() && owner == self.own) { See::All } else { self.see }
    }

    /// What one sees of each of some lines: all, what is left without a name, or nothing.
    fn tell<T>(&self, lines: Vec<T>, owner: impl Fn(&T) -> Option<u32>, without: impl Fn(T, String) -> T) -> Vec<T> {
        let mut others = 0;
        let told = |line: T| match self.sees(owner(&line)) {
            See::All => Some(line),
            See::Nothing => None,
            See::Shares => {
                others += 1;
                Some(without(line, format!("(other {others})")))
            }
        };
        lines.into_iter().filter_map(told).collect()
    }

    pub(super) fn sessions(&self, lines: Vec<SessionLine>) -> Vec<SessionLine> {
        let without = |line: SessionLine, tenant| SessionLine {
            tenant,
            pid: 0,
            gpu_time_ns: 0,
            session_gpu_time_ns: 0,
            calls_local: 0,
            calls_remote: 0,
            calls_sent: 0,
            round_trips: 0,
            copy_seconds: 0.0,
            wait_seconds: 0.0,
            kernels: 0,
            kernels_interpreted: 0,
            compiling: 0,
            host_memory_used: 0,
            host_memory_limit: 0,
            ..line
        };
        self.tell(lines, |line| self.owners.get(&line.tenant).copied(), without)
    }

    pub(super) fn vgpus(&self, lines: Vec<VgpuLine>) -> Vec<VgpuLine> {
        let without = |line: VgpuLine, name| VgpuLine {
            name,
            socket: "-".into(),
            guest: None,
            gpu_time_ns: 0,
            channels: 0,
            traps: 0,
            looks: 0,
            shadow_updates: 0,
            entries_scanned: 0,
            hypercalls: 0,
            pages: Default::default(),
            reason: None,
            ..line
        };
        self.tell(lines, |line| self.owners.get(&line.name).copied(), without)
    }

    pub(super) fn snapshot(&self, snapshot: Snapshot) -> Snapshot {
        let without = |line: TenantSnapshot, tenant| TenantSnapshot {
            tenant,
            user: u32::MAX,
            gpu: line.gpu,
            meters: Default::default(),
            present: line.present,
        };
        Snapshot { tenants: self.tell(snapshot.tenants, |line| Some(line.user), without), ..snapshot }
    }

    /// Of use that is past one sees one's own, and how long the GPU was there.
    pub(super) fn rows(&self, rows: Rows) -> Rows {
        let seen = |user: u32| self.own.is_none_or(|own| own == user);
        Rows { tenants: rows.tenants.into_iter().filter(|((_, user, _), _)| seen(*user)).collect(), ..rows }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::size::{Percent, Scheduler};
    use crate::usage::Present;

    const ADA: Owner = Owner { user: 4_000_001, group: 4_000_001 };

    #[test]
    fn ones_own_may_be_changed_and_nothing_else() {
        let owner_of = |name: &str| match name {
            "mine" => Some(ADA.user),
            "theirs" => Some(5),
            _ => None,
        };
        let may = |who, request| check(who, &request, owner_of);
        let share = |tenant: &str| AdminRequest::Share { tenant: tenant.into(), share: Percent(5.0) };
        let destroy = |name: &str| AdminRequest::DestroyVgpu { name: name.into() };
        let prioritize = |name: &str| AdminRequest::Prioritize { tenant: name.into(), priority: Default::default() };
        let of_vgpu = |name: &str| AdminRequest::PrioritizeVgpu { name: name.into(), priority: Default::default() };
        assert!(may(ADA, prioritize("mine")).is_ok() && may(ADA, of_vgpu("mine")).is_ok());
        assert!(may(ADA, prioritize("theirs")).is_err() && may(ADA, of_vgpu("theirs")).is_err());
        assert!(may(ADA, share("mine")).is_ok() && may(ADA, destroy("mine")).is_ok());
        assert_eq!(
            may(ADA, share("theirs")).unwrap_err().replace("theirs", ""),
            may(ADA, share("nobody's")).unwrap_err().replace("nobody's", ""),
            "whether there is such a one is not told"
        );
        assert!(may(ADA, destroy("theirs")).is_err());
        assert!(may(ADA, AdminRequest::Reload).is_err());
        assert!(may(ADA, AdminRequest::Schedule { scheduler: Scheduler::default() }).is_err());
        let root = Owner { user: 0, group: 0 };
        assert!(may(root, share("theirs")).is_ok() && may(root, AdminRequest::Reload).is_ok());
    }

    #[test]
    fn of_others_one_sees_what_policy_allows() {
        let line = |tenant: &str, user| TenantSnapshot {
            tenant: tenant.into(),
            user,
            gpu: 0,
            meters: tenancy::metering::Meters { kernels: 9, ..Default::default() },
            present: Some(Present { memory_used: 7, ..Present::default() }),
        };
        let told = |see, own| {
            let view = View { own, see, owners: BTreeMap::new() };
            let tenants = vec![line("mine", ADA.user), line("theirs", 5), line("too", 6)];
            let mut rows = Rows::default();
            rows.add((1, ADA.user, "mine".into()), &Default::default());
            rows.add((1, 5, "theirs".into()), &Default::default());
            (view.snapshot(Snapshot { tenants, ..Snapshot::default() }).tenants, view.rows(rows).tenants.len())
        };
        let (shares, rows) = told(See::Shares, Some(ADA.user));
        assert_eq!(rows, 1, "of the past only one's own");
        assert_eq!(shares.iter().map(|it| it.tenant.as_str()).collect::<Vec<_>>(), ["mine", "(other 1)", "(other 2)"]);
        assert_eq!((shares[0].meters.kernels, shares[1].meters.kernels, shares[1].user), (9, 0, u32::MAX));
        assert_eq!(shares[1].present.as_ref().unwrap().memory_used, 7);
        assert_eq!(told(See::Nothing, Some(ADA.user)).0.len(), 1);
        let (all, rows) = told(See::All, Some(ADA.user));
        assert_eq!((all[1].tenant.as_str(), all[1].meters.kernels, rows), ("theirs", 9, 1));
        assert_eq!(told(See::Nothing, None), (vec![line("mine", ADA.user), line("theirs", 5), line("too", 6)], 2));
    }
}
