//! The JIT linker: it takes one PTX text, from whatever container, and gives it back as the image to load.

use std::sync::Arc;

use parking_lot::Mutex;

use crate::code::text::Text;
use crate::error::{CudaError, Result};
use crate::values::JitLog;

/// A link under way.
#[derive(Debug, Default)]
pub(crate) struct LinkState(Mutex<Inputs>);

#[derive(Debug, Default)]
struct Inputs {
    texts: Vec<Arc<[u8]>>,
    complete: bool,
}

impl LinkState {
    /// Adds the texts that `texts` gives.
    ///
    /// # Errors
    /// `INVALID_HANDLE` after `complete`; those of `texts`.
    pub(crate) fn add(&self, texts: impl FnOnce() -> Result<Arc<[Text]>>, log: &mut JitLog) -> Result<()> {
        let mut inputs = self.0.lock();
        if inputs.complete {
            return Err(CudaError::INVALID_HANDLE);
        }
        let texts = texts().inspect_err(|error| {
            log.error.push_str(if *error == CudaError::NO_BINARY_FOR_GPU {
                "the input holds no PTX: this GPU's instruction set is PTX\n"
            } else {
                "the input is neither PTX nor a fat binary\n"
            });
        })?;
        inputs.texts.extend(texts.iter().map(|text| {
            let mut bytes = text.ptx.clone();
            bytes.push(0);
            Arc::from(bytes)
        }));
        Ok(())
    }

    /// The image to load: NUL-terminated PTX text.
    ///
    /// # Errors
    /// `NOT_SUPPORTED` for more than one input, `INVALID_IMAGE` for none.
    pub(crate) fn complete(&self, log: &mut JitLog) -> Result<Arc<[u8]>> {
        let mut inputs = self.0.lock();
        let image = match &inputs.texts[..] {
            [one] => Arc::clone(one),
            [] => return Err(CudaError::INVALID_IMAGE),
            _ => {
                log.error.push_str("linking of several PTX inputs is not supported\n");
                return Err(CudaError::NOT_SUPPORTED);
            }
        };
        inputs.complete = true;
        Ok(image)
    }
}
