//! What the checker says of accesses, against what it was told of memory.

use std::sync::Arc;

use checker::{Check, Checker, Checks, Memory, Report};
use parking_lot::Mutex;
use ptx::Origin;
use ptx::check::{Checker as _, Hazard, HazardKind, Site};
use ptx::ir::Kernel;
use ptx::launch::{Access, AccessError, Exception};

const MALLOC: Memory = Memory { name: "cudaMalloc", addressed: true };

struct Bench {
    checker: Checker,
    kernel: Kernel,
    told: Arc<Mutex<Vec<Report>>>,
}

impl Bench {
    fn new(checks: &str) -> Bench {
        let text = b".version 8.5\n.target sm_90\n.address_size 64\n.visible .entry k()\n{\nret;\n}\n";
        let kernel = ptx::Program::parse(text).and_then(|program| program.lower(0, &|_| None)).expect("it compiles");
        let told: Arc<Mutex<Vec<Report>>> = Arc::default();
        let of_checker = Arc::clone(&told);
        let tell = move |report: &Report| of_checker.lock().push(report.clone());
        Bench { checker: Checker::new(checks.parse().expect("names of checks"), tell), kernel, told }
    }

    fn site(&self, line: u32) -> Site<'_> {
        let (block, ctaid) = ([8, 8, 1], [1, 2, 3]);
        Site { kernel: &self.kernel, line, grid_id: 1, block, ctaid, thread: 9, shared_bytes: 256 }
    }

    /// An access as the interpreter makes it; what is told of it.
    fn access(&self, line: u32, access: Access, address: u64, bytes: u32) -> Option<String> {
        self.told.lock().clear();
        let site = self.site(line);
        if let Err(error) = self.checker.access(&site, access, address, bytes) {
            self.checker.failed(&site, Exception::Access { address, access, error }, bytes);
        }
        self.told.lock().pop().map(|report| format!("{}; {}", report.what, report.detail.unwrap_or_default()))
    }

    fn write(&self, line: u32, address: u64) -> Option<String> {
        self.access(line, Access::Write, address, 4)
    }
}

#[test]
fn accesses_lie_in_allocations() {
    let bench = Bench::new("memory");
    assert_eq!(bench.write(1, 0x50000).as_deref(), Some("write of 4 bytes out of bounds; nothing is allocated"));
    bench.checker.allocated(0x100000, 4001, MALLOC, true);
    bench.checker.allocated(0x200000, 64, Memory { name: "an array", addressed: false }, true);
    assert_eq!(bench.write(2, 0x100000), None);
    assert_eq!(bench.write(2, 0x100000 + 3996), None);
    let says = |line, address| bench.write(line, address).unwrap_or_default();
    assert_eq!(
        says(3, 0x100000 + 4000),
        "write of 4 bytes out of bounds; the last 3 of them behind the end of 4001 bytes at 0x100000 (cudaMalloc)"
    );
    assert_eq!(
        says(4, 0x100000 + 4001),
        "write of 4 bytes out of bounds; 0 bytes behind the end of 4001 bytes at 0x100000 (cudaMalloc)"
    );
    assert_eq!(
        says(5, 0x100000 - 4),
        "write of 4 bytes out of bounds; 4 bytes before 4001 bytes at 0x100000 (cudaMalloc)"
    );
    assert_eq!(says(6, 0x200000 - 4), "write of 4 bytes out of bounds; 4 bytes before 64 bytes at 0x200000 (an array)");
    // Kernels have no address of an array.
    assert_eq!(says(7, 0x200000), "write of 4 bytes out of bounds; 0 bytes into 64 bytes at 0x200000 (an array)");
    assert_eq!(
        says(8, u64::MAX - 3),
        "write of 4 bytes out of bounds; 18446744073707454396 bytes behind the end of 64 bytes at 0x200000 (an array)"
    );
    assert_eq!(says(9, 8), "write of 4 bytes through a null pointer; ");
    bench.checker.freed(0x100000);
    bench.checker.freed(0x100000);
    bench.checker.freed(0x777);
    assert_eq!(
        says(10, 0x100010),
        "write of 4 bytes of freed memory; 16 bytes into 4001 bytes at 0x100000 (cudaMalloc) that was freed"
    );
    // Somebody else has it now.
    bench.checker.allocated(0x100000, 32, MALLOC, true);
    assert_eq!(bench.write(11, 0x100010), None);
    assert_eq!(bench.checker.totals().errors, 9);
}

#[test]
fn mappings_that_touch_are_as_one() {
    let bench = Bench::new("memory");
    bench.checker.allocated(0x100000, 0x1000, MALLOC, true);
    bench.checker.allocated(0x101000, 0x1000, MALLOC, true);
    assert_eq!(bench.access(1, Access::Read, 0x100ffc, 8), None);
    assert!(bench.access(1, Access::Read, 0x101ffc, 8).is_some());
}

#[test]
fn a_place_is_told_once_and_its_errors_are_counted() {
    let bench = Bench::new("memory");
    assert!(bench.write(1, 0x50000).is_some());
    assert!(bench.write(1, 0x60000).is_none());
    assert!(bench.write(2, 0x60000).is_some());
    let totals = bench.checker.totals();
    assert_eq!((totals.errors, totals.places), (3, 2));
}

#[test]
fn what_is_read_was_written() {
    let bench = Bench::new("init");
    bench.checker.allocated(0x100000, 1000, MALLOC, false);
    let mut line = 0;
    let mut read = |address, bytes| {
        line += 1;
        bench.access(line, Access::Read, address, bytes).is_some()
    };
    assert!(read(0x100000, 4));
    assert!(!read(0x100000, 4), "it has been told");
    bench.checker.written(0x100000, 130);
    assert!(!read(0x100000 + 126, 4));
    assert!(read(0x100000 + 128, 4), "two bytes of it were not written");
    assert!(read(0x100000 + 996, 4), "the last ones");
    // A kernel writes across a word of the bitmap.
    assert_eq!(bench.access(100, Access::Write, 0x100000 + 256 - 8, 16), None);
    assert!(!read(0x100000 + 256 - 8, 16));
    assert!(read(0x100000 + 256 - 16, 16) && read(0x100000 + 256, 16));
    // Memory that is there again is new.
    bench.checker.freed(0x100000);
    bench.checker.allocated(0x100000, 1000, MALLOC, false);
    bench.checker.written(0x100000 - 8, 12);
    assert!(!read(0x100000, 4) && read(0x100004, 4));
    bench.checker.allocated(0x200000, 64, MALLOC, true);
    assert!(!read(0x200000, 8));
    // Nothing is said of what is outside: that is another check's.
    assert!(!read(0x90000, 8));
    // An atomic reads, and writes.
    assert!(bench.access(101, Access::Atomic, 0x100100, 4).is_some());
    assert!(!read(0x100100, 4));
    bench.checker.written(0x100000, 0);
    bench.checker.written(u64::MAX - 3, 100);
}

#[test]
fn reports_say_who_and_where() {
    let bench = Bench::new("race,memory");
    let hazard = Hazard { kind: HazardKind::ReadAfterWrite, offset: 12, line: 5, thread: 40 };
    bench.checker.hazard(&bench.site(7), &hazard);
    bench.checker.failed(&bench.site(8), Exception::Trap, 0);
    let shared = Exception::Access { address: 256, access: Access::Write, error: AccessError::Shared };
    bench.checker.failed(&bench.site(9), shared, 4);
    let told: Vec<String> = bench.told.lock().iter().map(Report::to_string).collect();
    assert_eq!(
        told,
        [
            "sundial: race: read after write, at 0xc\n    by thread (1,1,0) of block (1,2,3), in kernel k\n    at line 7 of PTX\n    \
             after thread (0,5,0) at line 5 of PTX\n    shared memory; no barrier between the two\n",
            "sundial: memory: the kernel has trapped\n    by thread (1,1,0) of block (1,2,3), in kernel k\n    at line 8 of PTX\n",
            "sundial: memory: write of 4 bytes outside the block's shared memory, at 0x100\n    by thread (1,1,0) of block (1,2,3), \
             in kernel k\n    at line 9 of PTX\n    the block has 256 bytes of shared memory\n",
        ]
    );
    assert_eq!(bench.told.lock()[0].check, Check::Race);
}

#[test]
fn reports_name_the_text_that_was_linked() {
    let mut bench = Bench::new("memory");
    let origin = |from, line, module: &str| Origin { from, line, module: module.to_owned() };
    bench.kernel.origins = vec![origin(3, 20, "a.ptx"), origin(8, 3, "b.ptx")];
    assert_eq!(places(&bench, &[1, 5, 9]), ["line 1 of PTX", "line 22 of PTX of a.ptx", "line 4 of PTX of b.ptx"]);
}

/// Where failures at lines of the kernel's text are told to be.
fn places(bench: &Bench, lines: &[u32]) -> Vec<String> {
    lines.iter().for_each(|line| bench.checker.failed(&bench.site(*line), Exception::Trap, 0));
    bench.told.lock().iter().map(|report| report.place.to_string()).collect()
}

#[test]
fn reports_name_the_source() {
    let mut bench = Bench::new("memory");
    let text = ".version 8.5\n.target sm_75\n.address_size 64\n.file 1 \"b.cu\"\n.visible .entry k()\n{\n.reg .b32 %r;\n\
                mov.u32 %r, 1;\n.loc 1 5 0\ntrap;\nret;\n}\n";
    let program = ptx::Program::parse(text.as_bytes()).expect("it is well-formed");
    bench.kernel = program.lower(0, &|_| None).expect("it compiles");
    assert_eq!(places(&bench, &[8, 10]), ["line 8 of PTX", "b.cu:5 (line 10 of PTX)"]);
}

#[test]
fn names_of_checks() {
    let of = |names: &str| names.parse::<Checks>();
    assert_eq!(of("memory, race"), Ok(Checks { memory: true, init: false, race: true }));
    assert_eq!(of("sync").unwrap_err().to_string(), "there is no check \"sync\": memory, init, race");
    assert!(of("").is_err());
}
