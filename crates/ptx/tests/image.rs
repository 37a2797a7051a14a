//! Texture and surface instructions: what the text says reaches `texture::Access`, operand by operand.

use std::collections::HashMap;
use std::sync::Arc;

use half::f16;
use ptx::Program;
use ptx::launch::{Exception, Launch};
use testgen::image::{Manner, Random, THREADS, forms, scene};
use testgen::interpret;
use texture::{Access, Memory, Object};

const BASE: u64 = 0x20_0000_0000;

fn launch(params: &[u64]) -> Arc<Launch> {
    Arc::new(Launch {
        grid_id: 1,
        ..Launch::new([1; 3], [THREADS as u32, 1, 1], params.iter().flat_map(|p| p.to_le_bytes()).collect())
    })
}

/// Memory as a slice.
struct Flat<'a>(&'a mut Vec<u8>);

impl Memory for Flat<'_> {
    type Fault = ();

    fn load(&mut self, address: u64, bytes: u32) -> Result<u128, ()> {
        let mut value = [0; 16];
        value[..bytes as usize].copy_from_slice(&self.0[(address - BASE) as usize..][..bytes as usize]);
        Ok(u128::from_le_bytes(value))
    }

    fn store(&mut self, address: u64, bytes: u32, value: u128) -> Result<(), ()> {
        let at = (address - BASE) as usize;
        self.0[at..at + bytes as usize].copy_from_slice(&value.to_le_bytes()[..bytes as usize]);
        Ok(())
    }

    fn update(&mut self, address: u64, bytes: u32, f: &mut dyn FnMut(u64) -> u64) -> Result<(), ()> {
        let old = self.load(address, bytes)? as u64;
        self.store(address, bytes, f(old).into())
    }
}

#[test]
fn every_form_does_what_it_says() {
    let (mut ran, mut refused) = (0, 0);
    for (number, form) in forms().iter().enumerate() {
        let manner = [Manner::Uniform, Manner::Own, Manner::Guarded, Manner::Branched][number % 4];
        let random = &mut Random(number as u64);
        let scene = scene(random, form, BASE, manner == Manner::Uniform);
        let text = form.text(manner);
        let program = Program::parse(text.as_bytes()).unwrap();
        let kernel = program.lower(0, &|_| None).unwrap_or_else(|error| panic!("{error}\n{text}"));
        let mut got = scene.memory.clone();
        let end = interpret(&Arc::new(kernel), &launch(&scene.params), BASE, &mut got);

        let mut want = scene.memory.clone();
        let mut fails = false;
        let table: HashMap<u64, Object> = scene
            .handles
            .iter()
            .map(|h| (*h, scene.memory[(h - BASE) as usize..][..128].try_into().unwrap()))
            .map(|(h, bytes): (u64, [u8; 128])| (h, Object::decode(&bytes).unwrap()))
            .collect();
        let (results, bytes) = form.access.results();
        let (count, bytes) = match form.halves {
            0 => (results, usize::from(bytes)),
            2 => (2, 4),
            _ => (4, 2),
        };
        let bytes = bytes.max(2);
        for thread in 0..THREADS {
            let executes = matches!(manner, Manner::Uniform | Manner::Own) || thread % 3 != 1;
            let mut words = [77, 78, 79, 80];
            if executes {
                let object = &table[&scene.handles[thread]];
                match form.access.perform(object, &scene.operands[thread], &mut Flat(&mut want)) {
                    Ok(found) => words = found,
                    Err(_) => fails = true,
                }
                let half = |i: usize| u64::from(f16::from_f32(f32::from_bits(words[i] as u32)).to_bits());
                // NaN is canonical in halves, too.
                let half = |i: usize| if half(i) & 0x7fff > 0x7c00 { 0x7fff } else { half(i) };
                match form.halves {
                    4 => words = [0, 1, 2, 3].map(half),
                    2 => words = [half(0) | half(1) << 16, half(2) | half(3) << 16, 0, 0],
                    _ => {}
                }
            }
            let at = |i: usize| (scene.params[1] - BASE) as usize + 8 * (i * THREADS + thread);
            for (i, word) in words.iter().take(count).enumerate() {
                want[at(i)..at(i) + bytes].copy_from_slice(&word.to_le_bytes()[..bytes]);
            }
            let resident = u32::from(executes && form.access.is_texture());
            want[at(count)..at(count) + 4].copy_from_slice(&resident.to_le_bytes());
        }
        let context = format!("{manner:?} {:?}\n{text}", scene.descriptors);
        match end {
            Ok(()) => {
                ran += 1;
                assert!(!fails, "{context}");
                let differs = got.iter().zip(&want).position(|(a, b)| a != b);
                assert_eq!(differs, None, "{context}");
            }
            Err(Exception::Trap | Exception::Access { .. }) => {
                refused += 1;
                assert!(fails, "{context}");
            }
            Err(other) => panic!("{other:?}: {context}"),
        }
    }
    assert!(ran > 500 && refused > 50, "{ran} ran, {refused} were refused");
}

const REFERENCES: &str = "
.version 8.0
.target sm_75, texmode_unified
.address_size 64
.visible .global .texref picture;
.global .surfref board;
.global .samplerref how = { addr_mode_0 = wrap, filter_mode = nearest };
.visible .entry k(.param .u64 out, .param .texref given) {
    .reg .b32 %r<8>; .reg .b64 %rd<4>; .reg .pred %p<4>; .reg .v4 .f32 %v; .reg .f32 %x; .reg .b64 %h;
    ld.param.u64 %rd0, [out];
    txq.width.b32 %r0, [picture];
    txq.height.b32 %r1, [given];
    suq.width.b32 %r2, [board];
    mov.u64 %h, picture;
    txq.height.b32 %r3, [%h];
    istypep.texref %p0, %h;
    istypep.surfref %p1, %h;
    istypep.samplerref %p2, how;
    selp.b32 %r4, 1, 0, %p0; selp.b32 %r5, 1, 0, %p1; selp.b32 %r6, 1, 0, %p2;
    mov.f32 %x, 0f3f800000;
    tex.2d.v4.f32.f32 %v, [picture, {%x, 0f00000000}];
    st.global.v4.u32 [%rd0], {%r0, %r1, %r2, %r3};
    st.global.v2.u32 [%rd0+16], {%r4, %r5};
    st.global.u32 [%rd0+24], %r6;
    st.global.f32 [%rd0+28], %v.x;
    ret;
}
";

/// Named references are variables of the module, which hold handles.
#[test]
fn references_hold_handles() {
    let program = Program::parse(REFERENCES.as_bytes()).unwrap();
    let sorts: Vec<_> = program.variables().iter().map(|v| (v.name.as_str(), v.opaque, v.size)).collect();
    use ptx::Opaque::{Sampler, Surface, Texture};
    assert_eq!(sorts, [("picture", Some(Texture), 8), ("board", Some(Surface), 8), ("how", Some(Sampler), 8)]);
    let symbols = |name: &str| match name {
        "picture" => Some(BASE + 64),
        "board" => Some(BASE + 72),
        "how" => Some(BASE + 80),
        _ => None,
    };
    let kernel = Arc::new(program.lower(0, &symbols).unwrap());
    let image = |base| texture::Image::array(texture::Shape::D2, texture::Format::F32, 1, base, [5, 3, 1], 1);
    let texture = texture::Descriptor { image: image(BASE + 512), sampler: Some(texture::Sampler::default()) };
    let surface = texture::Descriptor { image: image(BASE + 512), sampler: None };
    let mut memory = vec![0; 64 << 10];
    memory[64..72].copy_from_slice(&(BASE + 128).to_le_bytes());
    memory[72..80].copy_from_slice(&(BASE + 256).to_le_bytes());
    memory[128..256].copy_from_slice(&texture.encode());
    memory[256..384].copy_from_slice(&surface.encode());
    memory[516..520].copy_from_slice(&7.5_f32.to_le_bytes());
    let launch = launch(&[BASE, BASE + 128]);
    interpret(&kernel, &launch, BASE, &mut memory).unwrap();
    let words: Vec<u32> = memory[..32].chunks(4).map(|w| u32::from_le_bytes(w.try_into().unwrap())).collect();
    assert_eq!(words, [5, 3, 5, 3, 1, 0, 1, 7.5_f32.to_bits()]);
}

/// A handle that stands for nothing, or for something else, is an illegal address; what is misaligned is that.
#[test]
fn wrong_handles_are_illegal_addresses() {
    let form = forms().into_iter().find(|f| f.opcode == "tex.2d.v4.f32.f32").unwrap();
    let other = forms().into_iter().find(|f| f.opcode == "suld.b.2d.b32.clamp").unwrap();
    let program = Program::parse(form.text(Manner::Uniform).as_bytes()).unwrap();
    let kernel = Arc::new(program.lower(0, &|_| None).unwrap());
    let scene = scene(&mut Random(5), &other, BASE, true);
    assert!(matches!(other.access, Access::Load { .. }));
    for handle in [scene.params[2], scene.params[2] + 8, BASE + (1 << 32), 0, !63, BASE] {
        let mut memory = scene.memory.clone();
        let params = [scene.params[0], scene.params[1], handle];
        let end = interpret(&kernel, &launch(&params), BASE, &mut memory);
        let Err(Exception::Access { address, access: ptx::launch::Access::Read, .. }) = end else {
            panic!("{handle:#x}: {end:?}")
        };
        assert_eq!(address, handle);
    }
}

#[test]
fn what_there_is_not_is_refused() {
    let refused = |instruction: &str| {
        let text = format!(
            ".version 8.0\n.target sm_75\n.address_size 64\n.global .texref t; .global .surfref s; .global .samplerref m;\n\
             .visible .entry k() {{ .reg .b64 %rd0; .reg .b32 %r<8>; .reg .f32 %f<8>; .reg .b16 %h<4>; .reg .pred %p;\n{instruction}\nret; }}"
        );
        let program = Program::parse(text.as_bytes()).unwrap();
        program.lower(0, &|_| Some(0x1000)).expect_err(instruction).to_string()
    };
    for (instruction, why) in [
        ("tex.2dms.v4.f32.s32 {%f0,%f1,%f2,%f3}, [t, {%r0,%r1,%r2,%r3}];", "several samples a texel are not supported"),
        ("tex.2d.v4.f32.f32 {%f0,%f1,%f2,%f3}, [t, m, {%f0,%f1}];", "samplers apart"),
        ("tex.2d.v4.f32.f32 {%f0,%f1,%f2,%f3}, [m, {%f0,%f1}];", "samplers apart"),
        ("tex.2d.v4.f32.f32 {%f0,%f1,%f2,%f3}, [t, {%f0,%f1}], %f4;", "depth textures are not supported"),
        ("tex.2d.v4.f32.f32 {%f0,%f1,%f2,%f3}, [s, {%f0,%f1}];", "a reference of another sort"),
        ("tex.2d.v4.f32.f32 {%f0,%f1,%f2,%f3}, [%f0, {%f0,%f1}];", "wrong type"),
        ("tex.2d.v4.f32.f32 {%f0,%f1,%f2,%f3}, [t, {%f0}];", "another length"),
        ("tex.2d.v4.f32.f32 {%f0,%f1,%f2}, [t, {%f0,%f1}];", "instruction's length"),
        ("tex.2d.v4.f64.f32 {%f0,%f1,%f2,%f3}, [t, {%f0,%f1}];", "of these types"),
        ("tex.cube.v4.f32.s32 {%f0,%f1,%f2,%f3}, [t, {%r0,%r1,%r2,%r3}];", "of this form"),
        ("tex.v4.f32.f32 {%f0,%f1,%f2,%f3}, [t, {%f0}];", "lacks its geometry"),
        ("tld4.2d.v4.f32.f32 {%f0,%f1,%f2,%f3}, [t, {%f0,%f1}];", "lacks its component"),
        ("tld4.r.3d.v4.f32.f32 {%f0,%f1,%f2,%f3}, [t, {%f0,%f1,%f2}];", "of this form"),
        ("suld.p.2d.v4.b32.trap {%r0,%r1,%r2,%r3}, [s, {%r0,%r1}];", "suld.p"),
        ("suld.b.cube.b32.trap %r0, [s, {%r0,%r1,%r2,%r3}];", "of this form"),
        ("suld.b.2d.v4.b64.trap {%rd0,%rd0,%rd0,%rd0}, [s, {%r0,%r1}];", "of this form"),
        ("suld.2d.b32.trap %r0, [s, {%r0,%r1}];", "lacks .b or .p"),
        ("sust.b.2d.b32.trap [s, {%r0,%r1}], {%r0,%r1};", "instruction's length"),
        ("sust.p.2d.b16.trap [s, {%r0,%r1}], %h0;", "is of .b32"),
        ("sured.b.add.2d.s64.trap [s, {%r0,%r1}], %rd0;", "no reduction of this type"),
        ("txq.force_unnormalized_coords.b32 %r0, [m];", "samplers apart"),
        ("txq.level.array_size.b32 %r0, [t], %r1;", "of this form"),
        ("suq.filter_mode.b32 %r0, [s];", "nothing that can be asked"),
        ("ld.global.u64 %rd0, [t];", "references as memory"),
    ] {
        let error = refused(instruction);
        assert!(error.contains(why), "{instruction}: {error}");
    }
}
