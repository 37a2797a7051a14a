//! The JIT linker: it takes one PTX text, from whatever container, and gives it back as the image to load.

use std::sync::Arc;

use parking_lot::Mutex;

use crate::driver::Driver;
use crate::error::{CudaError, Result};
use crate::handle::{self, Link, Tag};
use crate::module::Text;
use crate::types::{Image, JitLog};

#[derive(Debug, Default)]
pub(crate) struct LinkState(Mutex<Inputs>);

#[derive(Debug, Default)]
struct Inputs {
    texts: Vec<Arc<[u8]>>,
    complete: bool,
}

impl Driver {
    /// Begins a link.
    ///
    /// # Errors
    /// `INVALID_CONTEXT`.
    pub fn link_create(&self) -> Result<Link> {
        self.current()?;
        let handle = Link(handle::fresh(Tag::Link));
        self.links.insert(handle.0, Arc::default());
        Ok(handle)
    }

    fn link(&self, link: Link) -> Result<Arc<LinkState>> {
        self.ready()?;
        self.links.get(link.0)
    }

    /// Adds PTX text or a fatbin.
    ///
    /// # Errors
    /// `INVALID_IMAGE`, `NO_BINARY_FOR_GPU`, `INVALID_HANDLE`, also after `link_complete`.
    pub fn link_add_data(&self, link: Link, image: &dyn Image, log: &mut JitLog) -> Result<()> {
        let link = self.link(link)?;
        let mut inputs = link.0.lock();
        if inputs.complete {
            return Err(CudaError::INVALID_HANDLE);
        }
        let texts = Text::of_image(self, image).inspect_err(|error| {
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

    /// The image to load: NUL-terminated PTX text. It lives until `link_destroy`.
    ///
    /// # Errors
    /// `NOT_SUPPORTED` for more than one input, `INVALID_IMAGE` for none, `INVALID_HANDLE`.
    pub fn link_complete(&self, link: Link, log: &mut JitLog) -> Result<Arc<[u8]>> {
        let link = self.link(link)?;
        let mut inputs = link.0.lock();
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

    /// Ends a link.
    ///
    /// # Errors
    /// `INVALID_HANDLE`.
    pub fn link_destroy(&self, link: Link) -> Result<()> {
        self.ready()?;
        self.links.remove(link.0).map(|_| ())
    }
}
