//! User objects: what of the program's must live as long as graphs that use it.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use crate::error::{CudaError, Result};
use crate::handle::{self, Tag, UserObject};
use crate::values::HostCall;

/// Something of the program's; its destructor runs when nobody refers to it any more.
#[derive(Debug)]
pub(crate) struct Object {
    destroy: HostCall,
}

impl Drop for Object {
    fn drop(&mut self) {
        (self.destroy.call)();
    }
}

/// References that a graph has, with how many of each.
pub(crate) type References = Vec<(UserObject, Arc<Object>, u32)>;

/// What is known of one: itself while it lives, and the program's own references.
#[derive(Debug)]
struct Known {
    object: Weak<Object>,
    own: Option<(Arc<Object>, u32)>,
}

/// All user objects of a process.
#[derive(Debug, Default)]
pub(crate) struct UserObjects(HashMap<u64, Known>);

impl UserObjects {
    /// A new one, with so many references of the program's.
    pub(crate) fn create(&mut self, destroy: HostCall, references: u32) -> UserObject {
        // Those that are gone need no names.
        self.0.retain(|_, known| known.object.strong_count() != 0);
        let handle = UserObject(handle::fresh(Tag::UserObject));
        let object = Arc::new(Object { destroy });
        self.0.insert(handle.0, Known { object: Arc::downgrade(&object), own: Some((object, references)) });
        handle
    }

    /// # Errors
    /// `INVALID_VALUE` if there is none.
    pub(crate) fn get(&self, handle: UserObject) -> Result<Arc<Object>> {
        let known = self.0.get(&handle.0).and_then(|known| known.object.upgrade());
        known.ok_or(CudaError::INVALID_VALUE)
    }

    /// Adds references of the program's.
    ///
    /// # Errors
    /// `INVALID_VALUE` if there is none, or too many.
    pub(crate) fn retain(&mut self, handle: UserObject, count: u32) -> Result<()> {
        let object = self.get(handle)?;
        let known = self.0.get_mut(&handle.0).ok_or(CudaError::INVALID_VALUE)?;
        let (_, own) = known.own.get_or_insert((object, 0));
        *own = own.checked_add(count).ok_or(CudaError::INVALID_VALUE)?;
        Ok(())
    }

    /// Takes references of the program's away. What is returned is to be dropped without a lock.
    ///
    /// # Errors
    /// `INVALID_VALUE` if there are not so many.
    pub(crate) fn release(&mut self, handle: UserObject, count: u32) -> Result<Option<Arc<Object>>> {
        let known = self.0.get_mut(&handle.0).ok_or(CudaError::INVALID_VALUE)?;
        let (_, own) = known.own.as_mut().ok_or(CudaError::INVALID_VALUE)?;
        *own = own.checked_sub(count).ok_or(CudaError::INVALID_VALUE)?;
        if *own != 0 {
            return Ok(None);
        }
        Ok(known.own.take().map(|(object, _)| object))
    }
}

/// Takes references of a graph's away. What is returned is to be dropped without a lock.
///
/// # Errors
/// `INVALID_VALUE` if there are not so many.
pub(crate) fn release_from(references: &mut References, handle: UserObject, count: u32) -> Result<Option<Arc<Object>>> {
    let at = references.iter().position(|(of, ..)| *of == handle).ok_or(CudaError::INVALID_VALUE)?;
    let (_, _, own) = references.get_mut(at).ok_or(CudaError::INVALID_VALUE)?;
    *own = own.checked_sub(count).ok_or(CudaError::INVALID_VALUE)?;
    Ok(if *own == 0 { Some(references.swap_remove(at).1) } else { None })
}
