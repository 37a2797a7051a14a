//! The JIT linker.

use std::sync::Arc;

use ptx::JitOptions;

use crate::code::linker::LinkState;
use crate::driver::Driver;
use crate::error::Result;
use crate::handle::{self, Link, Tag};
use crate::values::{Image, JitLog};

impl Driver {
    /// Begins a link, of whose result the options are a part.
    ///
    /// # Errors
    /// `INVALID_CONTEXT`.
    pub fn link_create(&self, options: JitOptions) -> Result<Link> {
        self.current()?;
        let handle = Link(handle::fresh(Tag::Link));
        self.links.insert(handle.0, Arc::new(LinkState::new(options)));
        Ok(handle)
    }

    fn link(&self, link: Link) -> Result<Arc<LinkState>> {
        self.ready()?;
        self.links.get(link.0)
    }

    /// Adds PTX text, a fatbin, an object file or a library, by the name that errors shall call it; the log's options are
    /// this input's.
    ///
    /// # Errors
    /// `INVALID_IMAGE`, `INVALID_PTX`, `NO_BINARY_FOR_GPU`, `INVALID_HANDLE`, also after `link_complete`.
    pub fn link_add_data(&self, link: Link, image: &dyn Image, name: &str, log: &mut JitLog) -> Result<()> {
        let [major, minor] = self.devices.least_capability();
        self.link(link)?.add(image, name, major * 10 + minor, log)
    }

    /// The image to load: NUL-terminated PTX text. It lives until `link_destroy`.
    ///
    /// # Errors
    /// `INVALID_PTX` for inputs that cannot be linked, of which the log tells, `INVALID_IMAGE` for none, `INVALID_HANDLE`.
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
