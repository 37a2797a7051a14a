//! How the shared library presents itself to the dynamic loader.

fn main() {
    // Programs are linked with, and ask for, this name.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libcuda.so.1");
    // The library has threads: unloading it would take their code away.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
    println!("cargo::rerun-if-changed=build.rs");
}
