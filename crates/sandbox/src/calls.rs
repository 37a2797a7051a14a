//! System calls, by seccomp.

use std::collections::BTreeMap;

use libc::{
    AF_UNIX, AT_EMPTY_PATH, CLONE_THREAD, ENOSYS, EPERM, F_ADD_SEALS, F_DUPFD, F_DUPFD_CLOEXEC, F_GET_SEALS, F_GETFD,
    F_GETFL, F_SETFD, F_SETFL, FIOCLEX, FIONBIO, FIONREAD, PROT_EXEC, c_long,
};
use seccompiler::{
    BackendError, BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, apply_filter_all_threads,
};

use crate::Role;

/// Why a filter could not be installed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FilterError {
    #[error("no filter for this processor: {0}")]
    Build(#[from] BackendError),
    #[error("this kernel does not take the filter: {0}")]
    Install(#[from] seccompiler::Error),
}

type Rules = BTreeMap<i64, Vec<SeccompRule>>;

/// Installs the role's filters. Of several, the strictest answer counts.
pub(crate) fn install(role: Role) -> Result<(), FilterError> {
    let eperm = SeccompAction::Errno(EPERM.unsigned_abs());
    let enosys = SeccompAction::Errno(ENOSYS.unsigned_abs());
    let kill = filter(every(&[NEVER, never_of(role)].concat()), SeccompAction::Allow, SeccompAction::KillProcess)?;
    let listed = match role {
        // Whatever starts programs must allow what those do before they become narrower.
        Role::Control => filter(conditions(SOCKETS_ELSEWHERE)?, SeccompAction::Allow, eperm)?,
        Role::Device | Role::Compiler => {
            // Its flags lie in memory, where no filter can look; libraries then use `clone`, whose flags can be seen. (The
            // list must allow it: of two errors, the later filter's would count.)
            let opaque = filter(every(&[libc::SYS_clone3]), SeccompAction::Allow, enosys)?;
            apply_filter_all_threads(&opaque)?;
            filter(allowed(role)?, eperm, SeccompAction::Allow)?
        }
    };
    apply_filter_all_threads(&kill)?;
    apply_filter_all_threads(&listed)?;
    Ok(())
}

fn filter(rules: Rules, otherwise: SeccompAction, matched: SeccompAction) -> Result<BpfProgram, BackendError> {
    SeccompFilter::new(rules, otherwise, matched, std::env::consts::ARCH.try_into()?)?.try_into()
}

fn every(calls: &[c_long]) -> Rules {
    calls.iter().map(|&call| (call, Vec::new())).collect()
}

/// Calls whose argument must be as said; several lines for one call are alternatives.
fn conditions(lines: &[(c_long, u8, Test)]) -> Result<Rules, BackendError> {
    let mut rules = Rules::new();
    for &(call, argument, ref test) in lines {
        let (operator, value) = match *test {
            Test::Is(value) => (SeccompCmpOp::Eq, value),
            Test::IsNot(value) => (SeccompCmpOp::Ne, value),
            Test::With(bits) => (SeccompCmpOp::MaskedEq(bits), bits),
            Test::Without(bits) => (SeccompCmpOp::MaskedEq(bits), 0),
        };
        let condition = SeccompCondition::new(argument, SeccompCmpArgLen::Dword, operator, value)?;
        rules.entry(call).or_default().push(SeccompRule::new(vec![condition])?);
    }
    Ok(rules)
}

/// What an argument (its lower half) must be.
enum Test {
    Is(u64),
    IsNot(u64),
    With(u64),
    Without(u64),
}

fn allowed(role: Role) -> Result<Rules, BackendError> {
    let mut rules = every(COMMON);
    rules.extend(every(&[libc::SYS_clone3]));
    rules.extend(conditions(COMMON_IF)?);
    // A thread may signal its own process: `abort` does.
    let own = u64::from(std::process::id());
    rules.extend(conditions(&[(libc::SYS_tgkill, 0, Test::Is(own)), (libc::SYS_kill, 0, Test::Is(own))])?);
    match role {
        Role::Device => {
            rules.extend(every(DEVICE));
            for (call, lines) in conditions(DEVICE_IF)? {
                rules.entry(call).or_default().extend(lines);
            }
        }
        // Compilers make code and never run any.
        Role::Compiler => rules.extend(conditions(&[
            (libc::SYS_mmap, 2, Test::Without(PROT_EXEC as u64)),
            (libc::SYS_mprotect, 2, Test::Without(PROT_EXEC as u64)),
        ])?),
        Role::Control => {}
    }
    Ok(rules)
}

fn never_of(role: Role) -> &'static [c_long] {
    match role {
        Role::Control => &[],
        Role::Device | Role::Compiler => NEVER_BELOW_CONTROL,
    }
}

/// Nothing of ours ever asks for these.
const NEVER: &[c_long] = &[
    libc::SYS_acct,
    libc::SYS_add_key,
    libc::SYS_adjtimex,
    libc::SYS_bpf,
    libc::SYS_chroot,
    libc::SYS_clock_adjtime,
    libc::SYS_clock_settime,
    libc::SYS_delete_module,
    libc::SYS_fanotify_init,
    libc::SYS_finit_module,
    libc::SYS_fsmount,
    libc::SYS_fsopen,
    libc::SYS_init_module,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    libc::SYS_io_uring_setup,
    libc::SYS_ioperm,
    libc::SYS_iopl,
    libc::SYS_kcmp,
    libc::SYS_kexec_file_load,
    libc::SYS_kexec_load,
    libc::SYS_keyctl,
    libc::SYS_mount,
    libc::SYS_mount_setattr,
    libc::SYS_move_mount,
    libc::SYS_open_by_handle_at,
    libc::SYS_open_tree,
    libc::SYS_perf_event_open,
    libc::SYS_pidfd_getfd,
    libc::SYS_pivot_root,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_ptrace,
    libc::SYS_quotactl,
    libc::SYS_reboot,
    libc::SYS_request_key,
    libc::SYS_setdomainname,
    libc::SYS_sethostname,
    libc::SYS_setns,
    libc::SYS_settimeofday,
    libc::SYS_swapoff,
    libc::SYS_swapon,
    libc::SYS_syslog,
    libc::SYS_umount2,
    libc::SYS_unshare,
    libc::SYS_userfaultfd,
    libc::SYS_vhangup,
];

/// Programs are started by the control process alone.
const NEVER_BELOW_CONTROL: &[c_long] = &[libc::SYS_execve, libc::SYS_execveat];

/// The control process talks over sockets of this machine only.
const SOCKETS_ELSEWHERE: &[(c_long, u8, Test)] = &[(libc::SYS_socket, 0, Test::IsNot(AF_UNIX as u64))];

/// What Rust's library, glibc and our code need to compute, wait and talk over what they hold; by what it is about. Some
/// lines are for other versions of glibc than the one this was written with.
const COMMON: &[c_long] = &[
    // memory
    libc::SYS_brk,
    libc::SYS_madvise,
    libc::SYS_memfd_create,
    libc::SYS_mremap,
    libc::SYS_munmap,
    // threads
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_futex,
    libc::SYS_futex_waitv,
    libc::SYS_get_robust_list,
    libc::SYS_getcpu,
    libc::SYS_getpid,
    libc::SYS_gettid,
    libc::SYS_getppid,
    libc::SYS_membarrier,
    libc::SYS_restart_syscall,
    libc::SYS_rseq,
    libc::SYS_sched_getaffinity,
    libc::SYS_sched_getparam,
    libc::SYS_sched_getscheduler,
    libc::SYS_sched_yield,
    libc::SYS_set_robust_list,
    libc::SYS_set_tid_address,
    // signals that a thread gets
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sigaltstack,
    // time and chance
    libc::SYS_clock_getres,
    libc::SYS_clock_gettime,
    libc::SYS_clock_nanosleep,
    libc::SYS_getrandom,
    libc::SYS_gettimeofday,
    libc::SYS_nanosleep,
    libc::SYS_time,
    libc::SYS_times,
    // descriptors that are held
    libc::SYS_close,
    libc::SYS_dup,
    libc::SYS_fallocate,
    libc::SYS_fstat,
    libc::SYS_ftruncate,
    libc::SYS_lseek,
    libc::SYS_poll,
    libc::SYS_ppoll,
    libc::SYS_pread64,
    libc::SYS_pwrite64,
    libc::SYS_read,
    libc::SYS_readv,
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
    libc::SYS_sendmsg,
    libc::SYS_sendto,
    libc::SYS_shutdown,
    libc::SYS_write,
    libc::SYS_writev,
    // who one is
    libc::SYS_getegid,
    libc::SYS_geteuid,
    libc::SYS_getgid,
    libc::SYS_getrlimit,
    libc::SYS_getrusage,
    libc::SYS_getuid,
    libc::SYS_sysinfo,
    libc::SYS_uname,
];

const COMMON_IF: &[(c_long, u8, Test)] = &[
    // Threads, not processes.
    (libc::SYS_clone, 0, Test::With(CLONE_THREAD as u64)),
    // What is open is looked at without a name.
    (libc::SYS_newfstatat, 3, Test::With(AT_EMPTY_PATH as u64)),
    (libc::SYS_statx, 2, Test::With(AT_EMPTY_PATH as u64)),
    // Not who gets signals about it.
    (libc::SYS_fcntl, 1, Test::Is(F_DUPFD as u64)),
    (libc::SYS_fcntl, 1, Test::Is(F_DUPFD_CLOEXEC as u64)),
    (libc::SYS_fcntl, 1, Test::Is(F_GETFD as u64)),
    (libc::SYS_fcntl, 1, Test::Is(F_SETFD as u64)),
    (libc::SYS_fcntl, 1, Test::Is(F_GETFL as u64)),
    (libc::SYS_fcntl, 1, Test::Is(F_SETFL as u64)),
    (libc::SYS_fcntl, 1, Test::Is(F_ADD_SEALS as u64)),
    (libc::SYS_fcntl, 1, Test::Is(F_GET_SEALS as u64)),
    (libc::SYS_ioctl, 1, Test::Is(FIOCLEX)),
    (libc::SYS_ioctl, 1, Test::Is(FIONBIO)),
    (libc::SYS_ioctl, 1, Test::Is(FIONREAD)),
    // Names of threads and of mappings, for people.
    (libc::SYS_prctl, 0, Test::Is(libc::PR_SET_NAME as u64)),
    (libc::SYS_prctl, 0, Test::Is(libc::PR_GET_NAME as u64)),
    (libc::SYS_prctl, 0, Test::Is(libc::PR_SET_VMA as u64)),
    // One's own limits.
    (libc::SYS_prlimit64, 0, Test::Is(0)),
];

/// What serving sessions and guests needs besides: sockets that came from elsewhere, waiting for many things, running compiled code,
/// and ending compilers of which it holds a descriptor.
const DEVICE: &[c_long] = &[
    libc::SYS_dup3,
    libc::SYS_epoll_create1,
    libc::SYS_epoll_ctl,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2,
    libc::SYS_epoll_wait,
    libc::SYS_eventfd2,
    // what kind of file a guest's memory is: some can lose pages that are mapped
    libc::SYS_fstatfs,
    libc::SYS_getpeername,
    libc::SYS_getpriority,
    libc::SYS_getsockname,
    libc::SYS_getsockopt,
    libc::SYS_mincore,
    libc::SYS_mmap,
    libc::SYS_mprotect,
    libc::SYS_pidfd_send_signal,
    libc::SYS_pipe2,
    libc::SYS_preadv2,
    libc::SYS_sched_getattr,
    libc::SYS_sched_setaffinity,
    libc::SYS_setpriority,
    libc::SYS_setsockopt,
    libc::SYS_socketpair,
    libc::SYS_timerfd_create,
    libc::SYS_timerfd_gettime,
    libc::SYS_timerfd_settime,
];

/// Watching what guests store into memory of theirs, with descriptors that they have sent: numbers of `linux/userfaultfd.h` and
/// `linux/fs.h`. To make such descriptors is not for this process.
const DEVICE_IF: &[(c_long, u8, Test)] = &[
    // Slices of processor time: the calling thread's.
    (libc::SYS_sched_setattr, 0, Test::Is(0)),
    // UFFDIO_WRITEPROTECT
    (libc::SYS_ioctl, 1, Test::Is(0xc018_aa06)),
    // UFFDIO_WAKE
    (libc::SYS_ioctl, 1, Test::Is(0x8010_aa02)),
    // PAGEMAP_SCAN
    (libc::SYS_ioctl, 1, Test::Is(0xc060_6610)),
];
