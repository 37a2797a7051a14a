//! The JIT linker.

use std::sync::Arc;

use crate::code::linker::LinkState;
use crate::code::text::Text;
use crate::driver::Driver;
use crate::error::Result;
use crate::handle::{self, Link, Tag};
use crate::values::{Image, JitLog};

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
        let options = log.options;
        link.add(|| Text::of_image(image, self.devices.least_capability(), options), log)
    }

    /// The image to load: NUL-terminated PTX text. It lives until `link_destroy`.
    ///
    /// # Errors
    /// `NOT_SUPPORTED` for more than one input, `INVALID_IMAGE` for none, `INVALID_HANDLE`.
    pub fn link_complete(&self, link: Link, log: &mut JitLog) -> Result<Arc<[u8]>> {
        self.link(link)?.complete(log)
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
