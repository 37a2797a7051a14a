//! Where client and daemon find each other: names that both must know.

use std::ffi::OsString;
use std::path::PathBuf;

/// Environment: path of the session socket.
pub const SOCKET_VARIABLE: &str = "SUNDIAL_SOCKET";
/// Environment: the credential of a registered tenant, 64 hexadecimal digits.
pub const CREDENTIAL_VARIABLE: &str = "SUNDIAL_CREDENTIAL";
/// Environment: directory of the sockets.
pub const DIRECTORY_VARIABLE: &str = "SUNDIAL_RUNTIME_DIR";
/// File name of the session socket.
pub const SESSION_SOCKET: &str = "session.sock";
/// File name of the admin socket.
pub const ADMIN_SOCKET: &str = "admin.sock";

/// What `libnvidia-ml.so.1` asks `libcuda.so.1` for where the GPU is in the process (`cuGetExportTable`): a table of its size in
/// bytes, 16, and of a function that writes a [`Reply::Standing`](crate::Reply::Standing) into a buffer of so many bytes, and its
/// length: `CUresult (uint8_t *buffer, size_t bytes, size_t *length)`.
pub const STANDING_TABLE: [u8; 16] = *b"sundial standing";

/// The directory of the sockets: `$SUNDIAL_RUNTIME_DIR`, `$XDG_RUNTIME_DIR/sundial` or `/tmp/sundial-<uid>`.
///
/// The last can be made by anybody: who uses it must check its owner and mode.
#[must_use]
pub fn runtime_directory(environment: impl Fn(&str) -> Option<OsString>, uid: u32) -> PathBuf {
    let set = |name: &str| environment(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    set(DIRECTORY_VARIABLE)
        .or_else(|| set("XDG_RUNTIME_DIR").map(|directory| directory.join("sundial")))
        .unwrap_or_else(|| PathBuf::from(format!("/tmp/sundial-{uid}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_specific_wins() {
        let both = |name: &str| match name {
            DIRECTORY_VARIABLE => Some("/a".into()),
            "XDG_RUNTIME_DIR" => Some("/run/user/7".into()),
            _ => None,
        };
        assert_eq!(runtime_directory(both, 7), PathBuf::from("/a"));
        let session = |name: &str| both(name).filter(|_| name != DIRECTORY_VARIABLE);
        assert_eq!(runtime_directory(session, 7), PathBuf::from("/run/user/7/sundial"));
        let empty = |_: &str| Some(OsString::new());
        assert_eq!(runtime_directory(empty, 7), PathBuf::from("/tmp/sundial-7"));
    }
}
