// The same steps on the CPU, one after the other: what the GPU's results are compared with.
#pragma once

#include "codec.h"

#include <climits>
#include <cstdlib>
#include <cstring>
#include <vector>

using Bytes = std::vector<uint8_t>;
using Words = std::vector<uint32_t>;

// A coded picture: its slices' words, and where each begins; one more offset is the end.
struct Coded {
    Words words, offsets;
};

namespace cpu {

inline void inverse(const int16_t* levels, const Steps& steps, int* block) {
    int in[8], out[8], square[8][8];
    for (int x = 0; x < 8; ++x) {
        for (int i = 0; i < 8; ++i) in[i] = dequantise(levels[RANK[i * 8 + x]], steps, i * 8 + x);
        inverse8(in, out, INVERSE_COLUMNS);
        for (int i = 0; i < 8; ++i) square[i][x] = out[i];
    }
    for (int y = 0; y < 8; ++y) inverse8(square[y], block + y * 8, INVERSE_ROWS);
}

inline void forward(const int* block, const Steps& steps, bool intra, int16_t* levels) {
    int in[8], out[8], square[8][8];
    for (int y = 0; y < 8; ++y) forward8(block + y * 8, square[y], FORWARD_ROWS);
    for (int x = 0; x < 8; ++x) {
        for (int i = 0; i < 8; ++i) in[i] = square[i][x];
        forward8(in, out, FORWARD_COLUMNS);
        for (int i = 0; i < 8; ++i) levels[RANK[i * 8 + x]] = int16_t(quantise(out[i], steps, i * 8 + x, intra));
    }
}

// The source's format: all blocks intra, around grey, with DC prediction; nothing between them.
inline Coded encode_source(const Bytes& picture, Size size, const Steps& steps) {
    Coded coded;
    std::vector<int16_t> levels(64);
    std::vector<uint32_t> words(SLICE * BLOCKS * 64 + 1);
    for (int slice = 0; slice < size.slices(); ++slice) {
        coded.offsets.push_back(uint32_t(coded.words.size()));
        int dc[3] = {0, 0, 0};
        Writer writer(words.data());
        for (int m = slice * SLICE; m < (slice + 1) * SLICE && m < size.macroblocks(); ++m) {
            for (int b = 0; b < BLOCKS; ++b) {
                Place at = place(size, m, b);
                int pitch = size.plane_pitch(at.plane), block[64];
                const uint8_t* from = picture.data() + size.plane(at.plane) + at.y * pitch + at.x;
                for (int i = 0; i < 64; ++i) block[i] = from[i / 8 * pitch + i % 8] - 128;
                forward(block, steps, true, levels.data());
                put_block(writer, levels.data(), &dc[at.plane]);
            }
        }
        writer.finish();
        coded.words.insert(coded.words.end(), words.data(), writer.words);
    }
    coded.offsets.push_back(uint32_t(coded.words.size()));
    return coded;
}

inline Bytes decode_source(const Coded& coded, Size size, const Steps& steps) {
    Bytes picture(size.bytes());
    for (int slice = 0; slice < size.slices(); ++slice) {
        uint32_t from = coded.offsets[slice];
        Reader in(coded.words.data() + from, int(coded.offsets[slice + 1] - from));
        int dc[3] = {0, 0, 0};
        for (int m = slice * SLICE; m < (slice + 1) * SLICE && m < size.macroblocks(); ++m) {
            for (int b = 0; b < BLOCKS; ++b) {
                Place at = place(size, m, b);
                int16_t levels[64] = {};
                int block[64], pitch = size.plane_pitch(at.plane);
                get_block(in, levels, &dc[at.plane]);
                inverse(levels, steps, block);
                uint8_t* to = picture.data() + size.plane(at.plane) + at.y * pitch + at.x;
                for (int i = 0; i < 64; ++i) to[i / 8 * pitch + i % 8] = uint8_t(clamp(block[i] + 128, 0, 255));
            }
        }
    }
    return picture;
}

// In the target's size and colours, with the halved luma behind.
inline Bytes convert(const Bytes& picture, Size from, Size to, const Colours& colours) {
    Bytes made(to.bytes());
    Scale planes[3] = {scale_of(picture.data(), from, to, 0), scale_of(picture.data(), from, to, 1),
                       scale_of(picture.data(), from, to, 2)};
    for (int y = 0; y < to.rows() / 2; ++y) {
        for (int x = 0; x < to.pitch() / 2; ++x) scale_four(planes, colours, made.data(), to, x, y);
    }
    return made;
}
inline void halve(Bytes& picture, Size size) {
    picture.resize(size.bytes() + size.luma() / 4);
    uint8_t* to = picture.data() + size.bytes();
    for (int y = 0; y < size.rows() / 2; ++y) {
        for (int x = 0; x < size.pitch() / 2; ++x) {
            const uint8_t* from = picture.data() + 2 * y * size.pitch() + 2 * x;
            *to++ = uint8_t((from[0] + from[1] + from[size.pitch()] + from[size.pitch() + 1] + 2) >> 2);
        }
    }
}

inline Motion search(const Bytes& picture, const Bytes& before, Size size, int macroblock) {
    int left = macroblock % size.across() * 16, top = macroblock / size.across() * 16;
    auto differences = [&](int part, int x, int y, int mx, int my) {
        int pitch = size.pitch() / part, rows = size.rows() / part, sum = 0;
        const uint8_t* a = picture.data() + (part == 1 ? 0 : size.bytes());
        const uint8_t* b = before.data() + (part == 1 ? 0 : size.bytes());
        for (int i = 0; i < 256 / part / part; ++i) {
            int ax = x + i % (16 / part), ay = y + i / (16 / part);
            sum += std::abs(a[ay * pitch + ax] - b[clamp(ay + my, 0, rows - 1) * pitch + clamp(ax + mx, 0, pitch - 1)]);
        }
        return sum;
    };
    int best = INT_MAX;
    for (int tried = 0; tried < TRIED * TRIED; ++tried) {
        int mx = tried % TRIED - REACH, my = tried / TRIED - REACH;
        int sum = differences(2, left / 2, top / 2, mx, my) + (std::abs(mx) + std::abs(my)) * MOVE_COST;
        if (sum * 256 + tried < best) best = sum * 256 + tried;
    }
    int cx = (best % 256 % TRIED - REACH) * 2, cy = (best % 256 / TRIED - REACH) * 2;
    int sums[9], found = 4, total = 0, spread = 0;
    for (int i = 0; i < 9; ++i) sums[i] = differences(1, left, top, cx + i % 3 - 1, cy + i / 3 - 1);
    for (int i = 0; i < 9; ++i) {
        if (sums[i] < sums[found]) found = i;
    }
    const uint8_t* own = picture.data() + top * size.pitch() + left;
    for (int i = 0; i < 256; ++i) total += own[i / 16 * size.pitch() + i % 16];
    for (int i = 0; i < 256; ++i) spread += std::abs(own[i / 16 * size.pitch() + i % 16] - total / 256);
    if (sums[found] > spread + INTRA_COST) return {0, 0, 1, 0};
    return {int8_t(cx + found % 3 - 1), int8_t(cy + found / 3 - 1), 0, 0};
}

// A picture, after `before` (empty: it is intra); `made` is what decoders will see.
inline Coded encode(const Bytes& picture, const Bytes& before, const Steps* steps, Size size, std::vector<Motion>& motion,
                    std::vector<int16_t>& levels, Bytes& made) {
    motion.assign(size.macroblocks(), {0, 0, 1, 0});
    levels.assign(size.levels(), 0);
    made.assign(size.bytes(), 0);
    for (int m = 0; m < size.macroblocks(); ++m) {
        if (!before.empty()) motion[m] = search(picture, before, size, m);
        for (int b = 0; b < BLOCKS; ++b) {
            Place at = place(size, m, b);
            int pitch = size.plane_pitch(at.plane), first = size.plane(at.plane) + at.y * pitch + at.x;
            int block[64], prediction[64];
            for (int i = 0; i < 64; ++i) {
                prediction[i] = predicted(before.data(), size, at.plane, at.x + i % 8, at.y + i / 8, motion[m]);
                block[i] = picture[first + i / 8 * pitch + i % 8] - prediction[i];
            }
            int16_t* its = levels.data() + (m * BLOCKS + b) * 64;
            forward(block, steps[motion[m].intra], motion[m].intra, its);
            inverse(its, steps[motion[m].intra], block);
            for (int i = 0; i < 64; ++i) {
                made[first + i / 8 * pitch + i % 8] = uint8_t(clamp(block[i] + prediction[i], 0, 255));
            }
        }
    }
    Coded coded;
    coded.offsets.push_back(0);
    for (int slice = 0; slice < size.slices(); ++slice) {
        Counter counter;
        put_slice(counter, size, slice, motion.data(), levels.data());
        coded.offsets.push_back(coded.offsets.back() + uint32_t(counter.finish()));
    }
    coded.words.resize(coded.offsets.back());
    for (int slice = 0; slice < size.slices(); ++slice) {
        Writer writer(coded.words.data() + coded.offsets[slice]);
        put_slice(writer, size, slice, motion.data(), levels.data());
    }
    return coded;
}

// Whether a decoder finds in the coded picture what the encoder put there.
inline bool can_be_decoded(const Coded& coded, Size size, const std::vector<Motion>& motion,
                           const std::vector<int16_t>& levels) {
    std::vector<Motion> found(size.macroblocks());
    std::vector<int16_t> found_levels(size.levels());
    for (int slice = 0; slice < size.slices(); ++slice) {
        uint32_t from = coded.offsets[slice];
        Reader in(coded.words.data() + from, int(coded.offsets[slice + 1] - from));
        if (!get_slice(in, size, slice, found.data(), found_levels.data())) return false;
    }
    return found_levels == levels && std::memcmp(found.data(), motion.data(), motion.size() * sizeof(Motion)) == 0;
}

// Of luma, dB.
inline double psnr(double squares, double samples) {
    return squares == 0 ? 99.0 : 10 * std::log10(255.0 * 255.0 * samples / squares);
}
inline double squares(const Bytes& a, const Bytes& b, Size size) {
    double sum = 0;
    for (int y = 0; y < size.h; ++y) {
        for (int x = 0; x < size.w; ++x) {
            double difference = a[y * size.pitch() + x] - b[y * size.pitch() + x];
            sum += difference * difference;
        }
    }
    return sum;
}

}  // namespace cpu
