//! Exported functions implemented by `calls::texture_reference`. Made by `cargo xtask gen` from `crates/cuda_abi/functions.txt`.

use cuda_abi::{
    CUDA_ARRAY_DESCRIPTOR, CUaddress_mode, CUarray, CUarray_format, CUdeviceptr, CUfilter_mode, CUfunction,
    CUmipmappedArray, CUmodule, CUresult, CUsurfref, CUtexref,
};

use crate::calls::texture_reference;
use crate::decode::{In, Out, Text};
use crate::entry::Entry;

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuModuleGetSurfRef(p_surf_ref: Out<CUsurfref>, hmod: CUmodule, name: Text) -> CUresult {
    static ENTRY: Entry = Entry::new("cuModuleGetSurfRef");
    ENTRY.call(|driver| texture_reference::module_get_surf_ref(driver, p_surf_ref, hmod, name))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuModuleGetTexRef(p_tex_ref: Out<CUtexref>, hmod: CUmodule, name: Text) -> CUresult {
    static ENTRY: Entry = Entry::new("cuModuleGetTexRef");
    ENTRY.call(|driver| texture_reference::module_get_tex_ref(driver, p_tex_ref, hmod, name))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuParamSetTexRef(hfunc: CUfunction, texunit: i32, h_tex_ref: CUtexref) -> CUresult {
    static ENTRY: Entry = Entry::new("cuParamSetTexRef");
    ENTRY.call(|driver| texture_reference::param_set_tex_ref(driver, hfunc, texunit, h_tex_ref))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuSurfRefGetArray(ph_array: Out<CUarray>, h_surf_ref: CUsurfref) -> CUresult {
    static ENTRY: Entry = Entry::new("cuSurfRefGetArray");
    ENTRY.call(|driver| texture_reference::surf_ref_get_array(driver, ph_array, h_surf_ref))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuSurfRefSetArray(h_surf_ref: CUsurfref, h_array: CUarray, flags: u32) -> CUresult {
    static ENTRY: Entry = Entry::new("cuSurfRefSetArray");
    ENTRY.call(|driver| texture_reference::surf_ref_set_array(driver, h_surf_ref, h_array, flags))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuTexRefCreate(p_tex_ref: Out<CUtexref>) -> CUresult {
    static ENTRY: Entry = Entry::new("cuTexRefCreate");
    ENTRY.call(|driver| texture_reference::tex_ref_create(driver, p_tex_ref))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuTexRefDestroy(h_tex_ref: CUtexref) -> CUresult {
    static ENTRY: Entry = Entry::new("cuTexRefDestroy");
    ENTRY.call(|driver| texture_reference::tex_ref_destroy(driver, h_tex_ref))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuTexRefGetAddress_v2(pdptr: Out<CUdeviceptr>, h_tex_ref: CUtexref) -> CUresult {
    static ENTRY: Entry = Entry::new("cuTexRefGetAddress_v2");
    ENTRY.call(|driver| texture_reference::tex_ref_get_address(driver, pdptr, h_tex_ref))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuTexRefGetAddressMode(pam: Out<CUaddress_mode>, h_tex_ref: CUtexref, dim: i32) -> CUresult {
    static ENTRY: Entry = Entry::new("cuTexRefGetAddressMode");
    ENTRY.call(|driver| texture_reference::tex_ref_get_address_mode(driver, pam, h_tex_ref, dim))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuTexRefGetArray(ph_array: Out<CUarray>, h_tex_ref: CUtexref) -> CUresult {
    static ENTRY: Entry = Entry::new("cuTexRefGetArray");
    ENTRY.call(|driver| texture_reference::tex_ref_get_array(driver, ph_array, h_tex_ref))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuTexRefGetBorderColor(p_border_color: Out<f32>, h_tex_ref: CUtexref) -> CUresult {
    static ENTRY: Entry = Entry::new("cuTexRefGetBorderColor");
    ENTRY.call(|driver| texture_reference::tex_ref_get_border_color(driver, p_border_color, h_tex_ref))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuTexRefGetFilterMode(pfm: Out<CUfilter_mode>, h_tex_ref: CUtexref) -> CUresult {
    static ENTRY: Entry = Entry::new("cuTexRefGetFilterMode");
    ENTRY.call(|driver| texture_reference::tex_ref_get_filter_mode(driver, pfm, h_tex_ref))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuTexRefGetFlags(p_flags: Out<u32>, h_tex_ref: CUtexref) -> CUresult {
    static ENTRY: Entry = Entry::new("cuTexRefGetFlags");
    ENTRY.call(|driver| texture_reference::tex_ref_get_flags(driver, p_flags, h_tex_ref))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuTexRefGetFormat(
    p_format: Out<CUarray_format>,
    p_num_channels: Out<i32>,
    h_tex_ref: CUtexref,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuTexRefGetFormat");
    ENTRY.call(|driver| texture_reference::tex_ref_get_format(driver, p_format, p_num_channels, h_tex_ref))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuTexRefGetMaxAnisotropy(pmax_aniso: Out<i32>, h_tex_ref: CUtexref) -> CUresult {
    static ENTRY: Entry = Entry::new("cuTexRefGetMaxAnisotropy");
    ENTRY.call(|driver| texture_reference::tex_ref_get_max_anisotropy(driver, pmax_aniso, h_tex_ref))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuTexRefGetMipmapFilterMode(pfm: Out<CUfilter_mode>, h_tex_ref: CUtexref) -> CUresult {
    static ENTRY: Entry = Entry::new("cuTexRefGetMipmapFilterMode");
    ENTRY.call(|driver| texture_reference::tex_ref_get_mipmap_filter_mode(driver, pfm, h_tex_ref))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuTexRefGetMipmapLevelBias(pbias: Out<f32>, h_tex_ref: CUtexref) -> CUresult {
    static ENTRY: Entry = Entry::new("cuTexRefGetMipmapLevelBias");
    ENTRY.call(|driver| texture_reference::tex_ref_get_mipmap_level_bias(driver, pbias, h_tex_ref))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuTexRefGetMipmapLevelClamp(
    pmin_mipmap_level_clamp: Out<f32>,
    pmax_mipmap_level_clamp: Out<f32>,
    h_tex_ref: CUtexref,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuTexRefGetMipmapLevelClamp");
    ENTRY.call(|driver| {
        texture_reference::tex_ref_get_mipmap_level_clamp(
            driver,
            pmin_mipmap_level_clamp,
            pmax_mipmap_level_clamp,
            h_tex_ref,
        )
    })
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuTexRefGetMipmappedArray(
    ph_mipmapped_array: Out<CUmipmappedArray>,
    h_tex_ref: CUtexref,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuTexRefGetMipmappedArray");
    ENTRY.call(|driver| texture_reference::tex_ref_get_mipmapped_array(driver, ph_mipmapped_array, h_tex_ref))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuTexRefSetAddress_v2(
    byte_offset: Out<usize>,
    h_tex_ref: CUtexref,
    dptr: CUdeviceptr,
    bytes: usize,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuTexRefSetAddress_v2");
    ENTRY.call(|driver| texture_reference::tex_ref_set_address(driver, byte_offset, h_tex_ref, dptr, bytes))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuTexRefSetAddress2D_v2(
    h_tex_ref: CUtexref,
    desc: In<CUDA_ARRAY_DESCRIPTOR>,
    dptr: CUdeviceptr,
    pitch: usize,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuTexRefSetAddress2D_v2");
    ENTRY.call(|driver| texture_reference::tex_ref_set_address_2d(driver, h_tex_ref, desc, dptr, pitch))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuTexRefSetAddress2D_v3(
    h_tex_ref: CUtexref,
    desc: In<CUDA_ARRAY_DESCRIPTOR>,
    dptr: CUdeviceptr,
    pitch: usize,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuTexRefSetAddress2D_v3");
    ENTRY.call(|driver| texture_reference::tex_ref_set_address_2d(driver, h_tex_ref, desc, dptr, pitch))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuTexRefSetAddressMode(h_tex_ref: CUtexref, dim: i32, am: CUaddress_mode) -> CUresult {
    static ENTRY: Entry = Entry::new("cuTexRefSetAddressMode");
    ENTRY.call(|driver| texture_reference::tex_ref_set_address_mode(driver, h_tex_ref, dim, am))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuTexRefSetArray(h_tex_ref: CUtexref, h_array: CUarray, flags: u32) -> CUresult {
    static ENTRY: Entry = Entry::new("cuTexRefSetArray");
    ENTRY.call(|driver| texture_reference::tex_ref_set_array(driver, h_tex_ref, h_array, flags))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuTexRefSetBorderColor(h_tex_ref: CUtexref, p_border_color: Out<f32>) -> CUresult {
    static ENTRY: Entry = Entry::new("cuTexRefSetBorderColor");
    ENTRY.call(|driver| texture_reference::tex_ref_set_border_color(driver, h_tex_ref, p_border_color))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuTexRefSetFilterMode(h_tex_ref: CUtexref, fm: CUfilter_mode) -> CUresult {
    static ENTRY: Entry = Entry::new("cuTexRefSetFilterMode");
    ENTRY.call(|driver| texture_reference::tex_ref_set_filter_mode(driver, h_tex_ref, fm))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuTexRefSetFlags(h_tex_ref: CUtexref, flags: u32) -> CUresult {
    static ENTRY: Entry = Entry::new("cuTexRefSetFlags");
    ENTRY.call(|driver| texture_reference::tex_ref_set_flags(driver, h_tex_ref, flags))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuTexRefSetFormat(
    h_tex_ref: CUtexref,
    fmt: CUarray_format,
    num_packed_components: i32,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuTexRefSetFormat");
    ENTRY.call(|driver| texture_reference::tex_ref_set_format(driver, h_tex_ref, fmt, num_packed_components))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuTexRefSetMaxAnisotropy(h_tex_ref: CUtexref, max_aniso: u32) -> CUresult {
    static ENTRY: Entry = Entry::new("cuTexRefSetMaxAnisotropy");
    ENTRY.call(|driver| texture_reference::tex_ref_set_max_anisotropy(driver, h_tex_ref, max_aniso))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuTexRefSetMipmapFilterMode(h_tex_ref: CUtexref, fm: CUfilter_mode) -> CUresult {
    static ENTRY: Entry = Entry::new("cuTexRefSetMipmapFilterMode");
    ENTRY.call(|driver| texture_reference::tex_ref_set_mipmap_filter_mode(driver, h_tex_ref, fm))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuTexRefSetMipmapLevelBias(h_tex_ref: CUtexref, bias: f32) -> CUresult {
    static ENTRY: Entry = Entry::new("cuTexRefSetMipmapLevelBias");
    ENTRY.call(|driver| texture_reference::tex_ref_set_mipmap_level_bias(driver, h_tex_ref, bias))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuTexRefSetMipmapLevelClamp(
    h_tex_ref: CUtexref,
    min_mipmap_level_clamp: f32,
    max_mipmap_level_clamp: f32,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuTexRefSetMipmapLevelClamp");
    ENTRY.call(|driver| {
        texture_reference::tex_ref_set_mipmap_level_clamp(
            driver,
            h_tex_ref,
            min_mipmap_level_clamp,
            max_mipmap_level_clamp,
        )
    })
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuTexRefSetMipmappedArray(
    h_tex_ref: CUtexref,
    h_mipmapped_array: CUmipmappedArray,
    flags: u32,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuTexRefSetMipmappedArray");
    ENTRY.call(|driver| texture_reference::tex_ref_set_mipmapped_array(driver, h_tex_ref, h_mipmapped_array, flags))
}
