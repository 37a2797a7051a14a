//! Names that are handed to C and must stay.

use std::collections::HashSet;
use std::ffi::CString;

use parking_lot::Mutex;

/// Names given out so far. They stay until the process ends: there are as many as kernels with different names, and
/// nobody says when a caller has read one.
static NAMES: Mutex<Option<HashSet<CString>>> = Mutex::new(None);

/// The address of `name` with a NUL, valid for ever.
pub(crate) fn keep(name: &str) -> u64 {
    // A name with a NUL inside cannot be handed to C whole.
    let name = CString::new(name.split('\0').next().unwrap_or_default()).unwrap_or_default();
    let mut names = NAMES.lock();
    let names = names.get_or_insert_default();
    if let Some(kept) = names.get(&name) {
        return kept.as_ptr() as u64;
    }
    // The text is on the heap: moving the `CString` into the set leaves it where it is.
    let address = name.as_ptr() as u64;
    names.insert(name);
    address
}

#[cfg(test)]
mod tests {
    #[test]
    fn one_name_one_address() {
        let address = super::keep("kernel");
        assert_eq!(super::keep("kernel"), address);
        assert_ne!(super::keep("other"), address);
    }
}
