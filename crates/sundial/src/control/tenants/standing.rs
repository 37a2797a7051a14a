//! Who asks how a tenant stands, and which numbers its processes have there.

use std::collections::HashMap;

use wire::{Credential, Process};

use super::{Owner, Tenants, check_owner};

/// Whose standing is asked for, and by whom.
#[derive(Debug, PartialEq)]
pub(in crate::control) struct Asked {
    /// The tenant's name.
    pub(in crate::control) name: String,
    /// Its GPUs in its order, with the limit of memory there, bytes.
    pub(in crate::control) gpus: Vec<(usize, u64)>,
    /// The numbers of its processes: a GPU, and what a process is called here, make what it is called where who asks is. Of who is
    /// not to be seen from there nothing is known.
    pub(in crate::control) pids: HashMap<(usize, i32), u32>,
}

impl Tenants {
    /// A session's process: as it is called here, and as it says that it is called where it is.
    pub(in crate::control) fn note_process(&mut self, session: u64, pid: i32, process: Process) {
        self.processes.insert(session, (pid, process));
    }

    /// Whose standing is asked for, `here` being the PID namespace of this process.
    ///
    /// # Errors
    /// There is no such tenant, or it is another user's.
    pub(in crate::control) fn asked(
        &self,
        credential: &Credential,
        who: Owner,
        (asks, here): (Process, u64),
    ) -> Result<Asked, String> {
        let tenant = if credential.is_none() {
            *self.users.get(&who.user).ok_or("no program of this user's is here; start programs with `sundial run`")?
        } else {
            let tenant = self.known(credential)?;
            self.owner(tenant).map_or(Ok(()), |owner| check_owner(owner, who))?;
            tenant
        };
        let terms = self.admission.terms(tenant).ok_or("this tenant has left")?;
        let limit = |&gpu: &usize| (gpu, self.memory_limit(terms, gpu));
        let called = |(session, &(pid, process)): (&u64, &(i32, Process))| {
            let &(of, gpu) = self.sessions.get(session)?;
            let number = match asks.namespace {
                0 => None,
                namespace if namespace == here => u32::try_from(pid).ok(),
                namespace => (process.namespace == namespace).then_some(process.pid),
            };
            (of == tenant).then_some(((gpu, pid), number.filter(|number| *number != 0)?))
        };
        Ok(Asked {
            name: terms.name.clone(),
            gpus: self.admission.gpus(tenant).iter().map(limit).collect(),
            pids: self.processes.iter().filter_map(called).collect(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::Newcomer;
    use super::super::tests::{alive, newcomer, owner, tenants_with, terms};
    use super::*;
    use crate::size::{GpuName, GpuWish};

    #[test]
    fn each_is_told_of_his_own_and_by_the_numbers_that_he_knows() {
        let mut tenants = tenants_with("gpu = [\"soft:1g\", \"soft:2g\"]\n[limits]\nvram_bytes = 104857600\n");
        let on = |gpus: &[usize]| GpuWish::These(gpus.iter().map(|gpu| GpuName::Number(*gpu)).collect());
        let user = owner(4_000_001);
        let (a, _) =
            tenants.register(Newcomer { gpus: &on(&[1, 0]), ..newcomer(terms("a", 10.0)) }, user, alive()).unwrap();
        let (b, _) =
            tenants.register(Newcomer { gpus: &on(&[0]), ..newcomer(terms("b", 10.0)) }, user, alive()).unwrap();
        const HERE: u64 = 50;
        let process = |pid, namespace| Process { pid, namespace };
        for (credential, index, pid, process) in [
            (a, 0, 100, process(1, 60)),
            (a, 1, 100, process(1, 60)),
            (a, 1, 101, process(2, 61)),
            (b, 0, 102, process(3, 60)),
        ] {
            let (opened, _) = tenants.open(credential, user, index).unwrap();
            tenants.note_process(opened.session, pid, process);
        }
        let asked = |who, credential: &Credential, namespace| {
            tenants.asked(credential, who, (process(9, namespace), HERE)).map(|asked| {
                let mut pids: Vec<_> = asked.pids.into_iter().collect();
                pids.sort_unstable();
                (asked.name, asked.gpus, pids)
            })
        };
        let gpus = vec![(1, 100 << 20), (0, 100 << 20)];
        let here = vec![((0, 100), 100), ((0, 101), 101), ((1, 100), 100)];
        assert_eq!(asked(user, &a, HERE), Ok(("a".into(), gpus.clone(), here)));
        let in_60 = vec![((0, 100), 1), ((1, 100), 1)];
        assert_eq!(asked(user, &a, 60), Ok(("a".into(), gpus.clone(), in_60)), "of another namespace nothing");
        for elsewhere in [0, 62] {
            assert_eq!(asked(user, &a, elsewhere), Ok(("a".into(), gpus.clone(), vec![])));
        }
        assert_eq!(asked(user, &b, 60), Ok(("b".into(), vec![(0, 100 << 20)], vec![((0, 102), 3)])));
        assert!(asked(owner(4_000_002), &a, HERE).unwrap_err().contains("another user's"));
        assert!(asked(user, &Credential([7; 32]), HERE).unwrap_err().contains("not, or no longer, valid"));
        assert!(asked(user, &Credential::default(), HERE).unwrap_err().contains("sundial run"));
        // Who has come without a credential is one tenant.
        let (opened, _) = tenants.open(Credential::default(), user, 0).unwrap();
        tenants.note_process(opened.session, 103, process(4, 60));
        let own = tenants.asked(&Credential::default(), user, (process(9, HERE), HERE)).unwrap();
        assert_eq!((own.name.as_str(), own.pids[&(opened.gpu, 103)]), ("uid-4000001", 103));
        tenants.close(opened.session);
        assert!(!tenants.processes.contains_key(&opened.session));
    }
}
