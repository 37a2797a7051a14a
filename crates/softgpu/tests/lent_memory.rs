//! Memory that other processes have a hand in: VRAM lent to them, and theirs mapped at bus addresses of their choice.

use std::io::ErrorKind;
use std::sync::Arc;

use device_io::{BusAddr, DeviceBacking, VramOffset};
use gpu_spec::mmu::{Aperture, HUGE_PAGE, PhysAddr, Rights};
use gpu_spec::notifier::Reason;
use hostmem::{Mapping, Memfd, PAGE};
use softgpu::testing::mini::{Buffer, Channel, LO, Mini, Space, Words};

/// Bytes lent: two huge pages.
const LENT: u64 = 2 * HUGE_PAGE;

struct Bench {
    mini: Mini,
    space: Space,
    channel: Channel,
    semaphore: Buffer,
    round: u64,
}

impl Bench {
    fn new() -> Bench {
        let mut mini = Mini::new(1);
        let mut space = mini.space();
        let channel = mini.channel(&mut space, 1, 1);
        let semaphore = mini.buffer(&mut space, PAGE);
        Bench { mini, space, channel, semaphore, round: 0 }
    }

    /// Fills and copies by the copy engine, and waits until that is done.
    fn run(&mut self, build: impl FnOnce(&mut Words)) {
        self.round += 1;
        let mut words = Words::new();
        build(&mut words);
        words.release(self.semaphore.va, self.round);
        self.mini.submit(&mut self.channel, &words);
        self.mini.wait_for(self.semaphore, 0, self.round);
    }

    /// A buffer of which the middle can be lent, and where in VRAM that is.
    fn buffer(&mut self) -> (Buffer, VramOffset) {
        let whole =
            self.mini.map_at(&mut self.space, LO + (64 << 20), LENT + 2 * HUGE_PAGE, HUGE_PAGE, Rights::default());
        (whole, VramOffset(whole.offset + HUGE_PAGE))
    }

    fn refresh(&self, buffer: Buffer) {
        self.mini.invalidate(&self.space, buffer.va, buffer.bytes);
    }
}

fn word(mapping: &Mapping, at: u64) -> u32 {
    mapping.u32_at(at as usize).load(std::sync::atomic::Ordering::Relaxed)
}

#[test]
fn lent_vram_is_a_file_of_its_own_and_the_device_uses_it() {
    let mut bench = Bench::new();
    let (buffer, at) = bench.buffer();
    let words = u32::try_from(buffer.bytes / 4).unwrap();
    bench.run(|run| {
        run.fill(buffer.va, 7, 4, words);
    });
    // Somewhere in it, whatever was there.
    let file = Arc::new(Memfd::create("lent", 3 * LENT).unwrap());
    let theirs = file.map_part(LENT, LENT).unwrap();
    theirs.fill(0, LENT as usize, 0x33);
    bench.mini.gpu.lend_vram(at, &file, LENT, LENT).unwrap();
    assert_eq!((word(&theirs, 0), word(&theirs, LENT - 4)), (0, 0));
    // Beside it nothing has changed, through BAR1 and for the device.
    let edges = [HUGE_PAGE - 4, HUGE_PAGE, HUGE_PAGE + LENT - 4, HUGE_PAGE + LENT];
    let read = |bench: &Bench| edges.map(|offset| bench.mini.read_u32(buffer, offset));
    assert_eq!(read(&bench), [7, 0, 0, 7]);
    bench.refresh(buffer);
    bench.run(|run| {
        run.copy(buffer.va, buffer.va + HUGE_PAGE - 8, 16);
    });
    assert_eq!([0, 4, 8, 12].map(|offset| bench.mini.read_u32(buffer, offset)), [7, 7, 0, 0]);
    // What the device writes they see, and the other way round; the CPU's aperture shows the same.
    bench.run(|run| {
        run.fill(buffer.va, 9, 4, words);
    });
    assert_eq!((word(&theirs, 0), word(&theirs, LENT - 4)), (9, 9));
    theirs.fill(0, 4, 0x11);
    assert_eq!(read(&bench), [9, 0x1111_1111, 9, 9]);
    bench.run(|run| {
        run.copy(buffer.va, buffer.va + HUGE_PAGE, 4);
    });
    assert_eq!(bench.mini.read_u32(buffer, 0), 0x1111_1111);
    bench.mini.gpu.discard_vram(VramOffset(buffer.offset + HUGE_PAGE - PAGE), PAGE + LENT).unwrap();
    assert_eq!((read(&bench), word(&theirs, 0)), ([0, 0, 0, 9], 0));
    // Taken back: zero, and no longer theirs.
    bench.run(|run| {
        run.fill(buffer.va, 5, 4, words);
    });
    bench.mini.gpu.take_back_vram(at, LENT).unwrap();
    assert_eq!(read(&bench), [5, 0, 0, 5]);
    bench.refresh(buffer);
    bench.run(|run| {
        run.fill(buffer.va + HUGE_PAGE, 3, 4, 1);
    });
    theirs.fill(4, 4, 0x22);
    assert_eq!((word(&theirs, 0), read(&bench)), (0, [5, 3, 0, 5]));
    assert_eq!(bench.mini.read_u32(buffer, HUGE_PAGE + 4), 0);
}

#[test]
fn a_part_of_what_is_lent_can_be_taken_back_and_lent_elsewhere() {
    let mut bench = Bench::new();
    let (buffer, at) = bench.buffer();
    let words = u32::try_from(LENT / 4).unwrap();
    let file = Arc::new(Memfd::create("lent", LENT).unwrap());
    let theirs = file.map().unwrap();
    let gpu = Arc::clone(&bench.mini.gpu);
    gpu.lend_vram(at, &file, 0, LENT).unwrap();
    bench.refresh(buffer);
    bench.run(|run| {
        run.fill(buffer.va + HUGE_PAGE, 6, 4, words);
    });
    // The first half goes; the second is where it was, in VRAM and in the file.
    gpu.take_back_vram(at, HUGE_PAGE).unwrap();
    bench.refresh(buffer);
    let read = |bench: &Bench| [0, 1, 2, 3].map(|page| bench.mini.read_u32(buffer, page * HUGE_PAGE));
    assert_eq!((read(&bench), word(&theirs, 0), word(&theirs, HUGE_PAGE)), ([0, 0, 6, 0], 0, 6));
    bench.run(|run| {
        run.fill(buffer.va + HUGE_PAGE, 8, 4, words);
    });
    assert_eq!((read(&bench), word(&theirs, 0), word(&theirs, HUGE_PAGE)), ([0, 8, 8, 0], 0, 8));
    // It comes again at another place of VRAM.
    theirs.fill(0, 4, 0x44);
    let last = VramOffset(at.0 + LENT);
    gpu.lend_vram(last, &file, 0, HUGE_PAGE).unwrap();
    bench.refresh(buffer);
    assert_eq!((read(&bench), word(&theirs, 0)), ([0, 8, 8, 0], 0));
    bench.run(|run| {
        run.fill(buffer.va + 2 * HUGE_PAGE, 9, 4, words);
    });
    assert_eq!((word(&theirs, 0), word(&theirs, HUGE_PAGE)), (9, 9));
    // All of it at once, however it was lent.
    gpu.take_back_vram(VramOffset(at.0 + HUGE_PAGE), LENT).unwrap();
    bench.refresh(buffer);
    assert_eq!((read(&bench), word(&theirs, 0), word(&theirs, HUGE_PAGE)), ([0, 8, 0, 0], 0, 0));
}

#[test]
fn what_cannot_be_lent_is_refused() {
    let gpu = Mini::new(1).gpu;
    let end = gpu.vram_bytes();
    let file = Arc::new(Memfd::create("lent", end + PAGE).unwrap());
    let lend = |offset, bytes| gpu.lend_vram(VramOffset(offset), &file, 0, bytes).map_err(|error| error.kind());
    for (offset, bytes) in [(PAGE, LENT), (0, PAGE), (0, 0), (end, LENT), (end - HUGE_PAGE, LENT), (u64::MAX, LENT)] {
        assert_eq!(lend(offset, bytes), Err(ErrorKind::InvalidInput), "{offset:#x} {bytes:#x}");
    }
    for at in [1, end, u64::MAX] {
        let refused = gpu.lend_vram(VramOffset(LENT), &file, at, LENT).map_err(|error| error.kind());
        assert_eq!(refused, Err(ErrorKind::InvalidInput), "{at:#x} of the file");
    }
    assert_eq!(lend(LENT, LENT), Ok(()));
    for (offset, bytes) in [(LENT, LENT), (LENT + HUGE_PAGE, LENT), (0, end)] {
        assert_eq!(lend(offset, bytes), Err(ErrorKind::AlreadyExists), "{offset:#x} {bytes:#x}");
    }
    let take = |offset, bytes| gpu.take_back_vram(VramOffset(offset), bytes).map_err(|error| error.kind());
    for (offset, bytes) in
        [(LENT, PAGE), (LENT + PAGE, HUGE_PAGE), (LENT + HUGE_PAGE, LENT), (0, LENT), (u64::MAX, LENT)]
    {
        assert_eq!(take(offset, bytes), Err(ErrorKind::InvalidInput), "{offset:#x} {bytes:#x}");
    }
    assert_eq!((take(LENT, LENT), lend(0, end)), (Ok(()), Ok(())));
}

#[test]
fn memory_is_mapped_at_addresses_of_the_callers_choice() {
    let mut bench = Bench::new();
    let gpu = Arc::clone(&bench.mini.gpu);
    let file = |fill| {
        let file = Arc::new(Memfd::create("theirs", 4 * PAGE).unwrap());
        let mapping = file.map().unwrap();
        mapping.fill(0, 4 * PAGE as usize, fill);
        (file, mapping)
    };
    let ((first, in_first), (second, in_second)) = (file(1), file(2));
    let bus = 0x7000;
    let map =
        |bus, file, offset, bytes| gpu.map_dma_at(BusAddr(bus), file, offset, bytes).map_err(|error| error.kind());
    assert_eq!(map(bus, &first, PAGE, 2 * PAGE), Ok(()));
    for (at, offset, bytes) in [(bus, 0, PAGE), (bus + PAGE, 0, PAGE), (bus - PAGE, 0, 2 * PAGE)] {
        assert_eq!(map(at, &second, offset, bytes), Err(ErrorKind::AlreadyExists), "{at:#x}");
    }
    for (at, offset, bytes) in
        [(1, 0, PAGE), (0, 1, PAGE), (0, 0, 0), (0, PAGE, 4 * PAGE), (0u64.wrapping_sub(PAGE), 0, 2 * PAGE)]
    {
        assert_eq!(map(at, &second, offset, bytes), Err(ErrorKind::InvalidInput), "{at:#x}");
    }
    let va = LO + (64 << 20);
    let at = PhysAddr { aperture: Aperture::System, address: bus };
    bench.mini.map_memory(&mut bench.space, va, 4 * PAGE, at, Rights::default());
    // Two pages of it are there, of the file's second and third.
    let out = bench.mini.buffer(&mut bench.space, PAGE);
    bench.run(|run| {
        run.fill(va + PAGE, 0x0505_0505, 4, 1).copy(out.va, va, 4);
    });
    assert_eq!((word(&in_first, 2 * PAGE), word(&in_first, 0)), (0x0505_0505, 0x0101_0101));
    assert_eq!(bench.mini.read_u32(out, 0), 0x0101_0101);
    // The same address is another's memory after the next invalidate.
    gpu.free_dma(BusAddr(bus));
    assert_eq!(map(bus, &second, 0, PAGE), Ok(()));
    bench.mini.invalidate(&bench.space, va, 4 * PAGE);
    bench.run(|run| {
        run.copy(out.va, va, 4).fill(va, 0x0606_0606, 4, 1);
    });
    assert_eq!((bench.mini.read_u32(out, 0), word(&in_second, 0)), (0x0202_0202, 0x0606_0606));
    assert_eq!(word(&in_first, PAGE), 0x0101_0101);
    // The device's own choice keeps clear of it, and what is not mapped any more is a fault.
    let own = gpu.alloc_dma(PAGE).unwrap();
    assert_eq!(map(own.bus().0, &second, 0, PAGE), Err(ErrorKind::AlreadyExists));
    assert_eq!(map(own.bus().0 + HUGE_PAGE, &second, 0, 4 * PAGE), Ok(()));
    let next = gpu.alloc_dma(2 * HUGE_PAGE).unwrap();
    assert!(next.bus().0 > own.bus().0 + HUGE_PAGE, "{next:?}");
    let mut words = Words::new();
    words.copy(out.va, va + PAGE, 4);
    bench.mini.submit(&mut bench.channel, &words);
    let (record, _) = bench.mini.wait_error(&bench.channel);
    assert_eq!((record.reason, record.address), (Reason::ILLEGAL_ADDRESS, va + PAGE));
}
