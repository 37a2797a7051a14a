//! Any bytes are a descriptor and operands: no access to a texture or surface leaves the image that is described.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| testgen::image::fuzz(data));
