//! Kernels of one texture or surface instruction, and memory with images that they access.
//!
//! Each thread takes its handle and its operands from the kernel's input, and leaves the results in its output: a word of 64
//! bits each, operand after operand, thread after thread.

use std::fmt::Write;

use texture::{
    Access, AddressMode, Boundary, Descriptor, Filter, Format, Geometry, Image, Layout, Memory, Mip, Object, Query,
    Reduction, Sampler, Shape,
};

/// Threads of a kernel: more than a warp, and no multiple of one.
pub const THREADS: usize = 40;
/// Most words of a thread's input: the handle, and operands.
pub const INPUTS: usize = 1 + texture::MAX_SOURCES;
/// Most words of a thread's output: results, and a predicate.
pub const OUTPUTS: usize = 5;

/// An instruction.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Form {
    /// Its name in PTX.
    pub opcode: String,
    /// What it does.
    pub access: Access,
    /// Results of 32 bits are rounded to halves: 4 of them, or 2 packed pairs.
    pub halves: usize,
}

/// Where a kernel's handle comes from, and who executes its instruction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Manner {
    /// One handle for all threads, a parameter.
    Uniform,
    /// Each thread has its own.
    Own,
    /// Every third thread does not execute it.
    Guarded,
    /// Every third thread goes around it.
    Branched,
}

const GEOMETRIES: [(Geometry, &str); 7] = [
    (Geometry::D1, "1d"),
    (Geometry::D2, "2d"),
    (Geometry::D3, "3d"),
    (Geometry::A1, "a1d"),
    (Geometry::A2, "a2d"),
    (Geometry::Cube, "cube"),
    (Geometry::ACube, "acube"),
];

/// All instructions that the engines know.
#[must_use]
pub fn forms() -> Vec<Form> {
    let mut forms = Vec::new();
    let mut add = |opcode: String, access: Access, halves: usize| {
        if access.is_valid() {
            forms.push(Form { opcode, access, halves });
        }
    };
    for (geometry, name) in GEOMETRIES {
        for (mip, mode) in [(Mip::Base, ""), (Mip::Base, ".base"), (Mip::Level, ".level"), (Mip::Gradient, ".grad")] {
            for (integer, ctype) in [(false, "f32"), (true, "s32")] {
                for offset in [false, true] {
                    let access = Access::Sample { geometry, integer, mip, offset };
                    for ty in ["f32", "u32", "s32"] {
                        add(format!("tex{mode}.{name}.v4.{ty}.{ctype}"), access, 0);
                    }
                    add(format!("tex{mode}.{name}.v4.f16.{ctype}"), access, 4);
                    add(format!("tex{mode}.{name}.v2.f16x2.{ctype}"), access, 2);
                }
            }
        }
        for (component, letter) in [(0, "r"), (1, "g"), (2, "b"), (3, "a")] {
            for offset in [false, true] {
                add(format!("tld4.{letter}.{name}.v4.f32.f32"), Access::Gather { geometry, component, offset }, 0);
            }
        }
        for (boundary, edge) in
            [(Boundary::Trap, ".trap"), (Boundary::Clamp, ".clamp"), (Boundary::Zero, ".zero"), (Boundary::Trap, "")]
        {
            for (bytes, ty) in [(1, "b8"), (2, "b16"), (4, "b32"), (8, "b64")] {
                for (count, vector) in [(1, ""), (2, ".v2"), (4, ".v4")] {
                    add(
                        format!("suld.b.{name}{vector}.{ty}{edge}"),
                        Access::Load { geometry, bytes, count, boundary },
                        0,
                    );
                    add(
                        format!("sust.b.{name}{vector}.{ty}{edge}"),
                        Access::Store { geometry, bytes, count, boundary },
                        0,
                    );
                }
            }
            for (count, vector) in [(1, ""), (2, ".v2"), (4, ".v4")] {
                add(
                    format!("sust.p.{name}{vector}.b32{edge}"),
                    Access::StoreFormatted { geometry, count, boundary },
                    0,
                );
            }
            for (op, what, types) in [
                (Reduction::Add, "add", "u32 s32 u64"),
                (Reduction::Min, "min", "u32 s32 u64 s64"),
                (Reduction::Max, "max", "u32 s32 u64 s64"),
                (Reduction::And, "and", "b32"),
                (Reduction::Or, "or", "b32"),
            ] {
                for ty in types.split(' ') {
                    let (bytes, signed) = (if ty.ends_with("64") { 8 } else { 4 }, ty.starts_with('s'));
                    let access = Access::Reduce { op, geometry, bytes, signed, formatted: false, boundary };
                    add(format!("sured.b.{what}.{name}.{ty}{edge}"), access, 0);
                }
                let access = Access::Reduce { op, geometry, bytes: 4, signed: false, formatted: true, boundary };
                add(format!("sured.p.{what}.{name}.b32{edge}"), access, 0);
            }
        }
    }
    let asked = [
        (Query::Width, "width"),
        (Query::Height, "height"),
        (Query::Depth, "depth"),
        (Query::ChannelDataType, "channel_data_type"),
        (Query::ChannelOrder, "channel_order"),
        (Query::ArraySize, "array_size"),
        (Query::MemoryLayout, "memory_layout"),
        (Query::NormalizedCoords, "normalized_coords"),
        (Query::NumMipmapLevels, "num_mipmap_levels"),
        (Query::NumSamples, "num_samples"),
        (Query::FilterMode, "filter_mode"),
        (Query::AddrMode(0), "addr_mode_0"),
        (Query::AddrMode(1), "addr_mode_1"),
        (Query::AddrMode(2), "addr_mode_2"),
    ];
    for (i, (what, name)) in asked.into_iter().enumerate() {
        add(format!("txq.{name}.b32"), Access::Query { what, level: false }, 0);
        add(format!("txq.level.{name}.b32"), Access::Query { what, level: true }, 0);
        if i < 7 {
            add(format!("suq.{name}.b32"), Access::Query { what, level: false }, 0);
        }
    }
    forms
}

fn registers(prefix: &str, count: usize) -> String {
    let names: Vec<String> = (0..count).map(|i| format!("%{prefix}{i}")).collect();
    format!("{{{}}}", names.join(", "))
}

impl Form {
    /// The operands behind the handle, by their lengths in words: layer and coordinates; level; gradients; offsets; values.
    fn lists(&self) -> Vec<usize> {
        let place = |geometry: Geometry| usize::from(geometry.layered()) + geometry.coordinates();
        match self.access {
            Access::Sample { geometry, mip, offset, .. } => {
                let n = geometry.coordinates();
                let mut lists = vec![place(geometry)];
                match mip {
                    Mip::Base => {}
                    Mip::Level => lists.push(1),
                    Mip::Gradient => lists.extend([n, n]),
                }
                lists.extend(offset.then_some(n));
                lists
            }
            Access::Gather { geometry, offset, .. } => {
                [Some(place(geometry)), offset.then_some(geometry.coordinates())].into_iter().flatten().collect()
            }
            Access::Query { level, .. } => {
                if level {
                    vec![1]
                } else {
                    vec![]
                }
            }
            Access::Load { geometry, .. } => vec![place(geometry)],
            Access::Store { geometry, count, .. } | Access::StoreFormatted { geometry, count, .. } => {
                vec![place(geometry), count.into()]
            }
            Access::Reduce { geometry, .. } => vec![place(geometry), 1],
        }
    }

    /// The class of a value stored, or of a result.
    fn class(bytes: u8) -> &'static str {
        match bytes {
            1 | 2 => "b16",
            4 => "b32",
            _ => "b64",
        }
    }

    /// Does the instruction have a predicate that says whether data is resident?
    fn has_predicate(&self) -> bool {
        self.access.is_texture()
    }

    /// A kernel `k(in, out, handle)`.
    #[must_use]
    pub fn text(&self, manner: Manner) -> String {
        let (words, values, value_bytes) = self.access.sources();
        let (results, result_bytes) = self.access.results();
        let value_class = Form::class(value_bytes);
        let (result_count, result_class) = match self.halves {
            0 => (results, Form::class(result_bytes)),
            4 => (4, "b16"),
            _ => (2, "b32"),
        };
        let mut text = format!(
            ".version 9.0\n.target sm_120\n.address_size 64\n\
             .visible .entry k(.param .u64 in, .param .u64 out, .param .u64 handle) {{\n\
             .reg .b32 %tid, %rest; .reg .b64 %in, %out, %at, %h; .reg .pred %p, %q;\n\
             .reg .b32 %a<{}>; .reg .{value_class} %v<{}>; .reg .{result_class} %d<{}>;\n\
             ld.param.u64 %in, [in]; ld.param.u64 %out, [out]; ld.param.u64 %h, [handle];\n\
             mov.u32 %tid, %tid.x; mul.wide.u32 %at, %tid, 8; add.s64 %in, %in, %at; add.s64 %out, %out, %at;\n\
             rem.u32 %rest, %tid, 3; setp.ne.u32 %p, %rest, 1; setp.ne.u32 %q, %rest, %rest;\n",
            words + 1,
            values + 1,
            result_count + 1,
        );
        let row = |i: usize| 8 * THREADS * i;
        let mut line = |what: std::fmt::Arguments<'_>| text.write_fmt(what).unwrap_or_default();
        if manner != Manner::Uniform {
            line(format_args!("ld.global.u64 %h, [%in];\n"));
        }
        for i in 0..words {
            line(format_args!("ld.global.b32 %a{i}, [%in+{}];\n", row(1 + i)));
        }
        for i in 0..values {
            line(format_args!("ld.global.{value_class} %v{i}, [%in+{}];\n", row(1 + words + i)));
        }
        for i in 0..result_count {
            line(format_args!("mov.{result_class} %d{i}, {};\n", 77 + i));
        }
        let mut operands = Vec::new();
        let mut first = 0;
        for (i, count) in self.lists().into_iter().enumerate() {
            let prefix = if first >= words { "v" } else { "a" };
            let from = if first >= words { first - words } else { first };
            let mut names: Vec<String> = (from..from + count).map(|i| format!("%{prefix}{i}")).collect();
            first += count;
            // Vectors of three are padded, as compilers do.
            if i == 0 && count == 3 {
                names.push(names[2].clone());
            }
            let scalar = i > 0 && count == 1 && !(self.access.is_texture() && self.is_offset(i));
            operands.push(if scalar { names.join(", ") } else { format!("{{{}}}", names.join(", ")) });
        }
        let is_query = matches!(self.access, Access::Query { .. });
        let place = if is_query { "[%h]".to_owned() } else { format!("[%h, {}]", operands.remove(0)) };
        let mut all = vec![place];
        if result_count > 0 {
            let single = result_count == 1;
            let list = if single { "%d0".to_owned() } else { registers("d", result_count) };
            all.insert(0, if self.has_predicate() { format!("{list}|%q") } else { list });
        }
        all.extend(operands);
        match manner {
            Manner::Uniform | Manner::Own => {}
            Manner::Guarded => line(format_args!("@%p ")),
            Manner::Branched => line(format_args!("@!%p bra AROUND;\n")),
        }
        line(format_args!("{} {};\n", self.opcode, all.join(", ")));
        line(format_args!("AROUND:\n"));
        for i in 0..result_count {
            line(format_args!("st.global.{result_class} [%out+{}], %d{i};\n", row(i)));
        }
        line(format_args!("selp.b32 %rest, 1, 0, %q;\nst.global.b32 [%out+{}], %rest;\nret;\n}}\n", row(result_count)));
        text
    }

    /// Is list `i` of the operands of a texture its offset?
    fn is_offset(&self, i: usize) -> bool {
        let offset = matches!(self.access, Access::Sample { offset: true, .. } | Access::Gather { offset: true, .. });
        offset && i + 1 == self.lists().len()
    }

    /// A thread's operands, mostly near the image.
    pub fn operands(&self, random: &mut Random, descriptor: &Descriptor) -> Vec<u64> {
        let (words, values, _) = self.access.sources();
        let [width, height, depth] = descriptor.image.extent;
        let texel = descriptor.image.texel();
        let normalized = descriptor.sampler.is_some_and(|s| s.normalized);
        let integer = match self.access {
            Access::Sample { integer, .. } => integer,
            Access::Gather { .. } => false,
            _ => true,
        };
        let bytes = match self.access {
            Access::Load { bytes, count, .. } | Access::Store { bytes, count, .. } => u32::from(bytes * count),
            Access::Reduce { bytes, formatted: false, .. } => bytes.into(),
            _ => 1,
        };
        let row = if bytes > 1 || matches!(self.access, Access::Load { .. } | Access::Store { .. }) {
            width * texel
        } else {
            width
        };
        let geometry = match self.access {
            Access::Sample { geometry, .. }
            | Access::Gather { geometry, .. }
            | Access::Load { geometry, .. }
            | Access::Store { geometry, .. }
            | Access::StoreFormatted { geometry, .. }
            | Access::Reduce { geometry, .. } => Some(geometry),
            Access::Query { .. } => None,
        };
        let layered = geometry.is_some_and(Geometry::layered);
        let sizes = [row, height, depth];
        let number = |random: &mut Random, i: usize| {
            if layered && i == 0 {
                let beyond = if integer && random.one_in(8) { 2 } else { 0 };
                return random.below(u64::from(depth) + beyond);
            }
            let axis = i - usize::from(layered);
            let places = geometry.map_or(0, Geometry::coordinates);
            if axis >= places {
                // Levels, gradients, offsets: small numbers of either sort.
                let float = random.below(400) as f32 / 64.0 - 2.0;
                return if integer || random.one_in(5) {
                    random.below(16).wrapping_sub(8) & 0xffff_ffff
                } else {
                    float.to_bits().into()
                };
            }
            let size = u64::from(sizes[axis.min(2)]);
            if integer {
                let unit = if axis == 0 { u64::from(bytes) } else { 1 };
                let outside = random.one_in(24);
                let index = random.below((size / unit).max(1)) * unit;
                return if outside { random.below(3 * size + 9).wrapping_sub(size) & 0xffff_ffff } else { index };
            }
            if random.one_in(30) {
                let odd = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 1e30, -1e30, -0.0, 1e-30];
                return odd[random.below(7) as usize].to_bits().into();
            }
            let scale = if normalized || geometry.is_some_and(Geometry::is_cube) { 1.0 } else { size as f32 };
            let at = (random.below(4096) as f32 / 1024.0 - 1.5) * scale;
            (if random.one_in(4) { (at * 2.0).round() / 2.0 } else { at }).to_bits().into()
        };
        let mut list: Vec<u64> = (0..words).map(|i| number(random, i)).collect();
        list.extend((0..values).map(|_| random.word()));
        list
    }
}

/// Numbers from a seed.
#[derive(Clone, Debug)]
pub struct Random(pub u64);

impl Random {
    /// Any number.
    pub fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    /// One below `n`.
    pub fn below(&mut self, n: u64) -> u64 {
        self.word() % n
    }

    /// Once in `n` times.
    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    fn of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len() as u64) as usize]
    }
}

/// A small image whose shape is the access's, or now and then another, and how it is read if it is a texture.
pub fn descriptor(random: &mut Random, access: &Access, base: u64) -> Descriptor {
    let shapes: &[Shape] = match *access {
        _ if random.one_in(12) => &Shape::ALL,
        Access::Query { .. } => &Shape::ALL,
        Access::Sample { geometry, .. }
        | Access::Gather { geometry, .. }
        | Access::Load { geometry, .. }
        | Access::Store { geometry, .. }
        | Access::StoreFormatted { geometry, .. }
        | Access::Reduce { geometry, .. } => match geometry {
            Geometry::D1 => &[Shape::D1, Shape::Linear],
            Geometry::D2 => &[Shape::D2, Shape::Pitched],
            Geometry::D3 => &[Shape::D3],
            Geometry::A1 => &[Shape::D1Layered],
            Geometry::A2 => &[Shape::D2Layered, Shape::CubeLayered],
            Geometry::Cube => &[Shape::Cube],
            Geometry::ACube => &[Shape::CubeLayered],
        },
    };
    let reduces = matches!(access, Access::Reduce { formatted: true, .. });
    let formats: &[Format] = if reduces { &[Format::U32, Format::S32] } else { &Format::ALL };
    let (shape, format) = (random.of(shapes), random.of(formats));
    let channels = if reduces { 1 } else { random.of(&[1, 2, 4]) };
    let mut size = |most: u64| 1 + random.below(most) as u32;
    let mut extent = [size(20), size(12), size(4)];
    match shape {
        Shape::Linear | Shape::D1 => extent[1..].fill(1),
        Shape::Pitched | Shape::D2 => extent[2] = 1,
        Shape::D1Layered => extent[1] = 1,
        Shape::Cube => extent = [extent[0], extent[0], 6],
        Shape::CubeLayered => extent = [extent[0], extent[0], 6 * extent[2]],
        Shape::D3 | Shape::D2Layered => {}
    }
    let levels = 1 + random.below(shape.most_levels(extent).into()) as u8;
    let mut image = Image::array(shape, format, channels, base, extent, levels);
    if shape == Shape::Pitched {
        image.pitch = (extent[0] + random.below(4) as u32) * image.texel();
    }
    let texture = access.is_texture() || matches!(access, Access::Query { .. }) && random.one_in(2);
    let [filter, mip_filter] =
        [(); 2].map(|()| if format.is_integer() { Filter::Point } else { random.of(&[Filter::Point, Filter::Linear]) });
    let sampler = Sampler {
        address: [0; 3].map(|_| random.of(&AddressMode::ALL)),
        filter,
        mip_filter,
        normalized: random.one_in(2),
        srgb: format == Format::Unorm8 && random.one_in(3),
        seamless: random.one_in(2),
        max_anisotropy: 0,
        mip_bias: random.of(&[0.0, 0.5, -1.0]),
        level_clamp: random.of(&[[0.0, 20.0], [0.5, 1.5]]),
        border: [0; 4].map(|_| (random.below(64) as f32 / 8.0).to_bits()),
    };
    Descriptor { image, sampler: texture.then_some(sampler) }
}

/// Bytes that an image takes.
#[must_use]
pub fn image_bytes(image: &Image) -> usize {
    let array = Layout::new(image.shape, image.texel(), image.extent, image.levels).map(|layout| layout.bytes());
    let row = u64::from(image.pitch.max(image.extent[0] * image.texel()));
    array.unwrap_or(row * u64::from(image.extent[1])) as usize
}

/// Memory of one launch.
#[derive(Clone, Debug)]
pub struct Scene {
    /// Its bytes: input, output, descriptors, images.
    pub memory: Vec<u8>,
    /// Parameters of the kernel: addresses of input and output, and the handle of the first thread.
    pub params: [u64; 3],
    /// Each thread's operands.
    pub operands: Vec<Vec<u64>>,
    /// Each thread's handle.
    pub handles: Vec<u64>,
    /// What the handles stand for.
    pub descriptors: Vec<Descriptor>,
}

/// Images in one scene.
const IMAGES: usize = 3;

/// Memory at `base` for a launch of `form`'s kernel; with `uniform` all threads have one handle.
pub fn scene(random: &mut Random, form: &Form, base: u64, uniform: bool) -> Scene {
    let input = base;
    let output = input + (8 * THREADS * INPUTS) as u64;
    let table = (output + (8 * THREADS * OUTPUTS) as u64).next_multiple_of(Descriptor::ALIGN);
    let mut end = (table + (IMAGES * Descriptor::BYTES) as u64).next_multiple_of(Layout::ALIGN);
    let mut descriptors = Vec::new();
    for _ in 0..IMAGES {
        let descriptor = descriptor(random, &form.access, end);
        end = (end + image_bytes(&descriptor.image) as u64).next_multiple_of(Layout::ALIGN);
        descriptors.push(descriptor);
    }
    let mut memory: Vec<u8> = (0..(end - base).next_multiple_of(64 << 10)).map(|_| random.word() as u8).collect();
    for (i, descriptor) in descriptors.iter().enumerate() {
        let at = (table - base) as usize + i * Descriptor::BYTES;
        memory[at..at + Descriptor::BYTES].copy_from_slice(&descriptor.encode());
    }
    let first = random.below(IMAGES as u64) as usize;
    let (mut handles, mut operands) = (Vec::new(), Vec::new());
    for thread in 0..THREADS {
        let which = if uniform || random.one_in(2) { first } else { random.below(IMAGES as u64) as usize };
        let handle = table + (which * Descriptor::BYTES) as u64;
        let list = form.operands(random, &descriptors[which]);
        for (i, word) in std::iter::once(&handle).chain(&list).enumerate() {
            let at = 8 * (i * THREADS + thread);
            memory[at..at + 8].copy_from_slice(&word.to_le_bytes());
        }
        handles.push(handle);
        operands.push(list);
    }
    let handle = table + (first * Descriptor::BYTES) as u64;
    Scene { memory, params: [input, output, handle], operands, handles, descriptors }
}

/// Any bytes: a descriptor, a form, and operands. What is a descriptor says where its image is, and no access leaves that.
///
/// # Panics
/// If one does.
pub fn fuzz(data: &[u8]) {
    let Some((head, rest)) = data.split_first_chunk::<{ Descriptor::BYTES }>() else { return };
    let mut bytes = *head;
    // As it is, or as what it nearly is: random bytes have no magic.
    bytes[..8].copy_from_slice(&MAGIC.with(|magic| *magic));
    let Ok(object) = Object::decode(&bytes) else { return };
    let image = object.image();
    // Padding behind the last row may lie beyond the last address.
    let mut memory = Bounds { begin: image.base, end: image.base.saturating_add(image_bytes(image) as u64) };
    let mut words = rest.chunks(8).map(|chunk| chunk.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte)));
    FORMS.with(|forms| {
        for _ in 0..8 {
            let form = &forms[words.next().unwrap_or(0) as usize % forms.len()];
            let (first, values, _) = form.access.sources();
            let sources: Vec<u64> = (0..first + values).map(|_| words.next().unwrap_or(0)).collect();
            // Refused or not is all the same.
            let _ = form.access.perform(&object, &sources, &mut memory);
        }
    });
}

thread_local! {
    static FORMS: Vec<Form> = forms();
    /// With which descriptors begin.
    static MAGIC: [u8; 8] = {
        let image = Image::linear(Format::U8, 1, 0, 1);
        Descriptor { image, sampler: None }.encode()[..8].try_into().unwrap_or_default()
    };
}

/// Memory in which only an image may be touched.
struct Bounds {
    begin: u64,
    end: u64,
}

impl Bounds {
    fn check(&self, address: u64, bytes: u32) {
        let inside = address >= self.begin && address.checked_add(bytes.into()).is_some_and(|end| end <= self.end);
        assert!(inside && address.is_multiple_of(bytes.into()), "{bytes} bytes at {address:#x}");
    }
}

impl Memory for Bounds {
    type Fault = std::convert::Infallible;

    fn load(&mut self, address: u64, bytes: u32) -> Result<u128, Self::Fault> {
        self.check(address, bytes);
        Ok(u128::from(address).wrapping_mul(0x9e37_79b9_7f4a_7c15_9e37_79b9_7f4a_7c15))
    }

    fn store(&mut self, address: u64, bytes: u32, _value: u128) -> Result<(), Self::Fault> {
        self.check(address, bytes);
        Ok(())
    }

    fn update(&mut self, address: u64, bytes: u32, f: &mut dyn FnMut(u64) -> u64) -> Result<(), Self::Fault> {
        self.check(address, bytes);
        f(address);
        Ok(())
    }
}
