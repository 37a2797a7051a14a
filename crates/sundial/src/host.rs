//! What this machine has, and how much of it one tenant may take where the policy does not say.
//!
//! | resource | kept for the daemon and everybody else | a tenant's part of the rest |
//! |---|---|---|
//! | memory | what the software GPU's own memory may take, and an eighth, at least 1 GiB | a half |
//! | descriptors (`RLIMIT_NOFILE`, raised) | 256 | an eighth |
//! | entries of the memory map (`vm.max_map_count`) | 8,192 | an eighth |
//!
//! A half and not an eighth of the memory: pinned memory is what programs ask for in large pieces, and most of the time few
//! tenants do. Who must be sure sets `limits.host_bytes`.

use tenancy::Limits;

/// What there is, of each kind.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Host {
    memory_bytes: u64,
    maps: u64,
    files: u64,
}

/// Least that a tenant gets, however small the machine: programs run in it.
const LEAST_BYTES: u64 = 512 << 20;
const LEAST_MAPS: u64 = 2048;
const LEAST_FILES: u64 = 64;

impl Host {
    /// Looks at this machine. What cannot be found out is what machines usually have.
    pub(crate) fn look() -> Host {
        let number = |path| std::fs::read_to_string(path).ok()?.trim().parse::<u64>().ok();
        let total = std::fs::read_to_string("/proc/meminfo").ok().and_then(|text| meminfo(&text)).unwrap_or(8 << 30);
        // Of a container with a limit of its own.
        let group = number("/sys/fs/cgroup/memory.max").unwrap_or(u64::MAX);
        let files = rustix::process::getrlimit(rustix::process::Resource::Nofile).maximum;
        Host {
            memory_bytes: total.min(group),
            maps: number("/proc/sys/vm/max_map_count").unwrap_or(65_530),
            files: files.unwrap_or(1 << 20),
        }
    }

    /// The policy's limits, with a part of what there is where it says nothing. `gpu_bytes`: memory of a GPU that is
    /// software.
    pub(crate) fn limits(&self, policy: &Limits, gpu_bytes: u64) -> Limits {
        let kept = gpu_bytes.saturating_add((self.memory_bytes / 8).max(1 << 30));
        let part = |said: u64, part: u64| if said == u64::MAX { part } else { said };
        Limits {
            host_bytes: part(policy.host_bytes, (self.memory_bytes.saturating_sub(kept) / 2).max(LEAST_BYTES)),
            maps: part(policy.maps, (self.maps.saturating_sub(8192) / 8).max(LEAST_MAPS)),
            files: part(policy.files, (self.files.saturating_sub(256) / 8).max(LEAST_FILES)),
            ..policy.clone()
        }
    }
}

/// All memory, from `/proc/meminfo`.
fn meminfo(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tenant_gets_a_part_of_what_is_not_kept() {
        let host = Host { memory_bytes: 64 << 30, maps: 65_530, files: 1024 };
        let limits = host.limits(&Limits::default(), 4 << 30);
        assert_eq!((limits.host_bytes, limits.maps, limits.files), (26 << 30, 7167, 96));
        let said = Limits { host_bytes: 5, maps: 6, files: 7, ..Limits::default() };
        assert_eq!(host.limits(&said, 4 << 30), said);
        let small = Host { memory_bytes: 2 << 30, ..host }.limits(&Limits::default(), 4 << 30);
        assert_eq!(small.host_bytes, LEAST_BYTES);
        assert_eq!(meminfo("MemFree: 1 kB\nMemTotal:       16384 kB\n"), Some(16 << 20));
        assert!(Host::look().memory_bytes > 64 << 20);
    }
}
