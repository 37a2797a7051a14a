// What encoder and decoder do to samples and bits, once for the GPU and for the CPU: all of it in integers, so that both get
// the same, bit by bit.
//
// A picture is 4:2:0, each plane padded to whole macroblocks of 16x16 pixels: Y, then U, then V. A macroblock has six blocks of
// 8x8 samples, four of Y, then U and V. A block's 64 levels (quantised coefficients) are kept in the order in which they are
// coded, from low to high frequencies (`SCAN`). `SLICE` macroblocks in a row of coding are a slice, which is coded on its own:
// what the GPU's threads share among them.
//
// A stream of bits is a sequence of 32-bit words, the first bit the highest of the first. Numbers are Exp-Golomb codes: `ue` of
// natural numbers, `se` of integers (0, 1, -1, 2, -2, ...). A block is: with DC prediction, `se` of the difference to the last
// DC level of its plane in this slice; then, for each level that is not 0, `ue` of 1 + the number of zeros before it, and `se`
// of it; then `ue` of 0.
#pragma once

#include <cstdint>

#define HD __host__ __device__ inline

constexpr int BLOCKS = 6, SLICE = 8, MAX_LEVEL = 8191;

struct Size {
    int w = 0, h = 0;
    HD int pitch() const { return (w + 15) / 16 * 16; }
    HD int rows() const { return (h + 15) / 16 * 16; }
    HD int across() const { return pitch() / 16; }
    HD int macroblocks() const { return across() * (rows() / 16); }
    HD int slices() const { return (macroblocks() + SLICE - 1) / SLICE; }
    HD int luma() const { return pitch() * rows(); }
    HD int bytes() const { return luma() * 3 / 2; }
    HD int levels() const { return macroblocks() * BLOCKS * 64; }
    // Offset, pitch and rows of a plane.
    HD int plane(int p) const { return p == 0 ? 0 : p == 1 ? luma() : luma() * 5 / 4; }
    HD int plane_pitch(int p) const { return p == 0 ? pitch() : pitch() / 2; }
    HD int plane_rows(int p) const { return p == 0 ? rows() : rows() / 2; }
};

// Where a block of a macroblock lies.
struct Place {
    int plane, x, y;
};
HD Place place(Size size, int macroblock, int block) {
    int x = macroblock % size.across(), y = macroblock / size.across();
    if (block < 4) return {0, x * 16 + block % 2 * 8, y * 16 + block / 2 * 8};
    return {block - 3, x * 8, y * 8};
}

HD int clamp(int value, int low, int high) { return value < low ? low : value > high ? high : value; }

// ---- Transform: that of HEVC (ITU-T H.265, 8.6.4.2), whose coefficients are sixteen times those of an orthonormal DCT.

HD void forward8(const int* in, int* out, int shift) {
    int round = 1 << (shift - 1);
    int a = in[0] + in[7], b = in[1] + in[6], c = in[2] + in[5], d = in[3] + in[4];
    int e = in[0] - in[7], f = in[1] - in[6], g = in[2] - in[5], h = in[3] - in[4];
    out[0] = (64 * (a + b + c + d) + round) >> shift;
    out[4] = (64 * (a - b - c + d) + round) >> shift;
    out[2] = (83 * (a - d) + 36 * (b - c) + round) >> shift;
    out[6] = (36 * (a - d) - 83 * (b - c) + round) >> shift;
    out[1] = (89 * e + 75 * f + 50 * g + 18 * h + round) >> shift;
    out[3] = (75 * e - 18 * f - 89 * g - 50 * h + round) >> shift;
    out[5] = (50 * e - 89 * f + 18 * g + 75 * h + round) >> shift;
    out[7] = (18 * e - 50 * f + 75 * g - 89 * h + round) >> shift;
}

HD void inverse8(const int* in, int* out, int shift) {
    int round = 1 << (shift - 1);
    int a = 64 * (in[0] + in[4]), b = 64 * (in[0] - in[4]), c = 83 * in[2] + 36 * in[6], d = 36 * in[2] - 83 * in[6];
    int even[4] = {a + c + round, b + d + round, b - d + round, a - c + round};
    int odd[4] = {89 * in[1] + 75 * in[3] + 50 * in[5] + 18 * in[7], 75 * in[1] - 18 * in[3] - 89 * in[5] - 50 * in[7],
                  50 * in[1] - 89 * in[3] + 18 * in[5] + 75 * in[7], 18 * in[1] - 50 * in[3] + 75 * in[5] - 89 * in[7]};
    for (int i = 0; i < 4; ++i) {
        out[i] = (even[i] + odd[i]) >> shift;
        out[7 - i] = (even[i] - odd[i]) >> shift;
    }
}

constexpr int FORWARD_ROWS = 2, FORWARD_COLUMNS = 9, INVERSE_COLUMNS = 7, INVERSE_ROWS = 12;

// ---- Quantisation.

// For one quantiser: by position in a block (row by row), the step, and 65536 divided by it.
struct Steps {
    uint32_t step[64], reciprocal[64];
};
// Finer for what the eye sees better; those of inter-coded blocks are all the same.
inline Steps steps_of(int quantiser, bool intra) {
    // Doubles with every six, as in H.264; in coefficients' units.
    static const int base[6] = {64, 72, 81, 91, 102, 114};
    Steps steps;
    for (int i = 0; i < 64; ++i) {
        int weight = intra ? 12 + 2 * (i / 8 + i % 8) : 16;
        uint32_t step = uint32_t(weight * (base[quantiser % 6] << (quantiser / 6)) / 16);
        steps.step[i] = step;
        steps.reciprocal[i] = 65536 / step;
    }
    return steps;
}
constexpr int LAST_QUANTISER = 47;

HD int quantise(int coefficient, const Steps& steps, int at, bool intra) {
    uint32_t magnitude = uint32_t(coefficient < 0 ? -coefficient : coefficient);
    // Rounded down more often than up: what is hardly there costs bits.
    int level = int((magnitude * steps.reciprocal[at] + (intra ? 21845u : 10922u)) >> 16);
    if (level > MAX_LEVEL) level = MAX_LEVEL;
    return coefficient < 0 ? -level : level;
}
HD int dequantise(int level, const Steps& steps, int at) { return clamp(level * int(steps.step[at]), -32768, 32767); }

// ---- The order of coding: zigzag. `RANK` is its inverse.

#define SCAN_VALUES                                                                                                    \
    {0,  1,  8,  16, 9,  2,  3,  10, 17, 24, 32, 25, 18, 11, 4,  5,  12, 19, 26, 33, 40, 48, 41, 34, 27, 20, 13, 6,    \
     7,  14, 21, 28, 35, 42, 49, 56, 57, 50, 43, 36, 29, 22, 15, 23, 30, 37, 44, 51, 58, 59, 52, 45, 38, 31, 39, 46,   \
     53, 60, 61, 54, 47, 55, 62, 63}
#define RANK_VALUES                                                                                                    \
    {0,  1,  5,  6,  14, 15, 27, 28, 2,  4,  7,  13, 16, 26, 29, 42, 3,  8,  12, 17, 25, 30, 41, 43, 9,  11, 18, 24,   \
     31, 40, 44, 53, 10, 19, 23, 32, 39, 45, 52, 54, 20, 22, 33, 38, 46, 51, 55, 60, 21, 34, 37, 47, 50, 56, 59, 61,   \
     35, 36, 48, 49, 57, 58, 62, 63}
static const uint8_t RANK[64] = RANK_VALUES;
__constant__ uint8_t RANK_GPU[64] = RANK_VALUES;
HD int rank_of(int at) {
#ifdef __CUDA_ARCH__
    return RANK_GPU[at];
#else
    return RANK[at];
#endif
}

HD int leading_zeros(uint32_t bits) {
#ifdef __CUDA_ARCH__
    return __clz(int(bits));
#else
    return bits == 0 ? 32 : __builtin_clz(bits);
#endif
}

// ---- Bits.

// Reads `words` words; behind the end there are zeros, which are no number.
struct Reader {
    const uint32_t* words;
    int left;
    uint64_t bits = 0;
    int have = 0;
    bool damaged = false;

    HD Reader(const uint32_t* at, int count) : words(at), left(count) {}

    HD uint32_t ue() {
        if (have < 32) {
            uint32_t next = 0;
            if (left > 0) next = *words++, --left;
            bits |= uint64_t(next) << (32 - have);
            have += 32;
        }
        int zeros = leading_zeros(uint32_t(bits >> 32));
        if (zeros > 15) {
            damaged = true;
            return 0;
        }
        int length = 2 * zeros + 1;
        uint32_t value = uint32_t(bits >> (64 - length)) - 1;
        bits <<= length;
        have -= length;
        return value;
    }
    HD int se() {
        uint32_t value = ue();
        return value % 2 == 1 ? int(value / 2 + 1) : -int(value / 2);
    }
};

// Counts bits.
struct Counter {
    int bits = 0;
    HD void put(uint32_t, int length) { bits += length; }
    HD int finish() const { return (bits + 31) / 32; }
};

// Writes them.
struct Writer {
    uint32_t* words;
    uint64_t bits = 0;
    int have = 0;

    HD explicit Writer(uint32_t* at) : words(at) {}
    HD void put(uint32_t value, int length) {
        have += length;
        bits |= uint64_t(value) << (64 - have);
        if (have >= 32) {
            *words++ = uint32_t(bits >> 32);
            bits <<= 32;
            have -= 32;
        }
    }
    HD void finish() {
        if (have > 0) *words++ = uint32_t(bits >> 32);
    }
};

template <typename Bits>
HD void put_ue(Bits& out, uint32_t value) {
    out.put(value + 1, 2 * (31 - leading_zeros(value + 1)) + 1);
}
template <typename Bits>
HD void put_se(Bits& out, int value) {
    put_ue(out, value > 0 ? uint32_t(2 * value - 1) : uint32_t(-2 * value));
}

// A block's levels; those of the DC predicted from `dc`, if there is one.
template <typename Bits>
HD void put_block(Bits& out, const int16_t* levels, int* dc) {
    int at = 0;
    uint32_t run = 0;
    if (dc != nullptr) {
        put_se(out, levels[0] - *dc);
        *dc = levels[0];
        at = 1;
    }
    for (; at < 64; ++at) {
        int level = levels[at];
        ++run;
        if (level == 0) continue;
        put_ue(out, run);
        put_se(out, level);
        run = 0;
    }
    put_ue(out, 0);
}

// The same back; `levels` are 0 before.
HD void get_block(Reader& in, int16_t* levels, int* dc) {
    int at = -1;
    if (dc != nullptr) {
        *dc += in.se();
        levels[0] = int16_t(*dc);
        at = 0;
    }
    while (!in.damaged) {
        uint32_t run = in.ue();
        if (run == 0) return;
        at += int(run);
        int level = in.se();
        if (at > 63) {
            in.damaged = true;
            return;
        }
        levels[at] = int16_t(level);
    }
}

// How a macroblock is predicted: by the picture before, moved; or, intra, by grey.
struct Motion {
    int8_t x, y;
    int8_t intra, none;
};

// A slice of the target's: for each macroblock `ue` of its kind (0 nothing but motion, 1 differences to the prediction, 2
// intra); unless it is intra, `se` of its motion's difference to that before in the slice, across and down; its blocks, unless
// the kind is 0.
template <typename Bits>
HD void put_slice(Bits& out, Size size, int slice, const Motion* motion, const int16_t* levels) {
    int dc[3] = {0, 0, 0}, x = 0, y = 0;
    int end = (slice + 1) * SLICE < size.macroblocks() ? (slice + 1) * SLICE : size.macroblocks();
    for (int macroblock = slice * SLICE; macroblock < end; ++macroblock) {
        const int16_t* its = levels + macroblock * BLOCKS * 64;
        Motion moved = motion[macroblock];
        uint32_t kind = 2;
        if (!moved.intra) {
            uint64_t any = 0;
            const uint64_t* four = reinterpret_cast<const uint64_t*>(its);
            for (int i = 0; i < BLOCKS * 16 && any == 0; ++i) any = four[i];
            kind = any != 0 ? 1 : 0;
        }
        put_ue(out, kind);
        if (kind != 2) {
            put_se(out, moved.x - x);
            put_se(out, moved.y - y);
            x = moved.x, y = moved.y;
        }
        for (int block = 0; block < BLOCKS && kind != 0; ++block) {
            put_block(out, its + block * 64, kind == 2 ? &dc[block < 4 ? 0 : block - 3] : nullptr);
        }
    }
    out.finish();
}

// The same back; false for what is no slice.
inline bool get_slice(Reader in, Size size, int slice, Motion* motion, int16_t* levels) {
    int dc[3] = {0, 0, 0}, x = 0, y = 0;
    for (int macroblock = slice * SLICE; macroblock < (slice + 1) * SLICE && macroblock < size.macroblocks(); ++macroblock) {
        uint32_t kind = in.ue();
        if (kind > 2) return false;
        if (kind != 2) {
            x += in.se();
            y += in.se();
        }
        motion[macroblock] = kind == 2 ? Motion{0, 0, 1, 0} : Motion{int8_t(x), int8_t(y), 0, 0};
        for (int block = 0; block < BLOCKS && kind != 0; ++block) {
            int16_t* its = levels + (macroblock * BLOCKS + block) * 64;
            get_block(in, its, kind == 2 ? &dc[block < 4 ? 0 : block - 3] : nullptr);
        }
        if (in.damaged) return false;
    }
    return true;
}

// ---- Scaling and colours.

// Full-range BT.601, in which the source is coded, to the target's: 14 fractional bits.
struct Colours {
    int y[3], u[3], v[3];
};

// Bilinear scaling of a plane, as fixed-point numbers of 16 bits: source position of the target's sample 0, and of each more.
struct Scale {
    int first_x, step_x, first_y, step_y, last_x, last_y, pitch;
    const uint8_t* plane;
};
inline Scale scale_of(const uint8_t* picture, Size from, Size to, int plane) {
    int part = plane == 0 ? 1 : 2;
    Scale scale;
    scale.step_x = int((int64_t(from.w) << 16) / to.w);
    scale.step_y = int((int64_t(from.h) << 16) / to.h);
    scale.first_x = scale.step_x / 2 - 32768;
    scale.first_y = scale.step_y / 2 - 32768;
    scale.last_x = from.w / part - 1;
    scale.last_y = from.h / part - 1;
    scale.pitch = from.plane_pitch(plane);
    scale.plane = picture + from.plane(plane);
    return scale;
}

HD int sample(const Scale& from, int x, int y) {
    int sx = clamp(from.first_x + x * from.step_x, 0, from.last_x << 16);
    int sy = clamp(from.first_y + y * from.step_y, 0, from.last_y << 16);
    int fx = (sx >> 8) & 255, fy = (sy >> 8) & 255;
    int x0 = sx >> 16, y0 = sy >> 16;
    int x1 = x0 < from.last_x ? x0 + 1 : x0, y1 = y0 < from.last_y ? y0 + 1 : y0;
    const uint8_t *upper = from.plane + y0 * from.pitch, *lower = from.plane + y1 * from.pitch;
    int above = upper[x0] * (256 - fx) + upper[x1] * fx, below = lower[x0] * (256 - fx) + lower[x1] * fx;
    return (above * (256 - fy) + below * fy + 32768) >> 16;
}

HD uint8_t mixed(const int* by, int offset, int y, int u, int v) {
    return uint8_t(clamp((by[0] * y + by[1] * (u - 128) + by[2] * (v - 128) + (offset << 14) + 8192) >> 14, 0, 255));
}

// Two by two pixels of the target, at (2x, 2y).
HD void scale_four(const Scale* from, const Colours& colours, uint8_t* to, Size size, int x, int y) {
    int u = sample(from[1], x, y), v = sample(from[2], x, y);
    int pitch = size.pitch();
    uint8_t* at = to + 2 * y * pitch + 2 * x;
    for (int i = 0; i < 4; ++i) {
        at[i / 2 * pitch + i % 2] = mixed(colours.y, 16, sample(from[0], 2 * x + i % 2, 2 * y + i / 2), u, v);
    }
    int luma = sample(from[0], 2 * x, 2 * y);
    to[size.plane(1) + y * (pitch / 2) + x] = mixed(colours.u, 128, luma, u, v);
    to[size.plane(2) + y * (pitch / 2) + x] = mixed(colours.v, 128, luma, u, v);
}

// ---- Motion.

// In the halved picture all moves from -REACH to REACH - 1, then, where it is whole, one pixel around the best.
constexpr int REACH = 4, TRIED = 2 * REACH;
// A longer move costs bits: it must be better by so much a step.
constexpr int MOVE_COST = 4;
// And moving must be so much worse than a macroblock is uneven for it to be coded without.
constexpr int INTRA_COST = 1024;

HD int absolute(int value) { return value < 0 ? -value : value; }

// Sample of the prediction of plane `p`, whose picture goes on at its edges as it ends there.
HD int predicted(const uint8_t* before, Size size, int p, int x, int y, Motion motion) {
    if (motion.intra) return 128;
    int mx = p == 0 ? motion.x : motion.x / 2, my = p == 0 ? motion.y : motion.y / 2;
    int pitch = size.plane_pitch(p);
    return before[size.plane(p) + clamp(y + my, 0, size.plane_rows(p) - 1) * pitch + clamp(x + mx, 0, pitch - 1)];
}
