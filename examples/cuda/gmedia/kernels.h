// The GPU's part: one kernel for each step from a coded picture of the source to a coded picture of the target.
#pragma once

#include "codec.h"

constexpr int SLICE_THREADS = 32;
// Transforms: eight threads for a block, each with a row, then a column of it.
constexpr int TOGETHER = 4;
constexpr dim3 TRANSFORM_THREADS(8, TOGETHER* BLOCKS);
constexpr dim3 SEARCH_THREADS(8, 8);

inline int groups(int all, int each) { return (all + each - 1) / each; }

// ---- Source to levels: a thread for each slice. `offsets`: of slices, and behind the last, in words. Levels are 0 before.
__global__ void decode_slices(const uint32_t* stream, const uint32_t* offsets, Size size, int16_t* levels, uint32_t* errors) {
    int slice = blockIdx.x * blockDim.x + threadIdx.x;
    if (slice >= size.slices()) return;
    Reader in(stream + offsets[slice], int(offsets[slice + 1] - offsets[slice]));
    int dc[3] = {0, 0, 0};
    int end = min((slice + 1) * SLICE, size.macroblocks());
    for (int macroblock = slice * SLICE; macroblock < end; ++macroblock) {
        for (int block = 0; block < BLOCKS; ++block) {
            get_block(in, levels + (macroblock * BLOCKS + block) * 64, &dc[block < 4 ? 0 : block - 3]);
        }
    }
    if (in.damaged) atomicAdd(errors, 1);
}

__device__ inline void store8(uint8_t* at, const int* samples) {
    uint32_t low = 0, high = 0;
    for (int i = 0; i < 4; ++i) {
        low |= uint32_t(clamp(samples[i], 0, 255)) << (8 * i);
        high |= uint32_t(clamp(samples[4 + i], 0, 255)) << (8 * i);
    }
    reinterpret_cast<uint32_t*>(at)[0] = low;
    reinterpret_cast<uint32_t*>(at)[1] = high;
}

// ---- Levels to a picture.
__global__ void reconstruct(const int16_t* levels, const Steps* steps, Size size, uint8_t* picture) {
    __shared__ int square[TOGETHER * BLOCKS][8][9];
    int line = threadIdx.x, slot = threadIdx.y;
    int macroblock = blockIdx.x * TOGETHER + slot / BLOCKS, block = slot % BLOCKS;
    bool there = macroblock < size.macroblocks();
    int values[8], out[8];
    if (there) {
        const int16_t* its = levels + (macroblock * BLOCKS + block) * 64;
        for (int i = 0; i < 8; ++i) values[i] = dequantise(its[rank_of(i * 8 + line)], *steps, i * 8 + line);
        inverse8(values, out, INVERSE_COLUMNS);
        for (int i = 0; i < 8; ++i) square[slot][i][line] = out[i];
    }
    __syncthreads();
    if (!there) return;
    for (int i = 0; i < 8; ++i) values[i] = square[slot][line][i];
    inverse8(values, out, INVERSE_ROWS);
    for (int i = 0; i < 8; ++i) out[i] += 128;
    Place at = place(size, macroblock, block);
    store8(picture + size.plane(at.plane) + (at.y + line) * size.plane_pitch(at.plane) + at.x, out);
}

// ---- The source's picture in the target's size and colours.
__global__ void convert(Scale y, Scale u, Scale v, Colours colours, uint8_t* to, Size size) {
    int across = size.pitch() / 2;
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= across * (size.rows() / 2)) return;
    Scale from[3] = {y, u, v};
    scale_four(from, colours, to, size, i % across, i / across);
}

// Its luma halved, behind it.
__global__ void halve(uint8_t* picture, Size size) {
    int across = size.pitch() / 2;
    int i = (blockIdx.x * blockDim.x + threadIdx.x) * 4;
    if (i >= across * (size.rows() / 2)) return;
    const uint8_t* upper = picture + i / across * 2 * size.pitch() + i % across * 2;
    uint32_t four = 0;
    for (int k = 0; k < 4; ++k, upper += 2) {
        four |= uint32_t((upper[0] + upper[1] + upper[size.pitch()] + upper[size.pitch() + 1] + 2) >> 2) << (8 * k);
    }
    *reinterpret_cast<uint32_t*>(picture + size.bytes() + i) = four;
}

__device__ inline uint32_t sad(int a, int b, uint32_t sum) { return sum + uint32_t(max(a, b) - min(a, b)); }

// ---- Motion: a group of threads for each macroblock, each of which tries a move; then each looks at some pixels for all nine.
__global__ void search(const uint8_t* picture, const uint8_t* before, Size size, Motion* motion) {
    constexpr int SIDE = 8 + TRIED, WHOLE = 18;
    __shared__ int own[16 * 16], window[WHOLE * WHOLE], sums[9][64];
    __shared__ int best, total, spread;
    int x = threadIdx.x, y = threadIdx.y, thread = y * 8 + x;
    int left = blockIdx.x % size.across() * 16, top = blockIdx.x / size.across() * 16, pitch = size.pitch();
    // Halved.
    const uint8_t *half = picture + size.bytes(), *half_before = before + size.bytes();
    int half_pitch = pitch / 2, half_rows = size.rows() / 2;
    for (int row = y; row < SIDE; row += 8) {
        const uint8_t* from = half_before + clamp(top / 2 - REACH + row, 0, half_rows - 1) * half_pitch;
        for (int i = x; i < SIDE; i += 8) window[row * SIDE + i] = from[clamp(left / 2 - REACH + i, 0, half_pitch - 1)];
    }
    own[thread] = half[(top / 2 + y) * half_pitch + left / 2 + x];
    if (thread == 0) best = INT32_MAX, total = 0, spread = 0;
    __syncthreads();
    uint32_t sum = uint32_t(absolute(x - REACH) + absolute(y - REACH)) * MOVE_COST;
    for (int row = 0; row < 8; ++row) {
        for (int i = 0; i < 8; ++i) sum = sad(own[row * 8 + i], window[(y + row) * SIDE + i + x], sum);
    }
    atomicMin(&best, int(sum) * 256 + thread);
    __syncthreads();
    int cx = (best % 256 % TRIED - REACH) * 2, cy = (best % 256 / TRIED - REACH) * 2;
    // Whole.
    for (int row = y; row < WHOLE; row += 8) {
        const uint8_t* from = before + clamp(top + cy - 1 + row, 0, size.rows() - 1) * pitch;
        for (int i = x; i < WHOLE; i += 8) window[row * WHOLE + i] = from[clamp(left + cx - 1 + i, 0, pitch - 1)];
    }
    int part = 0;
    for (int i = 0; i < 4; ++i) {
        int value = picture[(top + y + i / 2 * 8) * pitch + left + x + i % 2 * 8];
        own[(y + i / 2 * 8) * 16 + x + i % 2 * 8] = value;
        part += value;
    }
    atomicAdd(&total, part);
    __syncthreads();
    uint32_t uneven = 0;
    for (int tried = 0; tried < 9; ++tried) {
        uint32_t sum = 0;
        for (int i = 0; i < 4; ++i) {
            int px = x + i % 2 * 8, py = y + i / 2 * 8;
            sum = sad(own[py * 16 + px], window[(py + tried / 3) * WHOLE + tried % 3 + px], sum);
            if (tried == 0) uneven = sad(own[py * 16 + px], total / 256, uneven);
        }
        sums[tried][thread] = int(sum);
    }
    atomicAdd(&spread, int(uneven));
    __syncthreads();
    if (thread < 9) {
        int sum = 0;
        for (int i = 0; i < 64; ++i) sum += sums[thread][i];
        own[thread] = sum;
    }
    __syncthreads();
    if (thread == 0) {
        int found = 4;
        for (int tried = 0; tried < 9; ++tried) {
            if (own[tried] < own[found]) found = tried;
        }
        Motion moved = {int8_t(cx + found % 3 - 1), int8_t(cy + found / 3 - 1), 0, 0};
        if (own[found] > spread + INTRA_COST) moved = {0, 0, 1, 0};
        motion[blockIdx.x] = moved;
    }
}

// All intra.
__global__ void no_motion(Size size, Motion* motion) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < size.macroblocks()) motion[i] = {0, 0, 1, 0};
}

// ---- A picture to levels, and to what a decoder will make of them. `steps`: of inter, and of intra.
__global__ void encode(const uint8_t* picture, const uint8_t* before, const Motion* motion, const Steps* steps, Size size,
                       int16_t* levels, uint8_t* made) {
    __shared__ int square[TOGETHER * BLOCKS][8][9];
    int line = threadIdx.x, slot = threadIdx.y;
    int macroblock = blockIdx.x * TOGETHER + slot / BLOCKS, block = slot % BLOCKS;
    bool there = macroblock < size.macroblocks();
    Motion moved = {};
    Place at = {};
    int values[8], out[8], prediction[8], row = 0;
    if (there) {
        moved = motion[macroblock];
        at = place(size, macroblock, block);
        row = size.plane(at.plane) + (at.y + line) * size.plane_pitch(at.plane) + at.x;
        for (int i = 0; i < 8; ++i) {
            prediction[i] = predicted(before, size, at.plane, at.x + i, at.y + line, moved);
            values[i] = picture[row + i] - prediction[i];
        }
        forward8(values, out, FORWARD_ROWS);
        for (int i = 0; i < 8; ++i) square[slot][line][i] = out[i];
    }
    __syncthreads();
    if (there) {
        for (int i = 0; i < 8; ++i) values[i] = square[slot][i][line];
        forward8(values, out, FORWARD_COLUMNS);
        int16_t* its = levels + (macroblock * BLOCKS + block) * 64;
        const Steps& its_steps = steps[moved.intra];
        for (int i = 0; i < 8; ++i) {
            int level = quantise(out[i], its_steps, i * 8 + line, moved.intra);
            its[rank_of(i * 8 + line)] = int16_t(level);
            values[i] = dequantise(level, its_steps, i * 8 + line);
        }
        inverse8(values, out, INVERSE_COLUMNS);
        for (int i = 0; i < 8; ++i) square[slot][i][line] = out[i];
    }
    __syncthreads();
    if (!there) return;
    for (int i = 0; i < 8; ++i) values[i] = square[slot][line][i];
    inverse8(values, out, INVERSE_ROWS);
    for (int i = 0; i < 8; ++i) out[i] += prediction[i];
    store8(made + row, out);
}

// ---- Levels to bits: first how many words each slice takes, then the words, each slice at its offset.
__global__ void measure_slices(const Motion* motion, const int16_t* levels, Size size, uint32_t* words) {
    int slice = blockIdx.x * blockDim.x + threadIdx.x;
    if (slice >= size.slices()) return;
    Counter counter;
    put_slice(counter, size, slice, motion, levels);
    words[slice] = uint32_t(counter.finish());
}
__global__ void write_slices(const Motion* motion, const int16_t* levels, Size size, const uint32_t* offsets, uint32_t* stream) {
    int slice = blockIdx.x * blockDim.x + threadIdx.x;
    if (slice >= size.slices()) return;
    Writer writer(stream + offsets[slice]);
    put_slice(writer, size, slice, motion, levels);
}

// Adds the squared differences of two pictures' luma: each group of threads a row.
__global__ void compare(const uint8_t* a, const uint8_t* b, Size size, unsigned long long* sum) {
    __shared__ uint32_t of_row;
    if (threadIdx.x == 0) of_row = 0;
    __syncthreads();
    uint32_t own = 0;
    int row = blockIdx.x * size.pitch();
    for (int x = threadIdx.x; x < size.w; x += blockDim.x) {
        int difference = a[row + x] - b[row + x];
        own += uint32_t(difference * difference);
    }
    atomicAdd(&of_row, own);
    __syncthreads();
    if (threadIdx.x == 0) atomicAdd(sum, of_row);
}

// ---- Churn: every page of a surface, which is a copy of the one before, has that one's number, and gets its own.
__global__ void number_pages(uint32_t* surface, int pages, uint32_t number, uint32_t* errors) {
    int page = blockIdx.x * blockDim.x + threadIdx.x;
    if (page >= pages) return;
    uint32_t* first = surface + page * 1024;
    if (first[0] != number - 1 || first[1] != uint32_t(page)) atomicAdd(errors, 1);
    first[0] = number;
}
__global__ void first_number(uint32_t* surface, int pages, uint32_t number) {
    int page = blockIdx.x * blockDim.x + threadIdx.x;
    if (page >= pages) return;
    surface[page * 1024] = number;
    surface[page * 1024 + 1] = uint32_t(page);
}
