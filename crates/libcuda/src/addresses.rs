//! The address map of `cuGetProcAddress`.
//!
//! A name stands for several functions: each change of its meaning or parameters in CUDA's history is a variant with the
//! version in which it appeared, and many have another for programs whose default stream is the thread's own. A caller
//! gets the newest that is not newer than the version it was built for.

use cuda_abi::{CUdriverProcAddress_flags, CUresult, DRIVER_VERSION, HostAddr};

use crate::entry::{Refusal, refuse};
use crate::shims::addresses::NAMES;

/// A name and its variants, oldest first.
#[derive(Debug)]
pub(crate) struct Name {
    pub(crate) name: &'static str,
    pub(crate) variants: &'static [Variant],
    /// For per-thread default streams; empty where that makes no difference.
    pub(crate) per_thread: &'static [Variant],
}

/// A function under a name.
#[derive(Debug)]
pub(crate) struct Variant {
    /// CUDA version in which it appeared, as 13050.
    pub(crate) since: u32,
    /// Name of the exported symbol.
    pub(crate) symbol: &'static str,
    pub(crate) address: Address,
}

/// Address of a function.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Address(pub(crate) *const ());

// SAFETY: the addresses are of functions and never change.
unsafe impl Sync for Address {}

/// Result of a search.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Found {
    /// The function.
    At(HostAddr),
    /// The name exists in later versions only.
    Later,
    /// No such name.
    Unknown,
}

/// Looks a name up.
///
/// # Errors
/// `INVALID_VALUE` for versions above the driver's and for unknown flags.
pub(crate) fn find(name: &str, version: i32, flags: u64) -> Result<Found, Refusal> {
    let Ok(version) = u32::try_from(version) else { return refuse(CUresult::CUDA_ERROR_INVALID_VALUE) };
    if version > DRIVER_VERSION {
        return refuse(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    const LEGACY: u64 = CUdriverProcAddress_flags::CU_GET_PROC_ADDRESS_LEGACY_STREAM.0 as u64;
    const PER_THREAD: u64 = CUdriverProcAddress_flags::CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM.0 as u64;
    let per_thread = match flags {
        0 | LEGACY => false,
        PER_THREAD => true,
        _ => return refuse(CUresult::CUDA_ERROR_INVALID_VALUE),
    };
    let Ok(at) = NAMES.binary_search_by(|entry| entry.name.cmp(name)) else { return Ok(Found::Unknown) };
    let name = &NAMES[at];
    let variants = if per_thread && !name.per_thread.is_empty() { name.per_thread } else { name.variants };
    Ok(match variants.iter().rev().find(|variant| variant.since <= version) {
        Some(variant) => {
            tracing::trace!("{} for {version} is {}", name.name, variant.symbol);
            Found::At(HostAddr(variant.address.0.expose_provenance() as u64))
        }
        None => Found::Later,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn symbol(name: &str, version: i32, flags: u64) -> Option<&'static str> {
        let Ok(Found::At(address)) = find(name, version, flags) else { return None };
        let mut all = NAMES.iter().flat_map(|name| name.variants.iter().chain(name.per_thread));
        all.find(|variant| variant.address.0.addr() as u64 == address.0).map(|variant| variant.symbol)
    }

    #[test]
    fn versions_and_flags_choose() {
        assert_eq!(symbol("cuMemAlloc", 2000, 0), Some("cuMemAlloc"));
        assert_eq!(symbol("cuMemAlloc", 13050, 0), Some("cuMemAlloc_v2"));
        assert_eq!(symbol("cuMemAlloc", 13050, 2), Some("cuMemAlloc_v2"));
        assert_eq!(symbol("cuMemcpyHtoD", 12000, 1), Some("cuMemcpyHtoD_v2"));
        assert_eq!(symbol("cuMemcpyHtoD", 12000, 2), Some("cuMemcpyHtoD_v2_ptds"));
        assert_eq!(symbol("cuStreamGetCaptureInfo", 12000, 2), Some("cuStreamGetCaptureInfo_v2_ptsz"));
        assert_eq!(symbol("cuCtxGetDevice", 13000, 0), Some("cuCtxGetDevice_v2"));
    }

    #[test]
    fn what_is_not_there() {
        assert_eq!(find("", 0, 0), Ok(Found::Unknown));
        assert_eq!(find("cuMemAlloc_v2", 13050, 0), Ok(Found::Unknown));
        assert_eq!(find("cuMemAlloc", 1000, 0), Ok(Found::Later));
        assert!(find("cuMemAlloc", DRIVER_VERSION as i32 + 10, 0).is_err());
        assert!(find("cuMemAlloc", -1, 0).is_err());
        assert!(find("cuMemAlloc", 13050, 3).is_err());
    }

    /// Every name that the runtime library of CUDA 13.5 asks for.
    #[test]
    fn the_runtime_finds_all_it_asks_for() {
        for line in include_str!("../tests/cudart-13.5-requests.txt").lines().filter(|line| !line.starts_with('#')) {
            let words: Vec<&str> = line.split_whitespace().collect();
            let [name, version, flags] = words[..] else { panic!("{line}") };
            let found = find(name, version.parse().unwrap(), flags.parse().unwrap());
            assert!(matches!(found, Ok(Found::At(_))), "{line}: {found:?}");
        }
    }

    #[test]
    fn names_are_sorted_and_variants_too() {
        assert!(NAMES.is_sorted_by(|one, next| one.name < next.name));
        for name in NAMES {
            assert!(!name.variants.is_empty());
            assert!(name.variants.is_sorted_by_key(|variant| variant.since), "{}", name.name);
            assert!(name.per_thread.is_sorted_by_key(|variant| variant.since), "{}", name.name);
        }
    }
}
