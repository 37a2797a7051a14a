//! Processor time of another process.

use std::time::Duration;

/// Processor time that process `pid` has used so far, all threads together; `None` if there is no such process.
#[must_use]
pub fn cpu_time(pid: i32) -> Option<Duration> {
    // The kernel's number for "the processor clock of that process": its complement, shifted, and the kind of clock (2).
    let clock = (!pid << 3) | 2;
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call writes one timespec, and that is what it gets.
    let result = unsafe { libc::clock_gettime(clock, &raw mut time) };
    if pid <= 0 || result != 0 {
        return None;
    }
    Some(Duration::new(u64::try_from(time.tv_sec).ok()?, u32::try_from(time.tv_nsec).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_of_a_process_grows_while_it_computes() {
        let own = std::process::id().cast_signed();
        let before = cpu_time(own).unwrap();
        let mut sum = 0_u64;
        while cpu_time(own).unwrap() < before + Duration::from_millis(5) {
            sum = std::hint::black_box(sum.wrapping_mul(3) + 1);
        }
        assert_eq!(cpu_time(0), None);
        assert_eq!(cpu_time(i32::MAX - 7), None, "no such process");
    }
}
