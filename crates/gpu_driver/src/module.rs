//! Modules: from PTX text to variables and a program container in GPU memory.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use gpu::{DevAddr, GlobalInfo, GpuError, KernelInfo, ModuleInfo};
use gpu_spec::program;
use ptx::launch::MAX_THREADS_PER_CTA;
use ptx::{Program, PtxError, PtxErrorKind, Resources, VarSpace, Variable};

use crate::space::{Memory, invalid};

/// Most kernels of a module: what a tenant can make the driver keep.
const MAX_KERNELS: usize = 1 << 16;
/// Most functions, calls and shared variables that its kernels reach, counted for each kernel: a tenth of a second of looking. Libraries of
/// ten thousand kernels have some hundred thousand.
const MAX_REACHED: u64 = 1 << 20;
/// Variables are aligned at least like this, as on hardware.
const MIN_ALIGN: u64 = 16;
/// Largest alignment that is honoured.
const MAX_ALIGN: u64 = 4096;

/// What a launch needs to know of a kernel.
#[derive(Debug)]
pub(crate) struct Kernel {
    pub(crate) info: KernelInfo,
    /// Bytes of a thread's stack that launches ask for.
    pub(crate) stack_bytes: AtomicU32,
    /// CTAs of a cluster, if it says so (`.reqnctapercluster`).
    pub(crate) cluster: Option<[u32; 3]>,
    /// A launch's grid counts clusters (`.blocksareclusters`).
    pub(crate) counts_clusters: bool,
}

/// A module's text, read.
pub(crate) struct Parsed {
    program: Program,
    kernels: Vec<Kernel>,
    /// Variable index and its place.
    placed: Vec<(usize, Place)>,
    /// Bytes of the image of all variables.
    pub(crate) image_bytes: u64,
    log: String,
}

/// Where a variable lies.
#[derive(Clone, Copy, Debug)]
enum Place {
    /// At an offset in the module's image.
    Image(u64),
    /// At an address that the client has chosen; its initial value is the client's affair.
    Client(u64),
}

impl Place {
    /// The address, for an image at `base`.
    fn address(self, base: u64) -> u64 {
        match self {
            Place::Image(offset) => base + offset,
            Place::Client(address) => address,
        }
    }
}

/// A loaded module.
#[derive(Debug)]
pub(crate) struct Module {
    pub(crate) kernels: Vec<Kernel>,
    /// Virtual address of the container.
    pub(crate) container: u64,
    /// Memory of the container, and of the variables where there are any, with their address.
    pub(crate) code: Arc<Memory>,
    pub(crate) variables: Option<(u64, Arc<Memory>)>,
}

impl Parsed {
    /// Reads PTX text and lays its variables out, but those that the client has placed.
    pub(crate) fn parse(text: &[u8], by_client: &[(String, DevAddr)]) -> Result<Parsed, GpuError> {
        let program = Program::parse(text).map_err(rejected)?;
        let items = [
            (program.entries().len(), "kernels", MAX_KERNELS),
            (program.variables().len(), "variables", program::MAX_SYMBOLS),
        ];
        if let Some((_, what, limit)) = items.into_iter().find(|(items, _, limit)| items > limit) {
            return Err(GpuError::TooMany { what: format!("{what} in a module"), limit: limit as u64 });
        }
        let mut chosen = chosen(&program, by_client)?;
        let (mut image_bytes, mut placed) = (0u64, Vec::new());
        for (index, variable) in program.variables().iter().enumerate().filter(|(_, v)| is_stored(v)) {
            if let Some(address) = chosen.remove(&index) {
                placed.push((index, Place::Client(address)));
                continue;
            }
            let align = u64::from(variable.align).clamp(MIN_ALIGN, MAX_ALIGN);
            let end = image_bytes.checked_next_multiple_of(align).and_then(|at| {
                placed.push((index, Place::Image(at)));
                at.checked_add(variable.size.max(1))
            });
            image_bytes = end.ok_or_else(|| invalid("variables of a module are larger than memory".into()))?;
        }
        let const_bytes = u32::try_from(program.const_bytes()).unwrap_or(u32::MAX);
        let resources = program.resources(MAX_REACHED).ok_or_else(|| {
            let what = "functions that kernels of a module reach, counted for each".into();
            GpuError::TooMany { what, limit: MAX_REACHED }
        })?;
        let mut log = String::new();
        let kernels = resources.into_iter().enumerate();
        let kernels = kernels.map(|(index, found)| kernel(&program, index, found, const_bytes, &mut log)).collect();
        Ok(Parsed { program, kernels, placed, image_bytes, log })
    }

    /// Addresses of the variables when their image lies at `base`.
    fn symbols(&self, base: u64) -> Vec<(String, u64)> {
        let variables = self.program.variables();
        self.placed.iter().map(|(index, place)| (variables[*index].name.clone(), place.address(base))).collect()
    }

    /// Address and bytes of the variables that the client has placed.
    ///
    /// # Errors
    /// Two of them overlap: then it would take long to look at a few mappings many times.
    pub(crate) fn client_ranges(&self) -> Result<Vec<(u64, u64)>, GpuError> {
        let mut ranges: Vec<(u64, u64)> = Vec::new();
        for (index, place) in &self.placed {
            if let Place::Client(at) = place {
                ranges.push((*at, self.program.variables()[*index].size.max(1)));
            }
        }
        ranges.sort_unstable();
        match ranges.windows(2).find(|pair| pair[0].1 > pair[1].0 - pair[0].0) {
            Some(pair) => Err(invalid(format!("variables overlap at {:#x}", pair[1].0))),
            None => Ok(ranges),
        }
    }

    /// Calls `write` with offset and bytes of every initial value, for an image at `base`.
    pub(crate) fn image(&self, base: u64, mut write: impl FnMut(u64, &[u8])) {
        let symbols: HashMap<String, u64> = self.symbols(base).into_iter().collect();
        for (index, place) in &self.placed {
            let Place::Image(offset) = place else { continue };
            let variable = &self.program.variables()[*index];
            if variable.relocations.is_empty() {
                write(*offset, &variable.init);
                continue;
            }
            let mut init = variable.init.clone();
            for relocation in &variable.relocations {
                let symbol = symbols.get(&relocation.symbol).copied();
                let address = symbol.or_else(|| self.program.function_handle(&relocation.symbol)).unwrap_or(0);
                relocation.apply(&mut init, address);
            }
            write(*offset, &init);
        }
    }

    /// What lies before the text in the program container, for variables at `base`. How long it is does not depend on that.
    pub(crate) fn head(&self, base: u64) -> Result<Vec<u8>, GpuError> {
        let entries: Vec<&str> = self.program.entries().iter().map(|entry| entry.name.as_str()).collect();
        let symbols = self.symbols(base);
        let symbols: Vec<(&str, u64)> = symbols.iter().map(|(name, at)| (name.as_str(), *at)).collect();
        let limit = u64::from(program::MAX_BYTES);
        program::encode_head(self.text().len(), &entries, &symbols)
            .ok_or(GpuError::TooMany { what: "bytes of a module".into(), limit })
    }

    /// The text in the program container.
    pub(crate) fn text(&self) -> &[u8] {
        self.program.text().as_bytes()
    }

    /// What the client is told, and the module as it is kept.
    pub(crate) fn finish(
        self,
        container: u64,
        code: Arc<Memory>,
        variables: Option<(u64, Arc<Memory>)>,
    ) -> (ModuleInfo, Module) {
        let base = variables.as_ref().map_or(0, |(base, _)| *base);
        let globals = self
            .placed
            .iter()
            .map(|(index, place)| {
                let variable = &self.program.variables()[*index];
                GlobalInfo { name: variable.name.clone(), address: DevAddr(place.address(base)), bytes: variable.size }
            })
            .collect();
        let kernels = self.kernels.iter().map(|kernel| kernel.info.clone()).collect();
        let info = ModuleInfo { kernels, globals, log: self.log };
        (info, Module { kernels: self.kernels, container, code, variables })
    }
}

impl Module {
    /// Address of a kernel's entry in the container.
    pub(crate) fn entry(&self, kernel: u32) -> u64 {
        self.container + program::entry_offset(kernel)
    }

    /// Launches of a kernel ask for so much stack from now on.
    pub(crate) fn prepare(&self, index: u32, stack_bytes: u32) -> Result<KernelInfo, GpuError> {
        let kernel = self.kernels.get(index as usize).ok_or_else(|| crate::space::unknown("kernel", index))?;
        kernel.stack_bytes.store(kernel.info.local_bytes.max(stack_bytes), Ordering::Relaxed);
        Ok(kernel.info.clone())
    }
}

/// True for variables that have one instance in GPU memory.
fn is_stored(variable: &Variable) -> bool {
    matches!(variable.space, VarSpace::Global | VarSpace::Const) && variable.is_defined()
}

fn kernel(
    program: &Program,
    index: usize,
    found: Result<Resources, PtxError>,
    const_bytes: u32,
    log: &mut String,
) -> Kernel {
    let entry = &program.entries()[index];
    let resources = match found {
        Ok(resources) => resources,
        Err(error) => {
            // Not the module's end: the kernel may never be launched. If it is, the launch says the same.
            log.push_str(&format!("{}: {error}\n", entry.name));
            Resources::default()
        }
    };
    let threads = entry.max_ntid.map_or(MAX_THREADS_PER_CTA, |n| {
        n.iter().fold(1, |all: u32, n| all.saturating_mul(*n)).min(MAX_THREADS_PER_CTA)
    });
    let info = KernelInfo {
        name: entry.name.clone(),
        params: entry.params.iter().map(|param| (param.offset, param.size)).collect(),
        param_bytes: entry.param_bytes,
        shared_bytes: resources.shared_bytes,
        local_bytes: resources.local_bytes,
        const_bytes,
        registers: resources.registers,
        max_threads: threads,
        max_ntid: entry.max_ntid,
        exact_ntid: entry.exact_ntid,
        ptx_version: program.version(),
        target: program.target(),
    };
    Kernel {
        stack_bytes: AtomicU32::new(info.local_bytes.max(gpu::STACK_BYTES)),
        info,
        cluster: entry.cluster,
        counts_clusters: entry.blocks_are_clusters,
    }
}

/// Addresses that the client has chosen, by index of the variable.
fn chosen(program: &Program, by_client: &[(String, DevAddr)]) -> Result<HashMap<usize, u64>, GpuError> {
    if by_client.is_empty() {
        return Ok(HashMap::new());
    }
    let global = |variable: &Variable| is_stored(variable) && variable.space == VarSpace::Global;
    let variables = program.variables().iter().enumerate().filter(|(_, variable)| global(variable));
    let mut free: HashMap<&str, (usize, &Variable)> = variables.map(|at| (at.1.name.as_str(), at)).collect();
    let mut chosen = HashMap::new();
    for (name, at) in by_client {
        let Some((index, variable)) = free.remove(name.as_str()) else {
            let name: String = name.chars().take(64).collect();
            return Err(invalid(format!("'{name}' is no global variable, or placed twice")));
        };
        if !at.0.is_multiple_of(u64::from(variable.align).max(1)) {
            return Err(invalid(format!("{:#x} is not aligned to {} bytes", at.0, variable.align)));
        }
        chosen.insert(index, at.0);
    }
    Ok(chosen)
}

fn rejected(error: PtxError) -> GpuError {
    GpuError::InvalidPtx { unsupported: error.kind == PtxErrorKind::Unsupported, log: error.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_are_laid_out_and_relocated() {
        let text = b".version 8.5\n.target sm_75\n.address_size 64\n\
            .global .align 4 .u32 first = 7;\n\
            .const .align 256 .b8 table[3] = {1, 2, 3};\n\
            .extern .global .u32 elsewhere[];\n\
            .global .align 8 .u64 pointer = generic(table)+1;\n\0";
        let parsed = Parsed::parse(text, &[]).unwrap();
        let mut image = vec![0; parsed.image_bytes as usize];
        parsed.image(0x7000_0000, |at, bytes| image[at as usize..at as usize + bytes.len()].copy_from_slice(bytes));
        let at: HashMap<_, _> = parsed.symbols(0x7000_0000).into_iter().collect();
        assert_eq!(at.len(), 3, "an array of unknown length is not stored here");
        assert_eq!(at["table"] % 256, 0);
        let part = |name: &str, bytes: usize| &image[(at[name] - 0x7000_0000) as usize..][..bytes];
        assert_eq!(part("first", 4), 7u32.to_le_bytes());
        assert_eq!(part("table", 3), [1, 2, 3]);
        assert_eq!(part("pointer", 8), (at["table"] + 1).to_le_bytes());
    }

    /// Programs of Warp have so many, of which each has a value.
    #[test]
    fn variables_may_be_many_but_not_any_number() {
        let text = |variables: usize| {
            let lines = (0..variables).map(|i| format!(".weak .global .align 1 .u8 v{i} = {};\n", i % 256));
            format!(".version 9.0\n.target sm_120\n.address_size 64\n{}\0", lines.collect::<String>())
        };
        let parsed = Parsed::parse(text(110_000).as_bytes(), &[]).unwrap();
        let mut image = vec![0; parsed.image_bytes as usize];
        parsed.image(0, |at, bytes| image[at as usize..at as usize + bytes.len()].copy_from_slice(bytes));
        assert!(
            parsed
                .symbols(0)
                .iter()
                .enumerate()
                .all(|(i, (name, at))| { *name == format!("v{i}") && image[*at as usize] == (i % 256) as u8 })
        );
        let refused = Parsed::parse(text(program::MAX_SYMBOLS + 1).as_bytes(), &[]);
        assert!(matches!(refused, Err(GpuError::TooMany { limit, .. }) if limit == program::MAX_SYMBOLS as u64));
    }

    /// Looking at them takes minutes where one kernel after another reaches all functions, by calls or through pointers.
    #[test]
    fn kernels_that_reach_too_much_are_refused() {
        const HEAD: &str = ".version 8.5\n.target sm_75\n.address_size 64\n";
        let chain: String = (0..4000).map(|f| format!(".func f{f}() {{ call f{}; ret; }}\n", f + 1)).collect();
        let chain = format!("{HEAD}.func f4000() {{ ret; }}\n{chain}");
        let many: String = (0..50_000).map(|f| format!(".func f{f}() {{ }}\n")).collect();
        let names: Vec<String> = (0..50_000).map(|f| format!("f{f}")).collect();
        let table = format!("{HEAD}{many}.global .u64 t[50000] = {{{}}};\n", names.join(","));
        for (functions, body, fine) in
            [(chain, "call f0;", true), (table, ".reg .b64 %f; p: .callprototype _(); call %f, p;", false)]
        {
            let text = |kernels: usize| {
                let kernels = (0..kernels).map(|k| format!(".entry k{k}() {{ {body} ret; }}\n"));
                format!("{functions}{}\0", kernels.collect::<String>())
            };
            let parsed = Parsed::parse(text(10).as_bytes(), &[]).unwrap();
            assert_eq!((parsed.kernels.len(), parsed.log.is_empty()), (10, fine), "{}", parsed.log);
            let refused = Parsed::parse(text(20_000).as_bytes(), &[]);
            assert!(matches!(refused, Err(GpuError::TooMany { limit: MAX_REACHED, .. })));
        }
    }

    #[test]
    fn text_that_is_no_ptx_is_refused() {
        assert!(matches!(Parsed::parse(b"hello", &[]), Err(GpuError::InvalidPtx { unsupported: false, .. })));
    }
}
