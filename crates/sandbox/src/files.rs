//! The file system, by landlock.

use std::path::Path;

use landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, CompatLevel, Compatible, NetPort, PathBeneath, PathFd, Ruleset,
    RulesetAttr, RulesetCreatedAttr, RulesetError, RulesetStatus, Scope,
};

use crate::{Holds, Role, Writable};

/// What this was written for. Older kernels do as much of it as they know.
const KNOWN: ABI = ABI::V6;
/// Tables of the kernel that the device process reads while it starts: processors, and how much it may map.
const TABLES: [&str; 4] = ["/proc/sys/vm", "/proc/self", "/sys/devices/system/cpu", "/sys/fs/cgroup"];

/// Takes away what the role does not need, for this thread and all that it will start.
pub(crate) fn restrict(role: Role, writable: &[Writable<'_>]) -> Holds {
    match ruleset(role, writable) {
        Ok(RulesetStatus::FullyEnforced) => Holds::Yes,
        Ok(RulesetStatus::PartiallyEnforced) => Holds::Partly("this kernel's landlock knows less".into()),
        Ok(RulesetStatus::NotEnforced) => {
            Holds::No("this kernel has no landlock (CONFIG_SECURITY_LANDLOCK, lsm=)".into())
        }
        Err(error) => Holds::No(error.to_string()),
    }
}

fn ruleset(role: Role, writable: &[Writable<'_>]) -> Result<RulesetStatus, RulesetError> {
    // The control process starts programs from wherever they are installed, so it reads; writing is for its own places.
    let handled = match role {
        Role::Control => AccessFs::from_write(KNOWN),
        Role::Device | Role::Compiler => AccessFs::from_all(KNOWN),
    };
    let mut rules = Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(handled)?
        .handle_access(AccessNet::from_all(KNOWN))?
        .scope(scopes(role))?
        .create()?;
    let readable = AccessFs::ReadFile | AccessFs::ReadDir;
    let ports = writable.iter().filter_map(|it| if let Writable::Port(port) = it { Some(*port) } else { None });
    for port in ports.filter(|_| role == Role::Control) {
        rules = rules.add_rule(NetPort::new(port, AccessNet::BindTcp))?;
    }
    let grants: Vec<(&Path, BitFlags<AccessFs>)> = match role {
        Role::Control => {
            let discard = (Path::new("/dev/null"), AccessFs::WriteFile.into());
            let files = AccessFs::MakeDir | AccessFs::MakeReg | AccessFs::WriteFile | AccessFs::RemoveFile;
            let grant = |writable: &_| match *writable {
                Writable::Everything(path) => Some((path, handled)),
                Writable::Files(path) => Some((path, files)),
                Writable::Sockets(path) => Some((path, AccessFs::MakeSock | AccessFs::RemoveFile)),
                Writable::Port(_) => None,
            };
            writable.iter().filter_map(grant).chain([discard]).collect()
        }
        Role::Device => TABLES.iter().map(|table| (Path::new(table), readable)).collect(),
        Role::Compiler => Vec::new(),
    };
    for (path, access) in grants {
        // What does not exist needs no grant.
        if let Ok(opened) = PathFd::new(path) {
            rules = rules.add_rule(PathBeneath::new(opened, access))?;
        }
    }
    Ok(rules.restrict_self()?.ruleset)
}

/// Sockets by abstract names, for all. Signals only for those who never send one to another branch of the family: the
/// device process ends compilers, which are its siblings; its filter of system calls knows better whom.
fn scopes(role: Role) -> BitFlags<Scope> {
    match role {
        Role::Device => Scope::AbstractUnixSocket.into(),
        Role::Control | Role::Compiler => Scope::AbstractUnixSocket | Scope::Signal,
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn where_plain_files_may_be_nothing_else_may() {
        let base = std::env::temp_dir().join(format!("sundial-writable-{}", std::process::id()));
        let (files, all) = (base.join("files"), base.join("all"));
        for path in [&files, &all] {
            fs::create_dir_all(path).unwrap();
        }
        fs::write(base.join("else"), "").unwrap();
        // What is taken away is taken from one thread.
        let (name, inside) = (base.clone(), (files.clone(), all.clone()));
        let outcome = std::thread::spawn(move || {
            let (files, all) = inside;
            rustix::thread::set_no_new_privs(true).unwrap();
            let holds = restrict(Role::Control, &[Writable::Files(&files), Writable::Everything(&all)]);
            if let Holds::No(reason) = holds {
                eprintln!("nothing is tested here: {reason}");
                return;
            }
            let made = files.join("made/again");
            fs::create_dir_all(&made).unwrap();
            fs::write(made.join("a"), "code").unwrap();
            fs::rename(made.join("a"), made.join("b")).unwrap();
            fs::remove_file(made.join("b")).unwrap();
            assert!(symlink("/", made.join("link")).is_err());
            assert!(std::os::unix::net::UnixListener::bind(made.join("socket")).is_err());
            assert!(fs::remove_dir(&made).is_err());
            symlink("/", all.join("link")).unwrap();
            assert!(fs::write(name.join("else"), "x").is_err());
            assert!(fs::write(name.join("new"), "x").is_err());
        })
        .join();
        fs::remove_dir_all(&base).unwrap();
        outcome.unwrap();
    }
}
