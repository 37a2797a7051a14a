//! Texture and surface instructions on machine code and on the interpreter: the same results, bit by bit.

#![expect(clippy::unwrap_used, reason = "tests")]

mod support;

use std::collections::HashSet;
use std::sync::Arc;

use ptx::launch::{Control, Exception, Launch, Step};
use ptx_jit::Batch;
use support::{grid_over, run};
use testgen::image::{Form, Manner, Random, Scene, THREADS, forms, scene};
use texture::{Filter, Format, Shape};

const BASE: u64 = 0x20_0000_0000;

fn launch(block: [u32; 3], params: &[u64]) -> Arc<Launch> {
    Arc::new(Launch { grid_id: 1, ..Launch::new([1; 3], block, params.iter().flat_map(|p| p.to_le_bytes()).collect()) })
}

/// How both engines end, and the memory that they leave.
fn agreed(form: &Form, manner: Manner, scene: &Scene, control: u32) -> Result<Vec<u8>, Exception> {
    let text = form.text(manner);
    let program = ptx::Program::parse(text.as_bytes()).unwrap();
    let kernel = Arc::new(program.lower(0, &|_| None).unwrap_or_else(|error| panic!("{error}\n{text}")));
    let launch = launch([THREADS as u32, 1, 1], &scene.params);
    let machine = &mut |k: &_, l: &_, base, bytes: &mut Vec<u8>| run(k, l, base, bytes, control);
    let outcome = testgen::compare(&kernel, &launch, BASE, &scene.memory, machine, &mut testgen::interpret);
    assert_eq!(outcome, Ok(()), "{manner:?} {:?}\n{text}", scene.descriptors);
    let mut memory = scene.memory.clone();
    testgen::interpret(&kernel, &launch, BASE, &mut memory).map(|()| memory)
}

#[test]
fn every_form_agrees() {
    let (mut ended, mut raised) = (0, 0);
    let mut seen = HashSet::new();
    // What differs in the text alone is the front end's business.
    for (number, form) in forms().into_iter().filter(|f| seen.insert((f.access, f.halves))).enumerate() {
        let manner = [Manner::Uniform, Manner::Own, Manner::Guarded, Manner::Branched][number * 7 / 5 % 4];
        let random = &mut Random(number as u64);
        let scene = scene(random, &form, BASE, manner == Manner::Uniform);
        let control = if number % 5 == 0 { Control::PREEMPT } else { Control::RUN };
        match agreed(&form, manner, &scene, control) {
            Ok(_) => ended += 1,
            Err(_) => raised += 1,
        }
    }
    assert!(ended > 300 && raised > 50, "{ended} ended, {raised} did not");
}

/// What has code of its own: formats, modes and filters of two dimensions, and linear memory.
#[test]
fn usual_textures_agree() {
    let usual = [Format::F32, Format::U32, Format::S32, Format::U8, Format::Unorm8];
    for (opcode, wanted, filtered) in [("tex.2d.v4.f32.f32", 40, 80), ("tex.1d.v4.f32.s32", 10, 0)] {
        let form = forms().into_iter().find(|f| f.opcode == opcode).unwrap();
        let mut left = [wanted, filtered];
        for seed in 0.. {
            let scene = scene(&mut Random(seed), &form, BASE, true);
            let which = scene.handles.iter().position(|h| *h == scene.params[2]).unwrap();
            let first = scene.handles.iter().min().unwrap();
            let descriptor = scene.descriptors[((scene.handles[which] - first) / 128) as usize];
            let sampler = descriptor.sampler.unwrap();
            let is_filtered = usize::from(sampler.filter == Filter::Linear);
            let flat = matches!(descriptor.image.shape, Shape::D2 | Shape::Pitched | Shape::Linear);
            if flat && usual.contains(&descriptor.image.format) && left[is_filtered] > 0 {
                left[is_filtered] -= 1;
                assert!(agreed(&form, Manner::Uniform, &scene, Control::RUN).is_ok());
            }
            if left == [0, 0] {
                break;
            }
        }
    }
}

/// Texels inside images, and around their edges, at coordinates that go on from thread to thread, as those of pictures do.
#[test]
fn pictures_agree() {
    const TEXELS: u64 = BASE + 4096;
    const BYTES: usize = 1 << 17;
    const OUT: u64 = BASE + BYTES as u64 - 8192;
    let text = ".version 8.0\n.target sm_75\n.address_size 64\n\
                .visible .entry k(.param .u64 h, .param .u64 out, .param .f32 x, .param .f32 y, .param .f32 dx, .param .f32 dy) {\n\
                .reg .b64 %h, %o, %p; .reg .b32 %t, %v<4>; .reg .f32 %i, %x, %y, %dx, %dy;\n\
                ld.param.u64 %h, [h]; ld.param.u64 %o, [out]; ld.param.f32 %x, [x]; ld.param.f32 %y, [y];\n\
                ld.param.f32 %dx, [dx]; ld.param.f32 %dy, [dy]; mov.u32 %t, %tid.x; cvt.rn.f32.u32 %i, %t;\n\
                fma.rn.f32 %x, %i, %dx, %x; fma.rn.f32 %y, %i, %dy, %y;\n\
                tex.2d.v4.f32.f32 {%v0, %v1, %v2, %v3}, [%h, {%x, %y}];\n\
                mul.wide.u32 %p, %t, 16; add.s64 %p, %o, %p; st.global.v4.b32 [%p], {%v0, %v1, %v2, %v3}; ret; }";
    let kernel = Arc::new(ptx::Program::parse(text.as_bytes()).unwrap().lower(0, &|_| None).unwrap());
    let formats = [(Format::F32, 1), (Format::F32, 2), (Format::F32, 4), (Format::Unorm8, 1), (Format::Unorm8, 4)];
    let mut random = Random(7);
    for (format, channels) in formats {
        for size in [[1, 1], [9, 5], [64, 16], [300, 3]] {
            for mode in texture::AddressMode::ALL {
                for normalized in [false, true] {
                    let image = texture::Image::pitched(
                        format,
                        channels,
                        TEXELS,
                        size,
                        size[0] * texture_bytes(format, channels),
                    );
                    let sampler = texture::Sampler {
                        address: [mode; 3],
                        filter: Filter::Linear,
                        normalized,
                        ..texture::Sampler::default()
                    };
                    let mut memory: Vec<u8> = (0..BYTES / 4)
                        .flat_map(|_| (random.below(4096) as f32 / 64.0 - 9.0).to_bits().to_le_bytes())
                        .collect();
                    memory[..128].copy_from_slice(&texture::Descriptor { image, sampler: Some(sampler) }.encode());
                    // Inside but for the last few, or across an edge.
                    for from in [0.75, -3.0] {
                        let unit = |axis: usize| if normalized { 1.0 / size[axis] as f32 } else { 1.0 };
                        let (dx, dy) = ((size[0] as f32 - 1.0) / 60.0, (size[1] as f32 - 1.0) / 61.0);
                        let numbers = [from * unit(0), from * unit(1), dx * unit(0), dy * unit(1)];
                        let mut launch = Launch::clone(&launch([64, 1, 1], &[BASE, OUT]));
                        launch.params.extend(numbers.iter().flat_map(|x: &f32| x.to_bits().to_le_bytes()));
                        let launch = Arc::new(launch);
                        let (mut interpreted, mut machine) = (memory.clone(), memory.clone());
                        testgen::interpret(&kernel, &launch, BASE, &mut interpreted).unwrap();
                        run(&kernel, &launch, BASE, &mut machine, Control::RUN).unwrap();
                        assert!(
                            machine == interpreted,
                            "{format:?} x {channels}, {size:?}, {mode:?}, normalized {normalized}, from {from}"
                        );
                    }
                }
            }
        }
    }
}

fn texture_bytes(format: Format, channels: u8) -> u32 {
    texture::Image::array(Shape::D2, format, channels, 0, [1, 1, 1], 1).texel()
}

/// Accesses take long, and a kernel may have thousands of them without a loop of its own: each is a place where the worker is given back.
#[test]
fn accesses_give_the_worker_back() {
    const TEXELS: u64 = BASE + 4096;
    let mut memory = vec![0; 8192];
    let image = texture::Image::linear(Format::U32, 1, TEXELS, 64);
    let sampler = Some(texture::Sampler::default());
    memory[..128].copy_from_slice(&texture::Descriptor { image, sampler }.encode());
    memory[128..256].copy_from_slice(&texture::Descriptor { image, sampler: None }.encode());
    for (access, handle) in [
        ("tex.1d.v4.u32.s32 {%v0, %v1, %v2, %v3}, [%h, {%x}];", BASE),
        ("suld.b.1d.b32.zero %v0, [%h, {%x}];", BASE + 128),
        ("sust.b.1d.b32.zero [%h, {%x}], %x;", BASE + 128),
    ] {
        let given_back = |accesses: usize| {
            let text = format!(
                ".version 8.0\n.target sm_75\n.address_size 64\n.visible .entry k(.param .u64 h) {{\n\
                 .reg .b64 %h; .reg .b32 %x, %v<4>;\n\
                 ld.param.u64 %h, [h]; mov.u32 %x, %tid.x; shl.b32 %x, %x, 2;\n{} ret; }}",
                access.repeat(accesses)
            );
            let kernel = Arc::new(ptx::Program::parse(text.as_bytes()).unwrap().lower(0, &|_| None).unwrap());
            let (grid, _memory) = grid_over(
                ptx_jit::Form::default(),
                &kernel,
                &launch([32, 1, 1], &[handle]),
                BASE,
                &memory,
                Control::PREEMPT,
            );
            let mut batch = Batch::new(grid, 0..1);
            let mut given_back = 0;
            loop {
                match batch.resume() {
                    Step::Preempted => given_back += 1,
                    end => break assert_eq!(end, Step::Done, "{access}"),
                }
            }
            given_back
        };
        let (few, many) = (given_back(10), given_back(110));
        assert!(many - few >= 100, "{access}: {few} times, {many} times");
    }
}

/// Handles that stand for nothing, and images where there is no memory, end the CTA on both engines.
#[test]
fn what_is_not_there_is_a_fault() {
    for opcode in ["tex.2d.v4.f32.f32", "suld.b.2d.b32.clamp", "sust.b.2d.b32.clamp", "sured.p.add.2d.b32.clamp"] {
        let form = forms().into_iter().find(|f| f.opcode == opcode).unwrap();
        for case in 0..4 {
            let mut scene = scene(&mut Random(case + 40), &form, BASE, true);
            let at = (scene.params[2] - BASE) as usize;
            match case {
                0 => scene.params[2] += 64,
                1 => scene.params[2] = BASE + (1 << 33),
                2 => scene.memory[at + 9] = 0xff,
                // The base, far away.
                _ => scene.memory[at + 21] ^= 1,
            }
            let end = agreed(&form, Manner::Uniform, &scene, Control::RUN);
            assert!(matches!(end, Err(Exception::Access { .. })), "{opcode}, {case}: {end:?}");
        }
    }
}

/// Images that are said to be larger than the memory there is: what is there is read, and what is not is a fault at its address, whether the image
/// would lie in the window (behind the memory, the window of `run` goes on) or is larger than that.
#[test]
fn images_may_be_larger_than_memory() {
    const MEMORY: usize = 64 << 10;
    const TEXELS: u64 = BASE + 8192;
    let kernel = |fetch: &str| {
        let text = format!(
            ".version 8.0\n.target sm_75\n.address_size 64\n.visible .entry k(.param .u64 out, .param .u64 h, .param .u32 first) {{\n\
             .reg .b64 %out, %h, %at; .reg .b32 %t, %x, %v<4>; .reg .f32 %fx, %fy;\n\
             ld.param.u64 %out, [out]; ld.param.u64 %h, [h]; ld.param.u32 %x, [first];\n\
             mov.u32 %t, %tid.x; mul.wide.u32 %at, %t, 4; add.s64 %out, %out, %at;\n\
             {fetch} st.global.u32 [%out], %v0; ret; }}"
        );
        Arc::new(ptx::Program::parse(text.as_bytes()).unwrap().lower(0, &|_| None).unwrap())
    };
    let by_index = kernel("add.u32 %x, %x, %t; tex.1d.v4.u32.s32 {%v0, %v1, %v2, %v3}, [%h, {%x}];");
    let by_row = kernel(
        "cvt.rn.f32.u32 %fx, %t; cvt.rn.f32.u32 %fy, %x; tex.2d.v4.u32.f32 {%v0, %v1, %v2, %v3}, [%h, {%fx, %fy}];",
    );
    let mut memory = vec![0; MEMORY];
    for (word, i) in memory.chunks_exact_mut(4).zip(0_u32..) {
        word.copy_from_slice(&(i * 3).to_le_bytes());
    }
    let beyond = |byte: u64| Err(byte);
    let read = |byte: u64| Ok(byte);
    let last = MEMORY as u64 - 8192;
    for (kernel, texels, pitch, cases) in [
        // Texels, from where on lanes read, and where in the texture that is.
        (&by_index, 1 << 16, None, vec![(0, read(0)), (last as u32 / 4 - 32, read(last - 128))]),
        (&by_index, 1 << 16, None, vec![(last as u32 / 4, beyond(last)), (65_504, beyond(4 * 65_504))]),
        (&by_index, 1 << 28, None, vec![(0, read(0)), (last as u32 / 4 - 32, read(last - 128))]),
        (
            &by_index,
            1 << 28,
            None,
            vec![(last as u32 / 4, beyond(last)), ((1 << 28) - 32, beyond(4 * ((1 << 28) - 32)))],
        ),
        (
            &by_row,
            512,
            Some(256),
            vec![(0, read(0)), (223, read(223 * 256)), (224, beyond(last)), (511, beyond(511 * 256))],
        ),
        (&by_row, 65_000, Some(1024), vec![(55, read(55 * 1024)), (56, beyond(last)), (64_999, beyond(64_999 * 1024))]),
    ] {
        let image = match pitch {
            None => texture::Image::linear(Format::U32, 1, TEXELS, texels),
            Some(pitch) => texture::Image::pitched(Format::U32, 1, TEXELS, [64, texels], pitch),
        };
        let sampler = Some(texture::Sampler::default());
        memory[4096..4224].copy_from_slice(&texture::Descriptor { image, sampler }.encode());
        for (first, expected) in cases {
            let launch = launch([32, 1, 1], &[BASE, BASE + 4096, first.into()]);
            let (mut a, mut b) = (memory.clone(), memory.clone());
            let ends =
                [run(kernel, &launch, BASE, &mut a, Control::RUN), testgen::interpret(kernel, &launch, BASE, &mut b)];
            for (end, memory) in ends.into_iter().zip([a, b]) {
                match (expected, end) {
                    (Ok(byte), Ok(())) => {
                        let word = |i: usize| u32::from_le_bytes(memory[4 * i..][..4].try_into().unwrap());
                        let from = ((TEXELS - BASE + byte) / 4) as u32;
                        assert!((0..32).all(|t| word(t as usize) == (from + t) * 3), "{texels} {pitch:?} {first}");
                    }
                    (Err(byte), Err(Exception::Access { address, access: ptx::launch::Access::Read, .. })) => {
                        let lanes = TEXELS + byte..TEXELS + byte + 128;
                        assert!(lanes.contains(&address), "{texels} {pitch:?} {first}: {address:#x}, not {lanes:x?}");
                    }
                    (expected, end) => panic!("{texels} {pitch:?} {first}: {end:?}, not {expected:x?}"),
                }
            }
        }
    }
}

/// A surface is written by some lanes and read by others of the same warp: what is behind the store sees it. Values that are
/// alive around that make chunks smaller than a warp.
#[test]
fn lanes_see_what_others_wrote_before() {
    let text = ".version 8.0\n.target sm_75\n.address_size 64\n.visible .entry k(.param .u64 out, .param .u64 h) {\n\
        .reg .b64 %out, %h, %at; .reg .b32 %t, %x, %y, %n, %v<6>;\n\
        ld.param.u64 %out, [out]; ld.param.u64 %h, [h]; mov.u32 %t, %tid.x; mul.wide.u32 %at, %t, 4; add.s64 %out, %out, %at;\n\
        ld.global.u32 %v0, [%out+4096]; ld.global.u32 %v1, [%out+4224]; ld.global.u32 %v2, [%out+4352];\n\
        ld.global.u32 %v3, [%out+4480]; ld.global.u32 %v4, [%out+4608]; ld.global.u32 %v5, [%out+4736];\n\
        shl.b32 %x, %t, 2; mul.lo.u32 %y, %t, 3; sust.b.1d.b32.trap [%h, {%x}], %y;\n\
        xor.b32 %x, %x, 124; suld.b.1d.b32.trap %n, [%h, {%x}];\n\
        add.u32 %n, %n, %v0; add.u32 %n, %n, %v1; add.u32 %n, %n, %v2; add.u32 %n, %n, %v3;\n\
        add.u32 %n, %n, %v4; add.u32 %n, %n, %v5; st.global.u32 [%out], %n; ret; }";
    let program = ptx::Program::parse(text.as_bytes()).unwrap();
    let kernel = Arc::new(program.lower(0, &|_| None).unwrap());
    let image = texture::Image::array(Shape::D1, Format::U32, 1, BASE + 2048, [32, 1, 1], 1);
    let mut memory = vec![0; 64 << 10];
    memory[1024..1152].copy_from_slice(&texture::Descriptor { image, sampler: None }.encode());
    let launch = launch([32, 1, 1], &[BASE, BASE + 1024]);
    run(&kernel, &launch, BASE, &mut memory, Control::RUN).unwrap();
    let words: Vec<u32> = memory[..128].chunks(4).map(|w| u32::from_le_bytes(w.try_into().unwrap())).collect();
    let wanted: Vec<u32> = (0..32).map(|t| (t ^ 31) * 3).collect();
    assert_eq!(words, wanted);
}
