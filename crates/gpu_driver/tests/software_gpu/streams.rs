//! Many queues on few channels: order, progress, and what they cost.

use std::sync::Arc;
use std::time::Duration;

use gpu::{Command, Compare, ContextId, DevAddr, Gpu, GpuError, QueueId, Request, SlotId};
use gpu_driver::ClientConfig;

use super::support::{BOUND, PTX, Tenant, driver, eventually, kernel};

fn store(at: DevAddr, value: u32) -> Command<'static> {
    Command::Fill { dst: at, value, element: 4, width: 1, height: 1, pitch: 0 }
}

fn word(base: DevAddr, index: u32) -> DevAddr {
    DevAddr(base.0 + u64::from(index) * 8)
}

fn queues(tenant: &Tenant, range: std::ops::Range<u32>) {
    range.for_each(|id| tenant.queue(id, 0));
}

#[test]
fn a_thousand_used_queues_of_one_context() {
    let driver = driver(64);
    let tenant = Tenant::new(&driver, ClientConfig::default());
    let memory = tenant.alloc(1 << 20);
    queues(&tenant, 1..1024);
    for round in 1..=3u32 {
        for id in 0..1024 {
            tenant.submit(
                id,
                &[store(word(memory, id), round), Command::Signal { slot: SlotId(id), value: round.into() }],
            );
        }
        for id in 0..1024 {
            tenant.client.wait(ContextId(0), SlotId(id), round.into(), Some(BOUND)).unwrap();
        }
        let words = tenant.read_u32(memory, 2048);
        assert!(words.chunks(2).all(|pair| pair[0] == round), "round {round}");
    }
    assert_eq!(driver.counts().channels, 32);
    tenant.client.close();
    assert_eq!(driver.counts().channels, 0);
}

#[test]
fn unused_queues_cost_nothing() {
    let driver = driver(64);
    let budget = driver.budget(gpu_driver::HostCost::default()).unwrap();
    let config = ClientConfig { budget: Some(Arc::clone(&budget)), ..ClientConfig::default() };
    let tenant = Tenant::new(&driver, config);
    let before = (driver.counts(), budget.used(), budget.driver_bytes());
    queues(&tenant, 1..5000);
    assert_eq!((driver.counts(), budget.used(), budget.driver_bytes()), before);
    assert_eq!(driver.counts().channels, 0, "the first is not used either");
    tenant.submit(4999, &[Command::Signal { slot: SlotId(1), value: 1 }]);
    tenant.client.wait(ContextId(0), SlotId(1), 1, Some(BOUND)).unwrap();
    assert_eq!(driver.counts().channels, 1);
    assert!(budget.driver_bytes() > 0);
}

/// Each queue waits for the next one, all of which is submitted later: whoever shares a channel with whom, nobody hangs.
#[test]
fn waits_for_later_work_do_not_hold_a_channel() {
    const COUNT: u32 = 200;
    let driver = driver(64);
    let tenant = Tenant::new(&driver, ClientConfig::default());
    let memory = tenant.alloc(4096);
    queues(&tenant, 1..COUNT);
    // Everybody has a channel, with six or seven queues each.
    (0..COUNT).for_each(|id| tenant.submit(id, &[store(word(memory, id), 1)]));
    let slot = |id: u32| SlotId(1000 + id);
    for id in 0..COUNT - 1 {
        let wait = Command::Wait { slot: slot(id + 1), value: 1 };
        tenant.submit(id, &[wait, store(word(memory, id), id + 2)]);
        // What comes later waits as well, in order.
        tenant.submit(id, &[Command::Signal { slot: slot(id), value: 1 }]);
    }
    let early = tenant.client.wait(ContextId(0), slot(0), 1, Some(Duration::from_millis(20)));
    assert_eq!(early, Err(GpuError::TimedOut));
    tenant.submit(
        COUNT - 1,
        &[store(word(memory, COUNT - 1), COUNT + 1), Command::Signal { slot: slot(COUNT - 1), value: 1 }],
    );
    tenant.client.wait(ContextId(0), slot(0), 1, Some(BOUND)).unwrap();
    let words = tenant.read_u32(memory, COUNT as usize * 2);
    assert!(words.chunks(2).zip(2..).all(|(pair, expected)| pair[0] == expected), "{words:?}");
}

#[test]
fn the_client_releases_parked_queues_in_any_order() {
    const COUNT: u32 = 100;
    let driver = driver(64);
    let tenant = Tenant::new(&driver, ClientConfig::default());
    let memory = tenant.alloc(4096);
    queues(&tenant, 1..COUNT);
    for id in 0..COUNT {
        let wait = Command::Wait { slot: SlotId(id), value: 5 };
        let done = Command::Signal { slot: SlotId(1000 + id), value: 1 };
        let data = (id + 7).to_le_bytes();
        tenant.submit(
            id,
            &[store(word(memory, id), 1), wait, Command::Write { dst: word(memory, id), data: &data }, done],
        );
    }
    // A queue that is destroyed still does what was submitted to it.
    tenant.client.request(Request::DestroyQueue { id: QueueId(3) }).unwrap();
    for id in (0..COUNT).rev() {
        tenant.client.release(SlotId(id), 4).unwrap();
        let done = SlotId(1000 + id);
        assert_eq!(tenant.client.semaphores().payload(done), 0, "4 is not enough");
        tenant.client.release(SlotId(id), 5).unwrap();
        tenant.client.wait(ContextId(0), done, 1, Some(BOUND)).unwrap();
        assert_eq!(tenant.read_u32(word(memory, id), 1), [id + 7]);
    }
}

#[test]
fn waits_for_memory_do_not_hold_others() {
    const COUNT: u32 = 60;
    let driver = driver(64);
    let tenant = Tenant::new(&driver, ClientConfig::default());
    let memory = tenant.alloc(4096);
    queues(&tenant, 1..2 * COUNT);
    let (flag, value) = (|id: u32| word(memory, id), |id: u32| word(memory, 200 + id));
    for id in 0..COUNT {
        let wait = Command::WaitValue { at: flag(id), value: 9, wide: false, compare: Compare::Equal };
        let done = Command::Signal { slot: SlotId(id), value: 1 };
        tenant.submit(id, &[store(value(id), 1), wait, store(value(id), 2), done]);
    }
    eventually("all that comes before the waits is done", || {
        tenant.read_u32(value(0), COUNT as usize * 2).chunks(2).all(|pair| pair[0] == 1)
    });
    for id in (0..COUNT).rev() {
        tenant.submit(COUNT + id, &[Command::WriteValue { at: flag(id), value: 9, wide: false }]);
    }
    for id in 0..COUNT {
        tenant.client.wait(ContextId(0), SlotId(id), 1, Some(BOUND)).unwrap();
        assert_eq!(tenant.read_u32(value(id), 1), [2]);
        // Back in a shared channel, in order.
        tenant.submit(id, &[store(value(id), 3), Command::Signal { slot: SlotId(id), value: 2 }]);
        tenant.client.wait(ContextId(0), SlotId(id), 2, Some(BOUND)).unwrap();
        assert_eq!(tenant.read_u32(value(id), 1), [3]);
    }
}

#[test]
fn a_promise_broken_by_another_context_holds_only_who_relied_on_it() {
    let driver = driver(64);
    let tenant = Tenant::new(&driver, ClientConfig::default());
    tenant.load(0, PTX);
    tenant.context(1);
    tenant.queue(1, 1);
    queues(&tenant, 2..200);
    let memory = tenant.alloc(4096);
    tenant.launch(1, kernel::SPIN, 1, 1, &[memory.0]).unwrap();
    tenant.submit(1, &[Command::Signal { slot: SlotId(1), value: 1 }]);
    tenant.submit(2, &[Command::Wait { slot: SlotId(1), value: 1 }]);
    tenant.client.request(Request::DestroyContext { id: ContextId(1) }).unwrap();
    for id in 3..200 {
        tenant.submit(id, &[store(word(memory, id), id), Command::Signal { slot: SlotId(1000 + id), value: 1 }]);
    }
    for id in 3..200 {
        tenant.client.wait(ContextId(0), SlotId(1000 + id), 1, Some(BOUND)).unwrap();
    }
    // It is told by hand, and goes on.
    tenant.submit(2, &[Command::Signal { slot: SlotId(2), value: 1 }]);
    tenant.client.release(SlotId(1), 1).unwrap();
    tenant.client.wait(ContextId(0), SlotId(2), 1, Some(BOUND)).unwrap();
}

#[test]
fn what_parked_queues_keep_is_bounded_and_given_back() {
    let driver = driver(64);
    let budget = driver.budget(gpu_driver::HostCost::default()).unwrap();
    let config = ClientConfig { budget: Some(Arc::clone(&budget)), ..ClientConfig::default() };
    let tenant = Tenant::new(&driver, config);
    let memory = tenant.alloc(1 << 20);
    let data = vec![1u8; 60_000];
    tenant.submit(0, &[Command::Wait { slot: SlotId(0), value: 1 }]);
    std::thread::scope(|scope| {
        let submitting = scope.spawn(|| {
            for _ in 0..1000 {
                tenant.submit(0, &[Command::Write { dst: memory, data: &data }]);
            }
            tenant.submit(0, &[Command::Signal { slot: SlotId(1), value: 1 }]);
        });
        eventually("it keeps all it may", || budget.driver_bytes() >= 16 << 20);
        assert!(budget.driver_bytes() < 20 << 20);
        assert!(!submitting.is_finished());
        tenant.client.release(SlotId(0), 1).unwrap();
        submitting.join().unwrap();
    });
    tenant.client.wait(ContextId(0), SlotId(1), 1, Some(BOUND)).unwrap();
    // A context that ends takes what is parked with it.
    tenant.submit(0, &[Command::Wait { slot: SlotId(7), value: 1 }, Command::Write { dst: memory, data: &data }]);
    tenant.client.request(Request::DestroyContext { id: ContextId(0) }).unwrap();
    assert_eq!(budget.driver_bytes(), 0);
}

/// More than a channel holds is submitted behind a wait, by the thread that ends it.
#[test]
fn what_waits_for_memory_does_not_hold_who_submits() {
    const LAUNCHES: u64 = 3000;
    let driver = driver(64);
    let tenant = Tenant::new(&driver, ClientConfig::default());
    tenant.load(0, PTX);
    let memory = tenant.alloc(1 << 20);
    let data = vec![9u8; 50_000];
    queues(&tenant, 1..3);
    for queue in 0..2 {
        tenant.submit(queue, &[Command::WaitValue { at: memory, value: 1, wide: true, compare: Compare::Equal }]);
        for launch in 1..=LAUNCHES {
            let at = memory.0 + 4096 * u64::from(1 + queue) + launch % 16 * 8;
            tenant.launch(queue, kernel::STORE, 1, 1, &[at, launch]).unwrap();
        }
        for _ in 0..20 {
            tenant.submit(queue, &[Command::Write { dst: DevAddr(memory.0 + (64 << 10)), data: &data }]);
        }
        tenant.submit(queue, &[Command::Signal { slot: SlotId(queue), value: 1 }]);
    }
    tenant.submit(2, &[Command::WriteValue { at: memory, value: 1, wide: true }]);
    for queue in 0..2 {
        tenant.client.wait(ContextId(0), SlotId(queue), 1, Some(BOUND)).unwrap();
        let words = tenant.read_u32(DevAddr(memory.0 + 4096 * u64::from(1 + queue)), 32);
        let mut stored: Vec<u64> = words.chunks(2).map(|pair| pair[0].into()).collect();
        stored.sort_unstable();
        assert!(stored.into_iter().eq(LAUNCHES - 15..=LAUNCHES), "the last of each is there");
    }
    assert_eq!(tenant.read(DevAddr(memory.0 + (64 << 10)), 50_000), data);
}

/// A chain of queues whose first waits for memory: nobody who depends on it holds a channel that the word's writer may need.
#[test]
fn what_depends_on_memory_does_not_hold_others_either() {
    const COUNT: u32 = 200;
    let driver = driver(64);
    let tenant = Tenant::new(&driver, ClientConfig::default());
    let memory = tenant.alloc(1 << 20);
    queues(&tenant, 1..COUNT + 100);
    let flag = word(memory, 5000);
    tenant.submit(0, &[Command::WaitValue { at: flag, value: 1, wide: false, compare: Compare::CyclicGeq }]);
    let signal = |id: u32| Command::Signal { slot: SlotId(id), value: 1 };
    tenant.submit(0, &[store(word(memory, 0), 1), signal(0)]);
    for id in 1..COUNT {
        tenant.submit(
            id,
            &[Command::Wait { slot: SlotId(id - 1), value: 1 }, store(word(memory, id), id + 1), signal(id)],
        );
    }
    // Whichever channel it is bound to, each of these runs.
    for id in COUNT..COUNT + 99 {
        tenant.submit(id, &[signal(id)]);
        tenant.client.wait(ContextId(0), SlotId(id), 1, Some(BOUND)).unwrap();
    }
    assert_eq!(tenant.client.semaphores().payload(SlotId(0)), 0);
    tenant.submit(COUNT + 99, &[Command::WriteValue { at: flag, value: 1, wide: false }]);
    tenant.client.wait(ContextId(0), SlotId(COUNT - 1), 1, Some(BOUND)).unwrap();
    let words = tenant.read_u32(memory, COUNT as usize * 2);
    assert!(words.chunks(2).zip(1..).all(|(pair, expected)| pair[0] == expected));
}

/// What a step of a random program does.
#[derive(Clone, Copy, Debug)]
enum Step {
    Signal,
    Write,
    /// Waits for an earlier step of another queue, as that allows.
    WaitFor(usize),
    /// Waits for the client.
    WaitForClient,
}

/// Random programs, each of which can run in the order in which it was made up; submitted in any order that keeps that of
/// each queue. All must end.
#[test]
fn whatever_can_run_does() {
    const QUEUES: u32 = 80;
    const STEPS: usize = 600;
    let driver = driver(64);
    for seed in 1..=40u64 {
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mut next = |below: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as usize % below
        };
        let tenant = Tenant::new(&driver, ClientConfig::default());
        let memory = tenant.alloc(1 << 20);
        queues(&tenant, 1..QUEUES);
        let mut steps: Vec<(u32, Step)> = Vec::new();
        for at in 0..STEPS {
            let queue = next(QUEUES as usize) as u32;
            let step = match next(8) {
                0..3 => Step::Signal,
                3..5 => Step::Write,
                5 => Step::WaitForClient,
                _ if at > 0 => Step::WaitFor(next(at)),
                _ => Step::Signal,
            };
            steps.push((queue, step));
        }
        let slot = |step: usize| SlotId(100 + step as u32);
        let commands = |at: usize| match steps[at].1 {
            Step::Signal => Some(Command::Signal { slot: slot(at), value: 1 }),
            Step::Write => Some(Command::WriteValue { at: word(memory, at as u32), value: 1, wide: true }),
            Step::WaitForClient => Some(Command::Wait { slot: slot(at), value: 1 }),
            Step::WaitFor(step) => match steps[step].1 {
                Step::Signal => Some(Command::Wait { slot: slot(step), value: 1 }),
                Step::Write => {
                    let (at, compare) = (word(memory, step as u32), Compare::Equal);
                    Some(Command::WaitValue { at, value: 1, wide: true, compare })
                }
                Step::WaitFor(_) | Step::WaitForClient => None,
            },
        };
        // Queue by queue what is left to be submitted, in reverse.
        let mut left: Vec<Vec<usize>> = vec![Vec::new(); QUEUES as usize];
        for at in (0..STEPS).rev() {
            left[steps[at].0 as usize].push(at);
        }
        while left.iter().any(|steps| !steps.is_empty()) {
            let queue = next(QUEUES as usize);
            for _ in 0..next(4) {
                let Some(command) = left[queue].pop().and_then(commands) else { continue };
                tenant.submit(queue as u32, &[command]);
            }
        }
        for at in (0..STEPS).filter(|at| matches!(steps[*at].1, Step::WaitForClient)) {
            tenant.client.release(slot(at), 1).unwrap();
        }
        for queue in 0..QUEUES {
            let done = SlotId(queue);
            tenant.submit(queue, &[Command::Signal { slot: done, value: 1 }]);
        }
        for queue in 0..QUEUES {
            let ended = tenant.client.wait(ContextId(0), SlotId(queue), 1, Some(BOUND));
            assert_eq!(ended, Ok(()), "seed {seed}: queue {queue} of {steps:?}");
        }
    }
}
