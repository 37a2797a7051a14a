//! Whether a client has work that waits for nothing but its turn.

use gpu::{Command, Compare, DevAddr, Gpu};
use gpu_driver::ClientConfig;

use crate::suite::support::{PTX, Tenant, driver, eventually, kernel};

#[test]
fn what_is_held_is_ready_and_what_waits_for_something_else_is_not() {
    let driver = driver(64);
    let tenant = Tenant::new(&driver, ClientConfig::default());
    tenant.load(0, PTX);
    let memory = tenant.alloc(4096);
    assert!(!tenant.client.is_ready());
    tenant.submit(0, &[Command::WaitValue { at: memory, value: 1, wide: false, compare: Compare::Equal }]);
    tenant.launch(0, kernel::STORE, 1, 1, &[memory.0 + 64, 7]).unwrap();
    tenant.client.flush().unwrap();
    eventually("it waits", || !tenant.client.is_ready());
    // Held, it is ready when what it waits for has happened.
    tenant.client.set_runnable(false).unwrap();
    tenant.write(memory, &1u32.to_le_bytes());
    eventually("it could go on", || tenant.client.is_ready());
    assert_eq!(tenant.client.usage().kernels, 0);
    tenant.client.set_runnable(true).unwrap();
    tenant.sync(0);
    assert_eq!(tenant.read_u32(DevAddr(memory.0 + 64), 1), [7]);
    eventually("it has done everything", || !tenant.client.is_ready());
    // What is submitted while it is held is there for all to see.
    tenant.client.set_runnable(false).unwrap();
    tenant.launch(0, kernel::STORE, 1, 1, &[memory.0 + 64, 8]).unwrap();
    assert!(tenant.client.is_ready());
    tenant.client.set_runnable(true).unwrap();
    tenant.sync(0);
    // What fails has nothing to do any more.
    tenant.launch(0, kernel::TRAP, 1, 1, &[]).unwrap();
    eventually("it is dead", || !tenant.client.is_ready());
}
