//! Arrays, textures, surfaces, tensor maps: formats and descriptors.

open_enum! {
    CUarray_format: u32 {
        CU_AD_FORMAT_UNSIGNED_INT8 = 1;
        CU_AD_FORMAT_UNSIGNED_INT16 = 2;
        CU_AD_FORMAT_UNSIGNED_INT32 = 3;
        CU_AD_FORMAT_SIGNED_INT8 = 8;
        CU_AD_FORMAT_SIGNED_INT16 = 9;
        CU_AD_FORMAT_SIGNED_INT32 = 10;
        CU_AD_FORMAT_HALF = 16;
        CU_AD_FORMAT_FLOAT = 32;
        CU_AD_FORMAT_NV12 = 176;
        CU_AD_FORMAT_UNORM_INT8X1 = 192;
        CU_AD_FORMAT_UNORM_INT8X2 = 193;
        CU_AD_FORMAT_UNORM_INT8X4 = 194;
        CU_AD_FORMAT_UNORM_INT16X1 = 195;
        CU_AD_FORMAT_UNORM_INT16X2 = 196;
        CU_AD_FORMAT_UNORM_INT16X4 = 197;
        CU_AD_FORMAT_SNORM_INT8X1 = 198;
        CU_AD_FORMAT_SNORM_INT8X2 = 199;
        CU_AD_FORMAT_SNORM_INT8X4 = 200;
        CU_AD_FORMAT_SNORM_INT16X1 = 201;
        CU_AD_FORMAT_SNORM_INT16X2 = 202;
        CU_AD_FORMAT_SNORM_INT16X4 = 203;
        CU_AD_FORMAT_BC1_UNORM = 145;
        CU_AD_FORMAT_BC1_UNORM_SRGB = 146;
        CU_AD_FORMAT_BC2_UNORM = 147;
        CU_AD_FORMAT_BC2_UNORM_SRGB = 148;
        CU_AD_FORMAT_BC3_UNORM = 149;
        CU_AD_FORMAT_BC3_UNORM_SRGB = 150;
        CU_AD_FORMAT_BC4_UNORM = 151;
        CU_AD_FORMAT_BC4_SNORM = 152;
        CU_AD_FORMAT_BC5_UNORM = 153;
        CU_AD_FORMAT_BC5_SNORM = 154;
        CU_AD_FORMAT_BC6H_UF16 = 155;
        CU_AD_FORMAT_BC6H_SF16 = 156;
        CU_AD_FORMAT_BC7_UNORM = 157;
        CU_AD_FORMAT_BC7_UNORM_SRGB = 158;
        CU_AD_FORMAT_P010 = 159;
        CU_AD_FORMAT_P016 = 161;
        CU_AD_FORMAT_NV16 = 162;
        CU_AD_FORMAT_P210 = 163;
        CU_AD_FORMAT_P216 = 164;
        CU_AD_FORMAT_YUY2 = 165;
        CU_AD_FORMAT_Y210 = 166;
        CU_AD_FORMAT_Y216 = 167;
        CU_AD_FORMAT_AYUV = 168;
        CU_AD_FORMAT_Y410 = 169;
        CU_AD_FORMAT_Y416 = 177;
        CU_AD_FORMAT_Y444_PLANAR8 = 178;
        CU_AD_FORMAT_Y444_PLANAR10 = 179;
        CU_AD_FORMAT_YUV444_8bit_SemiPlanar = 180;
        CU_AD_FORMAT_YUV444_16bit_SemiPlanar = 181;
        CU_AD_FORMAT_UNORM_INT_101010_2 = 80;
        CU_AD_FORMAT_UINT8_PACKED_422 = 81;
        CU_AD_FORMAT_UINT8_PACKED_444 = 82;
        CU_AD_FORMAT_UINT8_SEMIPLANAR_420 = 83;
        CU_AD_FORMAT_UINT16_SEMIPLANAR_420 = 84;
        CU_AD_FORMAT_UINT8_SEMIPLANAR_422 = 85;
        CU_AD_FORMAT_UINT16_SEMIPLANAR_422 = 86;
        CU_AD_FORMAT_UINT8_SEMIPLANAR_444 = 87;
        CU_AD_FORMAT_UINT16_SEMIPLANAR_444 = 88;
        CU_AD_FORMAT_UINT8_PLANAR_420 = 89;
        CU_AD_FORMAT_UINT16_PLANAR_420 = 90;
        CU_AD_FORMAT_UINT8_PLANAR_422 = 91;
        CU_AD_FORMAT_UINT16_PLANAR_422 = 92;
        CU_AD_FORMAT_UINT8_PLANAR_444 = 93;
        CU_AD_FORMAT_UINT16_PLANAR_444 = 94;
    }
    CUaddress_mode: u32 {
        CU_TR_ADDRESS_MODE_WRAP = 0;
        CU_TR_ADDRESS_MODE_CLAMP = 1;
        CU_TR_ADDRESS_MODE_MIRROR = 2;
        CU_TR_ADDRESS_MODE_BORDER = 3;
    }
    CUfilter_mode: u32 {
        CU_TR_FILTER_MODE_POINT = 0;
        CU_TR_FILTER_MODE_LINEAR = 1;
    }
    CUarray_cubemap_face: u32 {
        CU_CUBEMAP_FACE_POSITIVE_X = 0;
        CU_CUBEMAP_FACE_NEGATIVE_X = 1;
        CU_CUBEMAP_FACE_POSITIVE_Y = 2;
        CU_CUBEMAP_FACE_NEGATIVE_Y = 3;
        CU_CUBEMAP_FACE_POSITIVE_Z = 4;
        CU_CUBEMAP_FACE_NEGATIVE_Z = 5;
    }
    CUresourcetype: u32 {
        CU_RESOURCE_TYPE_ARRAY = 0;
        CU_RESOURCE_TYPE_MIPMAPPED_ARRAY = 1;
        CU_RESOURCE_TYPE_LINEAR = 2;
        CU_RESOURCE_TYPE_PITCH2D = 3;
    }
    CUresourceViewFormat: u32 {
        CU_RES_VIEW_FORMAT_NONE = 0;
        CU_RES_VIEW_FORMAT_UINT_1X8 = 1;
        CU_RES_VIEW_FORMAT_UINT_2X8 = 2;
        CU_RES_VIEW_FORMAT_UINT_4X8 = 3;
        CU_RES_VIEW_FORMAT_SINT_1X8 = 4;
        CU_RES_VIEW_FORMAT_SINT_2X8 = 5;
        CU_RES_VIEW_FORMAT_SINT_4X8 = 6;
        CU_RES_VIEW_FORMAT_UINT_1X16 = 7;
        CU_RES_VIEW_FORMAT_UINT_2X16 = 8;
        CU_RES_VIEW_FORMAT_UINT_4X16 = 9;
        CU_RES_VIEW_FORMAT_SINT_1X16 = 10;
        CU_RES_VIEW_FORMAT_SINT_2X16 = 11;
        CU_RES_VIEW_FORMAT_SINT_4X16 = 12;
        CU_RES_VIEW_FORMAT_UINT_1X32 = 13;
        CU_RES_VIEW_FORMAT_UINT_2X32 = 14;
        CU_RES_VIEW_FORMAT_UINT_4X32 = 15;
        CU_RES_VIEW_FORMAT_SINT_1X32 = 16;
        CU_RES_VIEW_FORMAT_SINT_2X32 = 17;
        CU_RES_VIEW_FORMAT_SINT_4X32 = 18;
        CU_RES_VIEW_FORMAT_FLOAT_1X16 = 19;
        CU_RES_VIEW_FORMAT_FLOAT_2X16 = 20;
        CU_RES_VIEW_FORMAT_FLOAT_4X16 = 21;
        CU_RES_VIEW_FORMAT_FLOAT_1X32 = 22;
        CU_RES_VIEW_FORMAT_FLOAT_2X32 = 23;
        CU_RES_VIEW_FORMAT_FLOAT_4X32 = 24;
        CU_RES_VIEW_FORMAT_UNSIGNED_BC1 = 25;
        CU_RES_VIEW_FORMAT_UNSIGNED_BC2 = 26;
        CU_RES_VIEW_FORMAT_UNSIGNED_BC3 = 27;
        CU_RES_VIEW_FORMAT_UNSIGNED_BC4 = 28;
        CU_RES_VIEW_FORMAT_SIGNED_BC4 = 29;
        CU_RES_VIEW_FORMAT_UNSIGNED_BC5 = 30;
        CU_RES_VIEW_FORMAT_SIGNED_BC5 = 31;
        CU_RES_VIEW_FORMAT_UNSIGNED_BC6H = 32;
        CU_RES_VIEW_FORMAT_SIGNED_BC6H = 33;
        CU_RES_VIEW_FORMAT_UNSIGNED_BC7 = 34;
    }
    CUtensorMapDataType: u32 {
        CU_TENSOR_MAP_DATA_TYPE_UINT8 = 0;
        CU_TENSOR_MAP_DATA_TYPE_UINT16 = 1;
        CU_TENSOR_MAP_DATA_TYPE_UINT32 = 2;
        CU_TENSOR_MAP_DATA_TYPE_INT32 = 3;
        CU_TENSOR_MAP_DATA_TYPE_UINT64 = 4;
        CU_TENSOR_MAP_DATA_TYPE_INT64 = 5;
        CU_TENSOR_MAP_DATA_TYPE_FLOAT16 = 6;
        CU_TENSOR_MAP_DATA_TYPE_FLOAT32 = 7;
        CU_TENSOR_MAP_DATA_TYPE_FLOAT64 = 8;
        CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 = 9;
        CU_TENSOR_MAP_DATA_TYPE_FLOAT32_FTZ = 10;
        CU_TENSOR_MAP_DATA_TYPE_TFLOAT32 = 11;
        CU_TENSOR_MAP_DATA_TYPE_TFLOAT32_FTZ = 12;
        CU_TENSOR_MAP_DATA_TYPE_16U4_ALIGN8B = 13;
        CU_TENSOR_MAP_DATA_TYPE_16U4_ALIGN16B = 14;
        CU_TENSOR_MAP_DATA_TYPE_16U6_ALIGN16B = 15;
    }
    CUtensorMapInterleave: u32 {
        CU_TENSOR_MAP_INTERLEAVE_NONE = 0;
        CU_TENSOR_MAP_INTERLEAVE_16B = 1;
        CU_TENSOR_MAP_INTERLEAVE_32B = 2;
    }
    CUtensorMapSwizzle: u32 {
        CU_TENSOR_MAP_SWIZZLE_NONE = 0;
        CU_TENSOR_MAP_SWIZZLE_32B = 1;
        CU_TENSOR_MAP_SWIZZLE_64B = 2;
        CU_TENSOR_MAP_SWIZZLE_128B = 3;
        CU_TENSOR_MAP_SWIZZLE_128B_ATOM_32B = 4;
        CU_TENSOR_MAP_SWIZZLE_128B_ATOM_32B_FLIP_8B = 5;
        CU_TENSOR_MAP_SWIZZLE_128B_ATOM_64B = 6;
    }
    CUtensorMapL2promotion: u32 {
        CU_TENSOR_MAP_L2_PROMOTION_NONE = 0;
        CU_TENSOR_MAP_L2_PROMOTION_L2_64B = 1;
        CU_TENSOR_MAP_L2_PROMOTION_L2_128B = 2;
        CU_TENSOR_MAP_L2_PROMOTION_L2_256B = 3;
    }
    CUtensorMapFloatOOBfill: u32 {
        CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE = 0;
        CU_TENSOR_MAP_FLOAT_OOB_FILL_NAN_REQUEST_ZERO_FMA = 1;
    }
    CUtensorMapIm2ColWideMode: u32 {
        CU_TENSOR_MAP_IM2COL_WIDE_MODE_W = 0;
        CU_TENSOR_MAP_IM2COL_WIDE_MODE_W128 = 1;
    }
    CUtensorMapAllocClass: u32 {
        CU_TENSOR_MAP_ALLOC_CLASS_AUTO = 0;
        CU_TENSOR_MAP_ALLOC_CLASS_SMALL = 1;
        CU_TENSOR_MAP_ALLOC_CLASS_LARGE = 2;
    }
}

layout! {
    /// Shape of a one- or two-dimensional array.
    CUDA_ARRAY_DESCRIPTOR: 24 {
        0: width: usize,
        8: height: usize,
        16: format: CUarray_format,
        20: num_channels: u32,
    }
    /// Shape of an array.
    CUDA_ARRAY3D_DESCRIPTOR: 40 {
        0: width: usize,
        8: height: usize,
        16: depth: usize,
        24: format: CUarray_format,
        28: num_channels: u32,
        32: flags: u32,
    }
    /// `CUDA_ARRAY_MEMORY_REQUIREMENTS`.
    CUDA_ARRAY_MEMORY_REQUIREMENTS: 32 {
        0: size: usize,
        8: alignment: usize,
        16: reserved: [u32; 4],
    }
    /// `CUDA_ARRAY_SPARSE_PROPERTIES`.
    CUDA_ARRAY_SPARSE_PROPERTIES: 48 {
        0: tile_extent: [u32; 3],
        12: miptail_first_level: u32,
        16: miptail_size: u64,
        24: flags: u32,
        28: reserved: [u32; 4],
    }
    /// The memory behind a texture or surface object.
    CUDA_RESOURCE_DESC: 144 {
        0: res_type: CUresourcetype,
        8: value: [u64; 16],
        136: flags: u32,
    }
    /// How a texture object is sampled.
    CUDA_TEXTURE_DESC: 104 {
        0: address_mode: [CUaddress_mode; 3],
        12: filter_mode: CUfilter_mode,
        16: flags: u32,
        20: max_anisotropy: u32,
        24: mipmap_filter_mode: CUfilter_mode,
        28: mipmap_level_bias: f32,
        32: min_mipmap_level_clamp: f32,
        36: max_mipmap_level_clamp: f32,
        40: border_color: [f32; 4],
        56: reserved: [i32; 12],
    }
    /// How a texture object reinterprets its memory.
    CUDA_RESOURCE_VIEW_DESC: 112 {
        0: format: CUresourceViewFormat,
        8: width: usize,
        16: height: usize,
        24: depth: usize,
        32: first_mipmap_level: u32,
        36: last_mipmap_level: u32,
        40: first_layer: u32,
        44: last_layer: u32,
        48: reserved: [u32; 16],
    }
    /// An encoded tensor map; opaque.
    CUtensorMap: 128 {
        0: opaque: [u64; 16],
    }
}
