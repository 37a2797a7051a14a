//! Managed variables (`.global .attribute(.managed)`): seen by host and GPU at one address.
//!
//! Those of a text lie in one piece of managed memory, which is there before the text is loaded, in no context: programs
//! ask for the variables of a library first of all. When the text is loaded, the GPU is told where they are. Initial values
//! are written here; the addresses in them of variables that the GPU places are known, and put in, at the first load.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use gpu::{DevAddr, ModuleInfo};
use parking_lot::Mutex;
use ptx::{Program, Relocation, VarSpace, Variable};

use crate::error::{CudaError, Result};
use crate::memory::allocation::{Allocation, Kind, NOBODY, Wanted};
use crate::memory::heap::Memory;
use crate::values::JitLog;

/// Variables are aligned at least like this, bytes.
const LEAST_ALIGN: u64 = 16;
/// Largest alignment that memory of its own has for certain, bytes.
const MOST_ALIGN: u64 = gpu::PAGE_BYTES;

/// The managed variables of a text, from their first use on.
#[derive(Debug, Default)]
pub(crate) struct Managed(Mutex<Placement>);

/// How far a text's variables are.
#[derive(Debug, Default)]
enum Placement {
    #[default]
    Unplaced,
    Placed(Arc<ManagedVariables>),
    /// There are none, or none any more.
    None,
}

impl Managed {
    /// For a text without any.
    pub(crate) fn none() -> Managed {
        Managed(Mutex::new(Placement::None))
    }

    /// The variables of `ptx`, placed now if they were not.
    ///
    /// # Errors
    /// `INVALID_PTX` if an initial value holds the address of something that the text does not define; `OUT_OF_MEMORY`.
    pub(crate) fn get(
        &self,
        memory: &Arc<Memory>,
        ptx: &[u8],
        log: &mut JitLog,
    ) -> Result<Option<Arc<ManagedVariables>>> {
        let mut state = self.0.lock();
        if let Placement::Unplaced = *state {
            *state = ManagedVariables::place(memory, ptx, log)?
                .map_or(Placement::None, |made| Placement::Placed(Arc::new(made)));
        }
        match &*state {
            Placement::Placed(variables) => Ok(Some(Arc::clone(variables))),
            _ => Ok(None),
        }
    }

    /// Gives their memory back. No work may use it any more.
    pub(crate) fn free(&self) {
        if let Placement::Placed(variables) = std::mem::replace(&mut *self.0.lock(), Placement::None) {
            let memory = &variables.owner;
            for variable in &variables.variables {
                memory.forget(variable.address, |found| found.kind == Kind::ManagedVariable);
            }
            memory.give_back(&variables.memory);
        }
    }
}

/// The managed variables of a text, and their memory.
#[derive(Debug)]
pub(crate) struct ManagedVariables {
    owner: Arc<Memory>,
    memory: Allocation,
    variables: Vec<Placed>,
    /// The addresses of the GPU's variables are in the initial values.
    linked: AtomicBool,
}

/// A variable with its address.
#[derive(Debug)]
struct Placed {
    variable: Variable,
    address: u64,
}

impl ManagedVariables {
    /// Finds a text's managed variables, and memory for them.
    fn place(memory: &Arc<Memory>, ptx: &[u8], log: &mut JitLog) -> Result<Option<Self>> {
        // The GPU reads it too, and says what is wrong.
        let Ok(program) = Program::parse(ptx) else { return Ok(None) };
        let managed =
            |variable: &&Variable| variable.managed && variable.space == VarSpace::Global && variable.is_defined();
        let (mut end, mut variables) = (0u64, Vec::new());
        for variable in program.variables().iter().filter(managed) {
            check(&program, variable, log)?;
            let align = u64::from(variable.align).clamp(LEAST_ALIGN, MOST_ALIGN);
            let at = end.checked_next_multiple_of(align).ok_or(CudaError::OUT_OF_MEMORY)?;
            end = at.checked_add(variable.size.max(1)).ok_or(CudaError::OUT_OF_MEMORY)?;
            variables.push(Placed { variable: variable.clone(), address: at });
        }
        if variables.is_empty() {
            return Ok(None);
        }
        let own = memory.alloc_unlisted(Wanted::new(end, Kind::Managed, NOBODY))?;
        for placed in &mut variables {
            placed.address += own.base;
        }
        let made =
            ManagedVariables { owner: Arc::clone(memory), memory: own, variables, linked: AtomicBool::new(false) };
        if let Err(error) = made.initialise(memory, &program) {
            memory.give_back(&made.memory);
            return Err(error);
        }
        for Placed { variable, address } in made.variables.iter().filter(|placed| placed.variable.size > 0) {
            memory.announce(*address, variable.size, Kind::ManagedVariable, NOBODY);
        }
        Ok(Some(made))
    }

    /// Address and bytes of a variable.
    pub(crate) fn find(&self, name: &str) -> Option<(DevAddr, u64)> {
        let found = self.variables.iter().find(|placed| placed.variable.name == name)?;
        Some((DevAddr(found.address), found.variable.size))
    }

    /// Where they are, by name.
    pub(crate) fn places(&self) -> Vec<(String, DevAddr)> {
        self.variables.iter().map(|placed| (placed.variable.name.clone(), DevAddr(placed.address))).collect()
    }

    /// Whether an address is in their memory.
    pub(crate) fn contains(&self, address: DevAddr) -> bool {
        (self.memory.base..self.memory.end()).contains(&address.0)
    }

    /// Writes the initial values, with the addresses that are known: of functions, and of managed variables.
    fn initialise(&self, memory: &Memory, program: &Program) -> Result<()> {
        let own: HashMap<&str, u64> =
            self.variables.iter().map(|placed| (placed.variable.name.as_str(), placed.address)).collect();
        for Placed { variable, address } in &self.variables {
            let mut init = variable.init.clone();
            for relocation in &variable.relocations {
                let function = || program.function_handle(&relocation.symbol);
                if let Some(known) = own.get(relocation.symbol.as_str()).copied().or_else(function) {
                    relocation.apply(&mut init, known);
                }
            }
            write(memory, *address, &init)?;
        }
        Ok(())
    }

    /// Puts the addresses of variables that the GPU has placed into the initial values, the first time; `info` is what it
    /// has made of the text.
    pub(crate) fn link(&self, memory: &Memory, info: &ModuleInfo) -> Result<()> {
        if self.linked.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        let of_gpu = info.globals.iter().filter(|global| !self.contains(global.address));
        let of_gpu: HashMap<&str, u64> = of_gpu.map(|global| (global.name.as_str(), global.address.0)).collect();
        for Placed { variable, address } in &self.variables {
            let mut init = variable.init.clone();
            for relocation in &variable.relocations {
                let Some(known) = of_gpu.get(relocation.symbol.as_str()) else { continue };
                relocation.apply(&mut init, *known);
                let at = relocation.offset as usize;
                let value = init.get(at..at + relocation.bytes as usize).unwrap_or_default();
                write(memory, address + relocation.offset, value)?;
            }
        }
        Ok(())
    }
}

/// Writes to managed memory.
fn write(memory: &Memory, address: u64, data: &[u8]) -> Result<()> {
    if data.is_empty() {
        return Ok(());
    }
    memory.write_on_host(address, data)
}

/// Refuses a variable that is to hold the address of what the text does not define.
fn check(program: &Program, variable: &Variable, log: &mut JitLog) -> Result<()> {
    let defined = |symbol: &str| {
        let stored = |other: &Variable| other.name == symbol && other.is_defined() && other.space != VarSpace::Shared;
        program.function_handle(symbol).is_some() || program.variables().iter().any(stored)
    };
    let missing = |relocation: &&Relocation| !defined(&relocation.symbol);
    let Some(Relocation { symbol, .. }) = variable.relocations.iter().find(missing) else { return Ok(()) };
    log.error.push_str(&format!("'{}' is to hold the address of '{symbol}', which is not defined\n", variable.name));
    Err(CudaError::INVALID_PTX)
}
