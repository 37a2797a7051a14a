//! Arbitrary bytes as an attack on the device.
//!
//! Two bodies, each with an oracle:
//! - [`tenant`]: what a tenant can write (all of its own memory, its GPFIFO, doorbells) is arbitrary. A second tenant must
//!   go on working, with its memory untouched.
//! - [`driver`]: registers, page tables, instance blocks and runlists are arbitrary, too. The device must neither panic
//!   nor hang: after all channels are taken away, a fresh one works.

use device_io::DeviceBacking;
use gpu_spec::compute::{self, TURING_COMPUTE_A};
use gpu_spec::copy::{self, TURING_DMA_COPY_A};
use gpu_spec::host::{self, GpEntry, Header};
use gpu_spec::mmu::{PhysAddr, Pte, Rights};
use gpu_spec::ramfc;
use gpu_spec::regs::{self, vf};
use zerocopy::IntoBytes;

use crate::Config;

use super::mini::{Buffer, Channel, LO, Mini, Space, Words, wait};

/// Kernels that the attacker's launches may find.
const PTX: &str = ".version 8.5\n.target sm_75\n.address_size 64\n.visible .entry k(.param .u64 a)\n{\n.reg .pred %p<2>;\n\
                   .reg .b32 %r<4>;\n.reg .b64 %rd<4>;\nld.param.u64 %rd1, [a];\nmov.u32 %r1, %tid.x;\n\
                   L: ld.volatile.global.u32 %r2, [%rd1];\nadd.u32 %r2, %r2, 1;\nst.volatile.global.u32 [%rd1], %r2;\n\
                   setp.ne.u32 %p1, %r2, 100;\n@%p1 bra L;\nret;\n}\n";
/// Where in an attacker's memory its sparse page lies.
const SPARSE: u64 = 2 << 12;
/// Most actions of one run: time is bounded by it.
const MAX_ACTIONS: usize = 64;

/// Bytes as decisions; when they are used up, zeros.
struct Input<'a>(&'a [u8]);

impl Input<'_> {
    fn byte(&mut self) -> u8 {
        let (first, rest) = self.0.split_first().map_or((0, &[][..]), |(first, rest)| (*first, rest));
        self.0 = rest;
        first
    }

    fn word(&mut self) -> u32 {
        u32::from_le_bytes([self.byte(), self.byte(), self.byte(), self.byte()])
    }

    /// A number that often means something.
    fn value(&mut self, known: &[u32]) -> u32 {
        match self.byte() {
            choice @ 0..200 if !known.is_empty() => known[usize::from(choice) % known.len()],
            200..230 => u32::from(self.byte()),
            230..240 => !u32::from(self.byte()),
            _ => self.word(),
        }
    }
}

/// An attacker's place: a channel, and memory of which the whole content is its own.
struct Attacker {
    space: Space,
    channel: Channel,
    memory: Buffer,
    program: u64,
    descriptor: u64,
}

impl Attacker {
    fn new(mini: &mut Mini, id: u32) -> Attacker {
        let mut space = mini.space();
        let channel = mini.channel(&mut space, id, id);
        let memory = mini.buffer(&mut space, 256 << 10);
        // One page of it is sparse.
        if let Some(entry) = mini.entries(&space, memory.va + SPARSE).small {
            mini.put(entry, Pte::SPARSE.as_bytes());
        }
        mini.invalidate(&space, memory.va, memory.bytes);
        let program = mini.load(&mut space, PTX, "k");
        let descriptor = mini.descriptor(&mut space, program, [3, 1, 1], [32, 1, 1], &[memory.va]);
        Attacker { space, channel, memory, program, descriptor }
    }

    /// Words that look like addresses, sizes and commands.
    fn known(&self) -> Vec<u32> {
        let mut known = vec![0, 1, 2, 4, 64, 4096, 1 << 20, u32::MAX, TURING_COMPUTE_A, TURING_DMA_COPY_A];
        // A word of a launch descriptor: another depends on it.
        known.push(3 << 13);
        let memory = self.memory.va;
        let addresses = [memory, memory + 4096, memory + SPARSE, self.program, self.descriptor, LO, 0x1000];
        known.extend(addresses.iter().flat_map(|va| [*va as u32, (va >> 32) as u32, (va >> 8) as u32]));
        known.extend([copy_flags(0), copy_flags(1 << 10), copy_flags(2 << 3), 1 | 1 << 24, 2 | 1 << 24, 6 | 5 << 27]);
        known
    }

    /// Appends a segment of words: headers that mostly make sense, data that sometimes does.
    fn push(&mut self, mini: &Mini, input: &mut Input<'_>) {
        const METHODS: [u32; 24] = [
            host::SET_OBJECT,
            host::SEM_ADDR_LO,
            host::SEM_EXECUTE,
            host::SEMAPHORE_A,
            host::MEM_OP_A,
            host::NON_STALL_INTERRUPT,
            host::SET_REFERENCE,
            host::YIELD,
            copy::SET_SEMAPHORE_A,
            copy::SET_SRC_PHYS_MODE,
            copy::LAUNCH_DMA,
            copy::OFFSET_IN_UPPER,
            copy::PITCH_IN,
            copy::LINE_LENGTH_IN,
            copy::SET_REMAP_CONST_A,
            copy::SET_REMAP_COMPONENTS,
            compute::LINE_LENGTH_IN,
            compute::OFFSET_OUT_UPPER,
            compute::LAUNCH_DMA,
            compute::LOAD_INLINE_DATA,
            compute::SET_I2M_SEMAPHORE_A,
            compute::SEND_PCAS_A,
            compute::SEND_SIGNALING_PCAS_B,
            compute::INVALIDATE_SHADER_CACHES,
        ];
        let known = self.known();
        let mut words = Words::new();
        for _ in 0..input.byte() % 12 {
            match input.byte() % 8 {
                0 => {
                    words.launch(self.descriptor);
                }
                1 => {
                    let (to, from) = (input.value(&known), input.value(&known));
                    words.copy(LO + u64::from(to % (1 << 22)), LO + u64::from(from % (1 << 22)), input.value(&known));
                }
                2 => {
                    words.raw(input.word());
                }
                _ => {
                    let op = [1, 1, 3, 5, 4][usize::from(input.byte()) % 5];
                    let method = METHODS[usize::from(input.byte()) % METHODS.len()];
                    let subchannel = u32::from(input.byte()) % 8;
                    let count = u32::from(input.byte()) % 9;
                    words.raw(Header::new(op, subchannel, method, count).0);
                    for _ in 0..count {
                        words.raw(input.value(&known));
                    }
                }
            }
        }
        if words.0.is_empty() {
            words.raw(0);
        }
        mini.rewind(&mut self.channel);
        mini.submit(&mut self.channel, &words);
    }

    /// Spoils memory that the device will read: descriptors, programs, data.
    fn spoil(&self, mini: &Mini, input: &mut Input<'_>) {
        let known = self.known();
        let value = input.value(&known);
        match input.byte() % 3 {
            0 => mini.store(&self.space, self.descriptor + u64::from(input.byte()) * 4, value),
            1 => mini.store(&self.space, self.program - 64 + u64::from(input.byte()) * 4, value),
            _ => mini.store(&self.space, self.memory.va + u64::from(input.word() % (64 << 10)) * 4, value),
        }
    }
}

fn copy_flags(more: u32) -> u32 {
    2 | 1 << 7 | 1 << 8 | more
}

/// A device with one worker or two, whose doorbells lend threads or not.
fn device(kind: u8) -> Mini {
    Mini::on(Config { workers: 1 + usize::from(kind % 2), lend: kind & 2 != 0, ..Config::default() })
}

/// What a tenant can do, against another tenant.
pub fn tenant(data: &[u8]) {
    let mut input = Input(data);
    let mut mini = device(input.byte());
    let mut attacker = Attacker::new(&mut mini, 1);
    let mut space = mini.space();
    let mut victim = mini.channel(&mut space, 2, 2);
    let memory = mini.buffer(&mut space, 64 << 10);
    mini.write(memory, 8192, &[0x5a; 4096]);
    let mut round = 0u64;
    for _ in 0..MAX_ACTIONS {
        if input.0.is_empty() {
            break;
        }
        match input.byte() % 8 {
            0..=3 => attacker.push(&mini, &mut input),
            4 | 5 => attacker.spoil(&mini, &mut input),
            6 => {
                let entry = GpEntry { e0: input.word(), e1: input.value(&[1 << 10, 4 << 10, 0, 1]) };
                mini.push_entry(&mut attacker.channel, entry);
                mini.ring(&attacker.channel);
            }
            _ => {
                // The driver revives a stopped channel.
                let clear = regs::CHANNEL_ENG_FAULTED.of(1) | regs::CHANNEL_PBDMA_FAULTED.of(1);
                mini.gpu.write32(regs::pccsr_channel(1), clear);
            }
        }
        if round < 4 && input.byte() % 8 == 0 {
            round += 1;
            ask_victim(&mini, &mut victim, memory, round);
        }
    }
    ask_victim(&mini, &mut victim, memory, round + 1);
    assert_eq!(mini.notifier(&victim), None);
    assert_eq!(mini.read::<4096>(memory, 8192), [0x5a; 4096], "memory of another tenant changed");
    mini.remove(1);
    assert_alive(&mini);
}

fn ask_victim(mini: &Mini, victim: &mut Channel, memory: Buffer, round: u64) {
    let mut words = Words::new();
    words.fill(memory.va + 16384, round as u32, 4, 2048).release(memory.va, round);
    mini.submit(victim, &words);
    mini.wait_for(memory, 0, round);
    assert_eq!(mini.read_u32(memory, 16384 + 8188), round as u32);
}

/// What a driver can do, against the device.
pub fn driver(data: &[u8]) {
    const REGISTERS: [u32; 22] = [
        regs::RUNLIST_BASE_LO,
        regs::RUNLIST_BASE_HI,
        regs::RUNLIST_SUBMIT,
        regs::RUNLIST_BASE_LO + regs::RUNLIST_STRIDE,
        regs::RUNLIST_SUBMIT + regs::RUNLIST_STRIDE,
        regs::SCHED_DISABLE,
        regs::PREEMPT,
        regs::RUNLIST_PREEMPT,
        regs::pccsr_inst(1),
        regs::pccsr_inst(2),
        regs::pccsr_inst(3),
        regs::pccsr_channel(1),
        regs::pccsr_channel(2),
        regs::USERMODE + regs::USERMODE_DOORBELL,
        regs::VF_BASE + vf::MMU_INVALIDATE_PDB,
        regs::VF_BASE + vf::MMU_INVALIDATE_VA_LO,
        regs::VF_BASE + vf::MMU_INVALIDATE_PAGES,
        regs::VF_BASE + vf::MMU_INVALIDATE,
        regs::VF_BASE + vf::FAULT_BUFFER_LO,
        regs::VF_BASE + vf::FAULT_BUFFER_SIZE,
        regs::VF_BASE + vf::FAULT_BUFFER_GET,
        0x1700,
    ];
    let mut input = Input(data);
    let mut mini = device(input.byte());
    let mut attackers = [Attacker::new(&mut mini, 1), Attacker::new(&mut mini, 2)];
    // Every structure lies between the runlist and the last attacker's memory.
    let used = 1 << 20..attackers[1].memory.offset + attackers[1].memory.bytes;
    for _ in 0..MAX_ACTIONS {
        if input.0.is_empty() {
            break;
        }
        let which = usize::from(input.byte());
        let known = attackers[which % 2].known();
        match which % 9 {
            0 | 1 => attackers[which % 2].push(&mini, &mut input),
            2 => attackers[which % 2].spoil(&mini, &mut input),
            3 | 4 => {
                let register = REGISTERS[usize::from(input.byte()) % REGISTERS.len()];
                let inst = attackers[0].channel.inst.address;
                let mut known = known;
                known.extend([
                    1 << 31,
                    1 << 31 | (inst >> 12) as u32,
                    1 << 31 | 3,
                    1 << 10,
                    1 << 11,
                    3 << 22,
                    1 << 20,
                    9,
                ]);
                mini.gpu.write32(register, input.value(&known));
            }
            5 => mini.gpu.write32(input.word() % (16 << 20), input.word()),
            6 => {
                mini.gpu.read32(input.word() % (16 << 20));
            }
            7 => {
                // Any word of any structure, often what a channel is bound from again.
                let block = attackers[0].channel.inst.address;
                let at = match input.byte() % 2 {
                    0 => used.start + u64::from(input.word()) * 4 % (used.end - used.start),
                    _ => block + u64::from(input.word()) * 4 % ramfc::INSTANCE_BLOCK_BYTES,
                };
                mini.gpu.vram().write(at as usize, &input.value(&known).to_le_bytes());
            }
            _ => {
                // A page table entry that points at a table, or maps anything, or is sparse.
                let at = used.start + u64::from(input.word()) * 8 % (used.end - used.start);
                let to = PhysAddr::vram(u64::from(input.word()) << 12 & 0x1fff_ffff);
                let pte = Pte::to_page(to, Rights::default());
                let value = match input.byte() % 3 {
                    0 => pte.0,
                    1 => pte.0 & !1 | 1 << 1,
                    _ => Pte::SPARSE.0,
                };
                mini.gpu.vram().write(at as usize, value.as_bytes());
            }
        }
    }
    recover(&mut mini);
}

/// Takes everything from the device, and sees whether it still works.
fn recover(mini: &mut Mini) {
    for runlist in 0..11 {
        mini.gpu.write32(regs::RUNLIST_SUBMIT + runlist * regs::RUNLIST_STRIDE, 0);
    }
    for channel in 0..regs::CHANNELS {
        if regs::CHANNEL_BUSY.is_set(mini.gpu.read32(regs::pccsr_channel(channel))) {
            mini.gpu.write32(regs::pccsr_channel(channel), regs::CHANNEL_ENABLE_CLR.of(1));
        }
        if mini.gpu.read32(regs::pccsr_inst(channel)) != 0 {
            mini.gpu.write32(regs::pccsr_inst(channel), 0);
        }
    }
    let busy = |channel| regs::CHANNEL_BUSY.is_set(mini.gpu.read32(regs::pccsr_channel(channel)));
    wait("all channels to stop", || !(0..regs::CHANNELS).any(busy));
    mini.gpu.write32(regs::SCHED_DISABLE, 0);
    mini.forget();
    let mut space = mini.space();
    let mut channel = mini.channel(&mut space, 4000, 4000);
    let buffer = mini.buffer(&mut space, 4096);
    let program = mini.load(&mut space, PTX, "k");
    let descriptor = mini.descriptor(&mut space, program, [1, 1, 1], [1, 1, 1], &[buffer.va + 64]);
    let mut words = Words::new();
    words.launch(descriptor).release(buffer.va, 1);
    mini.submit(&mut channel, &words);
    mini.wait_for(buffer, 0, 1);
    assert_eq!(mini.notifier(&channel), None);
    assert_alive(mini);
}

/// No thread of the device has panicked.
fn assert_alive(mini: &Mini) {
    assert_eq!(mini.gpu.read32(regs::PMC_BOOT_0), regs::BOOT_0_TU104, "the device fell off the bus");
}
