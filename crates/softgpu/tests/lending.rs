//! Threads that ring doorbells and do short work themselves.

use std::time::Duration;

use device_io::DeviceBacking;
use gpu_spec::regs::{self, accounting};
use softgpu::Config;
use softgpu::testing::mini::{Buffer, Channel, Mini, Space, Words, wait};

/// `a[global thread] = c`, after `b` rounds of looking at `a`; without end if `b` is 0.
const KERNEL: &str = ".version 8.5\n.target sm_75\n.address_size 64\n\
    .visible .entry k(.param .u64 a, .param .u64 b, .param .u64 c)\n{\n\
    .reg .pred %p<4>;\n.reg .b32 %r<10>;\n.reg .b64 %rd<10>;\n\
    ld.param.u64 %rd1, [a];\nld.param.u64 %rd2, [b];\nld.param.u64 %rd3, [c];\n\
    mov.u64 %rd4, 0;\nL: ld.volatile.global.u32 %r5, [%rd1];\nadd.u64 %rd4, %rd4, 1;\n\
    setp.ne.u64 %p1, %rd4, %rd2;\n@%p1 bra L;\n\
    mov.u32 %r1, %ctaid.x;\nmov.u32 %r2, %ntid.x;\nmov.u32 %r3, %tid.x;\n\
    mad.lo.u32 %r4, %r1, %r2, %r3;\nmul.wide.u32 %rd6, %r4, 4;\nadd.u64 %rd5, %rd1, %rd6;\n\
    cvt.u32.u64 %r6, %rd3;\nst.global.u32 [%rd5], %r6;\nret;\n}\n";
/// Looks at nothing, and does not end: it leaves a worker when it is made to, and not before.
const ENDLESS: &str = ".version 8.5\n.target sm_75\n.address_size 64\n.visible .entry k(.param .u64 a) { L: bra L; }\n";
/// Where a tenant's semaphore lies in its buffer.
const DONE: u64 = 0x8000;

fn mini(workers: usize) -> Mini {
    Mini::on(Config { workers, lend: true, ..Config::default() })
}

struct Tenant {
    space: Space,
    channel: Channel,
    buffer: Buffer,
    program: u64,
}

impl Tenant {
    fn new(mini: &mut Mini, id: u32) -> Tenant {
        let mut space = mini.space();
        let channel = mini.channel(&mut space, id, id);
        let buffer = mini.buffer(&mut space, 1 << 20);
        let program = mini.load(&mut space, KERNEL, "k");
        Tenant { space, channel, buffer, program }
    }

    fn kernel(&mut self, mini: &mut Mini, ctas: u32, rounds: u64, value: u64) -> u64 {
        mini.descriptor(&mut self.space, self.program, [ctas, 1, 1], [32, 1, 1], &[self.buffer.va, rounds, value])
    }

    /// Runs a kernel often enough that the device knows how long it takes.
    fn warm_up(&mut self, mini: &Mini, kernel: u64, times: u64) {
        for round in 1..=times {
            let mut words = Words::new();
            words.launch(kernel).release(self.buffer.va + DONE, round);
            mini.submit(&mut self.channel, &words);
            mini.wait_for(self.buffer, DONE, round);
        }
    }
}

#[test]
fn work_of_many_ringing_threads_is_all_done() {
    const ROUNDS: u64 = 400;
    for workers in [1, 2] {
        let mut mini = mini(workers);
        let mut tenants: Vec<(Tenant, u64)> = (1..=4)
            .map(|id| {
                let mut tenant = Tenant::new(&mut mini, id);
                let kernel = tenant.kernel(&mut mini, id, 1, u64::from(id));
                (tenant, kernel)
            })
            .collect();
        let mini = &mini;
        std::thread::scope(|scope| {
            for (tenant, kernel) in &mut tenants {
                scope.spawn(move || {
                    let Tenant { channel, buffer, .. } = tenant;
                    for round in 1..=ROUNDS {
                        let mut words = Words::new();
                        words
                            .launch(*kernel)
                            .copy(buffer.va + 0x1_0000, buffer.va, 8192)
                            .release(buffer.va + DONE, round);
                        mini.rewind(channel);
                        mini.submit(channel, &words);
                        mini.wait_for(*buffer, DONE, round);
                    }
                });
            }
        });
        for (id, (tenant, _)) in (1..).zip(&tenants) {
            assert_eq!(mini.gpu.read32(accounting::word(id, accounting::GRIDS)), ROUNDS as u32);
            let last = u64::from(id) * 32 - 1;
            assert_eq!(mini.read_u32(tenant.buffer, 0x1_0000 + last * 4), id);
        }
    }
}

#[test]
fn a_kernel_that_turns_out_long_is_taken_from_the_ringing_thread() {
    let mut mini = mini(1);
    let mut tenant = Tenant::new(&mut mini, 1);
    let short = tenant.kernel(&mut mini, 1, 1, 7);
    let endless = tenant.kernel(&mut mini, 1, 0, 7);
    tenant.warm_up(&mini, short, 20);
    let mut words = Words::new();
    words.launch(endless).release(tenant.buffer.va + DONE, 100);
    // Comes back although what it began never ends.
    mini.submit(&mut tenant.channel, &words);
    let mut other = Tenant::new(&mut mini, 2);
    let kernel = other.kernel(&mut mini, 3, 1, 9);
    other.warm_up(&mini, kernel, 20);
    assert_eq!(mini.read_u64(tenant.buffer, DONE), 20);
    mini.remove(1);
    other.warm_up(&mini, kernel, 20);
}

/// No worker is free and nobody ends slices: the doorbell itself makes room, by the hand of whoever has the front end when it
/// rings.
fn makes_room(ring: impl Fn(&Mini, &Channel)) {
    let mut mini = Mini::without_ticker(Config { workers: 1, lend: true, ..Config::default() });
    let [mut busy, mut other] = [1, 2].map(|id| Tenant::new(&mut mini, id));
    let theirs = other.kernel(&mut mini, 1, 1, 7);
    other.warm_up(&mini, theirs, 1);
    busy.program = mini.load(&mut busy.space, ENDLESS, "k");
    let mut words = Words::new();
    words.launch(busy.kernel(&mut mini, 1, 0, 0));
    mini.submit(&mut busy.channel, &words);
    wait("the worker to begin", || regs::CHANNEL_BUSY.is_set(mini.gpu.read32(regs::pccsr_channel(1))));
    for round in 2..10 {
        let mut words = Words::new();
        words.launch(theirs).release(other.buffer.va + DONE, round);
        mini.push(&mut other.channel, &words);
        wait("the worker", || {
            // Until the busy one is ahead by half a slice.
            ring(&mini, &other.channel);
            mini.read_u64(other.buffer, DONE) == round
        });
    }
    mini.remove(1);
}

#[test]
fn who_rings_makes_what_is_far_ahead_of_it_leave_a_worker() {
    makes_room(|mini, channel| mini.ring(channel));
}

#[test]
fn who_rings_while_another_has_the_front_end_is_heard_when_it_is_free() {
    makes_room(|mini, channel| mini.while_taken(|| mini.ring(channel)));
}

#[test]
fn a_ringing_thread_releases_what_waits_in_another_channel() {
    let mut mini = mini(2);
    let mut first = Tenant::new(&mut mini, 1);
    let mut second = mini.channel(&mut first.space, 2, 1);
    let flag = first.buffer.va + 0x4000;
    for round in 1..=200u64 {
        let mut words = Words::new();
        words.acquire(flag, round).release(first.buffer.va + DONE, round);
        mini.rewind(&mut first.channel);
        mini.submit(&mut first.channel, &words);
        if round % 50 == 0 {
            // Long enough for everybody to sleep.
            std::thread::sleep(Duration::from_millis(2));
        }
        assert_eq!(mini.read_u64(first.buffer, DONE), round - 1);
        if round % 4 == 0 {
            // The CPU releases it, and tells nobody.
            mini.write(first.buffer, 0x4000, &round.to_le_bytes());
        } else {
            let mut words = Words::new();
            words.release(flag, round);
            mini.rewind(&mut second);
            mini.submit(&mut second, &words);
        }
        mini.wait_for(first.buffer, DONE, round);
    }
    assert!(!regs::CHANNEL_BUSY.is_set(mini.gpu.read32(regs::pccsr_channel(1))));
}
