//! What a checker is told by the interpreter: hazards in shared memory, refused accesses, lines of the source.

use std::sync::atomic::AtomicU32;
use std::sync::{Arc, Mutex};

use ptx::Program;
use ptx::check::{Checker, Hazard, HazardKind, Site};
use ptx::interp::Cta;
use ptx::launch::{Access, AccessError, Control, Exception, Launch, Step};
use testgen::Region;

const BASE: u64 = 0x1000;

/// Keeps what it is told; allows accesses below an address.
#[derive(Debug)]
struct Recorder {
    end: u64,
    hazards: Mutex<Vec<(HazardKind, u32, u32)>>,
    failures: Mutex<Vec<(u32, u32, u32)>>,
}

impl Checker for Recorder {
    fn wants_hazards(&self) -> bool {
        true
    }
    fn access(&self, _: &Site<'_>, _: Access, address: u64, bytes: u32) -> Result<(), AccessError> {
        if address + u64::from(bytes) <= self.end { Ok(()) } else { Err(AccessError::NotAllocated) }
    }
    fn failed(&self, site: &Site<'_>, _: Exception, bytes: u32) {
        self.failures.lock().expect("nobody panicked").push((site.thread, site.line, bytes));
    }
    fn hazard(&self, site: &Site<'_>, hazard: &Hazard) {
        self.hazards.lock().expect("nobody panicked").push((hazard.kind, hazard.line, site.line));
    }
}

/// Runs a body with `%r1` the thread, `%r2` four times that, `%r3` the warp, on 64 threads.
fn run(body: &str, end: u64) -> (Step, Arc<Recorder>) {
    run_in(body, end, [0; 32])
}

fn run_in(body: &str, end: u64, envregs: [u32; 32]) -> (Step, Arc<Recorder>) {
    let text = format!(
        ".version 8.5\n.target sm_90\n.address_size 64\n.visible .entry k(.param .u64 p)\n{{\n\
         .reg .pred %p<9>;\n.reg .b32 %r<20>;\n.reg .b64 %rd<9>;\n\
         mov.u32 %r1, %tid.x;\nshl.b32 %r2, %r1, 2;\nshr.u32 %r3, %r1, 5;\nsetp.eq.u32 %p1, %r3, 0;\nld.param.u64 %rd1, [p];\n\
         {body}\nret;\n}}\n"
    );
    let program = Program::parse(text.as_bytes()).expect("it is PTX");
    let kernel = Arc::new(program.lower(0, &|_| None).expect("it compiles"));
    let launch = Arc::new(Launch {
        dynamic_shared: 1024,
        grid_id: 1,
        envregs,
        ..Launch::new([1; 3], [64, 1, 1], BASE.to_le_bytes().to_vec())
    });
    let checker = Arc::new(Recorder { end, hazards: Mutex::default(), failures: Mutex::default() });
    let mut cta = Cta::new(kernel, launch, [0; 3]);
    cta.check(Arc::clone(&checker) as Arc<dyn Checker>);
    let memory = Region::new(BASE, vec![0; 4096]);
    let resume = |_| cta.resume(&memory, &AtomicU32::new(Control::RUN));
    let step = (0..1000).map(resume).find(|step| *step != Step::Preempted).expect("it ends");
    (step, checker)
}

/// Kinds of the hazards in a body that runs to its end, each once.
fn hazards(body: &str) -> Vec<HazardKind> {
    let (step, checker) = run(body, u64::MAX);
    assert_eq!(step, Step::Done, "{body}");
    let mut kinds = Vec::new();
    for (kind, ..) in checker.hazards.lock().expect("nobody panicked").iter() {
        if !kinds.contains(kind) {
            kinds.push(*kind);
        }
    }
    kinds
}

const STORE: &str = "st.shared.u32 [%r2], %r1;";
/// Reads what the other warp has written.
const LOAD: &str = "xor.b32 %r4, %r2, 128; ld.shared.u32 %r5, [%r4];";

#[test]
fn a_barrier_is_what_keeps_warps_apart() {
    use HazardKind::{ReadAfterWrite, WriteAfterRead, WriteAfterWrite};
    for (body, expected) in [
        (format!("{STORE} bar.sync 0; {LOAD}"), vec![]),
        // The first warp reads before the second one writes, which reads what the first one wrote.
        (format!("{STORE} {LOAD}"), vec![WriteAfterRead, ReadAfterWrite]),
        // Lanes of a warp are in lock step.
        (format!("{STORE} xor.b32 %r4, %r2, 4; ld.shared.u32 %r5, [%r4];"), vec![]),
        // Ordered, but the next trip is not: the second warp reads what the first one writes in it.
        (format!("{STORE} bar.sync 0; {LOAD} add.u32 %r1, %r1, 1; {STORE}"), vec![ReadAfterWrite, WriteAfterRead]),
        (format!("{STORE} bar.sync 0; {LOAD} bar.sync 0; add.u32 %r1, %r1, 1; {STORE}"), vec![]),
        ("st.shared.u32 [0], %r3;".into(), vec![WriteAfterWrite]),
        // Lanes of one instruction, too.
        ("and.b32 %r6, %r2, 128; st.shared.u32 [%r6], %r1;".into(), vec![WriteAfterWrite]),
        // But not if they agree.
        ("mov.u32 %r6, 7; st.shared.u32 [0], %r6; ld.shared.u32 %r5, [0];".into(), vec![]),
        // A byte beside another's is nobody's business.
        ("st.shared.u8 [%r1], %r1;".into(), vec![]),
        ("@%p1 st.shared.u32 [0], 9; @!%p1 ld.shared.u16 %rs1, [2];".replace("%rs1", "%r5"), vec![ReadAfterWrite]),
    ] {
        assert_eq!(hazards(&body), expected, "{body}");
    }
}

#[test]
fn atomics_and_flags_order_what_is_around_them() {
    use HazardKind::ReadAfterWrite;
    let count = "atom.shared.add.u32 %r5, [0], 1;";
    assert_eq!(hazards(count), []);
    // What one of them left is no atomic's to read.
    assert_eq!(hazards(&format!("@%p1 {count} @!%p1 ld.shared.u32 %r5, [0];")), [ReadAfterWrite]);
    assert_eq!(hazards(&format!("{count} bar.sync 0; ld.shared.u32 %r5, [0];")), []);
    // A flag: the second warp waits until the first one has stored.
    let flag = "@!%p1 bra $wait; st.shared.u32 [%r2], %r1; membar.cta; st.volatile.shared.u32 [512], 1; bra $end;\n\
        $wait: ld.volatile.shared.u32 %r5, [512]; setp.eq.u32 %p2, %r5, 0; @%p2 bra $wait;\n";
    let read = "xor.b32 %r4, %r2, 128; ld.shared.u32 %r5, [%r4]; $end:";
    assert_eq!(hazards(&format!("{flag}{read}")), []);
    // Nobody waits for the flag, but it is there when it is looked at.
    assert_eq!(hazards(&format!("{}{read}", flag.replace("@%p2 bra $wait;", ""))), []);
}

/// A copy tells an mbarrier object, as others do by atomics.
#[test]
fn copies_tell_objects_in_order() {
    // One warp copies what the other one expects.
    for (copies, arrives) in [(0, "@!%p1"), (32, "@%p1")] {
        let body = format!(
            ".shared .align 128 .b8 tile[128]; .shared .align 8 .b64 object; mov.u32 %r6, tile; mov.u32 %r7, object;\n\
             setp.eq.u32 %p2, %r1, 0; @%p2 mbarrier.init.shared.b64 [%r7], 32;\n\
             @%p2 mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%r7], 16; bar.sync 0;\n\
             {arrives} mbarrier.arrive.shared.b64 %rd2, [%r7]; setp.eq.u32 %p3, %r1, {copies};\n\
             @%p3 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%r6], [%rd1], 16, [%r7], 1;"
        );
        assert_eq!(hazards(&body), []);
    }
}

#[test]
fn barriers_of_some_order_these() {
    use HazardKind::ReadAfterWrite;
    let produce = |then: &str| format!("@!%p1 bra $consume; {STORE} {then} bra $end; $consume:");
    let consume = format!("{LOAD} $end:");
    assert_eq!(hazards(&format!("{} bar.sync 1, 64; {consume}", produce("bar.arrive 1, 64;"))), []);
    assert_eq!(hazards(&format!("{} {consume}", produce(""))), [ReadAfterWrite]);
    // It has arrived, but nobody has waited for that.
    assert_eq!(hazards(&format!("{} {consume}", produce("bar.arrive 1, 64;"))), [ReadAfterWrite]);
    // Who has ended has arrived at barriers of all.
    assert_eq!(hazards(&format!("{STORE} @%p1 exit; bar.sync 0; {LOAD}")), []);
    // What was stored behind the arrival is not waited for.
    let late = format!("@!%p1 bra $consume; bar.arrive 1, 64; {STORE} bra $end; $consume: bar.sync 1, 64; {consume}");
    assert_eq!(hazards(&late), [ReadAfterWrite]);
}

#[test]
fn a_clusters_barrier_orders_too() {
    use HazardKind::{ReadAfterWrite, WriteAfterRead};
    let (arrive, wait) = ("barrier.cluster.arrive;", "barrier.cluster.wait;");
    assert_eq!(hazards(&format!("{STORE} {arrive} {wait} {LOAD}")), []);
    assert_eq!(hazards(&format!("{STORE} {arrive} {wait} {LOAD} {arrive} {wait} add.u32 %r1, %r1, 1; {STORE}")), []);
    // Who has ended is waited for no more.
    assert_eq!(hazards(&format!("{STORE} @%p1 exit; {arrive} {wait} {LOAD}")), []);
    // It has arrived, but not waited.
    assert_eq!(hazards(&format!("{STORE} {arrive} {LOAD} {wait}")), [WriteAfterRead, ReadAfterWrite]);
    // The second warp does not wait for what the first stores behind its arrival.
    let late = format!("{arrive} @!%p1 bra $on; {STORE} $on: {wait} @%p1 bra $end; {LOAD} $end:");
    assert_eq!(hazards(&late), [ReadAfterWrite]);
}

#[test]
fn all_lanes_of_a_failing_instruction_are_told() {
    let store = "cvt.u64.u32 %rd2, %r2; add.u64 %rd1, %rd1, %rd2;\nst.global.u32 [%rd1], %r1;";
    // Room for 30 of them.
    let (step, checker) = run(store, BASE + 120);
    let first = Exception::Access { address: BASE + 120, access: Access::Write, error: AccessError::NotAllocated };
    assert_eq!(step, Step::Exception(first));
    assert_eq!(*checker.failures.lock().unwrap(), [(30, 15, 4), (31, 15, 4)]);
    let (step, checker) = run(store, BASE + 256);
    assert_eq!((step, checker.failures.lock().unwrap().len()), (Step::Done, 0));
    // The workspace of a cooperative grid is nobody's business.
    let mut envregs = [0; 32];
    envregs[2] = BASE as u32;
    let (step, checker) = run_in(store, BASE, envregs);
    assert_eq!((step, checker.failures.lock().unwrap().len()), (Step::Done, 0));
    // What nobody needs to check fails all the same.
    let (_, checker) = run("st.shared.u32 [%r2+996], %r1;", u64::MAX);
    let failures = checker.failures.lock().unwrap();
    let expected: Vec<_> = (7..32).map(|thread| (thread, 14, 4)).collect();
    assert_eq!(*failures, expected);
}
