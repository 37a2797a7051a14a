//! Compiled code as a plain value: it can be written to a file or sent from the process that made it, and installed in any
//! process of the same version on the same kind of processor.
//!
//! Who installs an image believes its machine code, as one believes a compiler, and nothing else: whatever the bytes are,
//! the answer is an error, or code all of whose lists, sizes, offsets and references fit each other and the layout of a
//! CTA's memory. The machine code itself must come from this compiler; see to it that nobody else can write there.

mod check;

use std::sync::Arc;

use ptx::ir::Kernel;
use ptx::launch::MAX_CTA_BYTES;
use ptx::{Origin, Sources};
use serde::{Deserialize, Serialize};

use crate::abi::joint::{Meeting, Site};
use crate::abi::place::Place;
use crate::abi::{Attached, Helper};
use crate::compiler::Watch;
use crate::{CompileError, EngineKind, compile, reference};

/// Distinguishes engines whose images are not each other's: the crate's version and what its sources were when it was built.
pub const ENGINE_VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "-", env!("PTX_JIT_SOURCES"));

/// A kernel compiled for one CTA shape.
#[derive(Debug, Serialize, Deserialize)]
pub struct Image {
    pub(crate) facts: Facts,
    pub(crate) block: [u32; 3],
    pub(crate) body: Body,
}

/// What is known of a kernel apart from its code.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Facts {
    /// Its name in PTX (mangled).
    pub name: String,
    /// Size of the parameter block, bytes.
    pub param_bytes: u32,
    /// Static shared memory, bytes; dynamic shared memory begins at the next multiple of `shared_align`.
    pub shared_bytes: u32,
    /// Alignment of dynamic shared memory.
    pub shared_align: u32,
    /// Local memory per thread, bytes.
    pub local_bytes: u32,
    /// `.reqntid`, or else `.maxntid`.
    pub max_ntid: Option<[u32; 3]>,
    /// Is that bound exact (`.reqntid`)?
    pub exact_ntid: bool,
    /// Where its lines come from, if its text was linked.
    pub origins: Vec<Origin>,
    /// Where in the program's source they come from, if the text says so.
    pub sources: Sources,
}

impl Facts {
    fn of(kernel: &Kernel) -> Facts {
        Facts {
            name: kernel.name.clone(),
            param_bytes: kernel.param_bytes,
            shared_bytes: kernel.shared_bytes,
            shared_align: kernel.shared_align,
            local_bytes: kernel.local_bytes,
            max_ntid: kernel.max_ntid,
            exact_ntid: kernel.exact_ntid,
            origins: kernel.origins.clone(),
            sources: kernel.sources.clone(),
        }
    }
}

/// What runs.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Body {
    Machine(Machine),
    /// The interpreter runs the kernel: it was asked for, or there is a reason why there is no machine code.
    Interpreted {
        kernel: Box<Kernel>,
        why: Option<String>,
    },
}

/// Machine code, and what it takes to run it.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Machine {
    /// Lanes of a chunk.
    pub(crate) lanes: u32,
    /// Lanes of a chunk may run in any order.
    pub(crate) strict: bool,
    /// Bytes of a warp's frame.
    pub(crate) frame_bytes: u32,
    /// Parts of it that must be zero when a CTA starts, as offset and length.
    pub(crate) zeroed: Vec<(u32, u32)>,
    pub(crate) regions: Vec<Region>,
    /// Loops that regions lie in, outer ones before inner ones.
    pub(crate) loops: Vec<Loop>,
    pub(crate) code: Vec<u8>,
    /// Where in the code a tenant's memory is accessed, in order, and what for.
    pub(crate) places: Vec<(u32, Place)>,
    pub(crate) relocations: Vec<Relocation>,
}

/// A loop of more than one region, or of one that goes back to its own head.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Loop {
    /// Its first and last region.
    pub(crate) first: u32,
    pub(crate) last: u32,
    /// The loop around it.
    pub(crate) outer: Option<u32>,
}

/// A region as the scheduler sees it.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Region {
    /// Where its function begins in the code.
    pub(crate) begin: u32,
    /// Bytes of stack that the function takes.
    pub(crate) stack_bytes: u32,
    /// Regions that its exits lead to.
    pub(crate) exits: Vec<u32>,
    /// All its lanes go to the only one, and its function leaves them where they are.
    pub(crate) sole: bool,
    /// The innermost loop that its head lies in.
    pub(crate) around: Option<u32>,
    /// Its head is a loop in which threads may wait for others.
    pub(crate) waits: bool,
    /// Line of PTX of what is at its head.
    pub(crate) line: u32,
    /// The barrier at its head.
    pub(crate) barrier: Option<Site>,
    /// The warp operation at its head, if it waits for lanes.
    pub(crate) meeting: Option<Meeting>,
    pub(crate) attached: Attached,
}

/// A 64-bit address in the code, written when it is installed.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Relocation {
    /// Where.
    pub(crate) at: u32,
    /// Of what.
    pub(crate) target: Target,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) enum Target {
    Helper(Helper),
    /// This far into the code.
    Code(u32),
}

/// First bytes of an image.
const MAGIC: [u8; 8] = *b"sdl-jit\0";
/// Longer images are refused unread: the code of a kernel of a million instructions.
const MAX_BYTES: usize = 1 << 30;

/// What tests and measurements ask of machine code, which else is as it is good.
#[derive(Clone, Copy, Default, Debug)]
pub struct Form {
    /// Vector instructions of a region at most, about.
    pub region: Option<usize>,
    /// Lanes run one after another wherever they may.
    pub alone: bool,
}

impl Image {
    /// Compiles `kernel` for CTAs of `block` threads, under the eyes of `watch`. What cannot be compiled is left to the
    /// interpreter.
    ///
    /// # Errors
    /// A block that is empty, or larger than [`ptx::launch::MAX_THREADS_PER_CTA`]; a CTA of more than [`MAX_CTA_BYTES`];
    /// [`CompileError::Stopped`].
    pub fn compile(
        kernel: Arc<Kernel>,
        block: [u32; 3],
        engine: EngineKind,
        watch: &Watch,
    ) -> Result<Image, CompileError> {
        match engine {
            EngineKind::Jit => Image::compile_in(kernel, block, Form::default(), watch),
            EngineKind::Interpreter => Image::interpreted(kernel, block, None),
        }
    }

    /// As [`Image::compile`], to machine code of a form that is asked for.
    ///
    /// # Errors
    /// As there.
    pub fn compile_in(kernel: Arc<Kernel>, block: [u32; 3], form: Form, watch: &Watch) -> Result<Image, CompileError> {
        let facts = Facts::of(&kernel);
        check::shape(&facts, block)?;
        match compile::compile(Arc::clone(&kernel), block, form, watch) {
            Ok(machine) => Image { facts, block, body: Body::Machine(machine) }.checked(),
            Err(error @ CompileError::Stopped(_)) => Err(error),
            Err(error) => Image::interpreted(kernel, block, Some(error.to_string())),
        }
    }

    /// An image that the interpreter runs, and why, if machine code was wanted.
    ///
    /// # Errors
    /// As [`Image::compile`].
    pub fn interpreted(kernel: Arc<Kernel>, block: [u32; 3], why: Option<String>) -> Result<Image, CompileError> {
        let facts = Facts::of(&kernel);
        let kernel = Box::new(Arc::unwrap_or_clone(kernel));
        Image { facts, block, body: Body::Interpreted { kernel, why } }.checked()
    }

    /// Parses `text`, finds the kernel `entry` in it, and compiles that as [`Image::compile`] does. `symbols` gives the
    /// addresses of the module's variables.
    ///
    /// # Errors
    /// As [`Image::compile`]; and PTX that is wrong or beyond the engine, or has no such kernel.
    pub fn from_ptx(
        text: &[u8],
        symbols: &dyn Fn(&str) -> Option<u64>,
        entry: &str,
        block: [u32; 3],
        engine: EngineKind,
        watch: &Watch,
    ) -> Result<Image, CompileError> {
        let program = ptx::Program::parse(text)?;
        watch.check()?;
        let index = program.find_entry(entry).ok_or_else(|| CompileError::NoEntry { name: entry.to_owned() })?;
        let kernel = program.lower(index, symbols)?;
        Image::compile(Arc::new(kernel), block, engine, watch)
    }

    /// The image as bytes; they name the engine's version and the kind of processor.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let version = (ENGINE_VERSION, compile::target().unwrap_or(0));
        let bytes = postcard::to_extend(&version, MAGIC.to_vec());
        bytes.and_then(|bytes| postcard::to_extend(self, bytes)).unwrap_or_default()
    }

    /// An image from bytes, if they are one of this engine for this processor and everything in it fits.
    ///
    /// # Errors
    /// [`CompileError::Damaged`].
    pub fn from_bytes(bytes: &[u8]) -> Result<Image, CompileError> {
        let damaged = |what: &str| CompileError::Damaged(what.to_owned());
        if bytes.len() > MAX_BYTES {
            return Err(damaged("too long"));
        }
        let rest = bytes.strip_prefix(&MAGIC).ok_or_else(|| damaged("not an image"))?;
        let ((version, target), rest) =
            postcard::take_from_bytes::<(&str, u64)>(rest).map_err(|_| damaged("no version"))?;
        if version != ENGINE_VERSION || target != compile::target().unwrap_or(0) {
            return Err(damaged("of another engine or processor"));
        }
        let (image, rest) = postcard::take_from_bytes::<Image>(rest).map_err(|_| damaged("cut or garbled"))?;
        if !rest.is_empty() {
            return Err(damaged("more than an image"));
        }
        image.checked()
    }

    /// Threads that its code runs side by side, or one after another if that is 1; none if the interpreter runs it.
    #[must_use]
    pub fn lanes(&self) -> Option<u32> {
        match &self.body {
            Body::Machine(machine) => Some(machine.lanes),
            Body::Interpreted { .. } => None,
        }
    }

    /// Accesses to a tenant's memory of which a fault could not tell the line: none, unless code generation has made something of a load
    /// that nobody has foreseen.
    #[must_use]
    pub fn unknown_accesses(&self) -> usize {
        match &self.body {
            Body::Machine(machine) => machine.places.iter().filter(|place| place.1.line() == 0).count(),
            Body::Interpreted { .. } => 0,
        }
    }

    /// The most stack that one of its functions takes, bytes.
    #[must_use]
    pub fn stack_bytes(&self) -> u32 {
        match &self.body {
            Body::Machine(machine) => machine.regions.iter().map(|region| region.stack_bytes).max().unwrap_or(0),
            Body::Interpreted { .. } => 0,
        }
    }

    /// What is known of the kernel.
    #[must_use]
    pub fn facts(&self) -> &Facts {
        &self.facts
    }

    /// Is it machine code? Else the interpreter runs the kernel.
    #[must_use]
    pub fn is_machine_code(&self) -> bool {
        matches!(self.body, Body::Machine(_))
    }

    /// Bytes of host memory that the code takes once it is installed.
    #[must_use]
    pub fn host_bytes(&self) -> u64 {
        let bytes = match &self.body {
            Body::Machine(machine) => machine.host_bytes() + crate::code::thread_table_bytes(self.block),
            Body::Interpreted { kernel, .. } => reference::kernel_bytes(kernel),
        };
        let origins = self.facts.origins.iter().map(|origin| size_of_val(origin) + origin.module.len()).sum::<usize>();
        bytes + self.facts.sources.host_bytes() + (size_of::<Image>() + self.facts.name.len() + origins) as u64
    }

    /// Bytes of a CTA for local memory, registers and scheduling.
    pub(crate) fn cta_bytes(&self) -> u64 {
        u64::from(self.facts.local_bytes) * self.threads() + self.state_bytes()
    }

    /// The same without local memory.
    fn state_bytes(&self) -> u64 {
        match &self.body {
            Body::Machine(machine) => machine.state_bytes(self.threads()),
            Body::Interpreted { kernel, .. } => reference::register_bytes(kernel) * self.threads(),
        }
    }

    fn threads(&self) -> u64 {
        self.block.iter().product::<u32>().into()
    }

    /// Does everything fit? Images come from other processes and from files.
    fn checked(self) -> Result<Image, CompileError> {
        check::shape(&self.facts, self.block)?;
        match &self.body {
            Body::Machine(machine) => check::machine(machine)?,
            Body::Interpreted { kernel, .. } => check::interpreted(kernel, &self.facts)?,
        }
        let bytes = self.state_bytes();
        if bytes > MAX_CTA_BYTES {
            return Err(CompileError::Unsupported { line: 0, what: format!("{bytes} bytes of registers in a CTA") });
        }
        Ok(self)
    }
}

impl Machine {
    /// Bytes of a CTA for registers and scheduling.
    pub(crate) fn state_bytes(&self, threads: u64) -> u64 {
        let warps = threads.div_ceil(ptx::launch::WARP.into());
        warps * (u64::from(self.frame_bytes) + 4 * self.regions.len() as u64)
    }

    fn host_bytes(&self) -> u64 {
        let regions = self.regions.iter().map(|region| {
            let Attached { sites, runs, ops, joints, matrices, images } = &region.attached;
            size_of::<Region>()
                + 4 * region.exits.len()
                + size_of_val(&**sites)
                + size_of_val(&**runs)
                + size_of_val(&**ops)
                + size_of_val(&**joints)
                + size_of_val(&**matrices)
                + size_of_val(&**images)
        });
        let regions: usize = regions.sum();
        let lists = regions + size_of_val(&*self.zeroed) + size_of_val(&*self.loops) + size_of_val(&*self.places);
        (self.code.len().next_multiple_of(hostmem::PAGE as usize) + lists) as u64
    }
}

/// A number that hardly any other bytes have (FNV-1a).
pub(crate) fn fingerprint(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, &byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
}
