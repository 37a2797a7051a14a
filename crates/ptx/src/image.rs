//! Textures and surfaces, as both engines reach them: what a handle stands for, and what an access that fails means.

use texture::{Access, Descriptor, Malformed, Object, Refused};

use crate::launch::{self, AccessError, Exception};

/// What a handle stands for: `read` fills the bytes at its address.
///
/// # Errors
/// Why memory cannot be read; an illegal access to the handle if there is no descriptor.
pub fn object(
    handle: u64,
    read: impl FnOnce(&mut [u8; Descriptor::BYTES]) -> Result<(), Exception>,
) -> Result<Object, Exception> {
    if !handle.is_multiple_of(Descriptor::ALIGN) {
        return Err(nothing(handle));
    }
    let mut bytes = [0; Descriptor::BYTES];
    read(&mut bytes)?;
    Object::decode(&bytes).map_err(|_: Malformed| nothing(handle))
}

/// What ends the CTA for a handle that stands for nothing.
#[must_use]
pub fn nothing(handle: u64) -> Exception {
    Exception::Access { address: handle, access: launch::Access::Read, error: AccessError::Image }
}

/// What ends the CTA if `access` by this handle is not performed.
#[must_use]
pub fn exception(access: &Access, handle: u64, refused: Refused<Exception>) -> Exception {
    match refused {
        Refused::Role => nothing(handle),
        Refused::Outside => Exception::Trap,
        Refused::Misaligned(address) => {
            let access = match access {
                Access::Reduce { .. } => launch::Access::Atomic,
                access if access.writes() => launch::Access::Write,
                _ => launch::Access::Read,
            };
            Exception::Access { address, access, error: AccessError::Misaligned }
        }
        Refused::Memory(exception) => exception,
    }
}
