//! The library on a GPU behind a socket: the same as on the software GPU in its own process.

#![expect(unsafe_code, reason = "calls C functions")]
#![expect(clippy::unwrap_used, reason = "a test whose ground gives way has failed")]

mod c_program;
#[path = "../../pci_gpu/tests/pass_through/mod.rs"]
mod pass_through;

use vfio_user::Listener;

/// The test is alone in its process.
fn choose() {
    let path = std::env::temp_dir().join(format!("sundial-guest-{}.sock", std::process::id()));
    let listener = Listener::bind(&path, 0o600).expect("a socket");
    let place = format!("unix:{}", path.display());
    // A virtual GPU goes before the native one.
    for (name, value) in [("SUNDIAL_VGPU", place.as_str()), ("SUNDIAL_NATIVE", "1")] {
        // SAFETY: there are no threads yet.
        unsafe { std::env::set_var(name, value) }
    }
    std::thread::spawn(move || {
        let guest = listener.accept().expect("a guest");
        pass_through::Served::on(guest, 128 << 20, false, true)
    });
}
