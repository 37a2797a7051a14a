//! PTX texts, as images hold them.

use std::sync::Arc;

use crate::code::entry_names::{self, Names};
use crate::code::fatbin;
use crate::code::managed_variables::Managed;
use crate::error::Result;
use crate::values::Image;

/// One PTX text and the kernels in it.
#[derive(Debug)]
pub(crate) struct Text {
    pub(crate) ptx: Vec<u8>,
    pub(crate) kernels: Vec<String>,
    /// References by name.
    pub(crate) textures: Vec<String>,
    pub(crate) surfaces: Vec<String>,
    /// Those of a library are there for all contexts.
    pub(crate) managed: Managed,
}

impl Text {
    /// The texts of an image for a compute capability, with their kernels' names. The options become part of the text.
    pub(crate) fn of_image(
        image: &dyn Image,
        [major, minor]: [u32; 2],
        options: ptx::JitOptions,
    ) -> Result<Arc<[Text]>> {
        let pragma = options.pragma().unwrap_or_default();
        let texts = fatbin::texts(image, major * 10 + minor)?;
        Ok(texts
            .into_iter()
            .map(|mut ptx| {
                // A text ends at its first NUL.
                if !pragma.is_empty() {
                    ptx.truncate(ptx.iter().position(|b| *b == 0).unwrap_or(ptx.len()));
                    ptx.extend_from_slice(pragma.as_bytes());
                }
                let Names { kernels, textures, surfaces, managed } = entry_names::find(&ptx);
                let managed = if managed { Managed::default() } else { Managed::none() };
                Text { ptx, kernels, textures, surfaces, managed }
            })
            .collect())
    }
}
