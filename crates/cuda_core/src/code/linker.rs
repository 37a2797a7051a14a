//! The JIT linker: PTX texts from whatever containers, made one text, which is the image to load.

use std::sync::Arc;

use parking_lot::Mutex;
use ptx::link::{LinkError, Module, link_with};
use ptx::{JitOptions, Program};

use crate::code::fatbin;
use crate::code::objects;
use crate::code::text::{NO_PTX, with_options};
use crate::error::{CudaError, Result};
use crate::values::{Image, JitLog};

/// Most texts of one link: a program has hundreds of files, a library thousands of members.
const MOST_TEXTS: usize = 65536;

/// A link under way.
#[derive(Debug)]
pub(crate) struct LinkState {
    /// Of the whole.
    options: JitOptions,
    inputs: Mutex<Inputs>,
}

#[derive(Debug, Default)]
struct Inputs {
    texts: Vec<Input>,
    /// Inputs, or members of them, without PTX for the GPU.
    without: Vec<String>,
    /// The result: who was told where it is may read it until the link ends.
    image: Option<Arc<[u8]>>,
}

#[derive(Debug)]
struct Input {
    name: String,
    program: Program,
    /// Part of a library: linked where it is needed.
    member: bool,
}

impl LinkState {
    pub(crate) fn new(options: JitOptions) -> LinkState {
        LinkState { options, inputs: Mutex::default() }
    }

    /// Adds what an image holds: PTX text, a fat binary, an object file or a library of them. What it holds tells what it
    /// is, whatever it is said to be. An empty `name` gets a number.
    ///
    /// # Errors
    /// `INVALID_HANDLE` after `complete`, `INVALID_IMAGE`, `INVALID_PTX`; `NO_BINARY_FOR_GPU` without PTX, but not for a
    /// library: who knows whether it is needed.
    pub(crate) fn add(&self, image: &dyn Image, name: &str, capability: u32, log: &mut JitLog) -> Result<()> {
        let mut inputs = self.inputs.lock();
        if inputs.image.is_some() {
            return Err(CudaError::INVALID_HANDLE);
        }
        let name = if name.is_empty() { format!("input {}", inputs.texts.len() + 1) } else { name.to_owned() };
        let bytes = image.whole(fatbin::MOST_BYTES).filter(|bytes| objects::is_object(bytes));
        let members = match bytes {
            Some(bytes) => objects::members(&bytes, capability),
            None => fatbin::texts(image, capability).map(|found| vec![objects::Member { name: None, found }]),
        };
        let members = members.inspect_err(|error| {
            log.error.push_str(&match *error {
                CudaError::NO_BINARY_FOR_GPU => format!("{name} holds {NO_PTX}\n"),
                _ => format!("{name} is neither PTX nor a fat binary, an object file or a library, or it is damaged\n"),
            });
        })?;
        for member in members {
            let of_library = member.name.is_some();
            let name = member.name.map_or_else(|| name.clone(), |member| format!("{name}({member})"));
            if member.found.without > 0 {
                inputs.without.push(name.clone());
            }
            for text in member.found.texts {
                if inputs.texts.len() == MOST_TEXTS {
                    log.error.push_str(&format!("more than {MOST_TEXTS} inputs\n"));
                    return Err(CudaError::OUT_OF_MEMORY);
                }
                let program = Program::parse(&with_options(text, &log.options)).map_err(|error| {
                    log.error.push_str(&format!("{name}: {error}\n"));
                    CudaError::INVALID_PTX
                })?;
                inputs.texts.push(Input { name: name.clone(), program, member: of_library });
            }
        }
        Ok(())
    }

    /// The image to load: NUL-terminated PTX text.
    ///
    /// # Errors
    /// `INVALID_PTX` for inputs that do not fit each other: the log says why; `INVALID_IMAGE` for none.
    pub(crate) fn complete(&self, log: &mut JitLog) -> Result<Arc<[u8]>> {
        let mut inputs = self.inputs.lock();
        if let Some(image) = &inputs.image {
            return Ok(Arc::clone(image));
        }
        let modules = |member: bool| -> Vec<Module<'_>> {
            let those = inputs.texts.iter().filter(|input| input.member == member);
            those.map(|input| Module { name: &input.name, program: &input.program }).collect()
        };
        let linked = link_with(&modules(false), &modules(true)).map_err(|error| {
            log.error.push_str(&format!("{error}\n"));
            if matches!(error, LinkError::Undefined { .. }) && !inputs.without.is_empty() {
                log.error.push_str(&format!("{}: {NO_PTX}\n", inputs.without.join(", ")));
            }
            if error == LinkError::Nothing { CudaError::INVALID_IMAGE } else { CudaError::INVALID_PTX }
        })?;
        let mut image = with_options(linked.into_bytes(), &self.options);
        image.push(0);
        Ok(Arc::clone(inputs.image.insert(Arc::from(image))))
    }
}
