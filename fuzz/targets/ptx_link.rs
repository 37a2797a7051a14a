//! Any bytes are PTX modules, separated by bytes of 0xff: they link, or there is an error; what is linked can be loaded.
#![no_main]

use libfuzzer_sys::fuzz_target;
use ptx::Program;
use ptx::link::{Module, link};

fuzz_target!(|data: &[u8]| {
    let texts = data.split(|byte| *byte == 0xff).take(8);
    let programs: Vec<Program> = texts.filter_map(|text| Program::parse(text).ok()).collect();
    let modules: Vec<Module<'_>> = programs.iter().map(|program| Module { name: "module", program }).collect();
    if let Ok(text) = link(&modules) {
        let linked = Program::parse(text.as_bytes()).expect("what is linked is a module");
        for entry in 0..linked.entries().len().min(8) {
            let _ = linked.lower(entry, &|_| Some(0x10_0000_0000));
        }
    }
});
