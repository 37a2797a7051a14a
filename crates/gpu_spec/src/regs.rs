//! Registers in BAR0, as byte offsets.
//!
//! Source: TU104 `dev_master`, `dev_timer`, `dev_fifo`, `dev_usermode`, `dev_vm`. The virtual function's space
//! ([`vf`]) begins at offset 0 of a vGPU's BAR0; the physical function sees its own at [`VF_BASE`].

use crate::Field;

/// Chip identification, `PMC_BOOT_0`.
pub const PMC_BOOT_0: u32 = 0x0;
/// Chip identification in the newer layout, `PMC_BOOT_42`.
pub const PMC_BOOT_42: u32 = 0xa00;
/// Architecture in [`PMC_BOOT_0`].
pub const BOOT_0_ARCHITECTURE: Field = Field::new(28, 24);
/// Implementation in [`PMC_BOOT_0`].
pub const BOOT_0_IMPLEMENTATION: Field = Field::new(23, 20);
/// [`PMC_BOOT_0`] of a TU104, revision A1.
pub const BOOT_0_TU104: u32 = 0x1640_00a1;
/// [`PMC_BOOT_42`] of a TU104: chip id in bits 28:20.
pub const BOOT_42_TU104: u32 = 0x1640_0a10;

/// Low word of the GPU's time, nanoseconds. Read high, low, high.
pub const PTIMER_TIME_0: u32 = 0x9400;
/// High word of the GPU's time.
pub const PTIMER_TIME_1: u32 = 0x9410;

/// Runlist base, low: `(physical address >> 12) << 12` and the target.
pub const RUNLIST_BASE_LO: u32 = 0x2b00;
/// Runlist base, bits 39:32 of the address.
pub const RUNLIST_BASE_HI: u32 = 0x2b04;
/// Writing starts the switch to the runlist at the base: its length in entries.
pub const RUNLIST_SUBMIT: u32 = 0x2b08;
/// State of the last submission.
pub const RUNLIST_INFO: u32 = 0x2b0c;
/// Distance between the registers of two runlists.
pub const RUNLIST_STRIDE: u32 = 16;
/// Aperture of the list in [`RUNLIST_BASE_LO`]: 0 VRAM, 2 coherent system memory, 3 non-coherent.
pub const RUNLIST_BASE_TARGET: Field = Field::new(1, 0);
/// Address bits 31:12 in [`RUNLIST_BASE_LO`].
pub const RUNLIST_BASE_ADDRESS: Field = Field::new(31, 12);
/// Number of entries, in [`RUNLIST_SUBMIT`].
pub const RUNLIST_SUBMIT_LENGTH: Field = Field::new(15, 0);
/// First entry to schedule, in [`RUNLIST_SUBMIT`].
pub const RUNLIST_SUBMIT_OFFSET: Field = Field::new(31, 16);
/// The submitted list is not yet in use, in [`RUNLIST_INFO`].
pub const RUNLIST_INFO_PENDING: Field = Field::bit(15);

/// Stops scheduling of runlists whose bits are set.
pub const SCHED_DISABLE: u32 = 0x2630;
/// Preempts a channel or a TSG.
pub const PREEMPT: u32 = 0x2634;
/// Preempts whole runlists: one bit each, cleared when done.
pub const RUNLIST_PREEMPT: u32 = 0x2638;
/// Channel or TSG id, in [`PREEMPT`].
pub const PREEMPT_ID: Field = Field::new(11, 0);
/// Reads as 1 until the preemption is done, in [`PREEMPT`].
pub const PREEMPT_PENDING: Field = Field::bit(20);
/// [`PREEMPT_TYPE_CHANNEL`] or [`PREEMPT_TYPE_TSG`], in [`PREEMPT`].
pub const PREEMPT_TYPE: Field = Field::new(25, 24);
/// The id is a channel's.
pub const PREEMPT_TYPE_CHANNEL: u32 = 0;
/// The id is a TSG's.
pub const PREEMPT_TYPE_TSG: u32 = 1;

/// Channels of the GPU.
pub const CHANNELS: u32 = 4096;
/// Instance block pointer of channel 0.
pub const PCCSR_INST: u32 = 0x80_0000;
/// State of channel 0.
pub const PCCSR_CHANNEL: u32 = 0x80_0004;
/// Distance between the registers of two channels.
pub const PCCSR_STRIDE: u32 = 8;
/// Physical address >> 12 of the instance block, in [`PCCSR_INST`].
pub const INST_PTR: Field = Field::new(27, 0);
/// Aperture of the instance block, in [`PCCSR_INST`]: 0 VRAM, 2 coherent system memory, 3 non-coherent.
pub const INST_TARGET: Field = Field::new(29, 28);
/// Binds the channel to the instance block, in [`PCCSR_INST`].
pub const INST_BIND: Field = Field::bit(31);
/// The channel may be scheduled (read only), in [`PCCSR_CHANNEL`].
pub const CHANNEL_ENABLE: Field = Field::bit(0);
/// Writing 1 enables, in [`PCCSR_CHANNEL`].
pub const CHANNEL_ENABLE_SET: Field = Field::bit(10);
/// Writing 1 disables, in [`PCCSR_CHANNEL`].
pub const CHANNEL_ENABLE_CLR: Field = Field::bit(11);
/// The pushbuffer DMA has faulted; writing 1 clears, in [`PCCSR_CHANNEL`].
pub const CHANNEL_PBDMA_FAULTED: Field = Field::bit(22);
/// An engine has faulted; writing 1 clears, in [`PCCSR_CHANNEL`].
pub const CHANNEL_ENG_FAULTED: Field = Field::bit(23);
/// Scheduling state, in [`PCCSR_CHANNEL`]; of its values, those below are used here.
pub const CHANNEL_STATUS: Field = Field::new(27, 24);
/// Nothing to do, in [`CHANNEL_STATUS`].
pub const CHANNEL_STATUS_IDLE: u32 = 0;
/// It has something to do, and does not do it now; whether or not a runlist names it.
pub const CHANNEL_STATUS_PENDING: u32 = 1;
/// It waits for a semaphore. Sundial's own: or for something else that is not an engine, as code or memory.
pub const CHANNEL_STATUS_PENDING_ACQUIRE: u32 = 3;
/// An engine works for it.
pub const CHANNEL_STATUS_ON_ENGINE: u32 = 7;
/// The channel has work on an engine, in [`PCCSR_CHANNEL`].
pub const CHANNEL_BUSY: Field = Field::bit(28);

/// Instance block pointer register of a channel.
#[must_use]
pub const fn pccsr_inst(channel: u32) -> u32 {
    PCCSR_INST + channel * PCCSR_STRIDE
}

/// State register of a channel.
#[must_use]
pub const fn pccsr_channel(channel: u32) -> u32 {
    PCCSR_CHANNEL + channel * PCCSR_STRIDE
}

/// The usermode page in BAR0 of the physical function: class C461, mappable into processes.
pub const USERMODE: u32 = 0x81_0000;
/// Size of the usermode page, bytes.
pub const USERMODE_BYTES: u32 = 0x1_0000;
/// Class id, in the usermode page.
pub const USERMODE_CFG0: u32 = 0x0;
/// Low word of the GPU's time, in the usermode page.
pub const USERMODE_TIME_0: u32 = 0x80;
/// High word of the GPU's time, in the usermode page.
pub const USERMODE_TIME_1: u32 = 0x84;
/// The doorbell, in the usermode page: tells the host that a channel has new GP entries.
pub const USERMODE_DOORBELL: u32 = 0x90;
/// `USERMODE` class id.
pub const TURING_USERMODE_A: u32 = 0xc461;
/// Channel, in a doorbell value.
pub const DOORBELL_CHANNEL: Field = Field::new(11, 0);
/// Runlist, in a doorbell value.
pub const DOORBELL_RUNLIST: Field = Field::new(22, 16);

/// Where the physical function sees its own [`vf`] space.
pub const VF_BASE: u32 = 0xb8_0000;

/// The space of a virtual function: `dev_vm`. Offsets from the space's beginning.
pub mod vf {
    use crate::Field;

    /// Instance block through which BAR1 goes.
    pub const BAR1_BLOCK: u32 = 0xf40;
    /// Instance block through which BAR2 goes.
    pub const BAR2_BLOCK: u32 = 0xf48;
    /// State of binding the two.
    pub const BIND_STATUS: u32 = 0xf50;
    /// Physical address >> 12 of the instance block, in the block registers.
    pub const BLOCK_PTR: Field = Field::new(27, 0);
    /// Its aperture, in the block registers.
    pub const BLOCK_TARGET: Field = Field::new(29, 28);
    /// 1: accesses are translated; 0: they are physical; in the block registers.
    pub const BLOCK_MODE_VIRTUAL: Field = Field::bit(31);

    /// Pending interrupt vectors, 32 in each of [`INTR_LEAVES`] words; writing 1 clears.
    pub const INTR_LEAF: u32 = 0x1000;
    /// Writing 1 enables vectors; one word per leaf.
    pub const INTR_LEAF_EN_SET: u32 = 0x1200;
    /// Writing 1 disables vectors; one word per leaf.
    pub const INTR_LEAF_EN_CLEAR: u32 = 0x1400;
    /// Pending subtrees: bit i covers leaves 2i and 2i + 1 (enabled vectors only).
    pub const INTR_TOP: u32 = 0x1600;
    /// Writing 1 enables subtrees: the interrupt line is raised while an enabled subtree is pending.
    pub const INTR_TOP_EN_SET: u32 = 0x1608;
    /// Writing 1 disables subtrees.
    pub const INTR_TOP_EN_CLEAR: u32 = 0x1610;
    /// Writing a vector's number raises it.
    pub const INTR_LEAF_TRIGGER: u32 = 0x1640;
    /// Leaves of the interrupt tree.
    pub const INTR_LEAVES: u32 = 8;

    /// Sixteen words that host and guest exchange.
    pub const MAILBOX: u32 = 0x2100;
    /// Number of mailbox words.
    pub const MAILBOXES: u32 = 16;
    /// Tells the physical function's owner to look at the mailbox.
    pub const PRIV_DOORBELL: u32 = 0x2200;
    /// Low word of the GPU's time.
    pub const TIMER_0: u32 = 0x2300;
    /// High word of the GPU's time.
    pub const TIMER_1: u32 = 0x2304;

    /// Fault buffer 0 (non-replayable faults), low word of its address: bus address with [`FAULT_BUFFER_LO_TARGET`].
    pub const FAULT_BUFFER_LO: u32 = 0x3000;
    /// High word of its address.
    pub const FAULT_BUFFER_HI: u32 = 0x3004;
    /// First packet the driver has not consumed.
    pub const FAULT_BUFFER_GET: u32 = 0x3008;
    /// Where the device writes its next packet (read only).
    pub const FAULT_BUFFER_PUT: u32 = 0x300c;
    /// Packets in the buffer, and the enable bit.
    pub const FAULT_BUFFER_SIZE: u32 = 0x3010;
    /// Distance between the registers of the two buffers.
    pub const FAULT_BUFFER_STRIDE: u32 = 32;
    /// 0: address is physical; 1: virtual (BAR2); in the low word.
    pub const FAULT_BUFFER_LO_MODE: Field = Field::bit(0);
    /// Physical aperture in the low word: 0 VRAM, 2 coherent system memory, 3 non-coherent.
    pub const FAULT_BUFFER_LO_TARGET: Field = Field::new(2, 1);
    /// Address bits 31:12, in the low word.
    pub const FAULT_BUFFER_LO_ADDRESS: Field = Field::new(31, 12);
    /// Index, in GET and PUT.
    pub const FAULT_BUFFER_PTR: Field = Field::new(19, 0);
    /// The buffer was full and packets were lost, in GET and PUT; writing 1 to GET clears.
    pub const FAULT_BUFFER_OVERFLOW: Field = Field::bit(31);
    /// Packets, in SIZE.
    pub const FAULT_BUFFER_ENTRIES: Field = Field::new(19, 0);
    /// The device may write packets, in SIZE.
    pub const FAULT_BUFFER_ENABLE: Field = Field::bit(31);
    /// Switches for page faults.
    pub const PAGE_FAULT_CTRL: u32 = 0x3070;

    /// Low word of the page directory whose TLB entries go: target in bits 1:0, address bits 31:12 in place.
    pub const MMU_INVALIDATE_PDB: u32 = 0x30a0;
    /// Address bits 63:32 of that page directory.
    pub const MMU_INVALIDATE_UPPER_PDB: u32 = 0x30a4;
    /// Sundial's own: bits 31:12 of the first virtual address that goes, used when [`INVALIDATE_ALL_VA`] is 0.
    pub const MMU_INVALIDATE_VA_LO: u32 = 0x30a8;
    /// Sundial's own: bits 63:32 of that address.
    pub const MMU_INVALIDATE_VA_HI: u32 = 0x30ac;
    /// Starts an invalidation.
    pub const MMU_INVALIDATE: u32 = 0x30b0;
    /// Sundial's own: number of 4 KiB pages from the first address.
    pub const MMU_INVALIDATE_PAGES: u32 = 0x30b4;
    /// Aperture of the page directory, in [`MMU_INVALIDATE_PDB`]: 0 VRAM, 2 coherent system memory, 3 non-coherent.
    pub const INVALIDATE_PDB_TARGET: Field = Field::new(1, 0);
    /// Address bits 31:12 of the page directory, in [`MMU_INVALIDATE_PDB`].
    pub const INVALIDATE_PDB_ADDRESS: Field = Field::new(31, 12);
    /// All virtual addresses of the page directory.
    pub const INVALIDATE_ALL_VA: Field = Field::bit(0);
    /// All page directories.
    pub const INVALIDATE_ALL_PDB: Field = Field::bit(1);
    /// Only the hub's TLBs.
    pub const INVALIDATE_HUB_ONLY: Field = Field::bit(2);
    /// What happens with pending replayable faults.
    pub const INVALIDATE_REPLAY: Field = Field::new(5, 3);
    /// Which levels of the cache go; 0 all.
    pub const INVALIDATE_CACHE_LEVEL: Field = Field::new(26, 24);
    /// Writing 1 starts; reads as 1 until the device no longer uses the old translations.
    pub const INVALIDATE_TRIGGER: Field = Field::bit(31);

    /// The user page: same content as [`super::USERMODE`].
    pub const USER: u32 = 0x3_0000;
    /// Size of the space that the host traps, bytes.
    pub const PRIV_BYTES: u32 = 0x3_0000;
    /// Size of the whole space, bytes.
    pub const BYTES: u32 = 0x4_0000;
}

/// Interrupt vectors: leaf = vector / 32, bit = vector % 32.
///
/// On hardware the driver reads them from the engines' registers; here they are fixed.
pub mod vector {
    /// A `NON_STALL_INTERRUPT` method, or an engine's completion interrupt.
    pub const NON_STALL: u32 = 0;
    /// A packet in fault buffer 0.
    pub const FAULT: u32 = 64;
    /// A channel was stopped with an error; its notifier says why.
    pub const CHANNEL_ERROR: u32 = 96;
}

/// Sundial's own: what each TSG has had of the GPU since the device started, four read-only words per TSG id.
pub mod accounting {
    /// Words of TSG 0.
    pub const BASE: u32 = 0xe1_0000;
    /// Distance between the words of two TSGs.
    pub const STRIDE: u32 = 16;
    /// TSG ids that are accounted.
    pub const TSGS: u32 = 4096;
    /// Low word of the GPU time received, nanoseconds: the time of all its multiprocessors together, divided by their
    /// number, so that the sums over all TSGs do not pass the time that goes by. Read high, low, high.
    pub const TIME_LO: u32 = 0;
    /// High word of it.
    pub const TIME_HI: u32 = 4;
    /// Grids that have ended (wraps).
    pub const GRIDS: u32 = 8;
    /// Copies that have ended (wraps).
    pub const COPIES: u32 = 12;

    /// Interrupts for which TSG 0 has asked ([`super::vector::NON_STALL`]; wraps), a word for each TSG. The vector says that
    /// somebody has asked, these say who: they are counted before it is raised.
    pub const INTERRUPTS: u32 = 0xe2_0000;

    /// A word of a TSG.
    #[must_use]
    pub const fn word(tsg: u32, word: u32) -> u32 {
        BASE + tsg * STRIDE + word
    }

    /// The word of a TSG that counts its interrupts.
    #[must_use]
    pub const fn interrupts(tsg: u32) -> u32 {
        INTERRUPTS + tsg * 4
    }
}

/// Sundial's own: what metering needs to know of TSGs beyond [`accounting`], and of the device's time as a whole. All of it
/// counts from the device's start, and wraps where it has one word.
///
/// Time of the device is time of its multiprocessors, divided by their number. At each moment a multiprocessor does
/// something for a TSG ([`ENGINE_LO`](metering::ENGINE_LO)); or nothing, though a TSG waits for one: scheduling
/// ([`OVERHEAD_LO`](metering::OVERHEAD_LO)); or there is nothing for it to do ([`IDLE_LO`](metering::IDLE_LO)). So the times
/// of all TSGs, overhead and idle time together are the time that went by.
pub mod metering {
    /// Words of TSG 0.
    pub const BASE: u32 = 0xe8_0000;
    /// Distance between the words of two TSGs.
    pub const STRIDE: u32 = 256;
    /// Low word of the device's time that it has had, nanoseconds: [`super::accounting::TIME_LO`] without
    /// [`PREPARE_LO`]. Read high, low, high; so with all that have two.
    pub const ENGINE_LO: u32 = 0;
    /// Its high word.
    pub const ENGINE_HI: u32 = 4;
    /// Processor time of reading and compiling its kernels, nanoseconds, low word: beside the multiprocessors, not divided.
    pub const PREPARE_LO: u32 = 8;
    /// Its high word.
    pub const PREPARE_HI: u32 = 12;
    /// Bytes that its copies have brought from system memory into VRAM, low word.
    pub const BYTES_IN_LO: u32 = 16;
    /// Its high word.
    pub const BYTES_IN_HI: u32 = 20;
    /// Bytes that its copies have brought from VRAM into system memory, low word.
    pub const BYTES_OUT_LO: u32 = 24;
    /// Its high word.
    pub const BYTES_OUT_HI: u32 = 28;
    /// Sum of what its grids and copies have waited, nanoseconds, low word. A wait begins when the device could begin: it has
    /// heard the doorbell, what is before in the channel is done, semaphores have come, code is there. It ends when a
    /// multiprocessor begins. Copies that are done while they are read do not wait.
    pub const WAITED_LO: u32 = 32;
    /// Its high word.
    pub const WAITED_HI: u32 = 36;
    /// How many of them have waited for how long: [`WAIT_COUNTS`] words. The first counts waits below 1 µs, word `n` those from
    /// 2^(n-1) µs to below 2^n µs, the last all that are longer.
    pub const WAITS: u32 = 64;
    /// Words of it.
    pub const WAIT_COUNTS: u32 = 32;

    /// Time in which multiprocessors had nothing to do, nanoseconds, low word.
    pub const IDLE_LO: u32 = 0xe7_0000;
    /// Its high word.
    pub const IDLE_HI: u32 = 0xe7_0004;
    /// Time in which they did nothing though somebody waited for them, nanoseconds, low word.
    pub const OVERHEAD_LO: u32 = 0xe7_0008;
    /// Its high word.
    pub const OVERHEAD_HI: u32 = 0xe7_000c;

    /// A word of a TSG.
    #[must_use]
    pub const fn word(tsg: u32, word: u32) -> u32 {
        BASE + tsg * STRIDE + word
    }

    /// Which word of [`WAITS`] counts a wait of so many nanoseconds.
    #[must_use]
    pub const fn wait_index(ns: u64) -> u32 {
        let index = u64::BITS - (ns / 1000).leading_zeros();
        if index < WAIT_COUNTS { index } else { WAIT_COUNTS - 1 }
    }
}

/// Sundial's own: what work on the device may cost the host, by budget: eight words each. An instance block names its
/// channel's budget ([`crate::ramfc::BUDGET`]); several channels, and address spaces, may share one. Budget 0 has no limits.
///
/// The device charges to a budget the host memory of CTAs under way, of code and of compilations, and the entries of the
/// host's memory map that the windows of its address spaces take. What does not fit now, waits for what is under way;
/// what does not fit at all ends in an error of the channel.
pub mod budget {
    /// Words of budget 0.
    pub const BASE: u32 = 0xe4_0000;
    /// Distance between the words of two budgets.
    pub const STRIDE: u32 = 32;
    /// Budgets.
    pub const BUDGETS: u32 = 4096;
    /// Most host memory, bytes, low word. Takes effect when [`BYTES_LIMIT_HI`] is written.
    pub const BYTES_LIMIT_LO: u32 = 0;
    /// Its high word. The limit may be lowered below what is used: nothing more is charged then.
    pub const BYTES_LIMIT_HI: u32 = 4;
    /// Host memory charged now, bytes, low word (read only). Read high, low, high.
    pub const BYTES_LO: u32 = 8;
    /// Its high word.
    pub const BYTES_HI: u32 = 12;
    /// Most entries of the host's memory map.
    pub const MAPS_LIMIT: u32 = 16;
    /// Entries charged now (read only).
    pub const MAPS: u32 = 20;
    /// Grids that the interpreter ran because their kernel could not be compiled (read only, wraps).
    pub const INTERPRETED: u32 = 24;
    /// Compilations under way (read only).
    pub const COMPILING: u32 = 28;

    /// A word of a budget.
    #[must_use]
    pub const fn word(budget: u32, word: u32) -> u32 {
        BASE + budget * STRIDE + word
    }
}

/// Sundial's own: what a GPU without a ROM and fuses says of itself. All words are constant.
pub mod identity {
    /// [`MAGIC`], or the block is not there.
    pub const MAGIC_WORD: u32 = 0xe0_0000;
    /// "SDL1".
    pub const MAGIC: u32 = u32::from_le_bytes(*b"SDL1");
    /// CTAs that run at once.
    pub const MULTIPROCESSORS: u32 = 0xe0_0004;
    /// Core clock, kHz.
    pub const CLOCK_KHZ: u32 = 0xe0_0008;
    /// Memory clock, kHz.
    pub const MEMORY_CLOCK_KHZ: u32 = 0xe0_000c;
    /// Memory bus width, bits.
    pub const MEMORY_BUS_BITS: u32 = 0xe0_0010;
    /// L2 cache, bytes.
    pub const L2_BYTES: u32 = 0xe0_0014;
    /// PCI domain, then bus, then device: three words.
    pub const PCI: u32 = 0xe0_0018;
    /// Compute capability: major << 16 | minor.
    pub const COMPUTE_CAPABILITY: u32 = 0xe0_0024;
    /// Bytes of VRAM, low and high word: the BAR1 aperture, whose size is a power of two, may reach beyond.
    pub const VRAM_LO: u32 = 0xe0_0028;
    /// High word.
    pub const VRAM_HI: u32 = 0xe0_002c;
    /// UUID, four words.
    pub const UUID: u32 = 0xe0_0030;
    /// Product name, UTF-8 padded with zero bytes, [`NAME_WORDS`] words.
    pub const NAME: u32 = 0xe0_0040;
    /// Words of the name.
    pub const NAME_WORDS: u32 = 16;
}
