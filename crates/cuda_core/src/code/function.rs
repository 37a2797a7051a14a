//! Functions: kernels in a context.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use gpu::{KernelInfo, ModuleId, Request, STACK_BYTES};
use parking_lot::Mutex;
use ptx::{PtxError, PtxErrorKind};

use crate::code::entry_names::Clusters;
use crate::code::module::Part;
use crate::code::occupancy;
use crate::context_core::ContextCore;
use crate::device_attributes::{SHARED_PER_BLOCK, SHARED_PER_BLOCK_OPTIN, THREADS_PER_BLOCK};
use crate::error::{CudaError, Result};
use crate::handle::{self, Function, Module, Tag};

/// Numbers of `CUfunction_attribute`.
const MAX_THREADS_PER_BLOCK: i32 = 0;
const SHARED_SIZE_BYTES: i32 = 1;
const CONST_SIZE_BYTES: i32 = 2;
const LOCAL_SIZE_BYTES: i32 = 3;
const NUM_REGS: i32 = 4;
const PTX_VERSION: i32 = 5;
const BINARY_VERSION: i32 = 6;
const CACHE_MODE_CA: i32 = 7;
const MAX_DYNAMIC_SHARED_SIZE_BYTES: i32 = 8;
const PREFERRED_SHARED_MEMORY_CARVEOUT: i32 = 9;
const CLUSTER_SIZE_MUST_BE_SET: i32 = 10;
const REQUIRED_CLUSTER_WIDTH: i32 = 11;
const REQUIRED_CLUSTER_DEPTH: i32 = 13;
const NON_PORTABLE_CLUSTER_SIZE_ALLOWED: i32 = 14;
const CLUSTER_SCHEDULING_POLICY_PREFERENCE: i32 = 15;

/// The attributes that can be set.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Settings {
    /// Most dynamic shared memory, bytes; the default if not set.
    max_dynamic: Option<u32>,
    carveout: i32,
    non_portable_clusters: i32,
    cluster_scheduling: i32,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings { max_dynamic: None, carveout: -1, non_portable_clusters: 0, cluster_scheduling: 0 }
    }
}

impl Settings {
    /// # Errors
    /// `INVALID_VALUE` for attributes that cannot be set and values that cannot be.
    pub(crate) fn set(&mut self, attribute: i32, value: i32) -> Result<()> {
        let invalid = Err(CudaError::INVALID_VALUE);
        match attribute {
            MAX_DYNAMIC_SHARED_SIZE_BYTES => match u32::try_from(value) {
                Ok(bytes) if bytes <= SHARED_PER_BLOCK_OPTIN => self.max_dynamic = Some(bytes),
                _ => return invalid,
            },
            PREFERRED_SHARED_MEMORY_CARVEOUT if (-1..=100).contains(&value) => self.carveout = value,
            NON_PORTABLE_CLUSTER_SIZE_ALLOWED => self.non_portable_clusters = i32::from(value != 0),
            CLUSTER_SCHEDULING_POLICY_PREFERENCE if (0..=2).contains(&value) => self.cluster_scheduling = value,
            _ => return invalid,
        }
        Ok(())
    }
}

/// What is said of launches one by one, before `cuLaunch`.
#[derive(Clone, Debug, Default)]
pub(crate) struct Staged {
    pub(crate) block: [u32; 3],
    pub(crate) shared_bytes: u32,
    /// Of the parameters, so many bytes are passed.
    pub(crate) size: usize,
    pub(crate) params: Vec<u8>,
}

/// A kernel in a context.
#[derive(Debug)]
pub(crate) struct FunctionState {
    pub(crate) handle: Function,
    pub(crate) core: Arc<ContextCore>,
    pub(crate) module_handle: Module,
    part: Arc<Part>,
    /// Index in the module.
    pub(crate) kernel: u32,
    pub(crate) info: KernelInfo,
    /// What it says of clusters.
    pub(crate) clusters: Clusters,
    settings: Mutex<Settings>,
    pub(crate) staged: Mutex<Staged>,
    /// The bytes of stack with which it was prepared last, and below them most threads of a block with that stack, which
    /// are never none: 0 before its first launch. In one word, as threads of the program that launch it may see different
    /// limits.
    prepared: AtomicU64,
    /// The bytes of stack that the GPU knows of.
    told: Mutex<u32>,
    /// Why the GPU cannot run it.
    refusal: OnceLock<CudaError>,
}

/// Threads of a block that a GPU names; 0 if it does not.
fn threads(named: u32) -> u32 {
    if named == 0 { THREADS_PER_BLOCK } else { named.min(THREADS_PER_BLOCK) }
}

impl FunctionState {
    pub(crate) fn new(
        core: &Arc<ContextCore>,
        module_handle: Module,
        part: Arc<Part>,
        kernel: u32,
        info: KernelInfo,
        clusters: Clusters,
    ) -> FunctionState {
        FunctionState {
            handle: Function(handle::fresh(Tag::Function)),
            core: Arc::clone(core),
            module_handle,
            part,
            kernel,
            info,
            clusters,
            settings: Mutex::default(),
            staged: Mutex::default(),
            prepared: AtomicU64::new(0),
            told: Mutex::new(STACK_BYTES),
            refusal: OnceLock::new(),
        }
    }

    /// Its module on the GPU.
    pub(crate) fn module(&self) -> ModuleId {
        self.part.id
    }

    /// Finds out, once, whether the GPU can run the kernel: a refusal here leaves the context in good health, which a launch
    /// of it would not. Again when the context's limit of stack has changed, which the GPU is told. Says for how many threads of
    /// a block there is memory.
    ///
    /// # Errors
    /// `INVALID_PTX`, `NOT_SUPPORTED`.
    pub(crate) fn prepare(&self) -> Result<u32> {
        let stack_bytes = self.core.stack_bytes();
        let prepared = self.prepared.load(Ordering::Relaxed);
        let most = prepared as u32;
        if most != 0 && prepared >> 32 == u64::from(stack_bytes) {
            return Ok(most);
        }
        if let Some(refusal) = self.refusal.get() {
            return Err(*refusal);
        }
        let link = self.core.link();
        link.usable()?;
        let local = match self.part.verdict(self.kernel as usize) {
            Some(Ok(read)) => Some(read.local),
            Some(Err(error)) => return Err(*self.refusal.get_or_init(|| self.refused(error))),
            // No text that is read here: the launch will tell.
            None => None,
        };
        // Threads that see different limits tell the GPU one after the other, and what is kept is what it was told last.
        let mut told = self.told.lock();
        let stack_bytes = self.core.stack_bytes();
        if *told != stack_bytes {
            let request = Request::PrepareKernel { module: self.part.id, kernel: self.kernel, stack_bytes };
            link.outcome(link.gpu().request(request))?;
            *told = stack_bytes;
        }
        let stack = stack_bytes.max(self.info.local_bytes);
        let most = local.map_or(u32::MAX, |local| local.most_threads(stack)).min(self.max_threads());
        self.prepared.store(u64::from(stack_bytes) << 32 | u64::from(most), Ordering::Relaxed);
        Ok(most)
    }

    fn refused(&self, error: &PtxError) -> CudaError {
        tracing::warn!("{} cannot be launched: {error}", self.info.name);
        match error.kind {
            PtxErrorKind::Unsupported => CudaError::NOT_SUPPORTED,
            PtxErrorKind::Invalid | PtxErrorKind::UnknownForm => CudaError::INVALID_PTX,
        }
    }

    pub(crate) fn apply(&self, settings: &Settings) {
        *self.settings.lock() = *settings;
    }

    /// Most dynamic shared memory of a launch, bytes.
    pub(crate) fn max_dynamic(&self) -> u32 {
        let set = self.settings.lock().max_dynamic;
        set.unwrap_or_else(|| SHARED_PER_BLOCK.saturating_sub(self.info.shared_bytes))
    }

    /// Most threads of a block.
    pub(crate) fn max_threads(&self) -> u32 {
        threads(self.info.max_threads)
    }

    /// Registers of a thread, as reported: so few that one block of the most threads can run.
    pub(crate) fn registers(&self) -> u32 {
        self.info.registers.min(occupancy::most_registers(self.max_threads()))
    }

    /// Blocks of so many threads and bytes of dynamic shared memory that fit a multiprocessor at once.
    pub(crate) fn active_blocks(&self, block: u32, dynamic: u64) -> u32 {
        let shared = u64::from(self.info.shared_bytes) + dynamic;
        if block > self.max_threads() || shared > u64::from(SHARED_PER_BLOCK_OPTIN) {
            return 0;
        }
        occupancy::fit(block, self.registers(), shared)
    }

    /// Offset and size of a parameter.
    pub(crate) fn param(&self, index: usize) -> Result<(u64, u64)> {
        let &(offset, bytes) = self.info.params.get(index).ok_or(CudaError::INVALID_VALUE)?;
        Ok((offset.into(), bytes.into()))
    }

    pub(crate) fn attribute(&self, attribute: i32) -> Result<i32> {
        let number = |value: u32| i32::try_from(value).unwrap_or(i32::MAX);
        let settings = *self.settings.lock();
        Ok(match attribute {
            MAX_THREADS_PER_BLOCK => number(self.max_threads()),
            SHARED_SIZE_BYTES => number(self.info.shared_bytes),
            CONST_SIZE_BYTES => number(self.info.const_bytes),
            LOCAL_SIZE_BYTES => number(self.info.local_bytes),
            NUM_REGS => number(self.registers()),
            PTX_VERSION => number(self.info.target),
            BINARY_VERSION => {
                let [major, minor] = self.core.link().properties().compute_capability;
                number(major * 10 + minor)
            }
            CACHE_MODE_CA => 0,
            MAX_DYNAMIC_SHARED_SIZE_BYTES => number(self.max_dynamic()),
            PREFERRED_SHARED_MEMORY_CARVEOUT => settings.carveout,
            CLUSTER_SIZE_MUST_BE_SET => self.clusters.explicit.into(),
            REQUIRED_CLUSTER_WIDTH..=REQUIRED_CLUSTER_DEPTH => {
                self.clusters.size.map_or(0, |size| number(size[(attribute - REQUIRED_CLUSTER_WIDTH) as usize]))
            }
            NON_PORTABLE_CLUSTER_SIZE_ALLOWED => settings.non_portable_clusters,
            CLUSTER_SCHEDULING_POLICY_PREFERENCE => settings.cluster_scheduling,
            _ => return Err(CudaError::INVALID_VALUE),
        })
    }

    pub(crate) fn set_attribute(&self, attribute: i32, value: i32) -> Result<()> {
        if attribute == MAX_DYNAMIC_SHARED_SIZE_BYTES {
            let both = i64::from(self.info.shared_bytes) + i64::from(value);
            if both > i64::from(SHARED_PER_BLOCK_OPTIN) {
                return Err(CudaError::INVALID_VALUE);
            }
        }
        self.settings.lock().set(attribute, value)
    }
}
