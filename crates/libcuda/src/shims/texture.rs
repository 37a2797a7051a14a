//! Exported functions implemented by `calls::texture`. Made by `cargo xtask gen` from `crates/cuda_abi/functions.txt`.

use cuda_abi::{CUDA_RESOURCE_DESC, CUDA_RESOURCE_VIEW_DESC, CUDA_TEXTURE_DESC, CUresult, CUsurfObject, CUtexObject};

use crate::calls::texture;
use crate::decode::{In, Out};
use crate::entry::Entry;

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuSurfObjectCreate(
    p_surf_object: Out<CUsurfObject>,
    p_res_desc: In<CUDA_RESOURCE_DESC>,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuSurfObjectCreate");
    ENTRY.call(|driver| texture::surf_object_create(driver, p_surf_object, p_res_desc))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuSurfObjectDestroy(surf_object: CUsurfObject) -> CUresult {
    static ENTRY: Entry = Entry::new("cuSurfObjectDestroy");
    ENTRY.call(|driver| texture::surf_object_destroy(driver, surf_object))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuSurfObjectGetResourceDesc(
    p_res_desc: Out<CUDA_RESOURCE_DESC>,
    surf_object: CUsurfObject,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuSurfObjectGetResourceDesc");
    ENTRY.call(|driver| texture::surf_object_get_resource_desc(driver, p_res_desc, surf_object))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuTexObjectCreate(
    p_tex_object: Out<CUtexObject>,
    p_res_desc: In<CUDA_RESOURCE_DESC>,
    p_tex_desc: In<CUDA_TEXTURE_DESC>,
    p_res_view_desc: In<CUDA_RESOURCE_VIEW_DESC>,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuTexObjectCreate");
    ENTRY.call(|driver| texture::tex_object_create(driver, p_tex_object, p_res_desc, p_tex_desc, p_res_view_desc))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuTexObjectDestroy(tex_object: CUtexObject) -> CUresult {
    static ENTRY: Entry = Entry::new("cuTexObjectDestroy");
    ENTRY.call(|driver| texture::tex_object_destroy(driver, tex_object))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuTexObjectGetResourceDesc(
    p_res_desc: Out<CUDA_RESOURCE_DESC>,
    tex_object: CUtexObject,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuTexObjectGetResourceDesc");
    ENTRY.call(|driver| texture::tex_object_get_resource_desc(driver, p_res_desc, tex_object))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuTexObjectGetResourceViewDesc(
    p_res_view_desc: Out<CUDA_RESOURCE_VIEW_DESC>,
    tex_object: CUtexObject,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuTexObjectGetResourceViewDesc");
    ENTRY.call(|driver| texture::tex_object_get_resource_view_desc(driver, p_res_view_desc, tex_object))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuTexObjectGetTextureDesc(
    p_tex_desc: Out<CUDA_TEXTURE_DESC>,
    tex_object: CUtexObject,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuTexObjectGetTextureDesc");
    ENTRY.call(|driver| texture::tex_object_get_texture_desc(driver, p_tex_desc, tex_object))
}
