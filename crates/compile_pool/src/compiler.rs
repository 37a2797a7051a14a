//! The compiler process: takes one order after another, until the pool hangs up.

use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use ptx::{Program, PtxError};
use ptx_jit::compiler::{Bounds, Stop, Watch};
use ptx_jit::{CompileError, EngineKind, Image};
use rustix::process::{Resource, Rlimit, setrlimit};

use crate::modules::Handed;
use crate::protocol::{self, Answer, Engine, Failure, MAX_MEMORY, Order};

/// Stack of the thread that compiles: the parser and the code generator recurse. Only what is touched is memory.
const STACK_BYTES: usize = 64 << 20;
/// What a process has before it compiles anything, the stack and parsed modules included, bytes.
const BASE_BYTES: u64 = (STACK_BYTES as u64) + (96 << 20);
/// What no order changes: the hard limits, which nobody raises again. Whoever took this process over could set the others
/// as it likes up to these; processor time has no bound here, because a process lives as long as its owner has kernels for
/// it: the pool looks at it from outside, and ends who has no order.
const FOR_GOOD: [(Resource, u64); 5] = [
    // A memory file for the order and one for the answer, beside what is always open.
    (Resource::Nofile, 16),
    // A memory file cannot grow beyond this either.
    (Resource::Fsize, protocol::MAX_IMAGE),
    (Resource::Data, BASE_BYTES + MAX_MEMORY),
    // Memory files that are mapped are no data, but they are address space: as the program and what is reserved.
    (Resource::As, BASE_BYTES + MAX_MEMORY + (1 << 30)),
    (Resource::Memlock, 0),
];

/// A kernel that has a bit of everything, to be compiled before the first order: what is done once in a process's life is
/// then done, and its pages are there.
const REHEARSAL: &str = "
.version 8.0
.target sm_75
.address_size 64
.visible .entry rehearsal(.param .u64 p, .param .u32 n)
{
    .reg .u64 %rd<4>;
    .reg .u32 %r<6>;
    .reg .f32 %f<4>;
    .reg .pred %p<2>;
    ld.param.u64 %rd1, [p];
    ld.param.u32 %r1, [n];
    mov.u32 %r2, %tid.x;
    setp.ge.u32 %p1, %r2, %r1;
    @%p1 bra DONE;
    mul.wide.u32 %rd2, %r2, 4;
    add.u64 %rd3, %rd1, %rd2;
    mov.u32 %r3, 0;
LOOP:
    ld.global.f32 %f1, [%rd3];
    fma.rn.f32 %f2, %f1, %f1, %f1;
    st.global.f32 [%rd3], %f2;
    bar.sync 0;
    add.u32 %r3, %r3, 1;
    setp.lt.u32 %p1, %r3, %r2;
    @%p1 bra LOOP;
DONE:
    ret;
}
";

/// Serves orders from `socket` until the other side is gone. `seal` is called when everything is prepared and nobody has
/// said a word yet: to give up what is no longer needed.
///
/// # Errors
/// What the operating system says.
pub fn serve(socket: OwnedFd, seal: impl FnOnce() + Send + 'static) -> io::Result<()> {
    for (resource, most) in FOR_GOOD {
        limit_for_good(resource, most)?;
    }
    let thread = std::thread::Builder::new().name("compiler".to_owned()).stack_size(STACK_BYTES);
    let serving = thread.spawn(move || {
        // It is known to compile. If it does not on this machine, no other will, and the interpreter has them all.
        let known = Known { program: Program::parse(REHEARSAL.as_bytes()), symbols: HashMap::new() };
        let _ = image(&known, &rehearsal(), REHEARSED);
        seal();
        Compiler { socket, modules: HashMap::new() }.serve()
    })?;
    serving.join().map_err(|_| io::Error::other("the compiler's thread panicked"))?
}

/// Bounds of the rehearsal.
const REHEARSED: Bounds = Bounds { memory_bytes: 64 << 20, time: Duration::from_secs(10), threads: 1 };

fn rehearsal() -> Order {
    Order {
        module: 0,
        forget: Vec::new(),
        entry: "rehearsal".into(),
        block: [64, 1, 1],
        stack_bytes: 0,
        engine: Engine::Machine,
        memory_bytes: REHEARSED.memory_bytes,
        time: REHEARSED.time,
        threads: REHEARSED.threads,
    }
}

/// Modules as they are kept.
struct Known {
    program: Result<Program, PtxError>,
    symbols: HashMap<String, u64>,
}

struct Compiler {
    socket: OwnedFd,
    modules: HashMap<u64, Known>,
}

impl Compiler {
    fn serve(mut self) -> io::Result<()> {
        protocol::send(&self.socket, &Answer::Ready, None)?;
        let mut buffer = Vec::new();
        while let Some((order, file)) = protocol::receive::<Order>(&self.socket, &mut buffer)? {
            bound(&order)?;
            // A panic is this kernel's failure. What it left half done are modules, which stay as they are or go.
            let result = catch_unwind(AssertUnwindSafe(|| self.carry_out(&order, file)));
            let result = result.unwrap_or_else(|panic| Err(CompileError::Failed { what: reason(&*panic) }));
            match result.map(|image| image.to_bytes()) {
                Ok(bytes) => {
                    let file = protocol::memory_file("image", &[&bytes])?;
                    protocol::send(&self.socket, &Answer::Image(bytes.len() as u64), Some(&file))?;
                }
                Err(error) => protocol::send(&self.socket, &Answer::Failed(Failure::of(&error)), None)?,
            }
        }
        Ok(())
    }

    fn carry_out(&mut self, order: &Order, file: Option<OwnedFd>) -> Result<Image, CompileError> {
        let failed = |what: &str| CompileError::Failed { what: what.to_owned() };
        for id in &order.forget {
            self.modules.remove(id);
        }
        if let Some(file) = file {
            let handed = Handed::read(&file).map_err(|error| failed(&error.to_string()))?;
            let (text, symbols) = handed.parts().ok_or_else(|| failed("a garbled module"))?;
            self.modules.insert(order.module, Known { program: Program::parse(text), symbols });
        }
        let known = self.modules.get(&order.module).ok_or_else(|| failed("an unknown module"))?;
        let bounds = Bounds { memory_bytes: order.memory_bytes, time: order.time, threads: order.threads };
        image(known, order, bounds)
    }
}

/// Compiles a kernel; what takes more than it may is left to the interpreter.
fn image(known: &Known, order: &Order, bounds: Bounds) -> Result<Image, CompileError> {
    let Order { entry, block, stack_bytes, engine, .. } = order;
    let program = known.program.as_ref().map_err(|error| CompileError::from(error.clone()))?;
    let index = program.find_entry(entry).ok_or_else(|| CompileError::NoEntry { name: entry.clone() })?;
    let kernel = program.lower(index, &|symbol: &str| known.symbols.get(symbol).copied())?;
    let (kernel, block) = (Arc::new(kernel.with_stack(*stack_bytes)), *block);
    if let Engine::Interpreter(why) = engine {
        return Image::interpreted(kernel, block, why.clone());
    }
    let watch = Watch::new(bounds);
    let working = watch.begin();
    let compiled = Image::compile(Arc::clone(&kernel), block, EngineKind::Jit, &watch);
    drop(working);
    match compiled {
        Err(CompileError::Stopped(stop)) if stop != Stop::GivenUp => {
            Image::interpreted(kernel, block, Some(stop.to_string()))
        }
        other => other,
    }
}

/// The operating system ends this process when it takes much more than the order allows. The pool watches the time, too.
fn bound(order: &Order) -> io::Result<()> {
    limit(Resource::Data, BASE_BYTES.saturating_add(order.memory_bytes))?;
    let used = sandbox::cpu_time(std::process::id().cast_signed()).unwrap_or_default();
    let seconds = used.saturating_add(order.time.saturating_mul(2)).as_secs().saturating_add(2);
    limit(Resource::Cpu, seconds)
}

/// Sets both limits. One that is lower already stays.
fn limit_for_good(resource: Resource, most: u64) -> io::Result<()> {
    let lower = |limit: Option<u64>| Some(limit.map_or(most, |limit| limit.min(most)));
    let Rlimit { current, maximum } = rustix::process::getrlimit(resource);
    Ok(setrlimit(resource, Rlimit { current: lower(current), maximum: lower(maximum) })?)
}

/// Sets what counts; the next order may set another.
fn limit(resource: Resource, most: u64) -> io::Result<()> {
    let maximum = rustix::process::getrlimit(resource).maximum;
    Ok(setrlimit(resource, Rlimit { current: Some(maximum.map_or(most, |maximum| maximum.min(most))), maximum })?)
}

fn reason(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    let text = text.or_else(|| Some((*panic.downcast_ref::<&str>()?).to_owned()));
    format!("the compiler panicked: {}", text.unwrap_or_default())
}
