//! Many short waits, and waits that begin to sleep at every possible moment: none may hang.

use std::time::{Duration, Instant};

use gpu::{Command, ContextId, Gpu, QueueId};
use gpu_driver::{ClientConfig, Driver};

use super::support::{BOUND, PTX, Tenant, kernel};

const ROUNDS: u64 = 600;

/// Pauses of many lengths around those after which threads sleep, without pattern.
fn pause(round: u64) {
    let wait = Duration::from_nanos(round.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 47);
    let start = Instant::now();
    while start.elapsed() < wait {
        std::hint::spin_loop();
    }
}

#[test]
fn every_wait_ends() {
    for lend in [false, true] {
        let driver = Driver::start(crate::device::make(256 << 20, lend)).unwrap();
        let tenants: Vec<Tenant> = (0..3).map(|_| Tenant::new(&driver, ClientConfig::default())).collect();
        std::thread::scope(|scope| {
            for tenant in &tenants {
                tenant.load(0, PTX);
                let (flag, data) = (tenant.alloc(4096), tenant.alloc(1 << 20));
                tenant.queue(1, 0);
                let (short, long) = (tenant.slot(), tenant.slot());
                // One queue does little, again and again; the other runs kernels until the host stores a flag.
                scope.spawn(move || {
                    for round in 1..=ROUNDS {
                        tenant.launch(0, kernel::STORE, 1, 1, &[data.0, round]).unwrap();
                        tenant.submit(0, &[Command::Signal { slot: short, value: round }]);
                        pause(round);
                        tenant.client.wait(ContextId(0), short, round, Some(BOUND)).unwrap();
                    }
                });
                scope.spawn(move || {
                    for round in 1..=ROUNDS / 4 {
                        tenant.write(flag, &[0; 4]);
                        tenant.launch(1, kernel::SPIN, 1, 1, &[flag.0]).unwrap();
                        tenant.submit(1, &[Command::Signal { slot: long, value: round }]);
                        std::thread::scope(|scope| {
                            let wait = || tenant.client.wait(ContextId(0), long, round, Some(BOUND)).unwrap();
                            scope.spawn(wait);
                            pause(round);
                            tenant.write(flag, &[1; 4]);
                            wait();
                        });
                    }
                });
            }
        });
        for tenant in &tenants {
            assert!(tenant.client.submit(QueueId(0), &[]).is_ok());
            assert_eq!(tenant.client.usage().kernels, ROUNDS + ROUNDS / 4);
        }
    }
}
