use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU64, Ordering};

use gpu_spec::regs::identity;
use hostmem::PAGE;

use super::*;

const VRAM: u64 = 6 << 20;
const APERTURE: u64 = 8 << 20;

/// A machine of files: a GPU at 0000:00:04.0, and something else.
struct Machine {
    root: PathBuf,
}

impl Machine {
    fn new() -> Machine {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let name = format!("pci_gpu-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let machine = Machine { root: std::env::temp_dir().join(name) };
        machine.add("0000:00:03.0", ["0x1af4", "0x1000", "0x020000"]);
        machine.add("0000:00:04.0", ["0x10de", "0x1eb8", "0x120000"]);
        machine
    }

    fn folder(&self, address: &str) -> PathBuf {
        self.root.join("sys/bus/pci/devices").join(address)
    }

    fn gpu(&self) -> PathBuf {
        self.folder("0000:00:04.0")
    }

    fn add(&self, address: &str, ids: [&str; 3]) {
        let folder = self.folder(address);
        fs::create_dir_all(&folder).unwrap();
        for (name, id) in ["vendor", "device", "class"].into_iter().zip(ids) {
            fs::write(folder.join(name), format!("{id}\n")).unwrap();
        }
        fs::write(folder.join("config"), [0; 64]).unwrap();
        fs::write(folder.join("enable"), "0").unwrap();
        for (name, bytes) in [("resource0", BAR0_BYTES), ("resource1", APERTURE)] {
            File::create(folder.join(name)).unwrap().set_len(bytes).unwrap();
        }
        for (register, value) in [(identity::MAGIC_WORD, identity::MAGIC), (identity::VRAM_LO, VRAM as u32)] {
            self.poke(address, register, value);
        }
    }

    fn poke(&self, address: &str, register: u32, value: u32) {
        let file = open(&self.folder(address).join("resource0")).unwrap();
        file.write_all_at(&value.to_le_bytes(), register.into()).unwrap();
    }

    fn open_with(&self, address: Option<&str>, locate: Locate) -> Result<SysfsGpu, OpenError> {
        SysfsGpu::open_in(Places { sysfs: self.root.join("sys"), dev: self.root.join("dev"), locate }, address)
    }

    fn open(&self, address: Option<&str>) -> Result<SysfsGpu, OpenError> {
        self.open_with(address, backwards())
    }

    fn command(&self) -> u16 {
        let config = fs::read(self.gpu().join("config")).unwrap();
        u16::from_le_bytes([config[4], config[5]])
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.root);
    }
}

/// Bus addresses that fall from page to page.
fn backwards() -> Locate {
    let next = AtomicU64::new(1 << 30);
    Box::new(move |mapping| {
        let pages = mapping.len() as u64 / PAGE;
        let base = next.fetch_add(2 * pages * PAGE, Ordering::Relaxed);
        Ok((0..pages).rev().map(|page| BusAddr(base + page * PAGE)).collect())
    })
}

#[test]
fn the_gpu_is_found_and_switched_on() {
    let machine = Machine::new();
    let gpu = machine.open(None).unwrap();
    assert_eq!((gpu.vram_bytes(), machine.command()), (VRAM, COMMAND_MEMORY | COMMAND_MASTER | COMMAND_NO_INTX));
    assert_eq!(fs::read_to_string(machine.gpu().join("enable")).unwrap(), "1");
    assert!(gpu.held.lock().is_empty(), "what was tried is given back");
    // Registers and VRAM are the files of the BARs.
    assert_eq!(gpu.read32(identity::MAGIC_WORD), identity::MAGIC);
    gpu.write32(0x1234, 0x5566_7788);
    gpu.write32(0x1235, 1);
    gpu.write32(BAR0_BYTES as u32, 1);
    assert_eq!((gpu.read32(0x1234), gpu.read32(0x1235), gpu.read32(u32::MAX - 3)), (0x5566_7788, 0, 0));
    let mut seen = [0; 6];
    gpu.write_vram(VramOffset(VRAM - 5), &[1, 2, 3, 4, 5]);
    gpu.write_vram(VramOffset(VRAM - 4), &[9; 5]);
    gpu.fill_vram(VramOffset(VRAM - 2), 1, 7);
    gpu.read_vram(VramOffset(VRAM - 6), &mut seen);
    assert_eq!(seen, [0, 1, 2, 3, 7, 5]);
    gpu.read_vram(VramOffset(VRAM), &mut seen);
    assert_eq!(seen, [0xff; 6], "the aperture is larger than VRAM");
    let aperture = fs::read(machine.gpu().join("resource1")).unwrap();
    assert_eq!(aperture[VRAM as usize - 5..VRAM as usize], [1, 2, 3, 7, 5]);
    assert_eq!(gpu.reset().unwrap_err().kind(), io::ErrorKind::Unsupported);
    fs::write(machine.gpu().join("reset"), "").unwrap();
    gpu.reset().unwrap();
    assert_eq!(fs::read_to_string(machine.gpu().join("reset")).unwrap(), "1");
}

#[test]
fn what_is_no_gpu_is_refused_by_name() {
    let machine = Machine::new();
    let refusal = |machine: &Machine, address| machine.open(address).map(drop).unwrap_err().to_string();
    assert!(machine.open(Some("0000:00:04.0")).is_ok());
    assert_eq!(refusal(&machine, Some("0000:00:05.0")), "no GPU 0000:00:05.0 on the PCI bus");
    assert_eq!(refusal(&machine, Some("../devices/0000:00:04.0")), "no GPU ../devices/0000:00:04.0 on the PCI bus");
    assert!(refusal(&machine, Some("0000:00:03.0")).contains("another vendor, device or class"));
    machine.poke("0000:00:04.0", identity::VRAM_LO, APERTURE as u32 + 4096);
    assert!(refusal(&machine, None).contains("aperture"));
    machine.poke("0000:00:04.0", identity::MAGIC_WORD, u32::MAX);
    assert!(refusal(&machine, None).contains("does not say who it is"));
    File::create(machine.gpu().join("resource0")).unwrap().set_len(4096).unwrap();
    assert!(refusal(&machine, None).contains("BAR0"));
    fs::remove_file(machine.gpu().join("resource0")).unwrap();
    assert!(refusal(&machine, None).ends_with("resource0 cannot be used"));
    fs::write(machine.gpu().join("class"), "0x030000\n").unwrap();
    assert_eq!(refusal(&machine, None), "no GPU 10de:1eb8 of class 120000 on the PCI bus");
}

#[test]
fn memory_is_scattered_and_stays_until_the_device_is_done_with_it() {
    let machine = Machine::new();
    let gpu = machine.open(None).unwrap();
    let memory = gpu.alloc_dma(3 * PAGE).unwrap();
    let pages = memory.file.bytes() / PAGE;
    assert!(memory.is_pinned() && pages >= 3);
    let pieces = memory.pieces(0..3 * PAGE);
    assert_eq!(pieces.len(), 3);
    assert!(pieces.windows(2).all(|two| two[0].0.0 == two[1].0.0 + PAGE), "{pieces:?}");
    let (bus, file) = (memory.bus(), Arc::downgrade(&memory.file));
    drop(memory);
    assert!(file.upgrade().is_some(), "the device still has it");
    gpu.free_dma(bus);
    assert!(file.upgrade().is_none());
    // Who may not know addresses is told at once.
    let denied = || Box::new(|_: &Mapping| Err(io::ErrorKind::PermissionDenied.into())) as Locate;
    assert!(matches!(machine.open_with(None, denied()), Err(OpenError::Memory(_))));
}

#[test]
fn the_page_map_tells_addresses_or_why_not() {
    let memory = Memfd::create("pages", 3 * PAGE).unwrap().map_resident().unwrap();
    let pagemap = File::from(Memfd::create("map", PAGE).unwrap().into_fd());
    let entry = |page: u64, value: u64| pagemap.write_all_at(&value.to_ne_bytes(), page * 8).unwrap();
    for (page, frame) in [(5, 0x123), (6, 0x77), (7, FRAME_MAX)] {
        // Other bits say other things.
        entry(page, 1 << 63 | 1 << 61 | 1 << 55 | frame);
    }
    let look_up = |page: u64, pages| memory::look_up(&pagemap, page * PAGE, pages).map_err(|error| error.to_string());
    let expected = [0x123, 0x77, FRAME_MAX].map(|frame| BusAddr(frame * PAGE));
    assert_eq!(look_up(5, 3), Ok(expected.to_vec()));
    assert_eq!(look_up(4, 2), Err("a page for the GPU is not in memory".into()));
    entry(4, 1 << 63);
    assert!(look_up(4, 2).unwrap_err().contains("CAP_SYS_ADMIN"));
    assert!(look_up(510, 3).is_err(), "beyond the end");
    // The kernel's own: addresses, all different, or the reason.
    let real = memory::by_pagemap(Path::new("/proc/self/pagemap")).unwrap();
    match real(&memory) {
        Ok(pages) => {
            let mut different = pages.clone();
            different.sort();
            different.dedup();
            assert_eq!((pages.len(), different.len()), (3, 3));
        }
        Err(error) => assert_eq!(error.kind(), io::ErrorKind::PermissionDenied),
    }
}

const FRAME_MAX: u64 = (1 << 51) - 1;

#[test]
fn interrupts_are_looked_for_where_there_is_no_uio() {
    let machine = Machine::new();
    let gpu = machine.open(None).unwrap();
    let top = regs::VF_BASE + vf::INTR_TOP;
    assert!(!gpu.wait_interrupt(Duration::from_millis(5)));
    gpu.write32(top, u32::MAX);
    assert!(!gpu.wait_interrupt(Duration::from_millis(5)), "a device that is gone interrupts nobody");
    gpu.write32(top, 2);
    assert!(gpu.wait_interrupt(Duration::from_secs(20)));
    gpu.write32(top, 0);
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| gpu.wait_interrupt(Duration::from_secs(20)));
        gpu.write32(top, 1);
        assert!(waiter.join().unwrap());
    });
}

#[test]
fn interrupts_come_from_uio_and_are_let_through_again() {
    let machine = Machine::new();
    fs::create_dir_all(machine.gpu().join("uio/uio7")).unwrap();
    fs::create_dir_all(machine.root.join("dev")).unwrap();
    // A pipe: four bytes are an interrupt.
    let pipe = machine.root.join("dev/uio7");
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, rustix::fs::Mode::RWXU, 0).unwrap();
    let gpu = machine.open(None).unwrap();
    let Interrupts::Uio { events, config } = &gpu.interrupts else { panic!("{:?}", gpu.interrupts) };
    set_command(config, COMMAND_NO_INTX, 0).unwrap();
    assert!(!gpu.wait_interrupt(Duration::from_millis(5)));
    assert_eq!(machine.command(), COMMAND_MEMORY | COMMAND_MASTER);
    rustix::io::write(events.as_fd(), &1u32.to_ne_bytes()).unwrap();
    assert!(gpu.wait_interrupt(Duration::from_secs(20)));
    assert!(!gpu.wait_interrupt(Duration::from_millis(5)));
}
