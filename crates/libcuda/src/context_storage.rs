//! Context-local storage: values that runtime libraries in the program keep per context.
//!
//! Each copy of NVIDIA's runtime in a process has its own key and looks its value up in almost every call, so looking up
//! is a short scan under a shared lock. A value's destructor runs when its context is destroyed or the primary context is
//! reset; not when the value is deleted.

use cuda_abi::{CUcontext, CUresult, HostAddr};
use parking_lot::RwLock;

use crate::entry::{Answer, Refusal};

/// What runs when the context goes: (context, key, value).
pub(crate) type Destructor = unsafe extern "C" fn(CUcontext, HostAddr, HostAddr);

/// A value.
#[derive(Clone, Copy)]
struct Value {
    context: CUcontext,
    key: HostAddr,
    value: HostAddr,
    destructor: Option<Destructor>,
}

/// All values of the process. A leaf lock: destructors run after it is released.
static VALUES: RwLock<Vec<Value>> = RwLock::new(Vec::new());

/// Stores a value; one of the same key is replaced.
pub(crate) fn put(context: CUcontext, key: HostAddr, value: HostAddr, destructor: Option<Destructor>) {
    let new = Value { context, key, value, destructor };
    let mut values = VALUES.write();
    match values.iter_mut().find(|old| old.context == context && old.key == key) {
        Some(old) => *old = new,
        None => values.push(new),
    }
}

/// Looks a value up; `INVALID_HANDLE` if there is none.
pub(crate) fn get(context: CUcontext, key: HostAddr) -> Result<HostAddr, Refusal> {
    let values = VALUES.read();
    let found = values.iter().find(|value| value.context == context && value.key == key);
    found.map(|value| value.value).ok_or(Refusal(CUresult::CUDA_ERROR_INVALID_HANDLE))
}

/// Forgets a value; `INVALID_HANDLE` if there is none.
pub(crate) fn delete(context: CUcontext, key: HostAddr) -> Answer {
    let mut values = VALUES.write();
    let at = values.iter().position(|value| value.context == context && value.key == key);
    values.swap_remove(at.ok_or(Refusal(CUresult::CUDA_ERROR_INVALID_HANDLE))?);
    Ok(())
}

/// The context is gone: its values go too.
pub(crate) fn context_destroyed(context: CUcontext) {
    let gone: Vec<Value> = VALUES.write().extract_if(.., |value| value.context == context).collect();
    for value in gone {
        if let Some(destructor) = value.destructor {
            // SAFETY: who stored the value promised that its destructor may be called with it, once.
            unsafe { destructor(value.context, value.key, value.value) }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    static DESTROYED: AtomicU64 = AtomicU64::new(0);

    unsafe extern "C" fn count(_: CUcontext, _: HostAddr, value: HostAddr) {
        DESTROYED.fetch_add(value.0, Ordering::Relaxed);
    }

    #[test]
    fn values_live_as_long_as_their_context() {
        let (one, other) = (CUcontext(0x1001), CUcontext(0x1002));
        let (key, second) = (HostAddr(1), HostAddr(2));
        put(one, key, HostAddr(10), Some(count));
        put(one, second, HostAddr(100), Some(count));
        put(other, key, HostAddr(1000), Some(count));
        assert_eq!(get(one, key), Ok(HostAddr(10)));
        assert!(get(CUcontext(0x1003), key).is_err());
        assert!(delete(one, second).is_ok());
        assert!(delete(one, second).is_err());
        context_destroyed(one);
        assert_eq!(DESTROYED.load(Ordering::Relaxed), 10);
        assert!(get(one, key).is_err());
        assert_eq!(get(other, key), Ok(HostAddr(1000)));
    }
}
