//! The library on the software GPU in this process.

#![expect(unsafe_code, reason = "calls C functions")]

mod c_program;

/// The test is alone in its process.
fn choose() {
    for (name, value) in [("SUNDIAL_NATIVE", "1"), ("SUNDIAL_VRAM", "128m"), ("SUNDIAL_WORKERS", "2")] {
        // SAFETY: there are no threads yet.
        unsafe { std::env::set_var(name, value) }
    }
}
