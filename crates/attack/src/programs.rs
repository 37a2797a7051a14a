//! The attacks, each as the program of one tenant.
//!
//! A program does its worst, prints `{"done":…,"error":…}` (how far it came, and the driver's code for what stopped it, 0 if
//! nothing did), and holds what it has until standard input ends.

use std::io::Read;
use std::ptr;

use anyhow::{Context, Result, bail};
use clap::Subcommand;
use cudarc::driver::{DriverError, result, sys};
use serde_json::json;

use crate::cuda::{Cuda, Shape, default_stream};
use crate::kernels;

/// Which attack.
#[derive(Debug, Subcommand)]
pub(crate) enum Program {
    /// Compiles a large kernel and runs it.
    Compile {
        #[arg(long, value_enum)]
        shape: kernels::Shape,
        #[arg(long)]
        size: usize,
        #[arg(long, default_value_t = 0)]
        salt: u32,
    },
    /// Maps one block of 2 MiB again and again.
    Maps {
        #[arg(long)]
        count: usize,
    },
    /// Allocates pinned memory piece by piece; pieces above 1 MiB have a file each.
    Pinned {
        #[arg(long)]
        count: usize,
        #[arg(long, default_value_t = PAGE)]
        bytes: usize,
    },
    /// Registers every other page of its own memory, each of which becomes a file.
    Registered {
        #[arg(long)]
        count: usize,
    },
    /// Starts grids whose CTAs take 60 MB each and wait for ever.
    Residency,
    /// Launches one kernel with many block shapes.
    BlockShapes {
        #[arg(long)]
        count: u32,
    },
    /// Loads large modules and keeps them.
    Modules {
        #[arg(long)]
        count: usize,
        #[arg(long)]
        mib: usize,
    },
    /// Lets many streams wait for a value that never comes.
    Waiters {
        #[arg(long)]
        count: usize,
    },
    /// Uses many streams; they must all work.
    Streams {
        #[arg(long)]
        count: usize,
    },
    /// Creates contexts.
    Contexts {
        #[arg(long)]
        count: usize,
    },
    /// Runs a kernel that never ends.
    Endless,
    /// Runs a kernel that faults.
    Stray,
    /// Launches without ever waiting.
    Flood,
    /// Allocates and maps much in small pieces, and leaves without giving it back.
    Teardown {
        #[arg(long)]
        count: usize,
    },
    /// Does a little of everything, in an order that `salt` chooses.
    Churn {
        #[arg(long)]
        salt: u32,
    },
}

/// How far a program came, and why not further.
struct Came {
    done: usize,
    error: u32,
}

/// Does `step` up to `count` times, until the driver refuses.
fn repeat(count: usize, mut step: impl FnMut(usize) -> Result<(), DriverError>) -> Came {
    for done in 0..count {
        if let Err(error) = step(done) {
            return Came { done, error: error.0 as u32 };
        }
    }
    Came { done: count, error: 0 }
}

/// Runs a program to its end.
///
/// # Errors
/// What stopped it before the attack had begun, or a wrong value.
pub(crate) fn run(program: &Program) -> Result<()> {
    let cuda = Cuda::open()?;
    let came = match *program {
        Program::Compile { shape, size, salt } => compile(&cuda, shape, size, salt)?,
        Program::Maps { count } => maps(&cuda, count)?,
        Program::Pinned { count, bytes } => repeat(count, |_| {
            // SAFETY: a plain allocation.
            unsafe { result::malloc_host(bytes, 0) }.map(drop)
        }),
        Program::Registered { count } => registered(count),
        Program::Residency => residency(&cuda)?,
        Program::BlockShapes { count } => block_shapes(&cuda, count)?,
        Program::Modules { count, mib } => modules(&cuda, count, mib),
        Program::Waiters { count } => waiters(&cuda, count)?,
        Program::Streams { count } => streams(&cuda, count)?,
        Program::Contexts { count } => repeat(count, |_| {
            let mut context = ptr::null_mut();
            // SAFETY: a context of the device, never destroyed.
            unsafe { sys::cuCtxCreate_v4(&raw mut context, ptr::null_mut(), 0, cuda.device) }.result()
        }),
        Program::Endless => small(&cuda, "endless", 64)?,
        Program::Stray => small(&cuda, "stray", 1)?,
        Program::Flood => flood(&cuda)?,
        Program::Teardown { count } => teardown(&cuda, count)?,
        Program::Churn { salt } => churn(&cuda, salt)?,
    };
    crate::say(&json!({ "done": came.done, "error": came.error }))?;
    std::io::stdin().read_to_end(&mut Vec::new())?;
    // SAFETY: ends the process at once, with all it has.
    unsafe { _exit(0) }
}

unsafe extern "C" {
    fn _exit(code: i32) -> !;
}

/// A small kernel of ours.
fn function(cuda: &Cuda, name: &str) -> Result<sys::CUfunction> {
    Ok(cuda.function(cuda.load(kernels::SMALL)?, name)?)
}

fn compile(cuda: &Cuda, shape: kernels::Shape, size: usize, salt: u32) -> Result<Came> {
    let memory = cuda.alloc(kernels::BYTES)?;
    let text = kernels::large(shape, size, salt);
    let steps = || {
        let module = cuda.load(&text)?;
        let big = cuda.function(module, "k")?;
        cuda.launch(big, Shape::new(1, 64), default_stream(), &[memory])?;
        cuda.synchronize()
    };
    Ok(repeat(1, |_| steps()))
}

/// The properties of device memory for `cuMemCreate`.
fn on_device() -> sys::CUmemAllocationProp {
    // SAFETY: a structure of numbers, for which zero is a value.
    let mut properties: sys::CUmemAllocationProp = unsafe { std::mem::zeroed() };
    properties.type_ = sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location.type_ = sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE;
    properties
}

const BLOCK: usize = 2 << 20;
const PAGE: usize = 4096;

fn maps(_cuda: &Cuda, count: usize) -> Result<Came> {
    let properties = on_device();
    let mut handle = 0;
    // SAFETY: the pointers are to locals.
    unsafe { sys::cuMemCreate(&raw mut handle, BLOCK, &raw const properties, 0) }.result()?;
    let mut base = 0;
    // SAFETY: as above.
    unsafe { sys::cuMemAddressReserve(&raw mut base, count * BLOCK, 0, 0, 0) }.result()?;
    let access = sys::CUmemAccessDesc {
        location: properties.location,
        flags: sys::CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
    };
    Ok(repeat(count, |i| {
        let at = base + (i * BLOCK) as u64;
        // SAFETY: inside the reserved range.
        unsafe { sys::cuMemMap(at, BLOCK, 0, handle, 0) }.result()?;
        // SAFETY: mapped just now.
        unsafe { sys::cuMemSetAccess(at, BLOCK, &raw const access, 1) }.result()
    }))
}

fn registered(count: usize) -> Came {
    let pages: &mut [u8] = Box::leak(vec![0; (2 * count + 1) * PAGE].into_boxed_slice());
    let first = pages.as_mut_ptr().wrapping_add(pages.as_ptr().align_offset(PAGE));
    repeat(count, |i| {
        let page = first.wrapping_add(2 * i * PAGE);
        // SAFETY: a whole page of a buffer that is never freed.
        unsafe { sys::cuMemHostRegister_v2(page.cast(), PAGE, 0) }.result()
    })
}

fn residency(cuda: &Cuda) -> Result<Came> {
    let awaits = function(cuda, "awaits")?;
    let memory = cuda.alloc(4096)?;
    Ok(repeat(4, |_| cuda.launch(awaits, Shape::new(4096, 1024), cuda.stream()?, &[memory])))
}

fn block_shapes(cuda: &Cuda, count: u32) -> Result<Came> {
    let module = cuda.load(&kernels::large(kernels::Shape::Chain, 300, 7))?;
    let big = cuda.function(module, "k")?;
    let memory = cuda.alloc(1 << 16)?;
    Ok(repeat(count as usize, |i| {
        let shape = Shape { grid: 1, block: [1 + i as u32 % 32, 1 + i as u32 / 32, 1] };
        cuda.launch(big, shape, default_stream(), &[memory])?;
        cuda.synchronize()
    }))
}

fn modules(cuda: &Cuda, count: usize, mib: usize) -> Came {
    let filler = "// a comment of no meaning, sixty-four characters long, as it is\n".repeat((mib << 20) / 65);
    repeat(count, |i| cuda.load(&format!("{}// {i}\n{filler}", kernels::SMALL)).map(drop))
}

fn waiters(cuda: &Cuda, count: usize) -> Result<Came> {
    let memory = cuda.alloc(4096)?;
    let empty = function(cuda, "empty")?;
    let geq = sys::CUstreamWaitValue_flags::CU_STREAM_WAIT_VALUE_GEQ as u32;
    Ok(repeat(count, |_| {
        let stream = cuda.stream()?;
        // SAFETY: the word lies in memory that is never freed.
        unsafe { sys::cuStreamWaitValue32_v2(stream, memory, 1, geq) }.result()?;
        cuda.launch(empty, Shape::new(1, 32), stream, &[memory])
    }))
}

/// Every stream hashes an element of its own; all must be right.
fn streams(cuda: &Cuda, count: usize) -> Result<Came> {
    let module = cuda.load(kernels::HASH)?;
    let hash = cuda.function(module, "hash")?;
    let memory = cuda.alloc(count * 4)?;
    let input: Vec<u32> = (0..count as u32).collect();
    cuda.upload(memory, &input)?;
    let came = repeat(count, |i| cuda.launch(hash, Shape::new(1, 1), cuda.stream()?, &[memory + 4 * i as u64, 3]));
    if came.error == 0 {
        cuda.synchronize()?;
        let mut output = vec![0; count];
        cuda.download(&mut output, memory)?;
        if input.iter().zip(&output).any(|(&value, &got)| got != kernels::hash(value, 3)) {
            bail!("a stream computed something wrong");
        }
    }
    Ok(came)
}

fn small(cuda: &Cuda, name: &str, grid: u32) -> Result<Came> {
    let kernel = function(cuda, name)?;
    let at = if name == "stray" { 0x10 } else { cuda.alloc(4096)? };
    Ok(repeat(1, |_| {
        cuda.launch(kernel, Shape::new(grid, 128), default_stream(), &[at])?;
        cuda.synchronize()
    }))
}

fn flood(cuda: &Cuda) -> Result<Came> {
    let empty = function(cuda, "empty")?;
    Ok(repeat(1 << 30, |_| cuda.launch(empty, Shape::new(64, 32), default_stream(), &[0])))
}

fn teardown(cuda: &Cuda, count: usize) -> Result<Came> {
    let came = repeat(count, |_| {
        cuda.alloc(64 << 10)?;
        // SAFETY: a plain allocation.
        unsafe { result::malloc_host(64 << 10, 0) }.map(drop)
    });
    let mapped = maps(cuda, count / 4).context("mapping")?;
    Ok(Came { done: came.done + mapped.done, error: came.error.max(mapped.error) })
}

fn churn(cuda: &Cuda, salt: u32) -> Result<Came> {
    let mut state = salt;
    let mut random = |below: u32| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) % below
    };
    let empty = function(cuda, "empty")?;
    let endless = function(cuda, "endless")?;
    let memory = cuda.alloc(4 << 20)?;
    let mut data = vec![salt; 1 << 20];
    Ok(repeat(1000, |_| match random(8) {
        0 => {
            let shapes = [kernels::Shape::Straight, kernels::Shape::Ifs, kernels::Shape::Chain, kernels::Shape::Live];
            let shape = shapes[random(4) as usize];
            let module = cuda.load(&kernels::large(shape, 200 + random(4000) as usize, random(1 << 20)))?;
            cuda.launch(cuda.function(module, "k")?, Shape::new(2, 64), cuda.stream()?, &[memory])
        }
        1 => cuda.upload(memory, &data),
        2 => cuda.download(&mut data, memory),
        3 => {
            let _ = maps(cuda, 20);
            Ok(())
        }
        4 => (0..16).try_for_each(|_| {
            // SAFETY: a plain allocation.
            unsafe { result::malloc_host(4096, 0) }.map(drop)
        }),
        5 if random(6) == 0 => cuda.launch(endless, Shape::new(8, 64), cuda.stream()?, &[memory]),
        6 => {
            let at = cuda.alloc(1 << 20)?;
            cuda.free(at)
        }
        _ => (0..50).try_for_each(|_| cuda.launch(empty, Shape::new(1, 32), default_stream(), &[memory])),
    }))
}
