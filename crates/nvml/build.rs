//! How the shared library presents itself to the dynamic loader.

fn main() {
    // Programs are linked with, and ask for, this name.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libnvidia-ml.so.1");
    println!("cargo::rerun-if-changed=build.rs");
}
