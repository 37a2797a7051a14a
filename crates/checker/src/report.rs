//! What is told of an error.

use std::fmt;

use ptx::Origin;
use ptx::check::{Hazard, Site};
use ptx::launch::Access;
use serde::Serialize;

use crate::verb;

/// Which check has found something.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
#[expect(missing_docs, reason = "named as the checks")]
pub enum Check {
    Memory,
    Init,
    Race,
}

impl fmt::Display for Check {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Check::Memory => "memory",
            Check::Init => "init",
            Check::Race => "race",
        })
    }
}

/// A place in a kernel's text.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Place {
    /// Line of PTX; 0 if unknown.
    pub ptx_line: u32,
    /// Of which text, if several were linked.
    pub module: Option<String>,
    /// File and line, where the compiler has left them (`nvcc -lineinfo`).
    pub source: Option<(String, u32)>,
}

impl Place {
    fn new(site: &Site<'_>, line: u32) -> Place {
        let source = site.kernel.sources.at(line);
        let linked = Origin::of(&site.kernel.origins, line);
        let (module, ptx_line) = linked.map_or((None, line), |(module, line)| (Some(module.to_owned()), line));
        Place { ptx_line, module, source: source.map(|source| (source.file.to_owned(), source.line)) }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [of, module] = self.module.as_ref().map_or(["", ""], |module| [" of ", module]);
        let line = self.ptx_line;
        match &self.source {
            Some((file, source)) => write!(f, "{file}:{source} (line {line} of PTX{of}{module})"),
            None => write!(f, "line {line} of PTX{of}{module}"),
        }
    }
}

/// An error: the first one of its kind at a place of a kernel.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Report {
    /// Who has found it.
    pub check: Check,
    /// What it is, in words.
    pub what: String,
    /// Name of the kernel, as in PTX.
    pub kernel: String,
    /// Where in the kernel.
    pub place: Place,
    /// The thread block.
    pub block: [u32; 3],
    /// The thread in it.
    pub thread: [u32; 3],
    /// Address, or offset in the space of memory, if it is an access.
    pub address: Option<u64>,
    /// Bytes of the access.
    pub bytes: u32,
    /// What else is known: the nearest allocation, and the like.
    pub detail: Option<String>,
    /// The other access of a hazard: where, and by which thread of the block.
    pub other: Option<(Place, [u32; 3])>,
}

impl Report {
    pub(crate) fn plain(check: Check, site: &Site<'_>, what: impl Into<String>) -> Report {
        Report {
            check,
            what: what.into(),
            kernel: site.kernel.name.clone(),
            place: Place::new(site, site.line),
            block: site.ctaid,
            thread: site.tid(site.thread),
            address: None,
            bytes: 0,
            detail: None,
            other: None,
        }
    }

    pub(crate) fn of_access(
        check: Check,
        site: &Site<'_>,
        (access, bytes): (Access, u32),
        what: &str,
        address: Option<u64>,
        detail: Option<String>,
    ) -> Report {
        let words = match (bytes, verb(access)) {
            (0, verb) => format!("{verb} {what}"),
            (bytes, verb) => format!("{verb} of {bytes} bytes {what}"),
        };
        Report { address, bytes, detail, ..Report::plain(check, site, words) }
    }

    pub(crate) fn of_hazard(site: &Site<'_>, hazard: &Hazard, what: &str) -> Report {
        Report {
            address: Some(hazard.offset),
            detail: Some("shared memory; no barrier between the two".to_owned()),
            other: Some((Place::new(site, hazard.line), site.tid(hazard.thread))),
            ..Report::plain(Check::Race, site, what)
        }
    }
}

/// Position as programs write it.
struct At([u32; 3]);

impl fmt::Display for At {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "({},{},{})", self.0[0], self.0[1], self.0[2])
    }
}

/// Several lines, each with its end.
impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sundial: {}: {}", self.check, self.what)?;
        if let Some(address) = self.address {
            write!(f, ", at {address:#x}")?;
        }
        writeln!(f, "\n    by thread {} of block {}, in kernel {}", At(self.thread), At(self.block), self.kernel)?;
        writeln!(f, "    at {}", self.place)?;
        if let Some((place, thread)) = &self.other {
            writeln!(f, "    after thread {} at {place}", At(*thread))?;
        }
        if let Some(detail) = &self.detail {
            writeln!(f, "    {detail}")?;
        }
        Ok(())
    }
}
