//! `sundial bench engine`: the kernel engine alone, without device, driver or daemon.

mod cases;
mod pocl;

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::io::Write;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use hostmem::{Memfd, Protection, Window};
use ptx::Program;
use ptx::ir::Kernel;
use ptx::launch::{Control, Exception, Launch, Step};
use ptx_jit::{Batch, Code, EngineKind, Grid};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use serde::Serialize;
use texture::{AddressMode, Descriptor, Filter, Format, Image, Sampler};

use crate::bench::median;
use cases::{Call, Case, Param};
use pocl::Pocl;

const PTX: &[u8] = include_bytes!("../kernels/engine.ptx");

/// GPU address of the first byte of a case's memory.
const LO: u64 = 0x10_0000_0000;
/// Where buffers begin, in bytes: a multiple of it; as `cuMemAlloc` does for those of a megabyte.
const ALIGN: u64 = 2 << 20;

/// Which engines.
#[derive(clap::Args, Debug)]
pub(crate) struct Arguments {
    /// Run the same kernels in OpenCL by PoCL, on one core, too, and compare speeds and results.
    #[arg(long)]
    pocl: bool,
    /// Kernels by the names of their rows [default: all].
    kernels: Vec<String>,
}

#[derive(Serialize, Debug)]
struct Row {
    name: &'static str,
    unit: &'static str,
    /// None: not measured.
    interpreter: Option<f64>,
    jit_one_core: f64,
    jit_all_cores: f64,
    cores: usize,
    /// What all cores do of as many times one, the median of what it is from round to round.
    scaling: f64,
    /// The same where each core has a launch and memory of its own, summed over the cores: what the machine leaves one while all work.
    machine_scaling: f64,
    compile_ms: f64,
    #[serde(flatten)]
    compared: Option<Compared>,
}

/// With `PoCL` on one core.
#[derive(Serialize, Clone, Copy, Debug)]
struct Compared {
    pocl: f64,
    /// How many times as fast the engine is on one core: the median of what it is from round to round, in which both run one after the other.
    ratio: f64,
    /// What the ratio is to be.
    goal: f64,
}

/// Runs the benchmark and prints its rows.
///
/// # Errors
/// A kernel that cannot be compiled, or failed; there is no `PoCL`, or its results are others.
pub(crate) fn run(arguments: &Arguments, json: bool, rounds: usize) -> Result<()> {
    // As `run --native` does.
    hostmem::want_huge_pages();
    let cases = cases::all();
    if let Some(unknown) = arguments.kernels.iter().find(|&name| cases.iter().all(|case| case.name != name)) {
        let names: Vec<&str> = cases.iter().map(|case| case.name).collect();
        bail!("there is no kernel {unknown}; there are {}", names.join(", "));
    }
    let asked = |case: &Case| arguments.kernels.is_empty() || arguments.kernels.iter().any(|name| case.name == name);
    let pocl = if arguments.pocl { Some(Pocl::start()?) } else { None };
    let program = Program::parse(PTX)?;
    let rows =
        cases.into_iter().filter(asked).map(|case| measure(&case, &program, pocl.as_ref(), rounds).context(case.name));
    let rows = rows.collect::<Result<Vec<Row>>>()?;
    print(&rows, pocl.as_ref(), json)
}

fn measure(case: &Case, program: &Program, pocl: Option<&Pocl>, rounds: usize) -> Result<Row> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let memory = Memory::of(case)?;
    let mut compile_times = Vec::new();
    let mut compiled = Compiled::new();
    for _ in 0..3 {
        let start = Instant::now();
        compiled = compile(case, program, EngineKind::Jit)?;
        compile_times.push(start.elapsed().as_secs_f64() * 1e3);
    }
    let jit = memory.grids(&compiled)?;
    let goal = case.goal;
    let loaded = pocl.zip(goal).map(|(pocl, goal)| Ok::<_, anyhow::Error>((pocl.load(case)?, goal))).transpose()?;
    let launches: Vec<(&Arc<Grid>, u64)> = jit.iter().map(|grid| (grid, all_ctas(grid))).collect();
    let whole = |threads| -> Result<f64> { Ok(case.work / execute(&launches, threads)?.as_secs_f64()) };
    let copies = (0..cores).map(|_| Memory::of(case)).collect::<Result<Vec<_>>>()?;
    let copies = copies.iter().map(|memory| memory.grids(&compiled)).collect::<Result<Vec<_>>>()?;
    let copies: Vec<Vec<_>> =
        copies.iter().map(|grids| grids.iter().map(|grid| (grid, all_ctas(grid))).collect()).collect();
    let apart =
        || Ok::<f64, anyhow::Error>(execute_apart(&copies)?.iter().map(|took| case.work / took.as_secs_f64()).sum());
    // Not timed: it is what the results are compared by, and memory is touched for the first time.
    whole(1)?;
    if let Some((loaded, _)) = &loaded {
        loaded.run()?;
        let (buffer, agreement) = case.result;
        let (ours, theirs) = (memory.read(buffer)?, loaded.read(buffer)?);
        if let Some(at) = agreement.differs_at(&ours, &theirs) {
            let [ours, theirs] = [&ours, &theirs].map(|bytes| &bytes[at..at + 4]);
            bail!("PoCL has another result, at byte {at}: {theirs:x?}, here {ours:x?}");
        }
    }
    apart()?;
    let (mut one, mut all, mut scaling, mut machine) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for _ in 0..rounds {
        let (alone, together, apart) = (whole(1)?, whole(cores)?, apart()?);
        one.push(alone);
        all.push(together);
        scaling.push(together / (alone * cores as f64));
        machine.push(apart / (alone * cores as f64));
    }
    let compared = loaded.map(|(loaded, goal)| {
        // In rounds of their own, in which nothing comes between the two.
        let (mut pocl, mut ratios) = (Vec::new(), Vec::new());
        for _ in 0..rounds {
            let ours = whole(1)?;
            let start = Instant::now();
            loaded.run()?;
            let theirs = case.work / start.elapsed().as_secs_f64();
            pocl.push(theirs);
            ratios.push(ours / theirs);
        }
        Ok::<_, anyhow::Error>(Compared { pocl: median(&mut pocl), ratio: median(&mut ratios), goal })
    });
    let compared = compared.transpose()?;
    Ok(Row {
        name: case.name,
        unit: case.unit,
        interpreter: case.sample.map(|ctas| interpreted(case, program, ctas)).transpose()?,
        jit_one_core: median(&mut one),
        jit_all_cores: median(&mut all),
        cores,
        scaling: median(&mut scaling),
        machine_scaling: median(&mut machine),
        compile_ms: median(&mut compile_times),
        compared,
    })
}

/// What the interpreter would come to, from the first `ctas` of each launch; in memory of their own, since they leave results in part.
fn interpreted(case: &Case, program: &Program, ctas: u32) -> Result<f64> {
    let grids = Memory::of(case)?.grids(&compile(case, program, EngineKind::Interpreter)?)?;
    let mut seconds = 0.0;
    for grid in &grids {
        let total = all_ctas(grid);
        let sample = u64::from(ctas).min(total);
        seconds += execute(&[(grid, sample)], 1)?.as_secs_f64() * total as f64 / sample as f64;
    }
    Ok(case.work / seconds)
}

/// The kernels of a case by name.
type Compiled = BTreeMap<&'static str, (Arc<Kernel>, Arc<Code>)>;

fn compile(case: &Case, program: &Program, engine: EngineKind) -> Result<Compiled> {
    let mut compiled = Compiled::new();
    for call in &case.calls {
        if let Entry::Vacant(place) = compiled.entry(call.kernel) {
            let entry = program.find_entry(call.kernel).with_context(|| format!("no kernel {}", call.kernel))?;
            let kernel = Arc::new(program.lower(entry, &|_| None)?);
            let code = Code::compile(Arc::clone(&kernel), call.block, engine)?;
            place.insert((kernel, code));
        }
    }
    Ok(compiled)
}

/// A case's buffers, where its kernels find them.
struct Memory<'a> {
    case: &'a Case,
    window: Arc<Window>,
    /// Offset of each buffer.
    buffers: Vec<u64>,
    /// Of textures' descriptors, one after another in the order of the parameters that are images.
    descriptors: u64,
}

impl Memory<'_> {
    fn of(case: &Case) -> Result<Memory<'_>> {
        let mut end = 0;
        let mut place = |bytes: usize| {
            let at = end;
            end = (end + bytes as u64).next_multiple_of(ALIGN);
            at
        };
        let buffers: Vec<u64> = case.buffers.iter().map(|bytes| place(bytes.len())).collect();
        let images = case.calls.iter().flat_map(|call| &call.params).filter(|param| matches!(param, Param::Image(..)));
        let descriptors = place(images.count() * Descriptor::BYTES);
        let window = Arc::new(Window::reserve(end)?);
        let memory = Memfd::create("bench-engine", end)?;
        window.map(0, &memory, 0, end, Protection::ReadWrite)?;
        for (at, bytes) in buffers.iter().zip(&case.buffers) {
            window.expect_writes(*at, bytes.len() as u64);
            window.write(*at, bytes)?;
        }
        Ok(Memory { case, window, buffers, descriptors })
    }

    fn read(&self, buffer: usize) -> Result<Vec<u8>> {
        let mut bytes = vec![0; self.case.buffers[buffer].len()];
        self.window.read(self.buffers[buffer], &mut bytes)?;
        Ok(bytes)
    }

    /// A grid for each of the case's calls, in their order, on these buffers; the descriptors of its images are written.
    fn grids(&self, compiled: &Compiled) -> Result<Vec<Arc<Grid>>> {
        let mut images = 0;
        let grid = |call: &Call| {
            let (kernel, code) = &compiled[call.kernel];
            self.grid(call, kernel, code, &mut images)
        };
        self.case.calls.iter().map(grid).collect()
    }

    fn grid(&self, call: &Call, kernel: &Kernel, code: &Arc<Code>, images: &mut u64) -> Result<Arc<Grid>> {
        let mut params = vec![0; kernel.param_bytes as usize];
        for (param, at) in call.params.iter().zip(&kernel.params) {
            let bytes = match *param {
                Param::Buffer(number) => (LO + self.buffers[number]).to_le_bytes().to_vec(),
                Param::Image(number, size) => {
                    let at = self.descriptors + *images * Descriptor::BYTES as u64;
                    *images += 1;
                    self.window.write(at, &descriptor(LO + self.buffers[number], size).encode())?;
                    (LO + at).to_le_bytes().to_vec()
                }
                Param::Float(value) => value.to_le_bytes().to_vec(),
                Param::Int(value) => value.to_le_bytes().to_vec(),
            };
            if bytes.len() != at.size as usize {
                bail!("{}: a parameter has {} bytes, not {}", call.kernel, at.size, bytes.len());
            }
            params[at.offset as usize..][..bytes.len()].copy_from_slice(&bytes);
        }
        Ok(Arc::new(Grid {
            code: Arc::clone(code),
            launch: Launch { grid_id: 1, ..Launch::new(call.grid, call.block, params) },
            window: Arc::clone(&self.window),
            window_lo: LO,
            control: Arc::new(AtomicU32::new(Control::RUN)),
            checker: None,
            launcher: None,
        }))
    }
}

/// As [`Param::Image`] says.
fn descriptor(base: u64, size: [u32; 2]) -> Descriptor {
    let image = Image::pitched(Format::F32, 1, base, size, size[0] * 4);
    let sampler = Sampler { filter: Filter::Linear, address: [AddressMode::Clamp; 3], ..Sampler::default() };
    Descriptor { image, sampler: Some(sampler) }
}

fn all_ctas(grid: &Grid) -> u64 {
    grid.launch.grid.into_iter().map(u64::from).product()
}

/// Most CTAs that a thread takes at once, as of the device where a kernel has it alone (which gives fewer of those that take long).
const BATCH: u64 = 512;

/// The first CTAs of each of some grids, one grid after another, in increasing order, by threads that take turns.
struct Turns<'a> {
    launches: &'a [(&'a Arc<Grid>, u64)],
    threads: usize,
    taken: Vec<AtomicU64>,
    arrived: AtomicUsize,
    failed: OnceLock<Exception>,
}

impl Turns<'_> {
    fn new<'a>(launches: &'a [(&'a Arc<Grid>, u64)], threads: usize) -> Turns<'a> {
        let taken = launches.iter().map(|_| AtomicU64::new(0)).collect();
        Turns { launches, threads, taken, arrived: AtomicUsize::new(0), failed: OnceLock::new() }
    }

    /// What each of the threads does.
    fn work(&self) {
        for (at, (&(grid, ctas), taken)) in self.launches.iter().zip(&self.taken).enumerate() {
            self.arrived.fetch_add(1, Ordering::AcqRel);
            wait_for(&self.arrived, (at + 1) * self.threads);
            // Half of its part of what is left, as the device gives a worker: all end at about the same time.
            let after = |first: u64| first + (ctas - first).div_ceil(2 * self.threads as u64).min(BATCH);
            let next = |first| (first < ctas).then(|| after(first));
            while let Ok(first) = taken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next) {
                if let Err(exception) = finish(Batch::new(Arc::clone(grid), first..after(first))) {
                    let _ = self.failed.set(exception);
                }
            }
        }
    }

    fn end(self) -> Result<()> {
        self.failed.into_inner().map_or(Ok(()), |exception| bail!("the kernel failed: {exception:?}"))
    }
}

/// Waits for other threads without going to sleep: waking takes as long as a short kernel.
fn wait_for(arrived: &AtomicUsize, arrivals: usize) {
    while arrived.load(Ordering::Acquire) < arrivals {
        std::thread::yield_now();
    }
}

/// Runs grids on `threads` threads. How long it takes from when all threads are there.
fn execute(launches: &[(&Arc<Grid>, u64)], threads: usize) -> Result<Duration> {
    let turns = Turns::new(launches, threads);
    let took = together(threads, |_| turns.work())?;
    turns.end()?;
    Ok(took.into_iter().max().unwrap_or_default())
}

/// Runs each of these on a thread of its own, all at once. How long each takes.
fn execute_apart(copies: &[Vec<(&Arc<Grid>, u64)>]) -> Result<Vec<Duration>> {
    let turns: Vec<Turns<'_>> = copies.iter().map(|launches| Turns::new(launches, 1)).collect();
    let took = together(turns.len(), |number| turns[number].work())?;
    turns.into_iter().try_for_each(Turns::end)?;
    Ok(took)
}

/// Does `work`, which is told its number, on `threads` threads, this one among them. How long it takes each from when all are there.
/// Several have a core each: the kernel may leave two on one for as long as a run takes.
fn together(threads: usize, work: impl Fn(usize) + Sync) -> Result<Vec<Duration>> {
    let allowed = sched_getaffinity(None)?;
    let cores: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|&core| allowed.is_set(core)).take(threads).collect();
    let place = |number: usize| {
        let Some(&core) = cores.get(number).filter(|_| threads > 1) else { return Ok(()) };
        let mut only = CpuSet::new();
        only.set(core);
        sched_setaffinity(None, &only)
    };
    let (arrived, start) = (AtomicUsize::new(0), OnceLock::new());
    let part = |number: usize| {
        let placed = place(number);
        arrived.fetch_add(1, Ordering::AcqRel);
        wait_for(&arrived, threads);
        let start = *start.get_or_init(Instant::now);
        work(number);
        placed.map(|()| start.elapsed())
    };
    let took: rustix::io::Result<Vec<Duration>> = std::thread::scope(|scope| {
        let part = &part;
        let others: Vec<_> = (1..threads).map(|number| scope.spawn(move || part(number))).collect();
        let mine = part(0);
        let theirs =
            others.into_iter().map(|other| other.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        [mine].into_iter().chain(theirs).collect()
    });
    sched_setaffinity(None, &allowed)?;
    Ok(took?)
}

fn finish(mut batch: Batch) -> Result<(), Exception> {
    loop {
        match batch.resume() {
            Step::Done => return Ok(()),
            Step::Preempted => {}
            Step::Exception(exception) => return Err(exception),
        }
    }
}

fn print(rows: &[Row], pocl: Option<&Pocl>, json: bool) -> Result<()> {
    let mut out = std::io::stdout().lock();
    if json {
        writeln!(out, "{}", serde_json::to_string_pretty(rows)?)?;
        return Ok(());
    }
    let cores = rows.first().map_or(0, |row| row.cores);
    let all = format!("{cores} cores");
    let heading = if pocl.is_some() { format!(" {:>10} {:>7} {:>5}", "PoCL", "ratio", "goal") } else { String::new() };
    writeln!(
        out,
        "{:<18} {:>12} {:>10} {:>10} {:>8} {:>8} {:>12}{heading}  unit",
        "", "interpreter", "one core", all, "scaling", "machine", "compile ms"
    )?;
    for row in rows {
        let interpreter = row.interpreter.map_or(String::new(), |speed| format!("{speed:.4}"));
        let compared = match row.compared {
            Some(Compared { pocl, ratio, goal }) => format!(" {pocl:>10.2} {ratio:>7.2} {goal:>5.1}"),
            None => " ".repeat(heading.len()),
        };
        writeln!(
            out,
            "{:<18} {interpreter:>12} {:>10.2} {:>10.2} {:>8.2} {:>8.2} {:>12.2}{compared}  {}",
            row.name, row.jit_one_core, row.jit_all_cores, row.scaling, row.machine_scaling, row.compile_ms, row.unit
        )?;
    }
    if let Some(pocl) = pocl {
        let logarithms: Vec<f64> = rows.iter().filter_map(|row| Some(row.compared?.ratio.ln())).collect();
        let mean = (logarithms.iter().sum::<f64>() / logarithms.len() as f64).exp();
        writeln!(out, "geometric mean of the ratios: {mean:.2} (goal 3.0); PoCL on one core: {}", pocl.version)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kernel_is_there_in_both_languages_and_has_its_parameters() {
        let program = Program::parse(PTX).unwrap();
        for case in cases::all() {
            for call in &case.calls {
                let kernel = program.lower(program.find_entry(call.kernel).unwrap(), &|_| None).unwrap();
                assert_eq!(kernel.params.len(), call.params.len(), "{}", call.kernel);
                let is_in_opencl = pocl::SOURCE.contains(&format!("__kernel void {}(", call.kernel));
                assert_eq!(is_in_opencl, case.goal.is_some(), "{}", call.kernel);
            }
        }
    }

    #[test]
    fn results_that_differ_are_told() {
        use cases::Agreement;
        let floats = |values: [f32; 2]| values.map(f32::to_le_bytes).concat();
        let [one, near, far] = [[1.0, 200.0], [1.0, 201.0], [1.0, 203.0]].map(floats);
        assert_eq!(Agreement::Within(0.01).differs_at(&one, &near), None);
        assert_eq!(Agreement::Within(0.01).differs_at(&one, &far), Some(4));
        assert_eq!(Agreement::Exact.differs_at(&one, &near), Some(4));
        assert_eq!(Agreement::Within(0.01).differs_at(&floats([f32::NAN, 0.0]), &one), Some(0));
    }
}
