//! PTX texts, as images hold them.

use std::sync::{Arc, OnceLock};

use ptx::Program;
use ptx::link::{LinkError, Module};

use crate::code::entry_names::{self, Clusters, Names};
use crate::code::fatbin::{self, Found};
use crate::code::foreign::Foreign;
use crate::code::managed_variables::Managed;
use crate::code::pytorch;
use crate::error::{CudaError, Result};
use crate::values::{Image, JitLog};

/// What an image without PTX lacks, and what to do.
pub(crate) const NO_PTX: &str = "no PTX that this GPU can run, and its instruction set is PTX: compile with it (nvcc \
    -gencode arch=compute_75,code=[compute_75,sm_75])";

/// One PTX text and the kernels in it.
#[derive(Debug)]
pub(crate) struct Text {
    pub(crate) ptx: Arc<Vec<u8>>,
    /// The declarations in it, once somebody wants to read its kernels.
    program: OnceLock<Option<Program>>,
    pub(crate) kernels: Vec<String>,
    /// What each of them says of clusters.
    clusters: Vec<Clusters>,
    /// References by name.
    pub(crate) textures: Vec<String>,
    pub(crate) surfaces: Vec<String>,
    /// Files of a program whose kernels are not here: they hold machine code only.
    without: usize,
    /// Kernels that the image has as machine code only.
    elsewhere: Vec<String>,
    /// Those of a library are there for all contexts.
    pub(crate) managed: Managed,
}

impl Text {
    /// The text of an image for a compute capability, with its kernels' names; those of separately compiled files are
    /// linked. The options become part of the text.
    ///
    /// # Errors
    /// `INVALID_IMAGE`, `NO_BINARY_FOR_GPU`; `INVALID_PTX` if texts cannot be linked: the log says why.
    pub(crate) fn of_image(image: &dyn Image, [major, minor]: [u32; 2], log: &mut JitLog) -> Result<Text> {
        let mut elsewhere = Vec::new();
        let found = fatbin::texts(image, major * 10 + minor).or_else(|error| {
            if error != CudaError::NO_BINARY_FOR_GPU {
                return Err(error);
            }
            let instead = Foreign::of_image(image);
            let said = instead.as_ref().map_or(String::new(), |found| format!("; it holds {found}"));
            elsewhere = instead.map_or(Vec::new(), Foreign::kernels);
            if let Some(ours) = pytorch::text(elsewhere.iter().map(String::as_str)) {
                tracing::info!("kernels of ours in place of PyTorch's, of which the image holds {NO_PTX}");
                return Ok(Found { texts: vec![ours], without: 0 });
            }
            log.error.push_str(&format!("the image holds {NO_PTX}{said}\n"));
            pytorch::say_of(&elsewhere);
            Err(error)
        })?;
        let without = found.without;
        let ptx = with_options(one(found, log)?, &log.options);
        let Names { kernels, clusters, textures, surfaces, managed } = entry_names::find(&ptx);
        let managed = if managed { Managed::default() } else { Managed::none() };
        let (ptx, program) = (Arc::new(ptx), OnceLock::new());
        Ok(Text { ptx, program, kernels, clusters, textures, surfaces, without, elsewhere, managed })
    }

    /// Its declarations; none if it is no PTX, of which the GPU says what there is to say.
    pub(crate) fn program(&self) -> Option<&Program> {
        self.program.get_or_init(|| Program::parse(&self.ptx).ok()).as_ref()
    }

    /// What a kernel says of clusters.
    pub(crate) fn clusters(&self, kernel: &str) -> Clusters {
        let at = self.kernels.iter().position(|known| known == kernel);
        at.and_then(|at| self.clusters.get(at)).copied().unwrap_or_default()
    }

    /// Says where a kernel may be that is not in it.
    ///
    /// # Errors
    /// `NOT_FOUND`; `NO_BINARY_FOR_GPU` if the image has it as machine code.
    pub(crate) fn check_holds(&self, kernel: &str) -> Result<()> {
        let among = |names: &[String]| names.iter().any(|known| known == kernel);
        if among(&self.kernels) {
            return Ok(());
        }
        if among(&self.elsewhere) {
            if !pytorch::say_of(&[kernel]) {
                tracing::warn!("of the kernel {kernel} the image holds {NO_PTX}");
            }
            return Err(CudaError::NO_BINARY_FOR_GPU);
        }
        if self.without > 0 {
            tracing::warn!("{kernel} is in no PTX of the program: {} of its linked files hold {NO_PTX}", self.without);
        }
        Err(CudaError::NOT_FOUND)
    }
}

/// The text with the options in it.
pub(crate) fn with_options(mut ptx: Vec<u8>, options: &ptx::JitOptions) -> Vec<u8> {
    if let Some(pragma) = options.pragma() {
        // A text ends at its first NUL.
        ptx.truncate(ptx::before_nul(&ptx).len());
        ptx.extend_from_slice(pragma.as_bytes());
    }
    ptx
}

/// The files' texts linked, if there are several.
fn one(mut found: Found, log: &mut JitLog) -> Result<Vec<u8>> {
    if found.texts.len() == 1 && found.without == 0 {
        return found.texts.pop().ok_or(CudaError::NO_BINARY_FOR_GPU);
    }
    let files = found.texts.len() + found.without;
    let name = |at: usize| format!("file {} of {files}", at + 1);
    let mut programs = Vec::new();
    for (at, text) in found.texts.iter().enumerate() {
        let program = Program::parse(text).map_err(|error| {
            log.error.push_str(&format!("{}: {error}\n", name(at)));
            CudaError::INVALID_PTX
        })?;
        programs.push((name(at), program));
    }
    let modules: Vec<Module<'_>> = programs.iter().map(|(name, program)| Module { name, program }).collect();
    let linked = ptx::link::link(&modules).map_err(|error| {
        let mut why = error.to_string();
        if matches!(error, LinkError::Undefined { .. }) && found.without > 0 {
            why.push_str(&format!("\n{} more of its files hold {NO_PTX}", found.without));
        }
        tracing::error!("the program's device code cannot be linked: {}", why.replace('\n', "; "));
        log.error.push_str(&why);
        log.error.push('\n');
        CudaError::INVALID_PTX
    })?;
    Ok(linked.into_bytes())
}
